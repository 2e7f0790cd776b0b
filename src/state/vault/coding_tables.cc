#include "state/vault/coding_tables.h"

#include <isa-l/erasure_code.h>

#include <algorithm>

#include "base/check.h"

namespace keepstep::state {
namespace {

constexpr size_t kTableBytes = 32;  // for one coefficient

}  // namespace

CodingTables::CodingTables(std::vector<uint8_t> rows, size_t columns) : rows_(std::move(rows)), columns_(columns) {}

std::shared_ptr<const std::vector<uint8_t>> CodingTables::of(const BlockNumbers& outputs,
                                                             const BlockNumbers& columns) const {
  const std::lock_guard lock(mutex_);
  if (const auto known = parts_.find({outputs, columns}); known != parts_.end()) {
    return known->second;
  }
  std::vector<uint8_t> coefficients;
  for (const uint8_t output : outputs) {
    for (const uint8_t column : columns) {
      coefficients.push_back(rows_.at(output * columns_ + column));
    }
  }
  auto tables = std::make_shared<std::vector<uint8_t>>(kTableBytes * coefficients.size());
  ec_init_tables(static_cast<int>(columns.size()), static_cast<int>(outputs.size()), coefficients.data(),
                 tables->data());
  if (parts_.size() >= kMaxParts) {
    parts_.clear();
  }
  parts_[{outputs, columns}] = tables;
  return tables;
}

CodingTablesCache::CodingTablesCache(uint32_t data, uint32_t parity)
    : data_(data), generator_(size_t{data + parity} * data) {
  gf_gen_cauchy1_matrix(generator_.data(), static_cast<int>(data + parity), static_cast<int>(data));
}

// A block of the basis is its row of the generator times the data: the inverse of these rows recovers the data.
std::vector<uint8_t> CodingTablesCache::rows(const BlockNumbers& basis, const BlockNumbers& outputs) const {
  const size_t k = data_;
  std::vector<uint8_t> of_basis;
  for (const uint8_t block : basis) {
    of_basis.insert(of_basis.end(), generator_.begin() + static_cast<long>(block * k),
                    generator_.begin() + static_cast<long>((block + size_t{1}) * k));
  }
  std::vector<uint8_t> to_data(k * k);
  KEEPSTEP_CHECK(gf_invert_matrix(of_basis.data(), to_data.data(), static_cast<int>(k)) == 0,
                 "a square part of a Cauchy matrix cannot be inverted");
  std::vector<uint8_t> rows;
  for (const uint8_t output : outputs) {
    for (size_t column = 0; column < k; ++column) {
      uint8_t sum = 0;
      for (size_t inner = 0; inner < k; ++inner) {
        sum ^= gf_mul(generator_[output * k + inner], to_data[inner * k + column]);
      }
      rows.push_back(sum);
    }
  }
  return rows;
}

std::shared_ptr<const CodingTables> CodingTablesCache::get(const BlockNumbers& basis, const BlockNumbers& outputs) {
  const std::lock_guard lock(mutex_);
  const Key key = {basis, outputs};
  const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const auto& entry) { return entry.first == key; });
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
  } else {
    kept_.emplace_front(key, std::make_shared<const CodingTables>(rows(basis, outputs), data_));
    if (kept_.size() > kMaxKept) {
      kept_.pop_back();
    }
  }
  return kept_.front().second;
}

size_t CodingTablesCache::size() const {
  const std::lock_guard lock(mutex_);
  return kept_.size();
}

}  // namespace keepstep::state
