// For tests: a world of ranks over anonymous shared memory, each a forked process or a thread. Ranks may be placed on
// several "nodes" of this machine: ranks on different nodes then share nothing and use TCP over loopback.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/futex.h"
#include "base/socket/tcp_socket.h"
#include "comm/communicator.h"
#include "comm/progress.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport.h"

namespace keepstep::comm {

// A few words that tests use to wait for each other's events across processes.
struct TestWords {
  std::atomic<uint32_t> interrupted;
  std::atomic<uint32_t> events;  // a counter for the test's own events
  std::atomic<int64_t> last_ns;  // the latest time that a rank recorded with mark()
};

enum class Mode { kProcesses, kThreads };
inline std::string mode_name(Mode mode) { return mode == Mode::kProcesses ? "processes" : "threads"; }

inline CommConfig small_config() {
  return {.max_world = 8, .groups = 4, .slot_bytes = 64 << 10, .group_slot_bytes = 16 << 10, .ring_bytes = 16 << 10};
}

inline net::SharedKey key_of(brain::Identity identity,
                             const std::string& secret = std::string(net::SharedKey::kBytes, 's')) {
  return *net::SharedKey::data_of(secret, identity.term, identity.generation);
}

class TestWorld {
 public:
  using Body = std::function<void(Communicator&, Rank)>;

  // `nodes`: by rank, numbered from 0; empty: all on one.
  explicit TestWorld(size_t ranks, CommConfig config = small_config(), std::vector<uint32_t> nodes = {})
      : ranks_(ranks), config_(config), nodes_(std::move(nodes)) {
    for (const uint32_t node : nodes_) {
      config_.max_local =
          std::max(config_.max_local, static_cast<uint32_t>(std::count(nodes_.begin(), nodes_.end(), node)));
    }
    const size_t page = 4096;
    const auto whole = [&](size_t bytes) { return (bytes + page - 1) / page * page; };
    arena_ = whole(arena_bytes(config_));
    generation_ = whole(generation_bytes(config_));
    const size_t regions = nodes_.empty() ? 1 : *std::max_element(nodes_.begin(), nodes_.end()) + 1;
    bytes_ = page + regions * generation_ + ranks * arena_;
    arenas_at_ = page + regions * generation_;
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    KEEPSTEP_CHECK(memory != MAP_FAILED, "no memory for the test's world");
    base_ = static_cast<std::byte*>(memory);
    words_ = new (base_) TestWords{};
    for (size_t rank = 0; rank < nodes_.size(); ++rank) {
      StatusOr<Fd> listener = listen_tcp({"127.0.0.1", 0});
      KEEPSTEP_CHECK(listener.ok(), "no port on loopback");
      addresses_.push_back(*local_address(listener->get()));
      listeners_.push_back(*std::move(listener));
    }
  }
  ~TestWorld() { munmap(base_, bytes_); }
  TestWorld(const TestWorld&) = delete;
  TestWorld& operator=(const TestWorld&) = delete;

  size_t size() const { return ranks_; }
  const CommConfig& config() const { return config_; }
  TestWords& words() { return *words_; }
  std::byte* generation(uint32_t node = 0) { return base_ + 4096 + node * generation_; }
  uint32_t node_of(Rank rank) const { return nodes_.empty() ? 0 : nodes_[rank]; }
  const std::vector<SocketAddress>& addresses() const { return addresses_; }
  const std::string& secret() const { return secret_; }
  void protect(Protection protection) { protection_ = protection; }

  TcpConfig tcp_config(Rank self) const {
    TcpConfig config{.identity = identity_,
                     .self = self,
                     .addresses = addresses_,
                     .key = key_of(identity_, secret_),
                     .protection = protection_};
    config.stripe_bytes = 16 << 10;  // small, so tests use several stripes
    config.message_frame_bytes = config_.ring_bytes;
    return config;
  }
  std::shared_ptr<Transport> transport(Rank self) {
    return make_tcp_transport(tcp_config(self), Fd(fcntl(listeners_[self].get(), F_DUPFD_CLOEXEC, 0)));
  }

  // `progress`: where the rank reports its progress.
  std::unique_ptr<Communicator> communicator(Rank self, CollectiveWords* progress = nullptr) {
    const bool across = std::any_of(nodes_.begin(), nodes_.end(), [&](uint32_t node) { return node != nodes_[self]; });
    return communicator(self, across ? transport(self) : nullptr, progress);
  }
  std::unique_ptr<Communicator> communicator(Rank self, std::shared_ptr<Transport> transport,
                                             CollectiveWords* progress = nullptr) {
    Endpoint endpoint{.self = self,
                      .generation = generation(node_of(self)),
                      .interrupted = &words_->interrupted,
                      .nodes = nodes_,
                      .transport = std::move(transport),
                      .progress = progress};
    for (Rank rank = 0; rank < ranks_; ++rank) {
      endpoint.arenas.push_back(node_of(rank) == node_of(self) ? base_ + arenas_at_ + rank * arena_ : nullptr);
    }
    return std::make_unique<Communicator>(config_, std::move(endpoint));
  }

  void interrupt() {
    words_->interrupted.store(1);
    for (std::byte* region = generation(); region < base_ + arenas_at_; region += generation_) {
      wake_all(config_, region);
    }
  }
  // Begins the next generation, with zeroed regions; no rank may still be in the previous one.
  void begin_generation() {
    ++identity_.generation;
    std::memset(generation(), 0, arenas_at_ - 4096);
    words_->interrupted.store(0);
  }

  // signal() counts an event; await() waits until there were `count` of them.
  void signal() {
    words_->events.fetch_add(1);
    futex_wake_all(words_->events);
  }
  void await(uint32_t count) {
    for (uint32_t seen = 0; (seen = words_->events.load()) < count;) {
      futex_wait(words_->events, seen, 50'000'000);
    }
  }

  void mark() {
    const int64_t now_ns = monotonic_ns();
    int64_t latest = words_->last_ns.load();
    while (latest < now_ns && !words_->last_ns.compare_exchange_weak(latest, now_ns)) {
    }
  }

  // Starts a rank as a process; the exit status is 0 when no expectation failed.
  pid_t fork_rank(Rank rank, const Body& body) {
    std::fflush(nullptr);  // or each child prints the buffered output again
    const pid_t pid = fork();
    KEEPSTEP_CHECK(pid >= 0, "fork");
    if (pid == 0) {
      {
        const auto comm = communicator(rank);
        body(*comm, rank);
      }
      fflush(stdout);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    return pid;
  }
  static int status_of(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return status;
  }

  // Runs `body` on all ranks and expects all to succeed.
  void run(Mode mode, const Body& body) {
    if (mode == Mode::kThreads) {
      std::vector<std::thread> threads;
      for (Rank rank = 0; rank < ranks_; ++rank) {
        threads.emplace_back([this, rank, &body] {
          const auto comm = communicator(rank);
          body(*comm, rank);
        });
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
      return;
    }
    std::vector<pid_t> pids;
    for (Rank rank = 0; rank < ranks_; ++rank) {
      pids.push_back(fork_rank(rank, body));
    }
    for (size_t ended = 0; ended < ranks_; ++ended) {
      int status = 0;
      const pid_t pid = waitpid(-1, &status, 0);
      EXPECT_EQ(status, 0) << "rank " << std::find(pids.begin(), pids.end(), pid) - pids.begin() << " of " << ranks_;
      if (status != 0) {
        interrupt();  // the others would wait for it forever
      }
    }
  }

 private:
  size_t ranks_;
  CommConfig config_;
  std::vector<uint32_t> nodes_;
  brain::Identity identity_{1, 1};
  const std::string secret_ = net::SharedKey::random_data_secret();
  Protection protection_ = Protection::kTls;
  std::vector<SocketAddress> addresses_;
  std::vector<Fd> listeners_;
  size_t arenas_at_;
  size_t arena_;
  size_t generation_;
  size_t bytes_;
  std::byte* base_;
  TestWords* words_;
};

// Waits for an operation, forgets it, and returns how it ended.
inline Completion finish(Communicator& comm, OpId op) {
  Completion completion = comm.wait(op);
  comm.forget(op);
  return completion;
}
inline void expect_done(Communicator& comm, OpId op) {
  const Completion completion = finish(comm, op);
  EXPECT_EQ(completion.outcome, Outcome::kDone) << completion.error;
}

// Bytes that identify their origin.
inline std::vector<uint8_t> pattern(size_t bytes, uint32_t seed) {
  std::vector<uint8_t> result(bytes);
  uint32_t state = seed * 2654435761U + 12345;
  for (uint8_t& byte : result) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return result;
}

}  // namespace keepstep::comm
