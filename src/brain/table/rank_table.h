// The rank table of a generation: where every rank lives, a few bytes a node. A value, without I/O.
//
// An entry is a run of consecutive ranks on one node; the ranks of all entries, one after the other, are 0 to
// world_size() - 1. A rank's endpoint follows from its entry and its local rank: the node's address, and the node's
// port base plus the local rank. Nothing is looked up any further, no name ever. (How it travels:
// proto/rank_table_wire.h and docs/formats/rank_table.md.)
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

// Where a node's ranks can be reached. `port_base` 0: by nobody from outside (the job has one node, whose ranks meet
// in shared memory).
struct NodeEndpoint {
  Address address;
  uint16_t port_base = 0;  // of local rank 0; local rank i has port_base + i
  auto operator<=>(const NodeEndpoint&) const = default;
};

inline constexpr uint32_t kMaxWorldSize = 1 << 20;  // ranks
inline constexpr size_t kMaxTableEntries = 65535;

// Immutable; copies share what they hold.
class RankTable {
 public:
  struct Entry {
    NodeId node = 0;
    uint32_t ranks = 0;        // how many, at least 1
    uint16_t first_local = 0;  // local rank of the first of them
    NodeEndpoint endpoint;
    bool operator==(const Entry&) const = default;
  };
  // What there is to know about one rank.
  struct Place {
    NodeId node = 0;
    uint32_t local_rank = 0;
    Address address;
    uint16_t port = 0;  // 0: none, see NodeEndpoint
    bool operator==(const Place&) const = default;
  };

  RankTable() = default;  // of no rank
  // Nothing if the entries make no table: an entry without ranks, a port or a local rank above 65535, too
  // many ranks or entries. `why` (if not null) says which and why.
  static std::optional<RankTable> make(std::vector<Entry> entries, std::string* why = nullptr);

  uint32_t world_size() const { return rows_->world_size; }
  const std::vector<Entry>& entries() const { return rows_->entries; }
  // `rank` must be below world_size(). O(log(entries)).
  Place place(Rank rank) const;

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

// What turns one table into another: entries [at, at + removed) of the base give way to `inserted`. Splices ascend and
// do not overlap; `at` counts in the base.
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

// O(entries). A delta that is empty if the tables are equal; one changed, new or lost entry costs one splice.
RankTableDelta difference(const RankTable& base, const RankTable& target);

// Nothing if the splices do not fit `base` or make no table; `why` as for make().
std::optional<RankTable> apply(const RankTable& base, const RankTableDelta& delta, std::string* why = nullptr);

}  // namespace keepstep::brain
