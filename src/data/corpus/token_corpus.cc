#include "data/corpus/token_corpus.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/checksum.h"
#include "data/corpus/widen.h"
#include "data/corpus/write_all.h"

namespace keepstep::data {
namespace {

constexpr uint64_t kSliceBytes = uint64_t{8} << 20;

}  // namespace

StatusOr<TokenCorpus> TokenCorpus::open(const std::string& prefix) {
  TokenCorpus corpus;
  absl::string_view bare = prefix;
  if (!absl::ConsumeSuffix(&bare, ".bin")) {
    absl::ConsumeSuffix(&bare, ".idx");
  }
  corpus.prefix_ = std::string(bare);
  KEEPSTEP_ASSIGN_OR_RETURN(corpus.index_file_, MappedFile::open(corpus.prefix_ + ".idx"));
  KEEPSTEP_ASSIGN_OR_RETURN(MappedFile tokens, MappedFile::open(corpus.prefix_ + ".bin"));
  corpus.tokens_ = std::make_shared<const MappedFile>(std::move(tokens));
  KEEPSTEP_ASSIGN_OR_RETURN(corpus.index_,
                            TokenIndex::open(corpus.index_file_.bytes(), corpus.index_file_.path(), corpus.bytes()));
  KEEPSTEP_RETURN_IF_ERROR(corpus.index_file_.check());  // zeros may pass as an index
  return corpus;
}

StatusOr<uint64_t> TokenCorpus::index_checksum() const {
  const uint64_t sum = checksum(index_file_.bytes().data(), index_file_.bytes().size());
  KEEPSTEP_RETURN_IF_ERROR(index_file_.check());
  return sum;
}

// Everything was checked when the index was opened; an index that changes while mapped must not point outside either.
StatusOr<Range> TokenCorpus::place_of(uint64_t sequence) const {
  const Range place = index_.place(sequence);
  if (place.end > bytes() / size_of(index_.type()) ||
      place.size() != index_.start_of(sequence + 1) - index_.start_of(sequence)) {
    return absl::DataLossError(
        absl::StrFormat("'%s.idx' changed since it was opened: sequence %d is another one now", prefix_, sequence));
  }
  return place;
}

template <typename Take>
Status TokenCorpus::each_run(uint64_t begin, uint64_t count, Take take) const {
  KEEPSTEP_CHECK(begin <= index_.tokens() && count <= index_.tokens() - begin, "tokens out of range");
  const size_t size = size_of(index_.type());
  if (index_.contiguous()) {
    take(begin * size, count);
    return absl::OkStatus();
  }
  for (uint64_t sequence = count == 0 ? 0 : index_.sequence_at(begin); count > 0; ++sequence) {
    KEEPSTEP_ASSIGN_OR_RETURN(const Range place, place_of(sequence));
    const uint64_t skipped = begin - index_.start_of(sequence);
    const uint64_t here = std::min(count, place.size() - skipped);
    take((place.begin + skipped) * size, here);
    begin += here;
    count -= here;
  }
  return index_file_.check();
}

Status TokenCorpus::read(uint64_t begin, uint64_t count, int64_t* out) const {
  KEEPSTEP_RETURN_IF_ERROR(each_run(begin, count, [&](uint64_t at, uint64_t tokens) {
    widen(index_.type(), tokens_->bytes().data() + at, tokens, out);
    out += tokens;
  }));
  return tokens_->check();
}

Status TokenCorpus::copy(uint64_t begin, uint64_t count, std::byte* out) const {
  const size_t size = size_of(index_.type());
  KEEPSTEP_RETURN_IF_ERROR(each_run(begin, count, [&](uint64_t at, uint64_t tokens) {
    std::memcpy(out, tokens_->bytes().data() + at, tokens * size);
    out += tokens * size;
  }));
  return tokens_->check();
}

Status TokenCorpus::describe(uint64_t begin, uint64_t count, int64_t* sequence, int64_t* position) const {
  KEEPSTEP_CHECK(begin <= index_.tokens() && count <= index_.tokens() - begin, "tokens out of range");
  if (count == 0) {
    return absl::OkStatus();
  }
  uint64_t current = index_.sequence_at(begin);
  uint64_t end = std::min(index_.start_of(current + 1) - begin, count);
  int64_t number = 0;
  for (uint64_t i = 0, first = 0; i < count; ++i) {
    while (i == end) {
      if (++current >= index_.sequences()) {
        return absl::DataLossError(absl::StrFormat("'%s.idx' changed since it was opened", prefix_));
      }
      const uint64_t next = index_.start_of(current + 1);
      if (next > begin + i) {
        end = std::min(next - begin, count);
        first = i;
        ++number;
      }
    }
    sequence[i] = number;
    position[i] = static_cast<int64_t>(i - first);
  }
  return index_file_.check();
}

Status TokenCorpus::with_file_bytes(uint64_t begin, uint64_t count, const Use& use) const {
  KEEPSTEP_CHECK(begin <= bytes() && count <= bytes() - begin, "bytes out of range");
  while (count > 0) {
    const uint64_t here = std::min(count, kSliceBytes);
    KEEPSTEP_RETURN_IF_ERROR(use(tokens_->bytes().subspan(begin, here)));
    KEEPSTEP_RETURN_IF_ERROR(tokens_->check());
    begin += here;
    count -= here;
  }
  return absl::OkStatus();
}

Status TokenCorpus::for_each_slice(const Use& use) const {
  const size_t size = size_of(index_.type());
  if (index_.contiguous()) {
    return with_file_bytes(0, index_.tokens() * size, use);
  }
  for (uint64_t sequence = 0; sequence < index_.sequences(); ++sequence) {
    KEEPSTEP_ASSIGN_OR_RETURN(const Range place, place_of(sequence));
    KEEPSTEP_RETURN_IF_ERROR(with_file_bytes(place.begin * size, place.size() * size, use));
  }
  return index_file_.check();
}

Status TokenCorpus::places(uint64_t begin, uint64_t count, std::vector<FilePiece>& out) const {
  const size_t size = size_of(index_.type());
  return each_run(begin, count, [&](uint64_t at, uint64_t tokens) { out.push_back({tokens_, at, tokens * size}); });
}

}  // namespace keepstep::data
