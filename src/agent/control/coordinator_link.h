// The agent's end of the connection to the coordinator: events up, effects down.
//
// One link is one connection. Once lost it stays lost, and the agent decides whether to reconnect. The link keeps the
// rank tables it received and rebuilds whole tables from the differences that follow, so `brain::Prepare` always has
// one.
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
  // All are called on the link's thread, one at a time and in order, from about when connect() returns (perhaps a
  // little before) until close() returns. They must not block, because signs of life wait meanwhile; slow work belongs
  // on another thread. They may call send(), but not close().
  using OnEffect = std::function<void(brain::Effect)>;
  using OnLost = std::function<void(std::string why)>;  // at most once, after the last effect; not because of close()
  using OnRouted = std::function<void(brain::NodeId from, std::string message)>;  // from another agent's route()

  // Connects, and proves the key both ways. Blocks up to `timeout`, also while the coordinator is not up yet.
  // UNAUTHENTICATED: the other side has another key. DEADLINE_EXCEEDED: no answer. ALREADY_EXISTS: an agent of that
  // node is connected. `address`: as Coordinator::address() returns it.
  // With proto::kAnyNode as `node` it only asks for a number, which node() then returns and which is reserved for us
  // while this link is open. RESOURCE_EXHAUSTED: all numbers are taken; the message says by whom.
  // `tls`: of SharedKey::control(); the same for all tries.
  static StatusOr<std::unique_ptr<CoordinatorLink>> connect(const std::string& address, brain::NodeId node,
                                                            const std::string& node_name,
                                                            const std::shared_ptr<const net::TlsContext>& tls,
                                                            const OnEffect& on_effect, const OnLost& on_lost,
                                                            std::chrono::milliseconds timeout,
                                                            const OnRouted& on_routed = nullptr);
  ~CoordinatorLink();  // close()

  // Any thread. Keeps the order of events; never blocks. Events are dropped once the connection is lost or closed.
  void send(const brain::Event& event);

  // Any thread; never blocks. Sends a message to the agent of another node, or of this one, through the coordinator.
  // Messages from one agent to another stay in order. A message is lost silently if that agent is not connected.
  // RESOURCE_EXHAUSTED: longer than 3 MiB.
  Status route(brain::NodeId to, std::string message);

  // Our number, given to connect() or assigned by the coordinator.
  brain::NodeId node() const;
  // The coordinator's term, from its welcome.
  uint32_t term() const;
  // What the keys of the connections between ranks are derived from (net/shared_key.h), from its welcome.
  const std::string& data_secret() const;
  // Whether ranks protect traffic between nodes by MACs only, from its welcome.
  bool plain_data() const;

  // Bytes of all received messages, without the overhead of TLS records.
  uint64_t received_bytes() const;

  // Sends what is queued (for up to a second) and ends the connection. Idempotent.
  void close();
  // Ends the connection as if it broke: the job loses this node, and its ranks go to another. Idempotent.
  void abandon();

 private:
  class Impl;
  explicit CoordinatorLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::agent
