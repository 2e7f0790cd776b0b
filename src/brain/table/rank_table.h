// The rank table of a generation: where every rank is, in a few bytes per node. A value, without I/O.
//
// An entry is a run of consecutive ranks on one node; the entries in order hold the ranks 0 to world_size() - 1. A
// rank's endpoint follows from its entry and its local rank: the node's address, and the node's port base plus the
// local rank. Nothing else is looked up, and no names are resolved. (For the encoding, see proto/rank_table_wire.h and
// docs/formats/rank_table.md.)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// An IPv6 address in network order; an IPv4 address as ::ffff:a.b.c.d.
struct Address {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const Address&) const = default;
};
Address ipv4(uint8_t a, uint8_t b, uint8_t c, uint8_t d);

// Where a node's ranks can be reached. `port_base` 0: not from outside (the job has one node, whose ranks meet in
// shared memory).
struct NodeEndpoint {
  Address address;
  uint16_t port_base = 0;  // of local rank 0; local rank i has port_base + i
  auto operator<=>(const NodeEndpoint&) const = default;
};

inline constexpr uint32_t kMaxWorldSize = 1 << 20;  // ranks
inline constexpr size_t kMaxTableEntries = 65535;

// Immutable; copies share their contents.
class RankTable {
 public:
  struct Entry {
    NodeId node = 0;
    uint32_t ranks = 0;        // how many, at least 1
    uint16_t first_local = 0;  // local rank of the first one
    NodeEndpoint endpoint;
    bool operator==(const Entry&) const = default;
  };
  // Everything about one rank.
  struct Location {
    NodeId node = 0;
    uint32_t local_rank = 0;
    Address address;
    uint16_t port = 0;  // 0 if none, see NodeEndpoint
    bool operator==(const Location&) const = default;
  };

  RankTable() = default;  // without ranks
  // std::nullopt if the entries form no valid table: an entry without ranks, a port or a local rank above 65535, or too
  // many ranks or entries. `why` (if not null) says which and why.
  static std::optional<RankTable> make(std::vector<Entry> entries, std::string* why = nullptr);

  uint32_t world_size() const { return rows_->world_size; }
  const std::vector<Entry>& entries() const { return rows_->entries; }
  // `rank` must be below world_size(). O(log(entries)).
  Location locate(Rank rank) const;

  bool operator==(const RankTable& other) const {
    return rows_ == other.rows_ || rows_->entries == other.rows_->entries;
  }

 private:
  struct Rows {
    std::vector<Entry> entries;
    std::vector<Rank> first_ranks;  // of each entry
    uint32_t world_size = 0;
  };
  std::shared_ptr<const Rows> rows_ = std::make_shared<const Rows>();
};

// Turns one table into another: entries [at, at + removed) of the base are replaced by `inserted`. Splices ascend and
// do not overlap; `at` is an index into the base.
struct RankTableDelta {
  struct Splice {
    uint32_t at = 0;
    uint32_t removed = 0;
    std::vector<RankTable::Entry> inserted;
    bool operator==(const Splice&) const = default;
  };
  std::vector<Splice> splices;
  bool operator==(const RankTableDelta&) const = default;
};

// O(entries). The delta is empty if the tables are equal; each changed, new or lost entry costs one splice.
RankTableDelta difference(const RankTable& base, const RankTable& target);

// std::nullopt if the splices do not fit `base` or form no valid table; `why` as for make().
std::optional<RankTable> apply(const RankTable& base, const RankTableDelta& delta, std::string* why = nullptr);

}  // namespace keepstep::brain
