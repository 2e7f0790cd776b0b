#include "comm/collectives/canonical_reduce.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_format.h"
#include "comm/collectives/canonical_plan.h"
#include "comm/collectives/canonical_sum.h"
#include "comm/numbers/reduce.h"

namespace keepstep::comm {
namespace {

constexpr size_t kSmallBytes = 8 << 10;  // up to here every rank adds everything itself
constexpr size_t kWhole = kCacheLine;    // elements: a multiple of this is whole cache lines in every type

static_assert(sizeof(CanonicalPart) <= kCacheLine);  // at the head of a rank's first chunk

struct Elements {
  size_t begin;
  size_t end;
  size_t count() const { return end - begin; }
};

class CanonicalReduce {
 public:
  CanonicalReduce(CollectiveRun& run, const Group& group, const Operation& operation)
      : run_(run),
        group_(group),
        operation_(operation),
        count_(operation.bytes / size_of(operation.type)),
        sum_bytes_(size_of(sum_type(operation.type))),
        first_(elements_a_chunk(group.slot_bytes - kCacheLine, max_subtree_count(operation.run.leaves))) {}

  void alone();
  void together();

 private:
  size_t size() const { return group_.size(); }
  size_t self() const { return group_.self; }

  // How many elements of each of `partials` sums fit into `room` bytes.
  size_t elements_a_chunk(size_t room, size_t partials) const { return room / partials / sum_bytes_ / kWhole * kWhole; }
  size_t chunks() const { return count_ <= first_ ? 1 : 1 + (count_ - first_ + later_ - 1) / later_; }
  Elements chunk(size_t index) const {
    const size_t begin = index == 0 ? 0 : first_ + (index - 1) * later_;
    return {begin, std::min(count_, index == 0 ? first_ : begin + later_)};
  }
  // The elements of chunk `index` that `member` adds.
  Elements part(size_t index, size_t member) const;
  // Where the sum number `partial` of chunk `index` begins in an input slot.
  size_t offset(size_t index, size_t partial) const {
    const size_t stride = (index == 0 ? first_ : later_) * sum_bytes_;
    return (index == 0 ? kCacheLine : 0) + partial * stride;
  }

  void share(size_t index, Elements but);
  bool learn_plan();
  void add(size_t index, Elements which, std::byte* destination);
  void take_results(size_t index);

  CollectiveRun& run_;
  const Group& group_;
  const Operation& operation_;
  const size_t count_;
  const size_t sum_bytes_;
  const size_t first_;  // elements of the first chunk
  size_t later_ = 0;    // of each later one

  CanonicalPlan plan_;
};

Elements CanonicalReduce::part(size_t index, size_t member) const {
  const Elements all = chunk(index);
  const size_t whole = (all.count() + kWhole - 1) / kWhole;
  const size_t each = (whole + size() - 1) / size() * kWhole;
  return {std::min(all.begin + member * each, all.end), std::min(all.begin + (member + 1) * each, all.end)};
}

// Into our slot for the next meeting; `but`: what nobody else reads.
void CanonicalReduce::share(size_t index, Elements but) {
  std::byte* to = run_.own_input();
  if (index == 0) {
    const CanonicalPart own{operation_.run.begin, operation_.run.end, operation_.weight};
    std::memcpy(to, &own, sizeof(own));
  }
  const Elements all = chunk(index);
  for (size_t p = 0; p < operation_.inputs.size(); ++p) {
    std::byte* sums = to + offset(index, p);
    const auto copy = [&](size_t begin, size_t end) {
      if (begin < end) {
        std::memcpy(sums + (begin - all.begin) * sum_bytes_, operation_.inputs[p] + begin * sum_bytes_,
                    (end - begin) * sum_bytes_);
      }
    };
    copy(all.begin, but.begin);
    copy(but.end, all.end);
  }
}

// After the first meeting: who owns which leaves. False when they do not make up the tree.
bool CanonicalReduce::learn_plan() {
  std::vector<CanonicalPart> parts(size());
  for (size_t member = 0; member < size(); ++member) {
    std::memcpy(&parts[member], run_.input_of(member), sizeof(CanonicalPart));
  }
  if (const std::string why = plan_.learn(group_, operation_.run.leaves, parts); !why.empty()) {
    return run_.fail(why);
  }
  later_ = elements_a_chunk(group_.slot_bytes, plan_.most);
  if (later_ == 0 && count_ > first_) {
    return run_.fail(
        absl::StrFormat("a rank brings %d partial sums, too many for the group's slots of %d bytes; give the "
                        "communicator larger slots, or the ranks runs that begin at multiples of a power of two",
                        plan_.most, group_.slot_bytes));
  }
  return true;
}

// After the meeting that shared chunk `index`.
void CanonicalReduce::add(size_t index, Elements which, std::byte* destination) {
  const size_t from = chunk(index).begin;
  std::vector<PartialSum> parts;
  for (const CanonicalPlan::Source& source : plan_.sources) {
    const std::byte* sums = source.member == self() ? operation_.inputs[source.partial] + which.begin * sum_bytes_
                                                    : run_.input_of(source.member) + offset(index, source.partial) +
                                                          (which.begin - from) * sum_bytes_;
    parts.push_back({source.leaves, sums});
  }
  add_in_tree_order(destination, operation_.type, parts, operation_.run.leaves, which.count(), plan_.weight);
}

void CanonicalReduce::take_results(size_t index) {
  const size_t element = size_of(operation_.type);
  const size_t from = chunk(index).begin;
  for (size_t i = 0; i < size(); ++i) {
    const size_t member = (self() + i) % size();  // not all from the same rank at once
    const Elements which = part(index, member);
    if (which.count() > 0) {
      std::memcpy(operation_.outputs[0] + which.begin * element,
                  run_.result_of(member) + (which.begin - from) * element, which.count() * element);
    }
  }
}

void CanonicalReduce::together() {
  const bool small = count_ <= first_ && count_ * sum_bytes_ <= kSmallBytes;
  share(0, small ? Elements{0, 0} : part(0, self()));
  if (!run_.meet() || !learn_plan()) {
    return;
  }
  if (small) {
    return add(0, {0, count_}, operation_.outputs[0]);
  }
  const size_t element = size_of(operation_.type);
  for (size_t index = 0; index < chunks(); ++index) {
    if (index > 0 && !run_.meet()) {
      return;
    }
    const Elements own = part(index, self());
    add(index, own, run_.own_result() + (own.begin - chunk(index).begin) * element);
    if (index + 1 < chunks()) {
      share(index + 1, part(index + 1, self()));
    }
    if (index > 0) {
      take_results(index - 1);
    }
  }
  if (run_.meet()) {
    take_results(chunks() - 1);
  }
}

void CanonicalReduce::alone() {
  const CanonicalPart own{operation_.run.begin, operation_.run.end, operation_.weight};
  if (const std::string why = plan_.learn(group_, operation_.run.leaves, {&own, 1}); !why.empty()) {
    run_.fail(why);
    return;
  }
  const PartialSum all{{0, operation_.run.leaves}, operation_.inputs[0]};
  add_in_tree_order(operation_.outputs[0], operation_.type, {&all, 1}, operation_.run.leaves, count_, plan_.weight);
}

}  // namespace

std::string why_refused_canonical(const Operation& operation) {
  if (std::string why = why_no_sum(operation.type); !why.empty()) {
    return why;
  }
  if (std::string why = why_not(operation.run); !why.empty()) {
    return why;
  }
  const size_t expected = count_maximal_subtrees(operation.run);
  if (operation.inputs.size() != expected) {
    return absl::StrFormat("%d partial sums were given for leaves [%d, %d) of %d, which are %d subtrees",
                           operation.inputs.size(), operation.run.begin, operation.run.end, operation.run.leaves,
                           expected);
  }
  return {};
}

void canonical_all_reduce(CollectiveRun& run, const Group& group, const Operation& operation) {
  CanonicalReduce reduce(run, group, operation);
  group.size() == 1 ? reduce.alone() : reduce.together();
}

}  // namespace keepstep::comm
