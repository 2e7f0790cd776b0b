#include "rank/checks/bit_flip.h"

#include <random>

#include "absl/strings/str_format.h"

namespace keepstep::rank {

StatusOr<std::string> flip_bit(const std::vector<NamedMemory>& pieces, const std::string& what, uint64_t seed,
                               brain::Step step) {
  size_t bytes = 0;
  for (const NamedMemory& piece : pieces) {
    bytes += piece.bytes;
  }
  if (bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("inject flip: this program named no %s; see Trainer::%s in include/keepstep/trainer.h", what,
                        what == "gradient" ? "compare" : "protect"));
  }
  std::seed_seq seeds{seed & 0xffffffff, seed >> 32, step & 0xffffffff, step >> 32};
  std::mt19937_64 random(seeds);
  size_t place = random() % bytes;
  const unsigned bit = random() % 8;
  const NamedMemory* piece = pieces.data();
  for (; place >= piece->bytes; ++piece) {
    place -= piece->bytes;
  }
  static_cast<uint8_t*>(piece->data)[place] ^= static_cast<uint8_t>(1U << bit);
  return absl::StrFormat("%s, byte %d, bit %d", piece->name, place, bit);
}

}  // namespace keepstep::rank
