// What all ways to carry out a collective have in common: which algorithm a kind asks for, the slots and meetings of
// the members on one node, what is moved among them, and how an operation ends that cannot go on.
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

// Which of `parts` parts of a chunk of `bytes` is number `index`: whole cache lines, the last ones may be empty.
Slice slice_of(size_t bytes, size_t parts, size_t index);

// One operation as one member carries it out. Used once. `refused`: what why_refused() said of it.
class CollectiveRun {
 public:
  CollectiveRun(Group& group, const Operation& operation, const std::string& refused);
  CollectiveRun(const CollectiveRun&) = delete;
  CollectiveRun& operator=(const CollectiveRun&) = delete;
  Result all();

  // Slots to fill for the next meeting, and what `member` filled for the last one.
  std::byte* own_input() const { return slot(self(), group_.sync.phase() + 1, 0); }
  std::byte* own_result() const { return slot(self(), group_.sync.phase() + 1, 1); }
  const std::byte* input_of(size_t member) const { return slot(member, group_.sync.phase(), 0); }
  const std::byte* result_of(size_t member) const { return slot(member, group_.sync.phase(), 1); }
  // Meets the members on this node; where they are all, the first time also compares what they called. False: it is
  // over, and all() tells how.
  bool meet();
  // Ends it with an error; false.
  bool fail(const std::string& why);

 protected:
  ~CollectiveRun() = default;

  virtual void carry_out();    // by what the operation's kind asks for
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

  // What one member may put for each of the others on its node into one slot.
  size_t share_bytes() const { return group_.slot_bytes / local_size() / kCacheLine * kCacheLine; }

  // False, with the error, if our call was refused or there is a disagreement(), `why_not`.
  bool agreed(const std::string& why_not);
  // As fail(), and ends the group for all members: they see that instead of waiting for us. follow(): one did that.
  bool give_up(GivenUp who, const std::string& why);
  bool follow(GivenUp who);
  bool interrupt();  // as fail(), with Outcome::kInterrupted

  // Among the members on this node, a chunk a meeting and at least one meeting: each one's input to those that take
  // it; the root's inputs to whom they are for; of all pairs, the largest of which has `most` bytes (none: no meeting).
  bool gather_here(bool takes);
  bool scatter_here();
  bool exchange_here(size_t most);

  // Into `to`: what source_of(member) gives of each, `bytes` of them, added up in the order of the group.
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
