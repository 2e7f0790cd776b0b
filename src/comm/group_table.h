// The table of a generation's groups and their places, shared by the ranks of a node and guarded by a small lock.
//
// Members find each other by the group's key and by how often they used that key before; the first to arrive takes a
// free place. A place becomes free again when every member has left. A process that dies while it holds the lock leaves
// it locked: waiters then give up at the interruption that its death causes.
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

  struct Joined {
    uint32_t index = 0;
    uint32_t incarnation = 0;
    uint64_t identity = 0;  // the same on all nodes
  };
  // Joins, or creates, the group named by `key` and `nth` (how often this rank used this key before). When all places
  // are taken, waits up to `patience_ns` for one that its members are leaving, then returns RESOURCE_EXHAUSTED.
  // INVALID_ARGUMENT: a member on this node joined under this name with other members. UNAVAILABLE: interrupted while
  // waiting. `local_count` of the members are on this node; the place is free again once these have left.
  StatusOr<Joined> join(const std::string& key, uint32_t nth, std::span<const Rank> members, size_t local_count,
                        int64_t patience_ns);
  // announce_leave(): this rank will leave a group once its last operation is over, so join() may wait for the place.
  // leave(): it leaves now. Call each once per group.
  void announce_leave() { leaving_.fetch_add(1, std::memory_order_relaxed); }
  void leave(uint32_t index);

 private:
  bool lock();
  void unlock();
  StatusOr<bool> try_join(uint64_t identity, const std::string& key, std::span<const Rank> members, size_t local_count,
                          Joined* group);

  const Layout& layout_;
  std::byte* generation_;
  Rank self_;
  const std::atomic<uint32_t>& interrupted_;
  std::atomic<int> leaving_ = 0;
};

}  // namespace keepstep::comm
