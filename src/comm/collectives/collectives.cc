#include "comm/collectives/collectives.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/collectives/agreement.h"
#include "comm/collectives/canonical_reduce.h"
#include "comm/collectives/hierarchical.h"
#include "comm/numbers/float_environment.h"
#include "comm/numbers/reduce.h"
#include "comm/progress.h"

namespace keepstep::comm {
namespace {

// Up to this size every rank adds everything itself: one meeting instead of two.
constexpr size_t kSmallBytes = 8 << 10;

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, bytes);
  }
}

// A contiguous part of a chunk, in bytes.
struct Part {
  size_t begin;
  size_t end;
  size_t bytes() const { return end - begin; }
};

class Run {
 public:
  // `refused`: what why_refused() said of the operation.
  Run(Group& group, const Operation& operation, const std::string& refused)
      : group_(group), operation_(operation), deadline_ns_(deadline_after(operation.timeout_ns)), refused_(refused) {}

  Result all();

 private:
  size_t size() const { return group_.size(); }
  size_t self() const { return group_.self; }

  // Slots to fill for the next meeting, and what `member` filled for the last one.
  std::byte* own_input() const { return slot(self(), group_.sync.phase() + 1, 0); }
  std::byte* own_result() const { return slot(self(), group_.sync.phase() + 1, 1); }
  const std::byte* input_of(size_t member) const { return slot(member, group_.sync.phase(), 0); }
  const std::byte* result_of(size_t member) const { return slot(member, group_.sync.phase(), 1); }
  std::byte* slot(size_t member, uint64_t phase, size_t result) const {
    return group_.slots[member] + (2 * (phase & 1) + result) * group_.slot_bytes;
  }

  // True when everyone came and called the same; else result_ says why not.
  bool meet();
  std::vector<size_t> note_missing() {
    const std::vector<size_t> missing = group_.sync.missing();
    result_.missing.assign(missing.begin(), missing.end());
    return missing;
  }
  bool fail(const std::string& why) {
    result_.outcome = Outcome::kFailed;
    result_.error = absl::StrCat(title(group_, operation_), ": ", why);
    return false;
  }

  // What one rank may put for each of the others into one slot.
  size_t share_bytes() const { return group_.slot_bytes / size() / kCacheLine * kCacheLine; }
  Part part_of(size_t chunk_bytes, size_t member) const;

  void alone();
  void reduce_small(bool to_all);
  void reduce_large(bool to_all);
  void broadcast();
  void gather(bool to_all);
  void scatter();
  void reduce_scatter();
  void all_to_all();
  void canonical();
  bool agree_on_sizes(size_t* most);

  Group& group_;
  const Operation& operation_;
  const int64_t deadline_ns_;
  const std::string& refused_;
  bool met_ = false;
  Result result_;
};

bool Run::meet() {
  const bool first = !met_;
  met_ = true;
  switch (group_.sync.meet(descriptor_of(operation_, !refused_.empty()), deadline_ns_)) {
    case Meeting::kInterrupted:
      result_.outcome = Outcome::kInterrupted;
      return false;
    case Meeting::kTimedOut: {
      const auto missing = note_missing();
      group_.sync.give_up({group_.members[self()]});
      return fail(absl::StrCat(missing.empty() ? "some ranks" : rank_list(group_, missing),
                               first ? " did not arrive within " : " stopped in the middle of it; waited ",
                               seconds(operation_.timeout_ns), ", the timeout of this call"));
    }
    case Meeting::kGivenUp:
      (void)note_missing();
      return fail(
          absl::StrFormat("rank %d gave up waiting in this group, which is of no more use in this generation; "
                          "its error tells who was missing",
                          group_.sync.given_up().by));
    case Meeting::kAll:
      break;
  }
  if (!first) {
    note_moved(*group_.moved);
  } else {
    if (!refused_.empty()) {
      return fail(refused_);
    }
    if (std::string why = disagreement(group_); !why.empty()) {
      return fail(why);
    }
  }
  return true;
}

// Whole cache lines, the last members' parts may be empty.
Part Run::part_of(size_t chunk_bytes, size_t member) const {
  const size_t lines = (chunk_bytes + kCacheLine - 1) / kCacheLine;
  const size_t each = (lines + size() - 1) / size() * kCacheLine;
  return {std::min(member * each, chunk_bytes), std::min((member + 1) * each, chunk_bytes)};
}

void Run::reduce_small(bool to_all) {
  copy_bytes(own_input(), operation_.data, operation_.bytes);
  if (!meet() || !(to_all || self() == operation_.root)) {
    return;
  }
  std::vector<const std::byte*> sources;
  for (size_t member = 0; member < size(); ++member) {
    sources.push_back(input_of(member));
  }
  reduce_in_order(operation_.data, sources.data(), size(), operation_.bytes / size_of(operation_.type), operation_.type,
                  operation_.op);
}

// Meeting m shares the inputs of chunk m and the reduced parts of chunk m-1.
void Run::reduce_large(bool to_all) {
  const size_t chunk_bytes = group_.slot_bytes;
  const size_t chunks = (operation_.bytes + chunk_bytes - 1) / chunk_bytes;
  const auto bytes_of = [&](size_t chunk) { return std::min(chunk_bytes, operation_.bytes - chunk * chunk_bytes); };
  const auto share_inputs = [&](size_t chunk) {  // all but our own part, which nobody else reads
    const std::byte* data = operation_.data + chunk * chunk_bytes;
    const Part own = part_of(bytes_of(chunk), self());
    copy_bytes(own_input(), data, own.begin);
    copy_bytes(own_input() + own.end, data + own.end, bytes_of(chunk) - own.end);
  };
  const auto take_results = [&](size_t chunk) {
    for (size_t i = 0; i < size() && (to_all || self() == operation_.root); ++i) {
      const size_t member = (self() + i) % size();  // not all from the same rank at once
      const Part part = part_of(bytes_of(chunk), member);
      copy_bytes(operation_.data + chunk * chunk_bytes + part.begin, result_of(member) + part.begin, part.bytes());
    }
  };
  share_inputs(0);
  std::vector<const std::byte*> sources(size());
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    if (!meet()) {
      return;
    }
    const Part own = part_of(bytes_of(chunk), self());
    for (size_t member = 0; member < size(); ++member) {
      sources[member] = (member == self() ? operation_.data + chunk * chunk_bytes : input_of(member)) + own.begin;
    }
    reduce_in_order(own_result() + own.begin, sources.data(), size(), own.bytes() / size_of(operation_.type),
                    operation_.type, operation_.op);
    if (chunk + 1 < chunks) {
      share_inputs(chunk + 1);
    }
    if (chunk > 0) {
      take_results(chunk - 1);
    }
  }
  if (meet()) {
    take_results(chunks - 1);
  }
}

void Run::broadcast() {
  size_t done = 0;
  do {
    const size_t n = std::min(group_.slot_bytes, operation_.bytes - done);
    if (self() == operation_.root) {
      copy_bytes(own_input(), operation_.data + done, n);
    }
    if (!meet()) {
      return;
    }
    if (self() != operation_.root) {
      copy_bytes(operation_.data + done, input_of(operation_.root), n);
    }
    done += n;
  } while (done < operation_.bytes);
}

void Run::gather(bool to_all) {
  const bool takes = to_all || self() == operation_.root;
  size_t done = 0;
  do {
    const size_t n = std::min(group_.slot_bytes, operation_.bytes - done);
    copy_bytes(own_input(), operation_.inputs[0] + done, n);
    if (!meet()) {
      return;
    }
    for (size_t i = 0; i < size() && takes; ++i) {
      const size_t member = (self() + i) % size();
      const std::byte* from = member == self() ? operation_.inputs[0] + done : input_of(member);
      copy_bytes(operation_.outputs[member] + done, from, n);
    }
    done += n;
  } while (done < operation_.bytes);
}

void Run::scatter() {
  const bool is_root = self() == operation_.root;
  size_t done = 0;
  do {
    const size_t n = std::min(share_bytes(), operation_.bytes - done);
    for (size_t member = 0; member < size() && is_root; ++member) {
      copy_bytes(own_input() + member * share_bytes(), operation_.inputs[member] + done, n);
    }
    if (!meet()) {
      return;
    }
    copy_bytes(operation_.outputs[0] + done, input_of(operation_.root) + self() * share_bytes(), n);
    done += n;
  } while (done < operation_.bytes);
}

void Run::reduce_scatter() {
  std::vector<const std::byte*> sources(size());
  size_t done = 0;
  do {
    const size_t n = std::min(share_bytes(), operation_.bytes - done);
    for (size_t member = 0; member < size(); ++member) {
      copy_bytes(own_input() + member * share_bytes(), operation_.inputs[member] + done, n);
    }
    if (!meet()) {
      return;
    }
    for (size_t member = 0; member < size(); ++member) {
      sources[member] = input_of(member) + self() * share_bytes();
    }
    reduce_in_order(operation_.outputs[0] + done, sources.data(), size(), n / size_of(operation_.type), operation_.type,
                    operation_.op);
    done += n;
  } while (done < operation_.bytes);
}

// Shares all sizes first: the ranks must know how many meetings there will be, and that the sizes fit.
bool Run::agree_on_sizes(size_t* most) {
  const size_t n = size();
  auto* own = reinterpret_cast<uint64_t*>(own_input());
  std::copy(operation_.input_bytes.begin(), operation_.input_bytes.end(), own);
  std::copy(operation_.output_bytes.begin(), operation_.output_bytes.end(), own + n);
  if (!meet()) {
    return false;
  }
  const auto sizes_of = [&](size_t member) { return reinterpret_cast<const uint64_t*>(input_of(member)); };
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const uint64_t given = sizes_of(from)[to];
      const uint64_t expected = sizes_of(to)[n + from];
      if (given != expected) {
        return fail(absl::StrFormat("rank %d sends %d bytes to rank %d, which expects %d", group_.members[from], given,
                                    group_.members[to], expected));
      }
      *most = std::max<size_t>(*most, given);
    }
  }
  return true;
}

void Run::all_to_all() {
  size_t most = 0;
  if (!agree_on_sizes(&most)) {
    return;
  }
  const auto bytes_now = [&](size_t total, size_t done) {
    return std::min(share_bytes(), total - std::min(done, total));
  };
  for (size_t done = 0; done < most; done += share_bytes()) {
    for (size_t to = 0; to < size(); ++to) {
      if (const size_t n = bytes_now(operation_.input_bytes[to], done); n > 0) {
        copy_bytes(own_input() + to * share_bytes(), operation_.inputs[to] + done, n);
      }
    }
    if (!meet()) {
      return;
    }
    for (size_t i = 0; i < size(); ++i) {
      const size_t from = (self() + i) % size();
      if (const size_t n = bytes_now(operation_.output_bytes[from], done); n > 0) {
        copy_bytes(operation_.outputs[from] + done, input_of(from) + self() * share_bytes(), n);
      }
    }
  }
}

void Run::canonical() {
  canonical_all_reduce(group_, operation_, [this] { return meet(); }, [this](const std::string& why) { fail(why); });
}

void Run::alone() {
  if (!refused_.empty()) {
    fail(refused_);
    return;
  }
  switch (operation_.kind) {
    case Kind::kAllGather:
    case Kind::kGather:
    case Kind::kScatter:
    case Kind::kReduceScatter:
      return copy_bytes(operation_.outputs[0], operation_.inputs[0], operation_.bytes);
    case Kind::kAllToAll:
      if (operation_.input_bytes[0] != operation_.output_bytes[0]) {
        fail(absl::StrFormat("it sends %d bytes to itself and expects %d", operation_.input_bytes[0],
                             operation_.output_bytes[0]));
        return;
      }
      return copy_bytes(operation_.outputs[0], operation_.inputs[0], operation_.input_bytes[0]);
    case Kind::kAllReduceCanonical:
      return canonical();
    default:
      return;
  }
}

Result Run::all() {
  if (group_.sync.interrupted()) {
    result_.outcome = Outcome::kInterrupted;
  } else if (size() == 1) {
    alone();
  } else if (!refused_.empty()) {
    meet();  // so that the others learn of it
  } else {
    const bool small = operation_.bytes <= std::min(kSmallBytes, group_.slot_bytes);
    switch (operation_.kind) {
      case Kind::kAllReduce:
        small ? reduce_small(true) : reduce_large(true);
        break;
      case Kind::kReduce:
        small ? reduce_small(false) : reduce_large(false);
        break;
      case Kind::kBroadcast:
        broadcast();
        break;
      case Kind::kAllGather:
        gather(true);
        break;
      case Kind::kGather:
        gather(false);
        break;
      case Kind::kScatter:
        scatter();
        break;
      case Kind::kReduceScatter:
        reduce_scatter();
        break;
      case Kind::kAllToAll:
        all_to_all();
        break;
      case Kind::kAllReduceCanonical:
        canonical();
        break;
      case Kind::kBarrier:
      case Kind::kInvalid:
        meet();
        break;
    }
  }
  return result_;
}

}  // namespace

Result run_collective(Group& group, const Operation& operation) {
  ++group.entered;
  const DefaultFloats floats;
  const std::string refused = why_refused(group, operation);
  Result result =
      group.nodes.across() ? HierarchicalRun(group, operation, refused).all() : Run(group, operation, refused).all();
  // Once interrupted, a peer may already write its arena for the next generation: what we read last may be torn.
  if (result.outcome == Outcome::kDone && group.sync.interrupted()) {
    result.outcome = Outcome::kInterrupted;
  }
  if (result.outcome == Outcome::kInterrupted && refused.empty()) {
    zero_outputs(operation);
  }
  return result;
}

}  // namespace keepstep::comm
