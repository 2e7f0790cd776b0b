#include "data/corpus/pack_plan.h"

#include <algorithm>
#include <limits>
#include <set>

#include "base/check.h"

namespace keepstep::data {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
constexpr uint64_t kLeast = 2;  // the shortest piece worth having: one token to read, one to predict

std::vector<PackPiece> pieces_of(std::span<const Range> documents, uint64_t capacity, TooLong too_long,
                                 PackPlan& plan) {
  std::vector<PackPiece> pieces;
  for (const Range& document : documents) {
    const uint64_t length = document.size();
    if (length < kLeast) {
      ++plan.skipped;
    } else if (length <= capacity) {
      pieces.push_back({document.begin, static_cast<uint32_t>(length)});
    } else {
      ++plan.cut;
      if (too_long == TooLong::kTruncate) {
        pieces.push_back({document.begin, static_cast<uint32_t>(capacity)});
      } else if (too_long == TooLong::kCut) {
        for (uint64_t at = document.begin; at + kLeast <= document.end; at += capacity - 1) {
          pieces.push_back({at, static_cast<uint32_t>(std::min(capacity, document.end - at))});
        }
      }
    }
  }
  return pieces;
}

// The numbers of the pieces from the longest to the shortest; ties in their order.
std::vector<uint64_t> longest_first(const std::vector<PackPiece>& pieces, uint64_t capacity) {
  std::vector<uint64_t> ends(capacity + 2);
  for (const PackPiece& piece : pieces) {
    ++ends[capacity - piece.count + 1];
  }
  for (uint64_t i = 1; i < ends.size(); ++i) {
    ends[i] += ends[i - 1];
  }
  std::vector<uint64_t> order(pieces.size());
  for (uint64_t number = 0; number < pieces.size(); ++number) {
    order[ends[capacity - pieces[number].count]++] = number;
  }
  return order;
}

// Rows by the room they have left.
class Open {
 public:
  explicit Open(uint64_t capacity) : rows_(capacity + 1) {}

  void put(uint32_t row, uint64_t room) {
    if (room < kLeast) {
      return;
    }
    if (rows_[room].empty()) {
      rooms_.insert(room);
    }
    rows_[room].push_back(row);
  }

  // Removes the row with the least sufficient room; returns it and its room, or kNone if there is none.
  std::pair<uint32_t, uint64_t> take(uint64_t needed) {
    const auto least = rooms_.lower_bound(needed);
    if (least == rooms_.end()) {
      return {kNone, 0};
    }
    const uint64_t room = *least;
    const uint32_t row = rows_[room].back();
    rows_[room].pop_back();
    if (rows_[room].empty()) {
      rooms_.erase(least);
    }
    return {row, room};
  }

 private:
  std::vector<std::vector<uint32_t>> rows_;
  std::set<uint64_t> rooms_;  // the sizes of room for which there are rows
};

}  // namespace

StatusOr<PackPlan> plan_packing(std::span<const Range> documents, uint64_t capacity, TooLong too_long) {
  KEEPSTEP_CHECK(capacity >= kLeast && capacity <= kMaxPackCapacity, "the capacity of a row");
  PackPlan plan;
  const std::vector<PackPiece> pieces = pieces_of(documents, capacity, too_long, plan);
  std::vector<uint32_t> row_of(pieces.size());
  Open open(capacity);
  uint32_t rows = 0;
  for (const uint64_t number : longest_first(pieces, capacity)) {
    const uint64_t needed = pieces[number].count;
    auto [row, room] = open.take(needed);
    if (row == kNone) {
      if (rows == kNone - 1) {
        return absl::ResourceExhaustedError(absl::StrFormat(
            "%d pieces of documents need more than %d rows of %d tokens; pack parts of the corpus (splits), or longer "
            "sequences",
            pieces.size(), rows, capacity));
      }
      row = rows++;
      room = capacity;
    }
    row_of[number] = row;
    open.put(row, room - needed);
  }
  std::vector<uint32_t> renumbered(rows, kNone);  // by the first document of each
  uint32_t next = 0;
  plan.starts.assign(rows + uint64_t{1}, 0);
  for (uint64_t number = 0; number < pieces.size(); ++number) {
    uint32_t& row = renumbered[row_of[number]];
    if (row == kNone) {
      row = next++;
    }
    ++plan.starts[row + uint64_t{1}];
    plan.tokens += pieces[number].count;
  }
  for (uint64_t row = 0; row < rows; ++row) {
    plan.starts[row + 1] += plan.starts[row];
  }
  plan.pieces.resize(pieces.size());
  std::vector<uint64_t> at(plan.starts.begin(), plan.starts.end() - 1);
  for (uint64_t number = 0; number < pieces.size(); ++number) {
    plan.pieces[at[renumbered[row_of[number]]]++] = pieces[number];
  }
  return plan;
}

}  // namespace keepstep::data
