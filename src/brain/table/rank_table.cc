#include "brain/table/rank_table.h"

#include <algorithm>
#include <utility>

#include "brain/require.h"

namespace keepstep::brain {
namespace {

using Entry = RankTable::Entry;
using Splice = RankTableDelta::Splice;

constexpr uint32_t kMaxPort = 65535;

std::string fault_of(const Entry& entry) {
  if (entry.ranks == 0) {
    return "it has no ranks";
  }
  const uint64_t last_local = uint64_t{entry.first_local} + entry.ranks - 1;
  if (entry.endpoint.port_base + last_local > kMaxPort) {
    return "local rank " + std::to_string(last_local) + " above port base " + std::to_string(entry.endpoint.port_base) +
           " has no port below 65536";
  }
  return "";
}

std::optional<RankTable> refuse(std::string* why, std::string text) {
  if (why != nullptr) {
    *why = std::move(text);
  }
  return std::nullopt;
}

size_t inserted_by(const RankTableDelta& delta) {
  size_t count = 0;
  for (const Splice& splice : delta.splices) {
    count += splice.inserted.size() + 1;  // a splice itself costs about as much as an entry
  }
  return count;
}

// Compares entries at the same index; what exceeds the shorter table is one splice at the end.
RankTableDelta by_index(const std::vector<Entry>& base, const std::vector<Entry>& target) {
  RankTableDelta delta;
  const size_t both = std::min(base.size(), target.size());
  for (size_t at = 0; at < both; ++at) {
    if (base[at] == target[at]) {
      continue;
    }
    if (delta.splices.empty() || delta.splices.back().at + delta.splices.back().removed != at) {
      delta.splices.push_back({static_cast<uint32_t>(at), 0, {}});
    }
    ++delta.splices.back().removed;
    delta.splices.back().inserted.push_back(target[at]);
  }
  if (base.size() != target.size()) {
    delta.splices.push_back({static_cast<uint32_t>(both), static_cast<uint32_t>(base.size() - both),
                             std::vector<Entry>(target.begin() + static_cast<ptrdiff_t>(both), target.end())});
  }
  return delta;
}

// One splice between the common start and the common end.
RankTableDelta by_middle(const std::vector<Entry>& base, const std::vector<Entry>& target) {
  const auto [left, right] = std::mismatch(base.begin(), base.end(), target.begin(), target.end());
  auto base_end = base.end();
  auto target_end = target.end();
  while (base_end != left && target_end != right && *(base_end - 1) == *(target_end - 1)) {
    --base_end;
    --target_end;
  }
  return {{{static_cast<uint32_t>(left - base.begin()), static_cast<uint32_t>(base_end - left),
            std::vector<Entry>(right, target_end)}}};
}

}  // namespace

Address ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d) {
  return Address{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d}};
}

std::optional<RankTable> RankTable::make(std::vector<Entry> entries, std::string* why) {
  if (entries.size() > kMaxTableEntries) {
    return refuse(why, "a rank table has more than " + std::to_string(kMaxTableEntries) + " entries");
  }
  auto rows = std::make_shared<Rows>();
  rows->first_ranks.reserve(entries.size());
  uint64_t ranks = 0;
  for (size_t index = 0; index < entries.size(); ++index) {
    if (const std::string fault = fault_of(entries[index]); !fault.empty()) {
      return refuse(why, "entry " + std::to_string(index) + " (node " + std::to_string(entries[index].node) +
                             ") of a rank table is wrong: " + fault);
    }
    rows->first_ranks.push_back(static_cast<Rank>(ranks));
    ranks += entries[index].ranks;
    if (ranks > kMaxWorldSize) {
      return refuse(why, "a rank table has more than " + std::to_string(kMaxWorldSize) + " ranks");
    }
  }
  rows->entries = std::move(entries);
  rows->world_size = static_cast<uint32_t>(ranks);
  RankTable table;
  table.rows_ = std::move(rows);
  return table;
}

RankTable::Location RankTable::locate(Rank rank) const {
  require(rank < world_size(), "a rank that the table does not have");
  const std::vector<Rank>& firsts = rows_->first_ranks;
  const auto index = static_cast<size_t>(std::upper_bound(firsts.begin(), firsts.end(), rank) - firsts.begin()) - 1;
  const Entry& entry = rows_->entries[index];
  const uint32_t local = entry.first_local + (rank - firsts[index]);
  const uint16_t base = entry.endpoint.port_base;
  return {entry.node, local, entry.endpoint.address, base == 0 ? uint16_t{0} : static_cast<uint16_t>(base + local)};
}

RankTableDelta difference(const RankTable& base, const RankTable& target) {
  if (base == target) {
    return {};
  }
  RankTableDelta first = by_index(base.entries(), target.entries());
  RankTableDelta second = by_middle(base.entries(), target.entries());
  return inserted_by(first) <= inserted_by(second) ? first : second;
}

std::optional<RankTable> apply(const RankTable& base, const RankTableDelta& delta, std::string* why) {
  if (delta.splices.empty()) {
    return base;
  }
  const std::vector<Entry>& from = base.entries();
  std::vector<Entry> entries;
  entries.reserve(from.size());
  size_t next = 0;  // of the base, to be copied
  for (const Splice& splice : delta.splices) {
    if (splice.at < next || splice.at > from.size() || splice.removed > from.size() - splice.at) {
      return refuse(why, "a splice of " + std::to_string(splice.removed) + " entries at " + std::to_string(splice.at) +
                             " does not fit a rank table of " + std::to_string(from.size()));
    }
    entries.insert(entries.end(), from.begin() + static_cast<ptrdiff_t>(next),
                   from.begin() + static_cast<ptrdiff_t>(splice.at));
    entries.insert(entries.end(), splice.inserted.begin(), splice.inserted.end());
    next = splice.at + splice.removed;
  }
  entries.insert(entries.end(), from.begin() + static_cast<ptrdiff_t>(next), from.end());
  return RankTable::make(std::move(entries), why);
}

}  // namespace keepstep::brain
