// A corpus whose documents are packed into rows of fixed length (pack_plan.h), with what a model needs to keep them
// apart and to know what it is trained on.
//
// The plan is made once, by whoever needs it first on a node while the others wait, and kept in a file beside the
// corpus, PREFIX.pack-CAPACITY-KEY (pack_file.h). KEY says what it was made from (the index's bytes, the documents, the
// rule), so another corpus or rule has another file. All processes map it.
//
// What is trained on: where PREFIX.loss.idx is there, the corpus PREFIX.loss has the same sequences and documents and
// for each token 0 (it is only read) or 1 (it is also predicted). Without it all tokens are.
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
  // `documents`: numbers of those to pack. `plan_folder`: where the plan is kept; empty: beside the corpus.
  // Errors of files name them; INVALID_ARGUMENT: PREFIX.loss is no corpus of the same shape.
  static StatusOr<PackedCorpus> open(const std::string& prefix, uint64_t capacity, TooLong too_long, Range documents,
                                     const std::string& plan_folder);

  // Where a row's numbers go, `capacity` of each. Null: not wanted.
  struct Row {
    int64_t* tokens = nullptr;     // behind the last document: `padding`
    int64_t* documents = nullptr;  // 0, 1, ... in the row; padding: -1
    int64_t* positions = nullptr;  // 0, 1, ... in each piece; padding: 0
    uint8_t* trained = nullptr;    // 1: to be predicted. 0: padding, the first of each piece, and what is only read
  };
  // Row `row` < header().rows. DATA_LOSS: a file was truncated or changed under us.
  Status read(uint64_t row, int64_t padding, const Row& out) const;

  // Adds to `out` where the row lies.
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
