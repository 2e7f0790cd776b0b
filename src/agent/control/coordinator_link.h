// The agent's end of the connection to the coordinator: events up, effects down.
//
// One link is one connection: when it is lost it stays lost, and the agent decides whether to connect anew. It keeps
// the rank tables that came, and makes whole tables of the differences that follow; `brain::Prepare` always has one.
// Wire format: docs/formats/wire_control.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "brain/membership/membership_messages.h"
#include "net/tls_context.h"

namespace keepstep::agent {

class CoordinatorLink {
 public:
  // All are called on the link's thread, one at a time, in order; from about when connect() returns (perhaps a little
  // before) until close() returns. They must not block, for signs of life wait meanwhile: hand on what takes time. They
  // may call send(), not close().
  using OnEffect = std::function<void(brain::Effect)>;
  using OnLost = std::function<void(std::string why)>;  // at most once, after the last effect; not because of close()
  using OnRouted = std::function<void(brain::NodeId from, std::string message)>;  // what another agent's route() sent

  // Connects, and proves the key both ways; blocks up to `timeout`, also for a coordinator that is not up yet.
  // UNAUTHENTICATED: the other side has another key. DEADLINE_EXCEEDED: nobody answered. ALREADY_EXISTS: an agent of
  // that node is connected. `address` as Coordinator::address() gives it.
  // `node` proto::kAnyNode: asks for a number, which node() then tells and which is kept for us as long as this link is
  // open; it does nothing else. RESOURCE_EXHAUSTED: all numbers are taken, and by whom.
  // `tls`: of SharedKey::control(); the same for all tries.
  static StatusOr<std::unique_ptr<CoordinatorLink>> connect(const std::string& address, brain::NodeId node,
                                                            const std::string& node_name,
                                                            const std::shared_ptr<const net::TlsContext>& tls,
                                                            const OnEffect& on_effect, const OnLost& on_lost,
                                                            std::chrono::milliseconds timeout,
                                                            const OnRouted& on_routed = nullptr);
  ~CoordinatorLink();  // close()

  // Any thread; in order; never blocks.
  // After the connection is lost or closed events are dropped.
  void send(const brain::Event& event);

  // Any thread; never blocks. A message for the agent of another node, or of this one, through the coordinator; in
  // order from one agent to another. Lost without a word if that agent does not attend. RESOURCE_EXHAUSTED: longer than
  // 3 MiB.
  Status route(brain::NodeId to, std::string message);

  // Our number, as given or as asked for.
  brain::NodeId node() const;
  // The coordinator's term, from its welcome.
  uint32_t term() const;
  // What the keys of the connections between ranks are derived from (net/shared_key.h), from its welcome.
  const std::string& data_secret() const;
  // Whether ranks protect what they say to other nodes by MACs only, from its welcome.
  bool plain_data() const;

  // Bytes of all messages that came, without TLS' records.
  uint64_t received_bytes() const;

  // Sends what is queued (for up to a second) and ends the connection. Idempotent.
  void close();
  // Ends the connection as if it broke: the node is lost to the job, and what it had is given to another. Idempotent.
  void abandon();

 private:
  class Impl;
  explicit CoordinatorLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::agent
