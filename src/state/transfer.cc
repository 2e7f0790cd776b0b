#include "state/transfer.h"

#include <thread>
#include <utility>

#include "base/clock.h"

namespace keepstep::state {

using brain::PlanRange;

Transfer::Transfer(const std::vector<Link*>& links, brain::Identity identity, brain::Version version)
    : identity_(identity), version_(version), sources_(links.size()), bytes_by_source_(links.size()) {
  for (size_t i = 0; i < links.size(); ++i) {
    sources_[i].link = links[i];
  }
}

Status Transfer::run(const std::vector<PlanRange>& plan, const Work& work) {
  {
    std::lock_guard lock(mutex_);
    status_ = absl::OkStatus();
    bad_tries_.clear();
    remaining_ = plan.size();
    std::vector<std::vector<PlanRange>> of_lost(sources_.size());
    for (const PlanRange& range : plan) {
      if (sources_[range.source].lost) {
        of_lost[range.source].push_back(range);
      } else {
        sources_[range.source].queue.push_back(range);
      }
    }
    for (uint32_t source = 0; source < sources_.size(); ++source) {
      if (!of_lost[source].empty()) {
        deal_out(std::move(of_lost[source]), source);
      }
    }
  }
  std::vector<std::thread> threads;
  for (uint32_t source = 1; source < sources_.size(); ++source) {
    threads.emplace_back([this, source, &work] { drive(source, work); });
  }
  drive(0, work);
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (Source& source : sources_) {
    source.queue.clear();
  }
  return status_;
}

// The thread of one source, until everything is done or the source is lost. It holds a channel only while it has
// something to ask: with more targets than channels, two targets could otherwise wait for each other forever.
void Transfer::drive(uint32_t source, const Work& work) {
  Link& link = *sources_[source].link;
  while (wait_for_work(source)) {
    std::deque<PlanRange> outstanding;
    Status status = find(source, work);
    if (status.ok()) {
      status = link.take_channel();
    }
    if (status.ok()) {
      status = keep_asking(source, work, outstanding);
    }
    if (absl::IsUnavailable(status)) {
      lose(source, std::string(status.message()), outstanding);
    } else if (!status.ok()) {
      std::lock_guard lock(mutex_);
      stop(std::move(status));
    }
    link.give_back();
  }
}

Status Transfer::find(uint32_t index, const Work& work) {
  Source& source = sources_[index];
  if (source.found) {
    return absl::OkStatus();
  }
  const int64_t start_ns = monotonic_ns();
  while (true) {
    KEEPSTEP_ASSIGN_OR_RETURN(const bool published, source.link->look(identity_));
    if (published) {
      break;
    }
    bool other_found = false;
    {
      std::lock_guard lock(mutex_);
      if (!status_.ok()) {
        return status_;
      }
      for (const Source& other : sources_) {
        other_found = other_found || (other.found && !other.lost);
      }
    }
    if (source.link->is_interrupted()) {
      return absl::AbortedError("the generation was interrupted");
    }
    if (other_found && monotonic_ns() - start_ns > kSilenceNs) {
      return absl::UnavailableError(absl::StrFormat("published nothing for %d ms", kSilenceNs / 1'000'000));
    }
    source.link->nap_until_published();
  }
  if (source.link->published().version != version_) {
    return absl::UnavailableError(
        absl::StrFormat("published version %d, not %d", source.link->published().version, version_));
  }
  KEEPSTEP_RETURN_IF_ERROR(work.check_source(*source.link));
  std::lock_guard lock(mutex_);
  source.found = true;
  return absl::OkStatus();
}

// Runs until the queue is empty. `outstanding` is what was requested and not finished.
Status Transfer::keep_asking(uint32_t source, const Work& work, std::deque<PlanRange>& outstanding) {
  Link& link = *sources_[source].link;
  while (true) {
    PlanRange next;
    while (link.can_ask() && take(source, &next)) {
      outstanding.push_back(next);
      link.ask(work.request(next), version_);
    }
    if (outstanding.empty()) {
      return absl::OkStatus();
    }
    StatusOr<Reply> reply = link.reply();
    if (!reply.ok() && !absl::IsDataLoss(reply.status())) {
      return reply.status();
    }
    const PlanRange range = outstanding.front();
    const bool good = reply.ok() && work.consume(range, *reply);
    link.done();
    outstanding.pop_front();
    if (link.is_interrupted()) {
      return absl::AbortedError("the generation was interrupted");
    }
    finish(source, range, good, work);
  }
}

bool Transfer::wait_for_work(uint32_t source) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return remaining_ == 0 || !status_.ok() || sources_[source].lost || !sources_[source].queue.empty();
  });
  return remaining_ > 0 && status_.ok() && !sources_[source].lost;
}

bool Transfer::take(uint32_t source, PlanRange* range) {
  std::lock_guard lock(mutex_);
  std::deque<PlanRange>& queue = sources_[source].queue;
  if (!status_.ok() || queue.empty()) {
    return false;
  }
  *range = queue.front();
  queue.pop_front();
  return true;
}

void Transfer::finish(uint32_t source, const PlanRange& range, bool good, const Work& work) {
  std::lock_guard lock(mutex_);
  if (good) {
    bytes_by_source_[source] += range.bytes;
    if (--remaining_ == 0) {
      changed_.notify_all();
    }
    return;
  }
  if (++bad_tries_[{range.entry, range.offset}] >= kMaxTries) {
    stop(
        absl::DataLossError(absl::StrFormat("%s came with a wrong checksum %d times, last from source %d; is this "
                                            "machine's memory failing?",
                                            work.describe(range), kMaxTries, source)));
    return;
  }
  ++repeated_;
  PlanRange again = range;
  // From another source if possible, preferably a near one.
  for (const bool near : {true, false}) {
    for (uint32_t step = 1; step < sources_.size() && again.source == source; ++step) {
      const uint32_t other = (source + step) % sources_.size();
      if (!sources_[other].lost && is_near(other) == near) {
        again.source = other;
      }
    }
  }
  sources_[again.source].queue.push_back(again);
  changed_.notify_all();
}

void Transfer::lose(uint32_t index, const std::string& why, const std::deque<PlanRange>& outstanding) {
  std::lock_guard lock(mutex_);
  Source& source = sources_[index];
  source.lost = true;
  source.why = why;
  std::vector<PlanRange> owed(outstanding.begin(), outstanding.end());
  repeated_ += owed.size();
  owed.insert(owed.end(), source.queue.begin(), source.queue.end());
  source.queue.clear();
  deal_out(std::move(owed), index);
}

void Transfer::deal_out(std::vector<PlanRange> owed, uint32_t lost) {
  // The planner expects one lost source: renumber those that are left, and the lost one. Near ones get everything if
  // there are any.
  std::vector<uint32_t> numbers;
  const auto collect = [&](bool near) {
    for (uint32_t source = 0; source < sources_.size(); ++source) {
      if (!sources_[source].lost && is_near(source) == near) {
        numbers.push_back(source);
      }
    }
  };
  collect(true);
  if (numbers.empty()) {
    collect(false);
  }
  if (numbers.empty()) {
    std::string reasons;
    for (uint32_t source = 0; source < sources_.size(); ++source) {
      reasons += absl::StrFormat("%s source %d %s", source == 0 ? "" : ";", source, sources_[source].why);
    }
    stop(absl::DataLossError("no source is left to pull from:" + reasons));
    return;
  }
  const auto lost_number = static_cast<uint32_t>(numbers.size());
  for (PlanRange& range : owed) {
    range.source = lost_number;
  }
  for (PlanRange range : brain::replan_without(owed, lost_number, lost_number + 1)) {
    range.source = numbers[range.source];
    sources_[range.source].queue.push_back(range);
  }
  sources_[lost].queue.clear();
  changed_.notify_all();
}

void Transfer::stop(Status status) {
  if (status_.ok()) {
    status_ = std::move(status);
  }
  changed_.notify_all();
}

}  // namespace keepstep::state
