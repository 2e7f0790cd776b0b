#include "comm/layout.h"

#include <algorithm>
#include <new>

#include "base/check.h"
#include "base/checksum.h"
#include "base/futex.h"

namespace keepstep::comm {
namespace {

constexpr uint64_t kMagic = 0x6b656570'73746570;  // "keepstep"
constexpr uint64_t kLayoutVersion = 2;

template <class T>
T* at(std::byte* base, size_t offset) {
  return std::launder(reinterpret_cast<T*>(base + offset));
}

}  // namespace

Layout::Layout(const CommConfig& config)
    : max_world_(config.max_world),
      max_local_(config.max_local == 0 ? config.max_world : std::min(config.max_local, config.max_world)),
      groups_(config.groups),
      slot_bytes_(whole_lines(std::max(config.slot_bytes, config.max_world * kCacheLine))),
      group_slot_bytes_(whole_lines(std::max(config.group_slot_bytes, config.max_world * kCacheLine))),
      ring_bytes_(whole_lines(std::max(config.ring_bytes, kCacheLine))) {
  KEEPSTEP_CHECK(max_world_ > 0 && groups_ > 0, "a communicator needs room for a rank and for the world group");
}

size_t Layout::arena_bytes() const {
  return 4 * (slot_bytes_ + (groups_ - 1) * group_slot_bytes_) + max_local_ * ring_bytes_;
}

size_t Layout::members_bytes() const { return whole_lines(max_world_ * sizeof(uint32_t)); }
size_t Layout::group_stride() const { return sizeof(GroupBlock) + members_bytes() + max_local_ * sizeof(RankLine); }
size_t Layout::bells_offset() const { return sizeof(Header) + groups_ * group_stride(); }
size_t Layout::pairs_offset() const { return bells_offset() + max_local_ * sizeof(Bell); }
size_t Layout::generation_bytes() const { return pairs_offset() + size_t{max_local_} * max_local_ * sizeof(PairBlock); }

uint64_t Layout::fingerprint(size_t world) const {
  const uint64_t facts[] = {kMagic,      kLayoutVersion,    max_world_,  max_local_, groups_,
                            slot_bytes_, group_slot_bytes_, ring_bytes_, world};
  return checksum(facts, sizeof(facts)) | 1;  // never the zero of fresh memory
}

std::byte* Layout::slots(std::byte* arena, uint32_t group) const {
  KEEPSTEP_CHECK(group < groups_, "no such group slot");
  return group == kWorld ? arena : arena + 4 * (slot_bytes_ + (group - 1) * group_slot_bytes_);
}

std::byte* Layout::ring(std::byte* arena, uint32_t to) const {
  KEEPSTEP_CHECK(to < max_local_, "no such ring");
  return arena + 4 * (slot_bytes_ + (groups_ - 1) * group_slot_bytes_) + to * ring_bytes_;
}

Header& Layout::header(std::byte* generation) const { return *at<Header>(generation, 0); }

GroupBlock& Layout::group(std::byte* generation, uint32_t group) const {
  KEEPSTEP_CHECK(group < groups_, "no such group slot");
  return *at<GroupBlock>(generation, sizeof(Header) + group * group_stride());
}

uint32_t* Layout::members(std::byte* generation, uint32_t group) const {
  return at<uint32_t>(generation, sizeof(Header) + group * group_stride() + sizeof(GroupBlock));
}

RankLine* Layout::lines(std::byte* generation, uint32_t group) const {
  return at<RankLine>(generation, sizeof(Header) + group * group_stride() + sizeof(GroupBlock) + members_bytes());
}

Bell& Layout::bell(std::byte* generation, uint32_t rank) const {
  KEEPSTEP_CHECK(rank < max_local_, "no such rank");
  return *at<Bell>(generation, bells_offset() + rank * sizeof(Bell));
}

PairBlock& Layout::pair(std::byte* generation, uint32_t from, uint32_t to) const {
  KEEPSTEP_CHECK(from < max_local_ && to < max_local_, "no such pair");
  return *at<PairBlock>(generation, pairs_offset() + (size_t{from} * max_local_ + to) * sizeof(PairBlock));
}

size_t arena_bytes(const CommConfig& config) { return Layout(config).arena_bytes(); }
size_t generation_bytes(const CommConfig& config) { return Layout(config).generation_bytes(); }

void wake_all(const CommConfig& config, std::byte* generation) {
  const Layout layout(config);
  const auto wake = [](Bell& bell) {
    bell.ring.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(bell.ring);
  };
  wake(layout.header(generation).table_bell);
  wake(layout.header(generation).interruption);
  for (uint32_t group = 0; group < layout.groups(); ++group) {
    wake(layout.group(generation, group).bell);
  }
  for (uint32_t local = 0; local < layout.max_local(); ++local) {
    wake(layout.bell(generation, local));
  }
}

}  // namespace keepstep::comm
