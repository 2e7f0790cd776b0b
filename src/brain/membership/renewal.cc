#include "brain/membership/renewal.h"

#include <utility>

namespace keepstep::brain {

void Renewal::begin() {
  outdated_.clear();
  for (const Member& member : job_.round.members()) {
    if (job_.alive(member)) {
      outdated_.insert(member.worker);
    }
  }
  due_ = true;
}

void Renewal::renew() {
  if (!due_) {
    return;
  }
  due_ = false;
  std::vector<WorkerId> old_ones;
  bool new_ones = false;
  for (const Member& member : job_.round.members()) {
    if (!job_.alive(member) || !job_.holds_state(member.rank)) {
      continue;
    }
    if (outdated_.contains(member.worker)) {
      old_ones.push_back(member.worker);
    } else {
      new_ones = true;
    }
  }
  std::set<WorkerId> stay;
  if (job_.version > 0 && !new_ones) {
    for (size_t i = 0; i < old_ones.size(); i += 2) {
      stay.insert(old_ones[i]);
    }
    if (stay.empty()) {
      return;  // once all are ready it is known whether anybody has the state; then this is retried
    }
  }
  std::vector<int64_t> replaced;
  std::vector<int64_t> stayed;
  for (const Member& member : job_.round.members()) {
    if (!job_.alive(member) || !outdated_.contains(member.worker)) {
      continue;
    }
    (stay.contains(member.worker) ? stayed : replaced).push_back(member.rank);
  }
  if (replaced.empty() && job_.round.members().size() == 1) {
    outdated_.clear();  // the world shrank to one rank in the meantime: nobody else could keep the state for it
    return;
  }
  job_.journal("restart_with_state", job_.because,
               {{"version", static_cast<int64_t>(job_.version)}, {"restarted", replaced}, {"later", stayed}});
  for (const int64_t rank : replaced) {
    const WorkerId worker = job_.round.members()[static_cast<size_t>(rank)].worker;
    job_.end_worker(worker, job_.because);
    job_.roster.await_exit(worker);
  }
  outdated_ = std::move(stay);
}

// Interrupts no rank at the end of the job.
bool Renewal::goes_on() {
  std::erase_if(outdated_, [this](WorkerId id) { return job_.roster.at(id).status != Roster::Status::kMember; });
  if (outdated_.empty() || job_.phase != Phase::kRunning || job_.round.ending().released() ||
      job_.round.ending().anybody_through()) {
    return false;
  }
  due_ = true;
  return true;
}

void Renewal::forget() {
  outdated_.clear();
  due_ = false;
}

}  // namespace keepstep::brain
