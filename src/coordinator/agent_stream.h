// One agent's stream as the coordinator sees it: handshake, then events in and effects out, until one side ends it. Or
// that of a user's command: handshake, one question, its answer.
//
// A gRPC reactor that reads and writes raw messages, so that a malformed one can be told from a lost connection. gRPC
// calls the On... functions on its own threads; send(), finish() and expire() may come from any thread.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/token.h"
#include "brain/membership.h"
#include "proto/control.pb.h"
#include "proto/handshake.h"

namespace keepstep::coordinator {

class AgentStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using Clock = std::chrono::steady_clock;

  // What the stream tells the coordinator, on gRPC's threads. Must not call the stream back from within.
  class Owner {
   public:
    virtual ~Owner() = default;
    // The peer proved the token. Empty: it may attend; else why not: its node is connected already, and who that is.
    virtual std::string admit(AgentStream* stream) = 0;
    // The peer proved the token and asks for a number: one that is its own until unseat(). RESOURCE_EXHAUSTED: none is
    // left, and who has them.
    virtual StatusOr<brain::NodeId> seat(AgentStream* stream) = 0;
    virtual void unseat(AgentStream* stream) = 0;
    // The peer proved the token and is a user's command. RESOURCE_EXHAUSTED: too many are there.
    virtual Status let_in(AgentStream* stream) = 0;
    // What it asks, once; answer() is to follow. UNAVAILABLE: nobody answers (yet, or any more).
    virtual Status asked(AgentStream* stream, const std::string& request) = 0;
    // Its welcome is on the way; what follows comes after that.
    virtual void attends(AgentStream* stream) = 0;
    virtual void received(std::vector<brain::Event> events) = 0;
    // The agent holds the rank table of `generation`; 0: of none (any more).
    virtual void holds_table(const AgentStream& stream, uint32_t generation) = 0;
    // A message for the agent of another node.
    virtual void routed(const AgentStream& from, const control::Routed& message) = 0;
    virtual void dropped_stale(const AgentStream& stream, brain::Identity identity) = 0;
    virtual void refused(const AgentStream& stream, const std::string& why) = 0;
    // No more events will come: the node may attend anew. `lost`: it did not say goodbye; why, else empty.
    virtual void left(AgentStream* stream, const std::string& lost) = 0;
    // The very last call: gRPC is done with the stream, which may be destroyed. `why` is empty if it never attended
    // or was refused.
    virtual void ended(AgentStream* stream, const std::string& why) = 0;
  };

  AgentStream(grpc::CallbackServerContext* context, Owner* owner, const JobToken& token, uint32_t term,
              Clock::time_point handshake_deadline);

  // Queues a message (a control::FromCoordinator's bytes) for the agent; dropped once the stream is over.
  void send(grpc::ByteBuffer message);
  void send(const control::FromCoordinator& message);
  // Sends what is queued, then ends the stream with `status`.
  void finish(grpc::Status status);
  // To a command: sends `text`, of at most kMaxAnswerBytes, and ends the stream.
  void answer(const std::string& text);
  // Ends the stream if its handshake is not done at `now` though its deadline passed.
  void expire(Clock::time_point now);

  // Of an admitted stream.
  brain::NodeId node() const { return handshake_.node; }
  const std::string& node_name() const { return handshake_.node_name; }
  const std::string& peer() const { return peer_; }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  enum class Phase { kHello, kProof, kSeated, kCommand, kAttending, kOver };

  void handle(const control::FromAgent& message);
  void on_hello(const control::FromAgent& message);
  void on_proof(const control::FromAgent& message);
  void take_seat();
  void let_command_in();
  void on_command(const control::FromAgent& message);
  void on_attending(const control::FromAgent& message);
  void refuse(grpc::StatusCode code, const std::string& why);
  void read_ended();
  Phase phase() const;
  void pump();  // with the mutex held: starts the next write, or the finish

  grpc::CallbackServerContext* const context_;
  Owner* const owner_;
  const JobToken& token_;
  const std::string peer_;
  const Clock::time_point handshake_deadline_;
  proto::Handshake handshake_;  // written before admission only, by the one read reaction that runs at a time
  uint32_t table_ = 0;          // what the agent said it holds; the read reactions' own
  grpc::ByteBuffer in_;         // owned by the read under way

  mutable std::mutex mutex_;
  Phase phase_ = Phase::kHello;  // kOver is final
  bool admitted_ = false;
  bool seated_ = false;   // it got a number, and will attend by another stream
  bool command_ = false;  // it is one, and was let in
  bool asked_ = false;    // it did
  bool refused_ = false;
  bool said_goodbye_ = false;
  bool writing_ = false;
  bool finished_ = false;  // Finish was called: no further operation may start
  bool done_ = false;
  std::deque<grpc::ByteBuffer> queue_;
  size_t queued_bytes_ = 0;
  grpc::ByteBuffer out_;  // owned by the write under way
  std::optional<grpc::Status> finish_;
};

}  // namespace keepstep::coordinator
