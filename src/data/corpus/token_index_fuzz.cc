// libFuzzer: an index of arbitrary bytes is refused, or does not point outside its .bin file. Built with
// -DKEEPSTEP_FUZZ=ON.
//
// The first byte determines the size of the .bin file.

#include <vector>

#include "base/check.h"
#include "data/corpus/token_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace keepstep::data;
  if (size == 0) {
    return 0;
  }
  const uint64_t token_bytes = uint64_t{data[0]} * 16;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const auto index = TokenIndex::open(bytes, "fuzz", token_bytes);
  if (!index.ok()) {
    return 0;
  }
  uint64_t tokens = 0;
  for (uint64_t i = 0; i < index->sequences(); ++i) {
    const Range place = index->place(i);
    KEEPSTEP_CHECK(place.begin <= place.end && place.end * size_of(index->type()) <= token_bytes, "outside");
    KEEPSTEP_CHECK(index->start_of(i) == tokens, "a stream with a gap");
    for (uint64_t at = 0; at < place.size(); at += 1 + place.size() / 4) {
      KEEPSTEP_CHECK(index->sequence_at(tokens + at) == i, "another sequence");
    }
    tokens += place.size();
  }
  KEEPSTEP_CHECK(tokens == index->tokens() && index->start_of(index->sequences()) == tokens,
                 "another number of tokens");
  for (uint64_t d = 0; d < index->documents(); ++d) {
    const Range sequences = index->sequences_of(d);
    KEEPSTEP_CHECK(sequences.begin <= sequences.end && sequences.end <= index->sequences(), "a document outside");
  }
  return 0;
}
