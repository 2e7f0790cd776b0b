// Which groups exist in a generation, and where their slots are: a table that all ranks share, under a small lock.
//
// Members find each other by the key of the group and by how often they used that key before; the first to come takes
// a free place. A place is free again when every member has left. A holder of the lock that died leaves it locked:
// whoever waits for it then gives up at the interruption, which its death brings.
#pragma once

#include <atomic>
#include <span>
#include <string>

#include "base/status.h"
#include "comm/layout.h"

namespace keepstep::comm {

class GroupTable {
 public:
  GroupTable(const Layout& layout, std::byte* generation, Rank self, const std::atomic<uint32_t>& interrupted)
      : layout_(layout), generation_(generation), self_(self), interrupted_(interrupted) {}

  struct Place {
    uint32_t index = 0;
    uint32_t incarnation = 0;
    uint64_t identity = 0;  // the same on all nodes
  };
  // Joins the group that `key` and `nth` (uses of this key by this rank before) name, or makes it. When all places are
  // taken, waits up to `patience_ns` for one that its members are leaving, then RESOURCE_EXHAUSTED. INVALID_ARGUMENT
  // when a member of this node joined under this name with other members; UNAVAILABLE when interrupted while waiting.
  // `local_count` of the members are on this node; the place is free again once these have left.
  StatusOr<Place> join(const std::string& key, uint32_t nth, std::span<const Rank> members, size_t local_count,
                       int64_t patience_ns);
  // This rank will leave a group as soon as its last operation is over; then it does. Once each.
  void announce_leave() { leaving_.fetch_add(1, std::memory_order_relaxed); }
  void leave(uint32_t index);

 private:
  bool lock();
  void unlock();
  StatusOr<bool> try_join(uint64_t identity, const std::string& key, std::span<const Rank> members, size_t local_count,
                          Place* place);

  const Layout& layout_;
  std::byte* generation_;
  Rank self_;
  const std::atomic<uint32_t>& interrupted_;
  std::atomic<int> leaving_ = 0;
};

}  // namespace keepstep::comm
