// What ISA-L needs to compute some blocks of a Reed-Solomon code from k others, made on first use and cached. Internal
// to reed_solomon.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace keepstep::state {

// Block numbers: data first, then parity.
using BlockNumbers = std::vector<uint8_t>;

// The coefficients that compute `outputs` from `basis`, and ISA-L's tables for them. Thread-safe.
class CodingTables {
 public:
  // `rows`: outputs.size() rows of `columns` coefficients.
  CodingTables(std::vector<uint8_t> rows, size_t columns);

  // For some of the outputs and some of the basis, given by their indexes: the ones that remain where shorter blocks
  // have ended. Not empty, ascending.
  std::shared_ptr<const std::vector<uint8_t>> of(const BlockNumbers& outputs, const BlockNumbers& columns) const;

 private:
  static constexpr size_t kMaxParts = 64;
  const std::vector<uint8_t> rows_;
  const size_t columns_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<BlockNumbers, BlockNumbers>, std::shared_ptr<const std::vector<uint8_t>>> parts_;
};

// The tables of one code, for the most recently requested combinations. Thread-safe.
class CodingTablesCache {
 public:
  CodingTablesCache(uint32_t data, uint32_t parity);

  // `basis`: k different blocks, ascending. Any k of them determine all others.
  std::shared_ptr<const CodingTables> get(const BlockNumbers& basis, const BlockNumbers& outputs);
  size_t size() const;

 private:
  static constexpr size_t kMaxKept = 32;
  using Key = std::pair<BlockNumbers, BlockNumbers>;
  std::vector<uint8_t> rows(const BlockNumbers& basis, const BlockNumbers& outputs) const;

  const uint32_t data_;
  std::vector<uint8_t> generator_;  // k + m rows of k coefficients
  mutable std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const CodingTables>>> kept_;  // the most recently used in front
};

}  // namespace keepstep::state
