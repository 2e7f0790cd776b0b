// A corpus whose documents are packed into rows of fixed length (pack_plan.h), with what a model needs to keep them
// apart and to know which tokens to train on.
//
// The first process on a node that needs the plan makes it while the others wait. It is stored in a file next to the
// corpus, PREFIX.pack-CAPACITY-KEY (pack_file.h). KEY depends on what it was made from (the index's bytes, the
// documents, the rule), so another corpus or rule has another file. All processes map it.
//
// The tokens to train on: if PREFIX.loss.idx exists, the corpus PREFIX.loss has the same sequences and documents, and
// for each token 0 (only read) or 1 (also predicted). Without it, all tokens are trained on.
//
// Any thread may read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/corpus/pack_file.h"
#include "data/corpus/read_ahead.h"
#include "data/corpus/token_corpus.h"

namespace keepstep::data {

class PackedCorpus {
 public:
  // `documents`: the numbers of those to pack. `plan_folder`: where the plan is stored; empty: next to the corpus. File
  // errors name the file; INVALID_ARGUMENT: PREFIX.loss is not a corpus of the same shape.
  static StatusOr<PackedCorpus> open(const std::string& prefix, uint64_t capacity, TooLong too_long, Range documents,
                                     const std::string& plan_folder);

  // Where to write a row, `capacity` numbers each. Null: not wanted.
  struct Row {
    int64_t* tokens = nullptr;     // after the last document: `padding`
    int64_t* documents = nullptr;  // 0, 1, ... in the row; padding: -1
    int64_t* positions = nullptr;  // 0, 1, ... in each piece; padding: 0
    uint8_t* trained = nullptr;    // 1: to predict. 0: padding, the first of each piece, and tokens that are only read
  };
  // Row `row` < header().rows. DATA_LOSS: a file was truncated or changed under us.
  Status read(uint64_t row, int64_t padding, const Row& out) const;

  // Appends the places of the row in the files to `out`.
  Status places(uint64_t row, std::vector<FilePiece>& out) const;

  const PackHeader& header() const { return plan_.header(); }
  const std::string& path() const { return plan_.path(); }
  const TokenCorpus& corpus() const { return corpus_; }
  bool has_loss_mask() const { return loss_.has_value(); }

 private:
  PackedCorpus(TokenCorpus corpus, std::optional<TokenCorpus> loss, PackFile plan)
      : corpus_(std::move(corpus)), loss_(std::move(loss)), plan_(std::move(plan)) {}

  TokenCorpus corpus_;
  std::optional<TokenCorpus> loss_;
  PackFile plan_;
};

}  // namespace keepstep::data
