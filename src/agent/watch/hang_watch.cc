#include "agent/watch/hang_watch.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "rank/link/progress_words.h"

namespace keepstep::agent {

using brain::ProcessState;
using brain::RankProgress;
using brain::StepPhase;
using brain::Time;
using brain::WaitsIn;

namespace {

// An agent repeats its report at every check while it holds; without one for this long it no longer holds.
constexpr int64_t kReportHoldsNs = 1'000'000'000;
// Waits shorter than this, or than a step, are normal.
constexpr Time kWorthTelling = std::chrono::milliseconds(300);

std::string text_of_file(const std::string& path) {
  std::ifstream in(path);
  return (std::stringstream() << in.rdbuf()).str();
}

bool same_place(const RankProgress& a, const RankProgress& b) {
  return a.step == b.step && a.micro_batch == b.micro_batch && a.phase == b.phase && a.entered == b.entered &&
         a.left == b.left && a.messages == b.messages && a.moved == b.moved && a.waits == b.waits && a.slow == b.slow;
}
constexpr size_t kMaxWhatBytes = 64;  // of a collective's name

}  // namespace

char process_state(const std::string& stat) {
  // The name in parentheses may contain anything, even parentheses.
  const size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

RankProgress HangWatch::progress_of(brain::Rank rank, const WorkerProcess& process, const View& view, int64_t now_ns) {
  const rank::WorkerPage& page = process.page();
  const rank::ProgressWords& words = page.progress;
  const comm::CollectiveWords& collectives = words.collectives;
  const auto relaxed = std::memory_order_relaxed;
  RankProgress progress;
  progress.rank = rank;
  progress.worker = process.id;
  // In this order: `committed` belongs to a time written before it; `left` never runs ahead of `entered`.
  progress.committed = process.committed(view.identity);
  progress.committed_at = Time(words.committed_ns.load(relaxed));
  progress.left = collectives.left.load(std::memory_order_acquire);
  progress.messages = collectives.waited.load(relaxed);
  progress.moved = collectives.moved.load(relaxed);
  progress.entered = collectives.entered.load(relaxed);
  progress.entered_world = collectives.entered_world.load(relaxed);
  progress.world = collectives.world.load(relaxed) != 0;
  progress.members = collectives.members.load(relaxed);
  const uint64_t place = words.place.load(relaxed);
  progress.step = place >> 24;
  progress.micro_batch = static_cast<uint32_t>(place >> 8 & 0xffff);
  progress.phase = static_cast<StepPhase>(std::min<uint64_t>(place & 0xff, 3));
  // A script without a recoverable function never reports where in a step it is.
  progress.slow = words.slow.load(relaxed) != 0 || !process.recoverable;
  const brain::StepWord word = brain::unpack_step_word(page.word.load());
  const auto waits_in = static_cast<WaitsIn>(std::min<uint32_t>(words.waits_in.load(relaxed), 7));
  if (word.identity != view.identity || waits_in == WaitsIn::kJoin) {
    progress.waits = WaitsIn::kJoin;
    // NOLINTNEXTLINE(bugprone-branch-clone): these two count before the vote, the others after it
  } else if (waits_in == WaitsIn::kEnd || waits_in == WaitsIn::kPause) {
    progress.waits = waits_in;
  } else if (word.vote == brain::Vote::kYes) {
    progress.waits = WaitsIn::kVote;
  } else if (progress.entered > progress.left) {
    progress.waits = WaitsIn::kCollective;
    progress.what = comm::collective_name(collectives.kind.load(relaxed));
  } else if (collectives.waiting.load(relaxed) != 0) {
    progress.waits = WaitsIn::kMessage;
  } else {
    progress.waits = waits_in;
  }
  const auto before = std::ranges::find(sample_.ranks, rank, &RankProgress::rank);
  Process& known = processes_[process.id];
  if (before != sample_.ranks.end() && before->worker == process.id && same_place(*before, progress)) {
    look_at_process(process, now_ns, progress);
  } else {
    known.looked_ns = 0;  // it moves, so we need not look at it
  }
  progress.starved = known.starved;
  return progress;
}

brain::Time starved_time(char state, int64_t passed_ns, int64_t on_cpu_ns, int64_t queued_ns) {
  // The kernel counts a wait for a CPU once it is over.
  const bool still_waits = state == 'R' || (state == 'D' && on_cpu_ns < passed_ns / 20);
  return brain::Time(std::clamp<int64_t>(still_waits ? passed_ns - on_cpu_ns : queued_ns, 0, passed_ns));
}

void HangWatch::look_at_process(const WorkerProcess& process, int64_t now_ns, RankProgress& progress) {
  const char state = process_state(text_of_file(absl::StrFormat("/proc/%d/stat", process.pid)));
  if (state == 'T') {
    progress.process = ProcessState::kStopped;
  } else if (state == 't') {
    progress.process = ProcessState::kTraced;
  }
  // The main thread's: nanoseconds on a CPU, nanoseconds waiting for one, time slices.
  std::istringstream in(text_of_file(absl::StrFormat("/proc/%d/schedstat", process.pid)));
  Process now = processes_[process.id];
  if (!(in >> now.on_cpu_ns >> now.waited_for_cpu_ns)) {
    return;
  }
  now.looked_ns = now_ns;
  Process& before = processes_[process.id];
  if (before.looked_ns != 0) {
    const int64_t passed_ns = now_ns - before.looked_ns;
    const auto got_ns = static_cast<int64_t>(now.on_cpu_ns - before.on_cpu_ns);
    const auto queued_ns = static_cast<int64_t>(now.waited_for_cpu_ns - before.waited_for_cpu_ns);
    now.starved += starved_time(state, passed_ns, got_ns, queued_ns);
  }
  before = now;
}

std::vector<brain::Suspicion> HangWatch::look(const View& view, int64_t now_ns) {
  brain::ProgressSample sample{
      .identity = view.identity, .world = view.world, .version = view.version, .trains = view.trains};
  for (const auto& [rank, process] : view.members) {
    sample.ranks.push_back(progress_of(rank, *process, view, now_ns));
  }
  std::erase_if(processes_, [&](const auto& entry) {
    return std::ranges::none_of(sample.ranks, [&](const auto& rank) { return rank.worker == entry.first; });
  });
  sample_ = sample;
  std::erase_if(reports_, [&](const auto& entry) {
    return entry.second.identity != view.identity || now_ns - entry.second.received_ns > kReportHoldsNs;
  });
  for (const auto& [node, report] : reports_) {
    for (RankProgress rank : report.ranks) {
      if (rank.rank < view.world &&
          std::ranges::find(sample.ranks, rank.rank, &RankProgress::rank) == sample.ranks.end()) {
        *rank.still_for += std::chrono::nanoseconds(now_ns - report.received_ns);
        sample.ranks.push_back(std::move(rank));
      }
    }
  }
  std::ranges::sort(sample.ranks, {}, &RankProgress::rank);
  left_ = early_leavers_.step(sample, std::chrono::nanoseconds(now_ns));
  return detector_.step(sample, std::chrono::nanoseconds(now_ns));
}

std::optional<messages::WaitingRanks> HangWatch::report() const {
  const std::optional<Time> waited = detector_.all_wait_for();
  if (sample_.ranks.empty() || sample_.ranks.size() == sample_.world || !waited.has_value() ||
      *waited < std::max(kWorthTelling, detector_.step_time().value_or(Time{}))) {
    return std::nullopt;
  }
  messages::WaitingRanks report{sample_.identity, sample_.ranks};
  for (RankProgress& rank : report.ranks) {
    rank.still_for = detector_.still_for(rank.rank);
  }
  return report;
}

Status HangWatch::on_report(brain::NodeId from, messages::WaitingRanks report, int64_t now_ns) {
  if (report.identity != sample_.identity) {
    return absl::OkStatus();  // from a generation that is over, or unknown here yet
  }
  if (report.ranks.size() > sample_.world) {
    return absl::InvalidArgumentError("a report of waiting ranks with more of them than there are");
  }
  for (const RankProgress& rank : report.ranks) {
    if (rank.phase > StepPhase::kUpdate || rank.waits > brain::WaitsIn::kPause || rank.what.size() > kMaxWhatBytes ||
        !rank.still_for.has_value() || *rank.still_for < Time{}) {
      return absl::InvalidArgumentError(absl::StrFormat("a report of rank %d that no agent makes", rank.rank));
    }
  }
  reports_[from] = {report.identity, now_ns, std::move(report.ranks)};
  return absl::OkStatus();
}

}  // namespace keepstep::agent
