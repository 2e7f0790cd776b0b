// Reads a .bin file once, from its first byte to its last: finds its range of tokens and its checksum.
#pragma once

#include <cstdint>
#include <limits>

#include "base/running_checksum.h"
#include "base/status.h"
#include "data/corpus/token_corpus.h"

namespace keepstep::data {

class TokenScan {
 public:
  explicit TokenScan(const TokenCorpus& corpus) : corpus_(corpus) {}  // which must outlive it

  // Reads up to `bytes` more, at least one token; false if everything has been read. DATA_LOSS: the file changed under
  // us.
  StatusOr<bool> step(uint64_t bytes);

  uint64_t position() const { return position_; }
  uint64_t checksum() const { return checksum_.value(); }  // XXH3, of what has been read
  // Of what has been read, if anything.
  int64_t least() const { return least_; }
  int64_t greatest() const { return greatest_; }

 private:
  const TokenCorpus& corpus_;
  uint64_t position_ = 0;
  RunningChecksum checksum_;
  int64_t least_ = std::numeric_limits<int64_t>::max();
  int64_t greatest_ = std::numeric_limits<int64_t>::min();
};

}  // namespace keepstep::data
