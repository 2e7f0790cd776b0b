#include "data/corpus/packed_corpus.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "base/fd.h"

namespace keepstep::data {
namespace {

// Everything the rows depend on. Its bytes are hashed: no padding between the members.
struct Made {
  uint64_t version = 1;  // of plan_packing: another version produces other rows
  uint64_t index = 0;
  uint64_t capacity = 0;
  uint64_t too_long = 0;
  uint64_t first = 0;
  uint64_t end = 0;
};
static_assert(sizeof(Made) == 48);

std::string plan_path(const std::string& prefix, const std::string& folder, uint64_t capacity, uint64_t key) {
  const std::string base = folder.empty() ? prefix : folder + "/" + prefix.substr(prefix.find_last_of('/') + 1);
  return absl::StrFormat("%s.pack-%d-%016x", base, capacity, key);
}

StatusOr<PackPlan> plan_of(const TokenIndex& index, uint64_t capacity, TooLong too_long, Range documents) {
  std::vector<Range> ranges;
  ranges.reserve(documents.size());
  for (uint64_t document = documents.begin; document < documents.end; ++document) {
    const Range sequences = index.sequences_of(document);
    ranges.push_back({index.start_of(sequences.begin), index.start_of(sequences.end)});
  }
  return plan_packing(ranges, capacity, too_long);
}

// One process of a node makes the plan while the others wait. Where files cannot be locked each makes its own: the
// bytes are the same, and the first file stays.
StatusOr<PackFile> open_or_make(const TokenCorpus& corpus, uint64_t capacity, TooLong too_long, Range documents,
                                const std::string& path, uint64_t key) {
  StatusOr<PackFile> found = PackFile::open(path, key);
  if (!absl::IsNotFound(found.status())) {
    return found;
  }
  const Fd locked(::open((corpus.prefix() + ".idx").c_str(), O_RDONLY | O_CLOEXEC));
  if (locked.valid()) {
    (void)flock(locked.get(), LOCK_EX);  // held until it is closed
    found = PackFile::open(path, key);
    if (!absl::IsNotFound(found.status())) {
      return found;
    }
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const PackPlan plan, plan_of(corpus.index(), capacity, too_long, documents));
  KEEPSTEP_RETURN_IF_ERROR(write_pack_file(path, key, capacity, plan));
  return PackFile::open(path, key);
}

StatusOr<std::optional<TokenCorpus>> open_loss(const TokenCorpus& corpus) {
  const std::string prefix = corpus.prefix() + ".loss";
  if (access((prefix + ".idx").c_str(), F_OK) != 0) {
    return std::nullopt;
  }
  KEEPSTEP_ASSIGN_OR_RETURN(TokenCorpus loss, TokenCorpus::open(prefix));
  const TokenIndex& theirs = loss.index();
  const TokenIndex& ours = corpus.index();
  if (theirs.tokens() != ours.tokens() || theirs.sequences() != ours.sequences() ||
      theirs.documents() != ours.documents() || theirs.type() != TokenType::kUint8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("'%s' has %d tokens (%s), %d sequences, %d documents; for the loss mask of '%s' it must have "
                        "%d (uint8), %d and "
                        "%d. Rebuild both",
                        prefix, theirs.tokens(), name_of(theirs.type()), theirs.sequences(), theirs.documents(),
                        corpus.prefix(), ours.tokens(), ours.sequences(), ours.documents()));
  }
  return loss;
}

}  // namespace

StatusOr<PackedCorpus> PackedCorpus::open(const std::string& prefix, uint64_t capacity, TooLong too_long,
                                          Range documents, const std::string& plan_folder) {
  KEEPSTEP_ASSIGN_OR_RETURN(TokenCorpus corpus, TokenCorpus::open(prefix));
  if (capacity < 2 || capacity > kMaxPackCapacity || documents.begin > documents.end ||
      documents.end > corpus.index().documents()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rows of %d tokens (2 to %d can be) from documents %d to %d of '%s', which has %d", capacity,
                        kMaxPackCapacity, documents.begin, documents.end, corpus.prefix(), corpus.index().documents()));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::optional<TokenCorpus> loss, open_loss(corpus));
  KEEPSTEP_ASSIGN_OR_RETURN(const uint64_t index, corpus.index_checksum());
  const Made made{.index = index,
                  .capacity = capacity,
                  .too_long = static_cast<uint64_t>(too_long),
                  .first = documents.begin,
                  .end = documents.end};
  const uint64_t key = checksum(&made, sizeof(made));
  KEEPSTEP_ASSIGN_OR_RETURN(PackFile plan, open_or_make(corpus, capacity, too_long, documents,
                                                        plan_path(corpus.prefix(), plan_folder, capacity, key), key));
  return PackedCorpus(std::move(corpus), std::move(loss), std::move(plan));
}

Status PackedCorpus::read(uint64_t row, int64_t padding, const Row& out) const {
  const uint64_t capacity = header().capacity;
  std::vector<PackPiece> pieces;
  KEEPSTEP_RETURN_IF_ERROR(plan_.row(row, corpus_.index().tokens(), pieces));
  uint64_t at = 0;
  for (size_t number = 0; number < pieces.size(); ++number) {
    const PackPiece& piece = pieces[number];
    if (out.tokens != nullptr) {
      KEEPSTEP_RETURN_IF_ERROR(corpus_.read(piece.begin, piece.count, out.tokens + at));
    }
    if (out.documents != nullptr) {
      std::fill_n(out.documents + at, piece.count, static_cast<int64_t>(number));
    }
    if (out.positions != nullptr) {
      for (uint32_t i = 0; i < piece.count; ++i) {
        out.positions[at + i] = i;
      }
    }
    if (out.trained != nullptr && piece.count > 0) {
      if (loss_.has_value()) {
        KEEPSTEP_RETURN_IF_ERROR(loss_->copy(piece.begin, piece.count, reinterpret_cast<std::byte*>(out.trained + at)));
        for (uint32_t i = 0; i < piece.count; ++i) {
          out.trained[at + i] = out.trained[at + i] != 0 ? 1 : 0;  // normalized to booleans
        }
      } else {
        std::fill_n(out.trained + at, piece.count, uint8_t{1});
      }
      out.trained[at] = 0;  // no token precedes it to predict it from
    }
    at += piece.count;
  }
  const uint64_t rest = capacity - at;
  if (out.tokens != nullptr) {
    std::fill_n(out.tokens + at, rest, padding);
  }
  if (out.documents != nullptr) {
    std::fill_n(out.documents + at, rest, int64_t{-1});
  }
  if (out.positions != nullptr) {
    std::fill_n(out.positions + at, rest, int64_t{0});
  }
  if (out.trained != nullptr) {
    std::fill_n(out.trained + at, rest, uint8_t{0});
  }
  return absl::OkStatus();
}

Status PackedCorpus::places(uint64_t row, std::vector<FilePiece>& out) const {
  std::vector<PackPiece> pieces;
  KEEPSTEP_RETURN_IF_ERROR(plan_.row(row, corpus_.index().tokens(), pieces));
  for (const PackPiece& piece : pieces) {
    KEEPSTEP_RETURN_IF_ERROR(corpus_.places(piece.begin, piece.count, out));
    if (loss_.has_value()) {
      KEEPSTEP_RETURN_IF_ERROR(loss_->places(piece.begin, piece.count, out));
    }
  }
  return absl::OkStatus();
}

}  // namespace keepstep::data
