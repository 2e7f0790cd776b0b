// One agent's connection as the coordinator sees it: greeting and hello, then events in and effects out, until one side
// ends it. Or that of a user's command: greeting, hello, one question, its answer.
//
// Whoever comes here has proved the job's key already (src/net/). The hub's thread calls received() and closed();
// send(), finish(), answer() and expire() may come from any thread.
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

  // What the stream tells the coordinator, on the hub's thread, or on that of whoever called the stream. Must not call
  // the stream back from within.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Empty: the agent may attend; else why not: its node is connected already, and who that is.
    virtual std::string admit(AgentStream* stream) = 0;
    // The peer asks for a number: one that is its own until give_back(). RESOURCE_EXHAUSTED: none is left, and who has
    // them.
    virtual StatusOr<brain::NodeId> seat(AgentStream* stream) = 0;
    // The peer is a user's command, with a place until give_back(). RESOURCE_EXHAUSTED: too many are there.
    virtual Status let_in(AgentStream* stream) = 0;
    // Of a number or a command's place, or of none. More than once.
    virtual void give_back(AgentStream* stream) = 0;
    // What it asks, once; answer() is to follow. UNAVAILABLE: nobody answers (yet, or any more).
    virtual Status asked(AgentStream* stream, const std::string& request) = 0;
    // Its welcome is on the way; what follows comes after that.
    virtual void attends(AgentStream* stream) = 0;
    virtual void received(brain::Event event) = 0;
    // The agent holds the rank table of `generation`; 0: of none (any more).
    virtual void holds_table(const AgentStream& stream, uint32_t generation) = 0;
    // A message for the agent of another node.
    virtual void routed(const AgentStream& from, const control::Routed& message) = 0;
    virtual void dropped_stale(const AgentStream& stream, brain::Identity identity) = 0;
    virtual void refused(const AgentStream& stream, const std::string& why) = 0;
    // No more events will come: the node may attend anew. `lost`: it did not say goodbye; why, else empty.
    virtual void left(AgentStream* stream, const std::string& lost) = 0;
    // The very last call: the stream may be destroyed. `why` is empty if it never attended or was refused.
    virtual void ended(AgentStream* stream, const std::string& why) = 0;
  };

  // Takes over what `link`, which is not started yet, brings.
  // `welcome`: what every agent hears.
  AgentStream(std::shared_ptr<net::Link> link, Owner* owner, uint32_t term, control::Welcome welcome,
              Clock::time_point hello_deadline);

  // Queues a message for the agent: a control::FromCoordinator's bytes, in one part or two; dropped once the stream is
  // over.
  void send(std::string head, net::SharedBytes tail = nullptr);
  void send(const control::FromCoordinator& message);
  // Sends what is queued, then ends the stream with a last word.
  void finish(absl::StatusCode code, const std::string& why);
  // To a command: sends `text`, of at most kMaxAnswerBytes, and ends the stream.
  void answer(const std::string& text);
  // Ends the stream if its hello, or its question, has not come at `now` though its deadline passed.
  void expire(Clock::time_point now);

  // Of an admitted stream.
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
  // Written before admission only, by the hub's thread.
  std::string greeted_as_;
  std::atomic<brain::NodeId> node_ = 0;
  std::string node_name_;
  uint32_t table_ = 0;  // what the agent said it holds; the hub's thread's own

  mutable std::mutex mutex_;
  Phase phase_ = Phase::kGreeting;  // kOver is final
  bool admitted_ = false;
  bool asked_ = false;  // a command: its question
  bool refused_ = false;
  bool said_goodbye_ = false;
};

}  // namespace keepstep::coordinator
