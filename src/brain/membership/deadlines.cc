#include "brain/membership/deadlines.h"

#include <algorithm>

#include "brain/text.h"

namespace keepstep::brain {

void Deadlines::prepared() {
  prepared_at_ = job_.now;
  look_at_members_ = job_.now + std::min(job_.config.interrupt_timeout, job_.config.start_timeout);
}

// A deadline may have moved since it was set, so it is computed again.
void Deadlines::kill_the_late() {
  if (job_.phase == Phase::kForming && job_.now >= look_at_members_) {
    look_at_members_ = Time::max();
    for (const Member& member : job_.round.members()) {
      watch(member.worker);
    }
  }
  for (WorkerId id = job_.roster.next_due(job_.now); id != kNoWorker; id = job_.roster.next_due(job_.now)) {
    const Roster::Worker& worker = job_.roster.at(id);
    if (const std::optional<Time> deadline = deadline_of(id, worker); deadline && *deadline <= job_.now) {
      job_.kill(id, lateness_of(id, worker));
    } else {
      watch(id);
    }
  }
}

void Deadlines::watch(WorkerId id) {
  if (const std::optional<Time> deadline = deadline_of(id, job_.roster.at(id))) {
    job_.roster.look_again(id, *deadline);
  }
}

// When to kill the worker, or kill it again. std::nullopt: as things are, never.
std::optional<Time> Deadlines::deadline_of(WorkerId id, const Roster::Worker& worker) const {
  std::optional<Time> deadline;
  if (job_.roster.is_ending(id)) {
    deadline = Time{};
  } else if (worker.status == Roster::Status::kStarting) {
    deadline = job_.start_deadline(worker);
  } else if (job_.phase == Phase::kForming && worker.status == Roster::Status::kMember &&
             !job_.round.has_answered(worker.rank)) {
    if (worker.recoverable) {
      // A newcomer may still be loading its training data.
      deadline = std::max(prepared_at_, worker.recoverable_since) +
                 (builds(worker) ? job_.config.start_timeout : job_.config.interrupt_timeout);
    } else if (repeats_a_start(worker)) {
      deadline = prepared_at_ + start_limit();
    }
  }
  return deadline && worker.killed_at ? std::max(*deadline, *worker.killed_at + job_.config.repeat_after) : deadline;
}

std::string Deadlines::lateness_of(WorkerId id, const Roster::Worker& worker) const {
  if (job_.roster.is_ending(id)) {
    return job_.because;
  }
  if (worker.status == Roster::Status::kStarting) {
    return "it did not ask for a rank within " + seconds_text(job_.config.start_timeout) + " of its start";
  }
  if (!worker.recoverable) {
    return rank_text(worker.rank) + " did not come to its recoverable function within " + seconds_text(start_limit());
  }
  return rank_text(worker.rank) +
         (builds(worker) ? " did not get ready within " + seconds_text(job_.config.start_timeout)
                         : " did not leave its step within " + seconds_text(job_.config.interrupt_timeout));
}

// A member that must first build its state: a newcomer, or one that has the state in another sharding.
bool Deadlines::builds(const Roster::Worker& worker) const {
  return job_.placement.newcomer(worker.rank) || job_.holdings.sharding() != job_.holdings.kept_in();
}

// A member that takes the place of one that was in the recoverable function, and must get there, too. A plain script
// never does. After the first function, what a newcomer does on the way was never timed.
bool Deadlines::repeats_a_start(const Roster::Worker& worker) const {
  return job_.ever_formed && job_.functions == 0 && job_.longest_start && job_.placement.newcomer(worker.rank);
}

// It does what the first members did before their function.
Time Deadlines::start_limit() const { return job_.config.start_timeout + 2 * *job_.longest_start; }

}  // namespace keepstep::brain
