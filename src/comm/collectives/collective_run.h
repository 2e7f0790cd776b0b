// What all implementations of collectives share: the choice of algorithm by kind, the slots and meetings of the members
// on one node, the data exchange among them, and how an operation that cannot go on ends.
//
// Members, as in operation.h, are ranks in the group. One thread at a time per group.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "comm/collectives/collectives.h"
#include "comm/numbers/reduce.h"
#include "comm/operation.h"

namespace keepstep::comm {

inline void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

// A contiguous part of a chunk, in bytes.
struct Slice {
  size_t begin = 0;
  size_t end = 0;
  size_t bytes() const { return end - begin; }
};

// Part `index` of `parts` parts of a chunk of `bytes`: whole cache lines; the last parts may be empty.
Slice slice_of(size_t bytes, size_t parts, size_t index);

// One operation, as carried out by one member. Used once. `refused`: what why_refused() returned for it.
class CollectiveRun {
 public:
  CollectiveRun(Group& group, const Operation& operation, const std::string& refused);
  CollectiveRun(const CollectiveRun&) = delete;
  CollectiveRun& operator=(const CollectiveRun&) = delete;
  Result all();

  // The slots to fill for the next meeting, and those that `member` filled for the last one.
  std::byte* own_input() const { return slot(self(), group_.sync.phase() + 1, 0); }
  std::byte* own_result() const { return slot(self(), group_.sync.phase() + 1, 1); }
  const std::byte* input_of(size_t member) const { return slot(member, group_.sync.phase(), 0); }
  const std::byte* result_of(size_t member) const { return slot(member, group_.sync.phase(), 1); }
  // Meets the members on this node. If these are all members, the first meeting also compares their calls. False: the
  // operation is over, and all() returns its result.
  bool meet();
  // Ends the operation with an error; returns false.
  bool fail(const std::string& why);

 protected:
  ~CollectiveRun() = default;

  virtual void carry_out();    // calls the function for the operation's kind
  virtual void barrier() = 0;  // also tells the others that our call was refused
  virtual void reduce(bool to_all) = 0;
  virtual void broadcast() = 0;
  virtual void gather(bool to_all) = 0;
  virtual void scatter() = 0;
  virtual void reduce_scatter() = 0;
  virtual void all_to_all() = 0;
  virtual void all_reduce_canonical() = 0;

  size_t size() const { return group_.size(); }
  size_t self() const { return group_.self; }
  size_t local_size() const { return map_.here().size(); }
  Rank rank_of(size_t member) const { return group_.members[member]; }
  bool is_root() const { return self() == operation_.root; }

  // How many bytes one member may put into one slot for each of the others on its node.
  size_t share_bytes() const { return group_.slot_bytes / local_size() / kCacheLine * kCacheLine; }

  // False, with the error, if our call was refused or there is a disagreement(): `why_not`.
  bool agreed(const std::string& why_not);
  // give_up(): like fail(), and ends the group for all members: they see that instead of waiting for us. follow():
  // another member gave up.
  bool give_up(GivenUp who, const std::string& why);
  bool follow(GivenUp who);
  bool interrupt();  // like fail(), with Outcome::kInterrupted

  // Among the members on this node, one chunk per meeting, at least one meeting: gather_here() brings each one's input
  // to those that take it; scatter_here() brings the root's inputs to their receivers; exchange_here() serves all
  // pairs, the largest of which has `most` bytes (0: no meeting).
  bool gather_here(bool takes);
  bool scatter_here();
  bool exchange_here(size_t most);

  // Writes to `to` the reduction, in group order, of the `bytes` bytes that source_of(member) returns for each member.
  template <class SourceOf>
  void add_up(std::byte* to, size_t bytes, SourceOf source_of) const {
    std::vector<const std::byte*> sources(size());
    for (size_t member = 0; member < size(); ++member) {
      sources[member] = source_of(member);
    }
    reduce_in_order(to, sources.data(), size(), bytes / size_of(operation_.type), operation_.type, operation_.op);
  }

  Group& group_;
  const Operation& operation_;
  const NodeMap& map_;
  const int64_t deadline_ns_;
  const std::string& refused_;
  Result result_;

 private:
  std::byte* slot(size_t member, uint64_t phase, size_t result) const {
    return group_.slots[member] + (2 * (phase & 1) + result) * group_.slot_bytes;
  }
  std::vector<size_t> note_missing();

  bool met_ = false;
};

}  // namespace keepstep::comm
