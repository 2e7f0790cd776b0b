#include "rank/checks/loopback_check.h"

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/engine_thread.h"
#include "base/shared_memory.h"
#include "base/socket/tcp_socket.h"
#include "comm/communicator.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport.h"

namespace keepstep::rank {
namespace {

constexpr uint32_t kRanks = 2;
constexpr comm::CommConfig kConfig{
    .max_world = kRanks, .groups = 1, .slot_bytes = 64 << 10, .group_slot_bytes = 4096, .ring_bytes = 16 << 10};
// More than one chunk of a slot and, with TCP, several stripes; whole numbers, so every sum is exact.
constexpr size_t kNumbers = 40'000;
constexpr size_t kMessageBytes = 50'000;  // more than a ring

float number_of(uint32_t rank, size_t i) { return static_cast<float>((i * 31 + rank * 17) % 4099); }
std::byte byte_of(uint32_t rank, size_t i) { return static_cast<std::byte>((i * 7 + rank * 101) % 251); }

struct Plane {
  std::atomic<uint32_t> interrupted{0};
  SharedMemory memory;
  std::string secret = net::SharedKey::random_data_secret();
  std::vector<SocketAddress> addresses;  // empty: shared memory is used
  std::array<Fd, kRanks> listeners;
};

comm::Endpoint endpoint_of(Plane& plane, uint32_t self) {
  const bool tcp = !plane.addresses.empty();
  comm::Endpoint endpoint{.self = self, .interrupted = &plane.interrupted};
  std::byte* const arenas = plane.memory.data() + kRanks * comm::generation_bytes(kConfig);
  endpoint.generation = plane.memory.data() + (tcp ? self : 0) * comm::generation_bytes(kConfig);
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    endpoint.arenas.push_back(tcp && rank != self ? nullptr : arenas + rank * comm::arena_bytes(kConfig));
    if (tcp) {
      endpoint.nodes.push_back(rank);
    }
  }
  if (tcp) {
    comm::TcpConfig config{.identity = {1, 1},
                           .self = self,
                           .addresses = plane.addresses,
                           .key = *net::SharedKey::data_of(plane.secret, 1, 1),
                           .stripe_bytes = 32 << 10};
    endpoint.transport = comm::make_tcp_transport(std::move(config), std::move(plane.listeners[self]));
  }
  return endpoint;
}

Status outcome(const comm::Completion& completion, const char* what) {
  if (completion.outcome == comm::Outcome::kDone) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrFormat("%s: %s", what, completion.error));
}

Status exchange(comm::Communicator& comm, uint32_t self, int64_t limit_ns) {
  std::vector<float> numbers(kNumbers);
  for (size_t i = 0; i < kNumbers; ++i) {
    numbers[i] = number_of(self, i);
  }
  KEEPSTEP_RETURN_IF_ERROR(outcome(comm.wait(comm.all_reduce(comm::kWorld, numbers.data(), kNumbers,
                                                             comm::DataType::kFloat32, comm::ReduceOp::kSum, limit_ns)),
                                   "all_reduce"));
  for (size_t i = 0; i < kNumbers; ++i) {
    const float right = number_of(0, i) + number_of(1, i);
    if (numbers[i] != right) {
      return absl::InternalError(absl::StrFormat("all_reduce: number %d is %g, %g is right", i, numbers[i], right));
    }
  }
  const uint32_t peer = 1 - self;
  std::vector<std::byte> sent(kMessageBytes);
  std::vector<std::byte> received(kMessageBytes);
  for (size_t i = 0; i < kMessageBytes; ++i) {
    sent[i] = byte_of(self, i);
  }
  const comm::OpId receive = comm.receive(comm::kWorld, received.data(), received.size(), peer, 0, limit_ns);
  KEEPSTEP_RETURN_IF_ERROR(
      outcome(comm.wait(comm.send(comm::kWorld, sent.data(), sent.size(), peer, 0, limit_ns)), "send"));
  KEEPSTEP_RETURN_IF_ERROR(outcome(comm.wait(receive), "receive"));
  for (size_t i = 0; i < kMessageBytes; ++i) {
    if (received[i] != byte_of(peer, i)) {
      return absl::InternalError(absl::StrFormat("a message: byte %d is wrong", i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Status check_loopback(const LoopbackCheck& check) {
  Plane plane;
  const size_t bytes = kRanks * (comm::generation_bytes(kConfig) + comm::arena_bytes(kConfig));
  KEEPSTEP_ASSIGN_OR_RETURN(plane.memory, SharedMemory::create("keepstep-check", bytes));
  for (uint32_t rank = 0; check.tcp && rank < kRanks; ++rank) {
    KEEPSTEP_ASSIGN_OR_RETURN(plane.listeners[rank], listen_tcp({check.address, 0}));
    KEEPSTEP_ASSIGN_OR_RETURN(SocketAddress address, local_address(plane.listeners[rank].get()));
    plane.addresses.push_back(std::move(address));
  }
  // Make all before starting a thread: each is destroyed only when no rank needs the other any more.
  std::array<std::unique_ptr<comm::Communicator>, kRanks> ranks;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks[rank] = std::make_unique<comm::Communicator>(kConfig, endpoint_of(plane, rank));
  }
  Status there;
  std::thread other = start_engine_thread("ks-check", [&] { there = exchange(*ranks[1], 1, check.limit_ns); });
  Status here = exchange(*ranks[0], 0, check.limit_ns);
  other.join();
  if (!here.ok() || !there.ok()) {
    plane.interrupted.store(1);  // ends what one of them still has in progress
    for (uint32_t region = 0; region < kRanks; ++region) {
      comm::wake_all(kConfig, plane.memory.data() + region * comm::generation_bytes(kConfig));
    }
  }
  return here.ok() ? there : here;
}

}  // namespace keepstep::rank
