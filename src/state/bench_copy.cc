// keepstep_copy_bench: a baseline for hydration on one node. `keepstep bench hydrate` starts it.
//
//   keepstep_copy_bench BYTES ROUNDS
//
// One of two processes has BYTES in its own memory, and the other copies them into its own; all memory is allocated
// before the clock starts. Both compute the XXH3 of every chunk, the first of what it sends and the second of what it
// then has, and compare. Nothing else: no plan, no requests, no tensors, one copy at a time. In turns:
//
//   CHUNKxSLOTS  the first copies into a ring in shared memory, the second out of it
//   vm_readv     the second reads the first one's memory with process_vm_readv; the first only computes checksums
//
// Prints one JSON object: for each way the seconds of each round.

#include <linux/prctl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bench.h"
#include "base/checksum.h"
#include "base/futex.h"

namespace keepstep::state {
namespace {

constexpr size_t kMaxSlots = 16;
constexpr size_t kMaxChunk = 2 << 20;
constexpr size_t kBlock = 64 << 10;  // copied, then hashed while it is in the cache
constexpr int kSpins = 200;
constexpr int64_t kNapNs = 10'000'000;

// A word that one process increments and the other waits for.
struct Progress {
  alignas(64) std::atomic<uint32_t> value;
  std::atomic<uint32_t> sleeps;

  void raise(uint32_t to) {
    value.store(to, std::memory_order_seq_cst);
    if (sleeps.load(std::memory_order_seq_cst) != 0) {
      futex_wake_all(value);
    }
  }
  void wait(uint32_t until) {
    for (int spins = 0;; ++spins) {
      const uint32_t now = value.load(std::memory_order_acquire);
      if (static_cast<int32_t>(now - until) >= 0) {
        return;
      }
      if (spins < kSpins) {
        cpu_relax();
        continue;
      }
      sleeps.store(1, std::memory_order_seq_cst);
      futex_wait(value, now, kNapNs);
      sleeps.store(0, std::memory_order_seq_cst);
    }
  }
};

struct Shared {
  Progress given;  // chunks
  Progress taken;
  std::atomic<uint64_t> sums[kMaxSlots];
  std::atomic<uint64_t> source;  // the address of its memory there
  alignas(64) std::byte slots[kMaxSlots * kMaxChunk];
};

// Copies and hashes block by block; returns the XXH3 of `hashed`, which is `from` or `to`.
uint64_t copy_and_sum(std::byte* to, const std::byte* from, size_t bytes, const std::byte* hashed,
                      XXH3_state_t* state) {
  XXH3_64bits_reset(state);
  for (size_t at = 0; at < bytes; at += kBlock) {
    const size_t take = std::min(kBlock, bytes - at);
    std::memcpy(to + at, from + at, take);
    XXH3_64bits_update(state, hashed + at, take);
  }
  return XXH3_64bits_digest(state);
}

class Bench {
 public:
  Bench(size_t bytes, int rounds)
      : bytes_(bytes),
        rounds_(rounds),
        shared_(new(fresh_memory(sizeof(Shared), MAP_SHARED)) Shared{}),
        state_(XXH3_createState()) {}

  // Both sides take the same turns.
  void run(bool source, pid_t peer) {
    own_ = fresh_memory(bytes_, MAP_PRIVATE);
    if (source) {
      std::mt19937_64 random(1);
      auto* words = reinterpret_cast<uint64_t*>(own_);
      std::generate(words, words + bytes_ / sizeof(uint64_t), std::ref(random));
      shared_->source.store(reinterpret_cast<uint64_t>(own_));
    }
    const std::vector<std::pair<size_t, size_t>> rings = {
        {64 << 10, 16}, {256 << 10, 4}, {256 << 10, 16}, {1 << 20, 4}};
    std::vector<std::vector<double>> seconds(rings.size() + 1);
    for (int round = -1; round < rounds_; ++round) {  // the first is a warm-up
      for (size_t way = 0; way < seconds.size(); ++way) {
        const auto [chunk, slots] = way < rings.size() ? rings[way] : std::pair(size_t{256} << 10, size_t{16});
        const bool direct = way == rings.size();
        const int64_t start_ns = monotonic_ns();
        source ? give(chunk, slots, direct) : take(chunk, slots, direct, peer);
        if (round >= 0) {
          seconds[way].push_back(seconds_of(monotonic_ns() - start_ns));
        }
        if (!source) {  // so that the next turn finds no data from this one
          std::memset(own_, 0, bytes_);
        }
        meet(source);
      }
    }
    if (!source) {
      print(rings, seconds);
    }
  }

 private:
  // Each waits for the other. Both words only grow; these are their current values.
  void meet(bool source) {
    Progress& mine = source ? shared_->given : shared_->taken;
    Progress& other = source ? shared_->taken : shared_->given;
    mine.raise(++mine_);
    other.wait(++other_);
  }

  void give(size_t chunk, size_t slots, bool direct) {
    uint32_t number = 0;
    for (size_t at = 0; at < bytes_; at += chunk, ++number) {
      const size_t take = std::min(chunk, bytes_ - at);
      if (number >= slots) {
        shared_->taken.wait(other_ + number - static_cast<uint32_t>(slots) + 1);
      }
      const uint64_t sum =
          direct ? checksum(own_ + at, take)
                 : copy_and_sum(shared_->slots + number % slots * chunk, own_ + at, take, own_ + at, state_);
      shared_->sums[number % slots].store(sum, std::memory_order_relaxed);
      shared_->given.raise(mine_ + number + 1);
    }
    mine_ += number;
    other_ += number;
    shared_->taken.wait(other_);
  }

  void take(size_t chunk, size_t slots, bool direct, pid_t peer) {
    uint32_t number = 0;
    for (size_t at = 0; at < bytes_; at += chunk, ++number) {
      const size_t take = std::min(chunk, bytes_ - at);
      shared_->given.wait(other_ + number + 1);
      uint64_t sum = 0;
      if (direct) {
        const iovec to{own_ + at, take};
        const iovec from{reinterpret_cast<void*>(shared_->source.load() + at), take};  // NOLINT: an address there
        KEEPSTEP_CHECK(process_vm_readv(peer, &to, 1, &from, 1, 0) == static_cast<ssize_t>(take), "process_vm_readv");
        sum = checksum(own_ + at, take);
      } else {
        sum = copy_and_sum(own_ + at, shared_->slots + number % slots * chunk, take, own_ + at, state_);
      }
      KEEPSTEP_CHECK(sum == shared_->sums[number % slots].load(std::memory_order_relaxed), "a wrong copy");
      shared_->taken.raise(mine_ + number + 1);
    }
    mine_ += number;
    other_ += number;
  }

  static void print(const std::vector<std::pair<size_t, size_t>>& rings,
                    const std::vector<std::vector<double>>& seconds) {
    nlohmann::ordered_json result;
    for (size_t way = 0; way < rings.size(); ++way) {
      result[absl::StrFormat("%dKiBx%d", rings[way].first >> 10, rings[way].second)] = seconds[way];
    }
    result["vm_readv"] = seconds.back();
    std::puts(result.dump().c_str());
  }

  const size_t bytes_;
  const int rounds_;
  Shared* const shared_;
  XXH3_state_t* const state_;
  std::byte* own_ = nullptr;
  uint32_t mine_ = 0;
  uint32_t other_ = 0;
};

int main(const std::vector<std::string>& words) {
  const uint64_t bytes = words.size() == 2 ? number_of(words[0]) : 0;
  const int rounds = words.size() == 2 ? static_cast<int>(number_of(words[1])) : 0;
  if (bytes < 1 << 20 || bytes > uint64_t{1} << 40 || rounds < 1) {
    std::fputs("usage: keepstep_copy_bench BYTES ROUNDS\n", stderr);
    return 2;
  }
  Bench bench(bytes / 8 * 8, rounds);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
  const pid_t child = fork();
  KEEPSTEP_CHECK(child >= 0, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench.run(true, 0);
    _exit(0);
  }
  bench.run(false, child);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace keepstep::state

int main(int argc, char** argv) { return keepstep::state::main({argv + 1, argv + argc}); }
