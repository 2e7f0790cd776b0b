// keepstep_nodes_bench: ranks on several nodes, over TCP, timed. One process per node; `keepstep bench transport`
// starts them, in network namespaces of one machine. Rank 0 (all_reduce) or the last rank prints a JSON object.
//
//   keepstep_nodes_bench NODE RANKS_PER_NODE STREAMS OPERATION BYTES REPEATS ADDRESS...
//
// OPERATION: all_reduce (float32); stream (REPEATS parts of BYTES from rank 0 to the last rank, always into the same
// buffer, as iperf3 does); or messages (the same with send and receive). ADDRESS: IP:PORT of each rank. Environment:
// DATA_KEY is the data plane's key, as 64 hex digits; SOCKET_BUFFER_BYTES sets the size of the kernel's buffers (0: the
// system tunes it); PLAIN=1 protects frames with MACs instead of TLS.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/bench.h"
#include "base/socket/tcp_socket.h"
#include "comm/communicator.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport.h"

namespace keepstep::comm {
namespace {

struct Setup {
  uint32_t node;
  uint32_t ranks_per_node;
  uint32_t streams;
  std::string operation;
  size_t bytes;
  size_t repeats;
  std::vector<SocketAddress> addresses;
};

void expect_done(Communicator& comm, OpId op) {
  const Completion completion = comm.wait(op);
  comm.forget(op);
  if (completion.outcome != Outcome::kDone) {
    fail(completion.error);
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Measures from the last rank's arrival (at a barrier) to this rank's result.
void all_reduce(Communicator& comm, const Setup& setup, Rank self) {
  std::vector<float> data(setup.bytes / sizeof(float), static_cast<float>(self + 1));
  expect_done(comm, comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum));
  const auto ranks = static_cast<float>(setup.addresses.size());
  if (std::any_of(data.begin(), data.end(), [&](float value) { return value != ranks * (ranks + 1) / 2; })) {
    fail("a sum is wrong");
  }
  std::vector<double> seconds;
  for (size_t i = 0; i < setup.repeats + 2; ++i) {
    expect_done(comm, comm.barrier(kWorld));
    const int64_t begin_ns = monotonic_ns();
    expect_done(comm, comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kMax));
    if (i >= 2) {  // the first ones make connections and touch memory
      seconds.push_back(seconds_of(monotonic_ns() - begin_ns));
    }
  }
  if (self == 0) {
    std::printf("{\"seconds\": %.9f, \"fastest\": %.9f}\n", median(seconds),
                *std::min_element(seconds.begin(), seconds.end()));
  }
}

void stream(Communicator& comm, Transport& transport, const Setup& setup, Rank self) {
  constexpr uint64_t kContext = ~uint64_t{0};
  const std::unique_ptr<Parts> parts = transport.open_parts(kContext);
  const auto last = static_cast<Rank>(setup.addresses.size() - 1);
  std::vector<std::byte> buffer(setup.bytes, std::byte{1});
  const std::atomic<uint64_t> given_up = 0;
  constexpr size_t kAhead = 4;
  const auto run = [&](uint64_t operation, size_t repeats) {
    expect_done(comm, comm.barrier(kWorld));
    PartRequest requests[kAhead];
    const int64_t begin_ns = monotonic_ns();
    for (size_t i = 0; i < repeats + kAhead && (self == 0 || self == last); ++i) {
      PartRequest& request = requests[i % kAhead];
      if (i >= kAhead && parts->wait(request, begin_ns + 60'000'000'000, given_up) != Waited::kDone) {
        fail("the stream broke");
      }
      if (i < repeats) {
        const PartKey key{kContext, operation, static_cast<uint32_t>(i)};
        self == 0 ? parts->send(request, last, key, buffer) : parts->receive(request, 0, key, buffer);
      }
    }
    const double seconds = seconds_of(monotonic_ns() - begin_ns);
    expect_done(comm, comm.barrier(kWorld));
    return seconds;
  };
  run(1, kAhead);  // makes the connection
  const double seconds = run(2, setup.repeats);
  if (self == last) {
    std::printf("{\"bytes_per_second\": %.0f}\n", static_cast<double>(setup.bytes * setup.repeats) / seconds);
  }
}

void messages(Communicator& comm, const Setup& setup, Rank self) {
  const auto last = static_cast<Rank>(setup.addresses.size() - 1);
  std::vector<std::byte> buffer(setup.bytes, std::byte{1});
  constexpr size_t kAhead = 8;
  const auto run = [&](size_t repeats) {
    expect_done(comm, comm.barrier(kWorld));
    OpId ops[kAhead] = {};
    const int64_t begin_ns = monotonic_ns();
    for (size_t i = 0; i < repeats + kAhead && (self == 0 || self == last); ++i) {
      OpId& op = ops[i % kAhead];
      if (i >= kAhead) {
        expect_done(comm, op);
      }
      if (i < repeats) {
        op = self == 0 ? comm.send(kWorld, buffer.data(), buffer.size(), last, 1)
                       : comm.receive(kWorld, buffer.data(), buffer.size(), 0, 1);
      }
    }
    const double seconds = seconds_of(monotonic_ns() - begin_ns);
    expect_done(comm, comm.barrier(kWorld));
    return seconds;
  };
  run(kAhead);
  const double seconds = run(setup.repeats);
  if (self == last) {
    std::printf("{\"bytes_per_second\": %.0f}\n", static_cast<double>(setup.bytes * setup.repeats) / seconds);
  }
}

void run_rank(const Setup& setup, const net::SharedKey& key, std::byte* region, std::byte* arenas, Rank self,
              std::atomic<uint32_t>& interrupted) {
  const CommConfig config{.max_world = static_cast<uint32_t>(setup.addresses.size())};
  TcpConfig tcp{.identity = {1, 1}, .self = self, .addresses = setup.addresses, .key = key};
  tcp.streams = setup.streams;
  tcp.protection = std::getenv("PLAIN") != nullptr ? Protection::kMac : Protection::kTls;
  if (const char* bytes = std::getenv("SOCKET_BUFFER_BYTES"); bytes != nullptr) {
    tcp.socket_buffer_bytes = number_of(bytes);
  }
  const std::shared_ptr<Transport> transport =
      make_tcp_transport(tcp, value_or_fail(listen_tcp(setup.addresses[self])));
  Endpoint endpoint{.self = self, .generation = region, .interrupted = &interrupted, .transport = transport};
  for (Rank rank = 0; rank < setup.addresses.size(); ++rank) {
    const uint32_t node = rank / setup.ranks_per_node;
    endpoint.nodes.push_back(node);
    endpoint.arenas.push_back(node == setup.node ? arenas + rank % setup.ranks_per_node * arena_bytes(config)
                                                 : nullptr);
  }
  Communicator comm(config, std::move(endpoint));
  if (setup.operation == "stream") {
    stream(comm, *transport, setup, self);
  } else if (setup.operation == "messages") {
    messages(comm, setup, self);
  } else {
    all_reduce(comm, setup, self);
  }
  std::fflush(stdout);
}

int main_of(int argc, char** argv) {
  const char* secret = std::getenv("DATA_KEY");
  if (argc < 9 || secret == nullptr) {
    fail("NODE RANKS_PER_NODE STREAMS all_reduce|stream|messages BYTES REPEATS ADDRESS... , and DATA_KEY");
  }
  const net::SharedKey key = value_or_fail(net::SharedKey::data(secret, 1, 1));
  Setup setup{static_cast<uint32_t>(number_of(argv[1])),
              static_cast<uint32_t>(number_of(argv[2])),
              static_cast<uint32_t>(number_of(argv[3])),
              argv[4],
              number_of(argv[5]),
              number_of(argv[6]),
              {}};
  for (int i = 7; i < argc; ++i) {
    setup.addresses.push_back(value_or_fail(SocketAddress::parse(argv[i])));
  }
  const CommConfig config{.max_world = static_cast<uint32_t>(setup.addresses.size())};
  std::byte* region = fresh_memory(generation_bytes(config), MAP_SHARED);
  std::byte* arenas = fresh_memory(setup.ranks_per_node * arena_bytes(config), MAP_SHARED);
  auto* interrupted = new (fresh_memory(4096, MAP_SHARED)) std::atomic<uint32_t>(0);
  for (uint32_t local = 0; local < setup.ranks_per_node; ++local) {
    const pid_t pid = fork();
    KEEPSTEP_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      run_rank(setup, key, region, arenas, setup.node * setup.ranks_per_node + local, *interrupted);
      _exit(0);
    }
  }
  int code = 0;
  for (uint32_t local = 0; local < setup.ranks_per_node; ++local) {
    int status = 0;
    wait(&status);
    code = status != 0 ? 1 : code;
  }
  return code;
}

}  // namespace
}  // namespace keepstep::comm

int main(int argc, char** argv) { return keepstep::comm::main_of(argc, argv); }
