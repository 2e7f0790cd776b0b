// libFuzzer: a packing plan of arbitrary bytes is refused, or its rows do not point outside the stream. Built with
// -DKEEPSTEP_FUZZ=ON.
//
// The first byte determines how many tokens the stream has.

#include <cstddef>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "data/corpus/pack_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace keepstep::data;
  if (size == 0) {
    return 0;
  }
  const uint64_t tokens = uint64_t{data[0]} * 4;
  std::vector<std::byte> file(reinterpret_cast<const std::byte*>(data) + 1,
                              reinterpret_cast<const std::byte*>(data) + size);
  if (file.size() >= PackHeader::kBytes) {  // a fuzzer does not find checksums
    const uint64_t sum = keepstep::checksum(file.data(), PackHeader::kBytes - 8);
    std::memcpy(file.data() + PackHeader::kBytes - 8, &sum, 8);
  }
  const auto header = PackHeader::parse(file, "fuzz");
  if (!header.ok()) {
    return 0;
  }
  std::vector<PackPiece> pieces;
  for (uint64_t row = 0; row < header->rows; ++row) {
    if (!read_row(file, "fuzz", *header, tokens, row, pieces).ok()) {
      continue;
    }
    uint64_t sum = 0;
    for (const PackPiece& piece : pieces) {
      KEEPSTEP_CHECK(piece.begin + piece.count <= tokens, "outside of the stream");
      sum += piece.count;
    }
    KEEPSTEP_CHECK(sum <= header->capacity, "more than a row");
  }
  return 0;
}
