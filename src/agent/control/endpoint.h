// Where the nodes of a job meet: the coordinator's endpoint, which has the same name on all nodes, and the ports at
// which the ranks of this node are reached. Names are looked up only here; after that, addresses are numeric.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/runtime_folder.h"
#include "base/socket/tcp_socket.h"
#include "base/status.h"
#include "brain/table/rank_table.h"

namespace keepstep::agent {

// A numeric IPv4 or IPv6 address as the rank table stores it, and the way back. INVALID_ARGUMENT for anything else.
StatusOr<brain::Address> address_from_text(const std::string& ip);
std::string text_of(const brain::Address& address);

// The numeric addresses of a name (or of a numeric address), in the resolver's order. NOT_FOUND with the resolver's
// reason.
StatusOr<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port);

// The first address of `host` that belongs to this machine. FAILED_PRECONDITION if none does; its message begins with
// `who_must` ("node 0 must run where --rdzv-endpoint points").
StatusOr<SocketAddress> own_address(const std::string& host, uint16_t port, const std::string& who_must);

// Claims to be node 0 of the endpoint `own`, among this user's launchers on this machine. The name is not held if
// another launcher has it.
StatusOr<HeldName> claim_endpoint(const SocketAddress& own);

// Waits for one of `signals` (blocked by the caller). Returns its number, or 0 after `wait`.
int signal_within(const sigset_t& signals, std::chrono::milliseconds wait);

// How this node reaches the coordinator.
struct Route {
  SocketAddress coordinator;
  std::string local_ip;  // of this node on that route
};
// Tries to connect until somebody accepts. DEADLINE_EXCEEDED after `timeout`; it names the addresses tried, what they
// answered, and for how long. CANCELLED when one of `signals` (blocked by the caller) arrives; `got` is its number.
StatusOr<Route> find_route(const std::string& host, uint16_t port, std::chrono::milliseconds timeout,
                           const sigset_t& signals, int& got);

// TCP ports reserved for MASTER_PORT after those of the local ranks. Generations take turns.
inline constexpr uint32_t kMasterPorts = 4;

// Consecutive ports of a node, held as long as this value lives, whatever happens to the workers.
struct NodePorts {
  uint16_t base = 0;
  std::vector<Fd> listeners;  // of local rank i at base + i; non-blocking
  std::vector<Fd> reserved;   // after those: bound, so nobody else gets them, but not listening
};
// RESOURCE_EXHAUSTED if `ip` has too few consecutive free ports; another error if it is not an address of this machine.
StatusOr<NodePorts> open_ports(const std::string& ip, uint32_t listeners, uint32_t reserved);

}  // namespace keepstep::agent
