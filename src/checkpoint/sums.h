// XXH3-128 of files: of the whole file and of each chunk, so that a part of a file can be verified without the rest.
//
// Written as xxhsum -H2 writes them: 32 hexadecimal digits, the most significant first.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keepstep::checkpoint {

struct Sum {
  uint64_t high = 0;
  uint64_t low = 0;
  friend bool operator==(const Sum&, const Sum&) = default;
};

inline constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

Sum sum_of(std::span<const std::byte> bytes);
std::string to_hex(const Sum& sum);
std::optional<Sum> sum_from_hex(std::string_view hex);  // exactly 32 lower-case digits

struct FileSums {
  uint64_t bytes = 0;
  Sum whole;
  std::vector<Sum> chunks;  // of kChunkBytes each, the last one shorter; none for an empty file
};

// Sums of a file that arrives in pieces. One thread.
class SumStream {
 public:
  SumStream();
  void add(std::span<const std::byte> bytes);
  FileSums finish();  // once

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> whole_;
  std::unique_ptr<XXH3_state_t, Free> chunk_;
  uint64_t in_chunk_ = 0;
  FileSums sums_;
};

}  // namespace keepstep::checkpoint
