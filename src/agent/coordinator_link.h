// The agent's end of the stream to the coordinator: events up, effects down.
//
// One link is one stream: when it is lost it stays lost, and the agent decides whether to connect anew. It keeps the
// rank tables that came, and makes whole tables of the differences that follow; `brain::Prepare` always has one.
// Wire format: docs/design/wire_control.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/token.h"
#include "brain/membership.h"

namespace keepstep::agent {

class CoordinatorLink {
 public:
  // Both are called on gRPC's threads, one at a time, in order; from about when connect() returns (perhaps a little
  // before) until close() returns. They must not block, for other streams share those threads: hand on what takes time.
  // They may call send(), not close().
  using OnEffect = std::function<void(brain::Effect)>;
  using OnLost = std::function<void(std::string why)>;  // at most once, after the last effect; not because of close()
  using OnRouted = std::function<void(brain::NodeId from, std::string message)>;  // what another agent's route() sent

  // Connects and authenticates, both ways; blocks up to `timeout`, also for a coordinator that is not up yet.
  // UNAUTHENTICATED: one side refused the other's token. DEADLINE_EXCEEDED: nobody answered. ALREADY_EXISTS: an agent
  // of that node is connected. `address` as Coordinator::address() gives it.
  // `node` proto::kAnyNode: asks for a number, which node() then tells and which is kept for us as long as this link is
  // open; it does nothing else. RESOURCE_EXHAUSTED: all numbers are taken, and by whom.
  static StatusOr<std::unique_ptr<CoordinatorLink>> connect(std::string address, brain::NodeId node,
                                                            const std::string& node_name, const JobToken& token,
                                                            OnEffect on_effect, OnLost on_lost,
                                                            std::chrono::milliseconds timeout,
                                                            OnRouted on_routed = nullptr);
  ~CoordinatorLink();  // close()

  // Any thread; in order; never blocks. What is sent while a message is under way goes out as one message after it.
  // After the stream is lost or closed events are dropped.
  void send(const brain::Event& event);

  // Any thread; never blocks. A message for the agent of another node, or of this one, through the coordinator; in
  // order from one agent to another. Lost without a word if that agent does not attend. RESOURCE_EXHAUSTED: longer than
  // 3 MiB.
  Status route(brain::NodeId to, std::string message);

  // Our number, as given or as asked for.
  brain::NodeId node() const;
  // The coordinator's term, from its welcome.
  uint32_t term() const;

  // Bytes of all messages that came, without gRPC's frames.
  uint64_t received_bytes() const;

  // Sends what is queued (for up to a second) and ends the stream. Idempotent.
  void close();
  // Ends the stream as if it broke: the node is lost to the job, and what it had is given to another. Idempotent.
  void abandon();

 private:
  class Impl;
  explicit CoordinatorLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::agent
