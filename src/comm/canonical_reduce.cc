#include "comm/canonical_reduce.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_format.h"
#include "comm/agreement.h"
#include "comm/canonical_sum.h"

namespace keepstep::comm {
namespace {

constexpr size_t kSmallBytes = 8 << 10;  // up to here every rank adds everything itself
constexpr size_t kWhole = kCacheLine;    // elements: a multiple of this is whole cache lines in every type

// At the head of a rank's first chunk.
struct Held {
  uint32_t begin;
  uint32_t end;
  uint64_t weight;
};
static_assert(sizeof(Held) <= kCacheLine);

struct Elements {
  size_t begin;
  size_t end;
  size_t count() const { return end - begin; }
};

class CanonicalReduce {
 public:
  CanonicalReduce(const Group& group, const Operation& operation, const std::function<bool()>& meet,
                  const std::function<void(const std::string&)>& fail)
      : group_(group),
        operation_(operation),
        meet_(meet),
        fail_(fail),
        count_(operation.bytes / size_of(operation.type)),
        sum_bytes_(size_of(sum_type(operation.type))),
        first_(elements_a_chunk(group.slot_bytes - kCacheLine, most_maximal_subtrees(operation.run.leaves))) {}

  void alone();
  void together();

 private:
  size_t size() const { return group_.size(); }
  size_t self() const { return group_.self; }
  std::byte* slot(size_t member, uint64_t phase, size_t result) const {
    return group_.slots[member] + (2 * (phase & 1) + result) * group_.slot_bytes;
  }

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
  bool learn_runs();
  std::string not_a_tree(uint32_t begin, uint32_t end, bool twice, const std::string& who) const;
  bool fail(const std::string& why) const {
    fail_(why);
    return false;
  }
  void add(size_t index, Elements which, std::byte* destination);
  void take_results(size_t index);

  const Group& group_;
  const Operation& operation_;
  const std::function<bool()>& meet_;
  const std::function<void(const std::string&)>& fail_;
  const size_t count_;
  const size_t sum_bytes_;
  const size_t first_;  // elements of the first chunk
  size_t later_ = 0;    // of each later one

  struct Source {
    Subtree leaves;
    size_t member;
    size_t partial;  // which of that member's
  };
  std::vector<Source> sources_;  // of all ranks, in the order of their leaves
  uint64_t weight_ = 0;          // of all ranks
};

Elements CanonicalReduce::part(size_t index, size_t member) const {
  const Elements all = chunk(index);
  const size_t whole = (all.count() + kWhole - 1) / kWhole;
  const size_t each = (whole + size() - 1) / size() * kWhole;
  return {std::min(all.begin + member * each, all.end), std::min(all.begin + (member + 1) * each, all.end)};
}

// Into our slot for the next meeting; `but`: what nobody else reads.
void CanonicalReduce::share(size_t index, Elements but) {
  std::byte* to = slot(self(), group_.sync.phase() + 1, 0);
  if (index == 0) {
    const Held held{operation_.run.begin, operation_.run.end, operation_.weight};
    std::memcpy(to, &held, sizeof(held));
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

std::string CanonicalReduce::not_a_tree(uint32_t begin, uint32_t end, bool twice, const std::string& who) const {
  return absl::StrFormat(
      "leaves [%d, %d) of %d are %s: %s. Each leaf must be one rank's; does every rank count the same "
      "world and the same micro-batches?",
      begin, end, operation_.run.leaves, twice ? "two ranks'" : "nobody's", who);
}

// After the first meeting: who owns which leaves. False when they do not make up the tree.
bool CanonicalReduce::learn_runs() {
  const uint32_t leaves = operation_.run.leaves;
  std::vector<LeafRun> runs;
  size_t most = 1;
  for (size_t member = 0; member < size(); ++member) {
    Held held;
    std::memcpy(&held, slot(member, group_.sync.phase(), 0), sizeof(held));
    runs.push_back({leaves, held.begin, held.end});
    if (std::string why = why_not(runs.back()); !why.empty()) {
      return fail(absl::StrFormat("%s says %s; its memory is damaged", rank_list(group_, {&member, 1}), why));
    }
    most = std::max(most, count_maximal_subtrees(runs.back()));
    weight_ += held.weight;
  }
  std::vector<size_t> order(size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return runs[a].begin < runs[b].begin; });
  uint32_t at = 0;
  std::string before;  // who brings the leaves up to `at`
  for (const size_t member : order) {
    const LeafRun& run = runs[member];
    if (run.empty()) {
      continue;
    }
    const std::string words =
        absl::StrFormat("%s brings leaves [%d, %d)", rank_list(group_, {&member, 1}), run.begin, run.end);
    if (run.begin != at) {
      return fail(not_a_tree(run.begin < at ? run.begin : at, run.begin < at ? std::min(at, run.end) : run.begin,
                             run.begin < at, before.empty() ? words : before + "; " + words));
    }
    size_t partial = 0;
    for (const Subtree& subtree : maximal_subtrees(run)) {
      sources_.push_back({subtree, member, partial++});
    }
    at = run.end;
    before = words;
  }
  if (at != leaves) {
    return fail(not_a_tree(at, leaves, false, before.empty() ? "all ranks bring none" : before));
  }
  later_ = elements_a_chunk(group_.slot_bytes, most);
  if (later_ == 0 && count_ > first_) {
    return fail(
        absl::StrFormat("a rank brings %d partial sums, too many for the group's slots of %d bytes; give the "
                        "communicator larger slots, or the ranks runs that begin at multiples of a power of two",
                        most, group_.slot_bytes));
  }
  return true;
}

// After the meeting that shared chunk `index`.
void CanonicalReduce::add(size_t index, Elements which, std::byte* destination) {
  const size_t from = chunk(index).begin;
  std::vector<PartialSum> parts;
  for (const Source& source : sources_) {
    const std::byte* sums = source.member == self()
                                ? operation_.inputs[source.partial] + which.begin * sum_bytes_
                                : slot(source.member, group_.sync.phase(), 0) + offset(index, source.partial) +
                                      (which.begin - from) * sum_bytes_;
    parts.push_back({source.leaves, sums});
  }
  add_in_tree_order(destination, operation_.type, parts, operation_.run.leaves, which.count(), weight_);
}

void CanonicalReduce::take_results(size_t index) {
  const size_t element = size_of(operation_.type);
  const size_t from = chunk(index).begin;
  for (size_t i = 0; i < size(); ++i) {
    const size_t member = (self() + i) % size();  // not all from the same rank at once
    const Elements which = part(index, member);
    if (which.count() > 0) {
      std::memcpy(operation_.outputs[0] + which.begin * element,
                  slot(member, group_.sync.phase(), 1) + (which.begin - from) * element, which.count() * element);
    }
  }
}

void CanonicalReduce::together() {
  const bool small = count_ <= first_ && count_ * sum_bytes_ <= kSmallBytes;
  share(0, small ? Elements{0, 0} : part(0, self()));
  if (!meet_() || !learn_runs()) {
    return;
  }
  if (small) {
    return add(0, {0, count_}, operation_.outputs[0]);
  }
  const size_t element = size_of(operation_.type);
  for (size_t index = 0; index < chunks(); ++index) {
    if (index > 0 && !meet_()) {
      return;
    }
    const Elements own = part(index, self());
    add(index, own, slot(self(), group_.sync.phase() + 1, 1) + (own.begin - chunk(index).begin) * element);
    if (index + 1 < chunks()) {
      share(index + 1, part(index + 1, self()));
    }
    if (index > 0) {
      take_results(index - 1);
    }
  }
  if (meet_()) {
    take_results(chunks() - 1);
  }
}

void CanonicalReduce::alone() {
  const LeafRun& run = operation_.run;
  if (run.begin != 0 || run.end != run.leaves) {
    fail(absl::StrFormat("a group of one rank must bring all %d leaves of the tree, not [%d, %d)", run.leaves,
                         run.begin, run.end));
    return;
  }
  const PartialSum all{{0, run.leaves}, operation_.inputs[0]};
  add_in_tree_order(operation_.outputs[0], operation_.type, {&all, 1}, run.leaves, count_, operation_.weight);
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

void canonical_all_reduce(const Group& group, const Operation& operation, const std::function<bool()>& meet,
                          const std::function<void(const std::string&)>& fail) {
  CanonicalReduce reduce(group, operation, meet, fail);
  group.size() == 1 ? reduce.alone() : reduce.together();
}

}  // namespace keepstep::comm
