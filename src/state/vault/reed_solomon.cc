#include "state/vault/reed_solomon.h"

#include <isa-l/erasure_code.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/running_checksum.h"
#include "state/vault/coding_tables.h"

namespace keepstep::state {
namespace {

// Bytes of all blocks together while one piece is coded. The input is hashed while it is still in the cache, and ISA-L
// reads it once more for every few outputs.
constexpr size_t kPieceBytes = 192 << 10;
constexpr size_t kLeastPiece = 4 << 10;  // of one block
constexpr size_t kMaxPiece = 1 << 30;    // ISA-L counts bytes as int
constexpr size_t kAlignment = 64;
constexpr size_t kOutputsAtOnce = 4;

size_t piece_bytes(size_t inputs, size_t outputs, bool summed) {
  if (!summed && outputs <= kOutputsAtOnce) {
    return kMaxPiece;
  }
  return std::max(kPieceBytes / (inputs + outputs) / kAlignment * kAlignment, kLeastPiece);
}

// Blocks that take part in coding, with checksums of the bytes processed.
template <typename Bytes>
struct Stream {
  Bytes bytes;
  std::optional<RunningChecksum> sum;
};
using Input = Stream<ReedSolomon::ConstBlock>;
using Output = Stream<ReedSolomon::Block>;

template <typename Bytes>
std::vector<Stream<Bytes>> streams(const std::vector<Bytes>& blocks, bool summed) {
  std::vector<Stream<Bytes>> made;
  for (const Bytes& block : blocks) {
    made.push_back({block, summed ? std::optional<RunningChecksum>(std::in_place) : std::nullopt});
  }
  return made;
}

// The indexes of those that are longer than `from`.
BlockNumbers reaching_beyond(const auto& blocks, size_t from) {
  BlockNumbers places;
  for (size_t place = 0; place < blocks.size(); ++place) {
    if (blocks[place].bytes.size() > from) {
      places.push_back(static_cast<uint8_t>(place));
    }
  }
  return places;
}

// ISA-L leaves the upper halves of vector registers in use. Until they are cleared, all SSE code of this thread is
// several times slower (github.com/intel/isa-l/issues/24): checksums computed in between fell from 18 to 2 GB/s.
#if defined(__x86_64__)
__attribute__((target("avx"))) void clear_upper_halves() { _mm256_zeroupper(); }
const bool kHasUpperHalves = __builtin_cpu_supports("avx") != 0;
#else
void clear_upper_halves() {}
constexpr bool kHasUpperHalves = false;
#endif

void add_to_sum(auto& stream, size_t from, size_t bytes) {
  if (stream.sum.has_value()) {
    stream.sum->add(stream.bytes.subspan(from, bytes));
  }
}

// Codes [from, to), in which no block ends.
void code_range(const CodingTables& tables, std::vector<Input>& inputs, std::vector<Output>& outputs, size_t from,
                size_t to) {
  const BlockNumbers in = reaching_beyond(inputs, from);
  const BlockNumbers out = reaching_beyond(outputs, from);
  const auto table = in.empty() || out.empty() ? nullptr : tables.of(out, in);
  const size_t piece = piece_bytes(in.size(), out.size(), inputs.front().sum.has_value());
  std::vector<unsigned char*> sources(in.size());
  std::vector<unsigned char*> targets(out.size());
  for (size_t at = from; at < to; at += piece) {
    const size_t bytes = std::min(piece, to - at);
    for (size_t i = 0; i < in.size(); ++i) {  // ISA-L's parameter is not const, but it only reads
      sources[i] = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(inputs[in[i]].bytes.data() + at));
    }
    for (size_t i = 0; i < out.size(); ++i) {
      targets[i] = reinterpret_cast<unsigned char*>(outputs[out[i]].bytes.data() + at);
    }
    if (table != nullptr) {
      ec_encode_data(static_cast<int>(bytes), static_cast<int>(in.size()), static_cast<int>(out.size()),
                     const_cast<unsigned char*>(table->data()), sources.data(), targets.data());
      if (kHasUpperHalves) {
        clear_upper_halves();
      }
    } else {
      std::for_each(targets.begin(), targets.end(), [&](unsigned char* target) { std::memset(target, 0, bytes); });
    }
    for (const uint8_t place : in) {
      add_to_sum(inputs[place], at, bytes);
    }
    for (const uint8_t place : out) {
      add_to_sum(outputs[place], at, bytes);
    }
  }
}

void code(const CodingTables& tables, std::vector<Input>& inputs, std::vector<Output>& outputs) {
  std::set<size_t> ends;
  for (const Input& input : inputs) {
    ends.insert(input.bytes.size());
  }
  for (const Output& output : outputs) {
    ends.insert(output.bytes.size());
  }
  size_t from = 0;
  for (const size_t end : ends) {
    if (end > from) {
      code_range(tables, inputs, outputs, from, end);
      from = end;
    }
  }
}

}  // namespace

struct ReedSolomon::Impl {
  Impl(uint32_t data_blocks, uint32_t parity_blocks)
      : data(data_blocks), parity(parity_blocks), tables(data_blocks, parity_blocks) {
    std::iota(data_numbers.begin(), data_numbers.end(), uint8_t{0});
    std::iota(parity_numbers.begin(), parity_numbers.end(), static_cast<uint8_t>(data));
    encoding = tables.get(data_numbers, parity_numbers);
  }

  std::string name() const { return absl::StrCat(data, "+", parity); }
  std::string name(uint32_t block) const {
    return block < data ? absl::StrCat("data block ", block)
                        : absl::StrCat("parity block ", block - data, " (block ", block, ")");
  }

  Status check_lengths(std::span<const std::optional<ConstBlock>> blocks, std::span<const Wanted> wanted) const;
  Status not_enough(const std::vector<uint32_t>& lost, const std::vector<uint32_t>& corrupt) const;

  const uint32_t data;
  const uint32_t parity;
  BlockNumbers data_numbers = BlockNumbers(data);
  BlockNumbers parity_numbers = BlockNumbers(parity);
  CodingTablesCache tables;
  std::shared_ptr<const CodingTables> encoding;  // stays cached, whatever else is requested
};

ReedSolomon::ReedSolomon(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ReedSolomon::ReedSolomon(ReedSolomon&&) noexcept = default;
ReedSolomon& ReedSolomon::operator=(ReedSolomon&&) noexcept = default;
ReedSolomon::~ReedSolomon() = default;

StatusOr<ReedSolomon> ReedSolomon::create(uint32_t data, uint32_t parity) {
  if (data == 0 || parity == 0 || uint64_t{data} + parity > kMaxCodeBlocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parity: a code of %d+%d blocks cannot be: it has at least one of each kind, and at most %d in all", data,
        parity, kMaxCodeBlocks));
  }
  return ReedSolomon(std::make_unique<Impl>(data, parity));
}

uint32_t ReedSolomon::data() const { return impl_->data; }
uint32_t ReedSolomon::parity() const { return impl_->parity; }
size_t ReedSolomon::cached_combinations() const { return impl_->tables.size(); }

Status ReedSolomon::encode(std::span<const ConstBlock> data, std::span<const Block> parity,
                           std::span<uint64_t> sums) const {
  if (data.size() != impl_->data || parity.size() != impl_->parity ||
      (!sums.empty() && sums.size() != data.size() + parity.size())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "encode %s: got %d data blocks, %d parity blocks and room for %d checksums (0: none are wanted)", impl_->name(),
        data.size(), parity.size(), sums.size()));
  }
  size_t longest = 0;
  for (const ConstBlock& block : data) {
    longest = std::max(longest, block.size());
  }
  for (size_t block = 0; block < parity.size(); ++block) {
    if (parity[block].size() != longest) {
      return absl::InvalidArgumentError(
          absl::StrFormat("encode %s: parity block %d has %d bytes; the longest data block has %d, and so must each "
                          "parity block",
                          impl_->name(), block, parity[block].size(), longest));
    }
  }
  std::vector<Input> inputs = streams(std::vector<ConstBlock>(data.begin(), data.end()), !sums.empty());
  std::vector<Output> outputs = streams(std::vector<Block>(parity.begin(), parity.end()), !sums.empty());
  code(*impl_->encoding, inputs, outputs);
  for (size_t block = 0; block < sums.size(); ++block) {
    sums[block] = block < inputs.size() ? inputs[block].sum->value() : outputs[block - inputs.size()].sum->value();
  }
  return absl::OkStatus();
}

Status ReedSolomon::Impl::check_lengths(std::span<const std::optional<ConstBlock>> blocks,
                                        std::span<const Wanted> wanted) const {
  std::vector<std::optional<size_t>> lengths(blocks.size());
  for (size_t block = 0; block < blocks.size(); ++block) {
    if (blocks[block].has_value()) {
      lengths[block] = blocks[block]->size();
    }
  }
  for (const Wanted& one : wanted) {
    lengths[one.block] = one.into.size();
  }
  std::optional<uint32_t> measure;  // a parity block: as long as the longest data block
  for (uint32_t block = data; block < lengths.size(); ++block) {
    if (!lengths[block].has_value()) {
      continue;
    }
    if (measure.has_value() && *lengths[block] != *lengths[*measure]) {
      return absl::InvalidArgumentError(
          absl::StrFormat("rebuild %s: %s has %d bytes, %s has %d; all parity blocks are "
                          "as long as the longest data block",
                          name(), name(block), *lengths[block], name(*measure), *lengths[*measure]));
    }
    measure = block;
  }
  size_t longest = 0;
  bool all_known = true;
  for (uint32_t block = 0; block < data; ++block) {
    all_known &= lengths[block].has_value();
    longest = std::max(longest, lengths[block].value_or(0));
    if (measure.has_value() && lengths[block].value_or(0) > *lengths[*measure]) {
      return absl::InvalidArgumentError(absl::StrFormat("rebuild %s: %s has %d bytes, more than %s with %d", name(),
                                                        name(block), *lengths[block], name(*measure),
                                                        *lengths[*measure]));
    }
  }
  if (measure.has_value() && all_known && longest != *lengths[*measure]) {
    return absl::InvalidArgumentError(absl::StrFormat("rebuild %s: %s has %d bytes, the longest data block %d", name(),
                                                      name(*measure), *lengths[*measure], longest));
  }
  return absl::OkStatus();
}

Status ReedSolomon::Impl::not_enough(const std::vector<uint32_t>& lost, const std::vector<uint32_t>& corrupt) const {
  return absl::DataLossError(absl::StrFormat("rebuild %s: %d of %d blocks are needed and %d are left: lost %s%s%s",
                                             name(), data, data + parity, data + parity - lost.size() - corrupt.size(),
                                             lost.empty() ? "none" : absl::StrJoin(lost, ", "),
                                             corrupt.empty() ? "" : ", corrupt ", absl::StrJoin(corrupt, ", ")));
}

StatusOr<std::vector<uint32_t>> ReedSolomon::rebuild(std::span<const std::optional<ConstBlock>> blocks,
                                                     std::span<const Wanted> wanted,
                                                     std::span<const uint64_t> sums) const {
  const Impl& code_of = *impl_;
  const uint32_t count = code_of.data + code_of.parity;
  if (blocks.size() != count || (!sums.empty() && sums.size() != count)) {
    return absl::InvalidArgumentError(absl::StrFormat("rebuild %s: got %d blocks and %d checksums (0: none are known)",
                                                      code_of.name(), blocks.size(), sums.size()));
  }
  std::vector<const Wanted*> in_order(count, nullptr);
  for (const Wanted& one : wanted) {
    if (one.block >= count || in_order[one.block] != nullptr) {
      return absl::InvalidArgumentError(absl::StrFormat("rebuild %s: block %d is wanted%s", code_of.name(), one.block,
                                                        one.block >= count ? "" : " twice"));
    }
    in_order[one.block] = &one;
  }
  KEEPSTEP_RETURN_IF_ERROR(code_of.check_lengths(blocks, wanted));
  std::vector<uint32_t> lost;
  BlockNumbers at_hand;  // data first: data blocks at hand need no arithmetic
  BlockNumbers numbers;
  std::vector<Block> into;
  for (uint32_t block = 0; block < count; ++block) {
    if (in_order[block] != nullptr) {
      numbers.push_back(static_cast<uint8_t>(block));
      into.push_back(in_order[block]->into);
    }
    if (in_order[block] != nullptr || !blocks[block].has_value()) {
      lost.push_back(block);
    } else {
      at_hand.push_back(static_cast<uint8_t>(block));
    }
  }
  std::vector<uint32_t> corrupt;
  while (at_hand.size() >= code_of.data) {
    const BlockNumbers basis(at_hand.begin(), at_hand.begin() + code_of.data);
    std::vector<ConstBlock> sources;
    for (const uint8_t block : basis) {
      sources.push_back(*blocks[block]);
    }
    std::vector<Input> inputs = streams(sources, !sums.empty());
    std::vector<Output> outputs = streams(into, !sums.empty());
    code(*impl_->tables.get(basis, numbers), inputs, outputs);
    const size_t found = corrupt.size();
    for (size_t place = 0; place < basis.size() && !sums.empty(); ++place) {
      if (inputs[place].sum->value() != sums[basis[place]]) {
        corrupt.push_back(basis[place]);
        std::erase(at_hand, basis[place]);
      }
    }
    if (corrupt.size() > found) {
      continue;
    }
    for (size_t place = 0; place < outputs.size() && !sums.empty(); ++place) {
      if (outputs[place].sum->value() != sums[numbers[place]]) {
        return absl::DataLossError(
            absl::StrFormat("rebuild %s: %s has a wrong checksum after the rebuild, although the blocks it came from "
                            "are intact: did it have %d "
                            "bytes, and do the checksums belong to this version?",
                            code_of.name(), code_of.name(numbers[place]), into[place].size()));
      }
    }
    std::sort(corrupt.begin(), corrupt.end());
    return corrupt;
  }
  std::sort(corrupt.begin(), corrupt.end());
  return code_of.not_enough(lost, corrupt);
}

}  // namespace keepstep::state
