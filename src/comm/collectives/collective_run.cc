#include "comm/collectives/collective_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "comm/collectives/agreement.h"
#include "comm/progress.h"
#include "comm/transport.h"

namespace keepstep::comm {
namespace {

// A member waits for its leader a little longer than the leader waits for others: its answer names the late ranks.
constexpr int64_t kLeaderNs = 300'000'000;

}  // namespace

Slice slice_of(size_t bytes, size_t parts, size_t index) {
  const size_t each = whole_lines((bytes + parts - 1) / parts);
  return {std::min(index * each, bytes), std::min((index + 1) * each, bytes)};
}

CollectiveRun::CollectiveRun(Group& group, const Operation& operation, const std::string& refused)
    : group_(group),
      operation_(operation),
      map_(group.nodes),
      deadline_ns_(deadline_after(operation.timeout_ns)),
      refused_(refused) {}

bool CollectiveRun::fail(const std::string& why) {
  if (group_.parts != nullptr) {
    group_.parts->cancel();
  }
  result_.outcome = Outcome::kFailed;
  result_.error = absl::StrCat(title(group_, operation_), ": ", why);
  return false;
}

bool CollectiveRun::interrupt() {
  if (group_.parts != nullptr) {
    group_.parts->cancel();
  }
  result_.outcome = Outcome::kInterrupted;
  return false;
}

bool CollectiveRun::give_up(GivenUp who, const std::string& why) {
  fail(why);
  result_.link = who.link;
  group_.sync.give_up(who);
  if (group_.parts != nullptr) {
    group_.parts->give_up(who);
  }
  return false;
}

bool CollectiveRun::follow(GivenUp who) {
  if (who.link) {
    return give_up(who, absl::StrFormat("the link between rank %d and rank %d broke, rank %d reported; this group "
                                        "cannot be used again in this generation",
                                        who.by, who.to, who.by));
  }
  return give_up(who, absl::StrFormat("rank %d gave up waiting in this group, which cannot be used again in this "
                                      "generation; its error names the ranks that were missing",
                                      who.by));
}

std::vector<size_t> CollectiveRun::note_missing() {
  std::vector<size_t> missing;
  for (const size_t local : group_.sync.missing()) {
    missing.push_back(map_.here()[local]);
  }
  result_.missing.assign(missing.begin(), missing.end());
  return missing;
}

bool CollectiveRun::meet() {
  const bool first = !std::exchange(met_, true);
  const bool across = map_.across();
  const bool for_leader = across && !first && !map_.leads() && deadline_ns_ != kNoDeadline;
  switch (group_.sync.meet(descriptor_of(operation_, !refused_.empty()), deadline_ns_ + (for_leader ? kLeaderNs : 0))) {
    case Meeting::kAll:
      break;
    case Meeting::kInterrupted:
      return interrupt();
    case Meeting::kTimedOut: {
      const std::vector<size_t> missing = note_missing();
      return give_up({rank_of(self())},
                     absl::StrCat(missing.empty() ? "some ranks" : rank_list(group_, missing),
                                  first ? " did not arrive within " : " stopped in the middle of it; waited ",
                                  seconds(operation_.timeout_ns), across ? "" : ", the timeout of this call"));
    }
    case Meeting::kGivenUp:
      if (!across) {  // else the missing ranks may be on another node
        (void)note_missing();
      }
      return follow(group_.sync.given_up());
  }
  if (!first) {
    note_moved(*group_.moved);
    return true;
  }
  return across || agreed(disagreement(group_));
}

bool CollectiveRun::agreed(const std::string& why_not) {
  if (!refused_.empty()) {
    return fail(refused_);
  }
  return why_not.empty() || fail(why_not);
}

bool CollectiveRun::gather_here(bool takes) {
  size_t done = 0;
  do {
    const size_t n = std::min(group_.slot_bytes, operation_.bytes - done);
    copy_bytes(own_input(), operation_.inputs[0] + done, n);
    if (!meet()) {
      return false;
    }
    for (size_t i = 0; i < local_size() && takes; ++i) {
      const size_t member = map_.here()[(map_.local + i) % local_size()];  // not all from the same one at once
      const std::byte* from = member == self() ? operation_.inputs[0] + done : input_of(member);
      copy_bytes(operation_.outputs[member] + done, from, n);
    }
    done += n;
  } while (done < operation_.bytes);
  return true;
}

bool CollectiveRun::scatter_here() {
  size_t done = 0;
  do {
    const size_t n = std::min(share_bytes(), operation_.bytes - done);
    for (size_t i = 0; i < local_size() && is_root(); ++i) {
      copy_bytes(own_input() + i * share_bytes(), operation_.inputs[map_.here()[i]] + done, n);
    }
    if (!meet()) {
      return false;
    }
    copy_bytes(operation_.outputs[0] + done, input_of(operation_.root) + map_.local * share_bytes(), n);
    done += n;
  } while (done < operation_.bytes);
  return true;
}

bool CollectiveRun::exchange_here(size_t most) {
  const auto bytes_now = [&](size_t total, size_t done) {
    return std::min(share_bytes(), total - std::min(done, total));
  };
  for (size_t done = 0; done < most; done += share_bytes()) {
    for (size_t i = 0; i < local_size(); ++i) {
      const size_t to = map_.here()[i];
      if (const size_t n = bytes_now(operation_.input_bytes[to], done); n > 0) {
        copy_bytes(own_input() + i * share_bytes(), operation_.inputs[to] + done, n);
      }
    }
    if (!meet()) {
      return false;
    }
    for (size_t i = 0; i < local_size(); ++i) {
      const size_t from = map_.here()[(map_.local + i) % local_size()];
      if (const size_t n = bytes_now(operation_.output_bytes[from], done); n > 0) {
        copy_bytes(operation_.outputs[from] + done, input_of(from) + map_.local * share_bytes(), n);
      }
    }
  }
  return true;
}

Result CollectiveRun::all() {
  if (group_.sync.interrupted()) {
    result_.outcome = Outcome::kInterrupted;
  } else {
    carry_out();
  }
  return result_;
}

void CollectiveRun::carry_out() {
  switch (refused_.empty() ? operation_.kind : Kind::kInvalid) {
    case Kind::kAllReduce:
      reduce(true);
      break;
    case Kind::kReduce:
      reduce(false);
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
      all_reduce_canonical();
      break;
    case Kind::kBarrier:
    case Kind::kInvalid:
      barrier();
      break;
  }
}

}  // namespace keepstep::comm
