// keepstep_parity_bench: Reed-Solomon coding on one core, compared with ISA-L's own loop. `keepstep bench parity`
// starts it.
//
//   keepstep_parity_bench DATA PARITY BLOCK_BYTES ROUNDS
//
// Prints one JSON object: for `encode`, and for `rebuild` of PARITY lost data blocks, the seconds that each side took
// in each round to process all blocks once, in turns. isal is what erasure_code_perf does: tables made beforehand, then
// one call over the whole blocks. summed: with the checksum of every block that is read or written. two_threads: halves
// of the blocks, on two threads at once. memcpy: the data blocks copied.

#include <isa-l/erasure_code.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/bench.h"
#include "state/vault/reed_solomon.h"

namespace keepstep::state {
namespace {

using Block = ReedSolomon::Block;
using ConstBlock = ReedSolomon::ConstBlock;

constexpr size_t kLeastBytes = 256 << 20;  // data in one measurement

Block memory(size_t bytes) { return {fresh_memory(bytes, MAP_PRIVATE), bytes}; }

int64_t thread_cpu_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

class Bench {
 public:
  Bench(uint32_t data, uint32_t parity, size_t bytes)
      : code_(ReedSolomon::create(data, parity).value()), bytes_(bytes), sums_(data + parity) {
    std::mt19937_64 random(1);
    for (uint32_t block = 0; block < data + parity; ++block) {
      blocks_.push_back(memory(bytes));
      auto* words = reinterpret_cast<uint64_t*>(blocks_[block].data());
      std::generate_n(words, block < data ? bytes / sizeof(uint64_t) : 0, random);
    }
    for (uint32_t block = 0; block < parity; ++block) {
      spare_.push_back(memory(bytes));
    }
    copies_ = memory(bytes);
    expect_ok(encode(0, bytes, sums_));
    make_isal_tables();
  }

  Status encode(size_t from, size_t bytes, std::span<uint64_t> sums) {
    std::vector<ConstBlock> data;
    std::vector<Block> parity;
    for (uint32_t block = 0; block < blocks_.size(); ++block) {
      block < code_.data() ? data.push_back(blocks_[block].subspan(from, bytes))
                           : parity.push_back(blocks_[block].subspan(from, bytes));
    }
    return code_.encode(data, parity, sums);
  }

  // The first blocks are lost, as many as the code allows.
  Status rebuild(size_t from, size_t bytes, std::span<const uint64_t> sums) {
    std::vector<std::optional<ConstBlock>> left(blocks_.size());
    std::vector<ReedSolomon::Wanted> wanted;
    for (uint32_t block = 0; block < blocks_.size(); ++block) {
      if (block < lost()) {
        wanted.push_back({block, spare_[block].subspan(from, bytes)});
      } else {
        left[block] = blocks_[block].subspan(from, bytes);
      }
    }
    return code_.rebuild(left, wanted, sums).status();
  }

  void isal(bool rebuilding) {
    std::vector<unsigned char*> from;
    std::vector<unsigned char*> to;
    const uint32_t first = rebuilding ? lost() : 0;
    for (uint32_t block = first; block < first + code_.data(); ++block) {
      from.push_back(reinterpret_cast<unsigned char*>(blocks_[block].data()));
    }
    for (uint32_t block = 0; block < (rebuilding ? lost() : code_.parity()); ++block) {
      to.push_back(
          reinterpret_cast<unsigned char*>((rebuilding ? spare_[block] : blocks_[code_.data() + block]).data()));
    }
    ec_encode_data(static_cast<int>(bytes_), static_cast<int>(from.size()), static_cast<int>(to.size()),
                   (rebuilding ? rebuild_tables_ : encode_tables_).data(), from.data(), to.data());
  }

  void copy() {
    for (uint32_t block = 0; block < code_.data(); ++block) {
      std::memcpy(copies_.data(), blocks_[block].data(), bytes_);
    }
  }

  template <typename Half>
  void by_two_threads(Half half) {
    const size_t middle = bytes_ / 2 / 64 * 64;
    std::thread other([&] { expect_ok(half(middle, bytes_ - middle)); });
    expect_ok(half(0, middle));
    other.join();
  }

  void expect_rebuilt() {
    for (uint32_t block = 0; block < lost(); ++block) {
      KEEPSTEP_CHECK(std::memcmp(blocks_[block].data(), spare_[block].data(), bytes_) == 0, "rebuilt wrongly");
      std::memset(spare_[block].data(), 0, bytes_);
    }
  }

  size_t bytes() const { return bytes_; }
  uint32_t lost() const { return std::min(code_.data(), code_.parity()); }
  std::span<uint64_t> sums() { return sums_; }
  uint32_t data() const { return code_.data(); }
  uint32_t parity() const { return code_.parity(); }

 private:
  void make_isal_tables() {
    const int k = static_cast<int>(code_.data());
    const int all = static_cast<int>(blocks_.size());
    std::vector<unsigned char> generator(blocks_.size() * code_.data());
    gf_gen_cauchy1_matrix(generator.data(), all, k);
    encode_tables_.resize(size_t{32} * code_.data() * code_.parity());
    ec_init_tables(k, all - k, &generator[size_t{code_.data()} * code_.data()], encode_tables_.data());
    std::vector<unsigned char> basis(generator.begin() + static_cast<long>(lost()) * k,
                                     generator.begin() + (static_cast<long>(lost()) + k) * k);
    std::vector<unsigned char> inverse(size_t{code_.data()} * code_.data());
    KEEPSTEP_CHECK(gf_invert_matrix(basis.data(), inverse.data(), k) == 0, "no inverse");
    rebuild_tables_.resize(size_t{32} * code_.data() * lost());
    ec_init_tables(k, static_cast<int>(lost()), inverse.data(), rebuild_tables_.data());  // the rows of the lost ones
  }

  const ReedSolomon code_;
  const size_t bytes_;
  std::vector<Block> blocks_;
  std::vector<Block> spare_;
  Block copies_;
  std::vector<uint64_t> sums_;
  std::vector<unsigned char> encode_tables_;
  std::vector<unsigned char> rebuild_tables_;
};

struct Side {
  std::string name;
  std::function<void()> once;
  std::function<int64_t()> clock = thread_cpu_ns;
  std::vector<double> seconds;
};

void run_in_turns(std::vector<Side>& sides, size_t repeats, size_t rounds) {
  for (Side& side : sides) {
    side.once();
  }
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t turn = 0; turn < sides.size(); ++turn) {
      Side& side = sides[(round + turn) % sides.size()];
      const int64_t begin_ns = side.clock();
      for (size_t repeat = 0; repeat < repeats; ++repeat) {
        side.once();
      }
      side.seconds.push_back(seconds_of(side.clock() - begin_ns) / static_cast<double>(repeats));
    }
  }
}

nlohmann::ordered_json seconds_by_name(const std::vector<Side>& sides) {
  nlohmann::ordered_json result;
  for (const Side& side : sides) {
    result[side.name] = side.seconds;
  }
  return result;
}

int main_of(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("keepstep_parity_bench DATA PARITY BLOCK_BYTES ROUNDS\n", stderr);
    return 2;
  }
  const size_t bytes = number_of(argv[3]);
  const size_t rounds = number_of(argv[4]);
  const auto data = static_cast<uint32_t>(number_of(argv[1]));
  const auto parity = static_cast<uint32_t>(number_of(argv[2]));
  expect_ok(ReedSolomon::create(data, parity).status());
  if (bytes < 64 || bytes > size_t{1} << 30 || rounds == 0) {
    std::fputs("keepstep_parity_bench: blocks of 64 bytes to 1 GiB, and at least one round\n", stderr);
    return 2;
  }
  Bench bench(data, parity, bytes);
  const size_t repeats = std::max<size_t>(1, kLeastBytes / (bytes * data));
  std::vector<uint64_t> sums(bench.sums().begin(), bench.sums().end());
  std::vector<Side> encoding = {
      {"keepstep", [&] { expect_ok(bench.encode(0, bytes, {})); }},
      {"isal", [&] { bench.isal(false); }},
      {"summed", [&] { expect_ok(bench.encode(0, bytes, sums)); }},
      {"two_threads",
       [&] { bench.by_two_threads([&](size_t from, size_t count) { return bench.encode(from, count, {}); }); },
       monotonic_ns},
      {"memcpy", [&] { bench.copy(); }},
  };
  run_in_turns(encoding, repeats, rounds);
  KEEPSTEP_CHECK(std::equal(sums.begin(), sums.end(), bench.sums().begin()), "encoded otherwise the second time");
  std::vector<Side> rebuilding = {
      {"keepstep", [&] { expect_ok(bench.rebuild(0, bytes, {})); }},
      {"isal", [&] { bench.isal(true); }},
      {"summed", [&] { expect_ok(bench.rebuild(0, bytes, sums)); }},
      {"two_threads",
       [&] { bench.by_two_threads([&](size_t from, size_t count) { return bench.rebuild(from, count, {}); }); },
       monotonic_ns},
  };
  for (const Side& side : rebuilding) {
    side.once();
    bench.expect_rebuilt();
  }
  run_in_turns(rebuilding, repeats, rounds);
  const nlohmann::ordered_json result = {{"data", data},
                                         {"parity", parity},
                                         {"lost", bench.lost()},
                                         {"block_bytes", bytes},
                                         {"encode", seconds_by_name(encoding)},
                                         {"rebuild", seconds_by_name(rebuilding)}};
  std::puts(result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace keepstep::state

// NOLINTNEXTLINE(bugprone-exception-escape): what a benchmark throws ends it
int main(int argc, char** argv) { return keepstep::state::main_of(argc, argv); }
