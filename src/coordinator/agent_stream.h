// One agent's connection to the coordinator: greeting and hello, then events in and effects out, until one side ends
// it. Or a user's command: greeting, hello, one question, its answer.
//
// Every peer here has already proved the job's key (src/net/). The hub's thread calls received() and closed(); send(),
// finish(), answer() and expire() may be called from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "brain/membership/membership_messages.h"
#include "net/hub.h"
#include "proto/control.pb.h"
#include "proto/peers.h"

namespace keepstep::coordinator {

class AgentStream final : public net::Receiver {
 public:
  using Clock = std::chrono::steady_clock;

  // How the stream notifies the coordinator, on the hub's thread or on the thread that called the stream. Must not call
  // back into the stream.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Empty: the agent may attend; else why not: its node is already connected, and from where.
    virtual std::string admit(AgentStream* stream) = 0;
    // The peer asks for a node number, which it holds until give_back(). RESOURCE_EXHAUSTED: none is left; names the
    // holders.
    virtual StatusOr<brain::NodeId> seat(AgentStream* stream) = 0;
    // The peer is a user's command, which holds a place until give_back(). RESOURCE_EXHAUSTED: there are too many.
    virtual Status let_in(AgentStream* stream) = 0;
    // Returns a number or a command's place; does nothing if the stream holds none. May be repeated.
    virtual void give_back(AgentStream* stream) = 0;
    // The command's question, sent once; answer() must follow. UNAVAILABLE: nobody answers (yet, or any more).
    virtual Status asked(AgentStream* stream, const std::string& request) = 0;
    // Its welcome has been queued; later messages follow it.
    virtual void attends(AgentStream* stream) = 0;
    virtual void received(brain::Event event) = 0;
    // The agent holds the rank table of `generation`; 0: it holds none (any more).
    virtual void holds_table(const AgentStream& stream, uint32_t generation) = 0;
    // A message for the agent of another node.
    virtual void routed(const AgentStream& from, const control::Routed& message) = 0;
    virtual void dropped_stale(const AgentStream& stream, brain::Identity identity) = 0;
    virtual void refused(const AgentStream& stream, const std::string& why) = 0;
    // No more events follow: the node may attend again. `lost`: why, if the agent did not say goodbye; otherwise empty.
    virtual void left(AgentStream* stream, const std::string& lost) = 0;
    // The very last call: the stream may then be destroyed. `why` is empty if it never attended or was refused.
    virtual void ended(AgentStream* stream, const std::string& why) = 0;
  };

  // Takes over `link`, which has not been started yet. `welcome`: sent to every agent.
  AgentStream(std::shared_ptr<net::Link> link, Owner* owner, uint32_t term, control::Welcome welcome,
              Clock::time_point hello_deadline);

  // Queues a message for the agent: the bytes of a control::FromCoordinator, in one part or two; dropped if the stream
  // is over.
  void send(std::string head, net::SharedBytes tail = nullptr);
  void send(const control::FromCoordinator& message);
  // Sends what is queued, then ends the stream with a last message.
  void finish(absl::StatusCode code, const std::string& why);
  // For a command: sends `text`, of at most kMaxAnswerBytes, and ends the stream.
  void answer(const std::string& text);
  // Ends the stream if its hello, or its question, has not arrived by `now` although its deadline has passed.
  void expire(Clock::time_point now);

  // For an admitted stream.
  brain::NodeId node() const { return node_.load(); }
  const std::string& node_name() const { return node_name_; }
  const std::string& peer() const { return link_->peer(); }

  void received(std::string message) override;
  void closed(const Status& why) override;

 private:
  enum class Phase { kGreeting, kHello, kSeated, kCommand, kAttending, kOver };

  void on_greeting(const std::string& bytes);
  void on_hello(const control::FromAgent& message);
  void admit();
  void take_seat();
  void let_command_in();
  void on_command(const control::FromAgent& message);
  void on_attending(const control::FromAgent& message);
  void refuse(absl::StatusCode code, const std::string& why);
  void send_last_word(absl::StatusCode code, const std::string& why);
  Phase phase() const;
  std::string welcome(brain::NodeId node) const;

  const std::shared_ptr<net::Link> link_;
  Owner* const owner_;
  const uint32_t term_;
  const control::Welcome welcome_;
  const Clock::time_point hello_deadline_;
  // Written only before admission, by the hub's thread.
  std::string greeted_as_;
  std::atomic<brain::NodeId> node_ = 0;
  std::string node_name_;
  uint32_t table_ = 0;  // the table that the agent reported; used by the hub's thread only

  mutable std::mutex mutex_;
  Phase phase_ = Phase::kGreeting;  // kOver is final
  bool admitted_ = false;
  bool asked_ = false;  // for a command: its question came
  bool refused_ = false;
  bool said_goodbye_ = false;
};

}  // namespace keepstep::coordinator
