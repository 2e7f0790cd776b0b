#include "brain/membership/roster.h"

#include <algorithm>
#include <utility>

namespace keepstep::brain {

Roster::Worker* Roster::find(WorkerId id) {
  const auto found = workers_.find(id);
  return found == workers_.end() ? nullptr : &found->second;
}

WorkerId Roster::add(NodeId node, Time now) {
  const WorkerId id = next_++;
  Worker& worker = workers_[id];
  worker.node = node;
  worker.spawned_at = now;
  spares_[node].insert(id);
  return id;
}

void Roster::take(WorkerId id, Rank rank) {
  Worker& worker = workers_.at(id);
  worker.taken = true;
  worker.rank = rank;
  spares_[worker.node].erase(id);
}

void Roster::leave_rank(WorkerId id) {
  Worker& worker = workers_.at(id);
  worker.taken = false;
  if (worker.status == Status::kMember) {
    worker.status = Status::kParked;
    worker.left = true;
  }
  spares_[worker.node].insert(id);
}

void Roster::retire(WorkerId id) {
  Worker& worker = workers_.at(id);
  worker.status = Status::kGone;
  spares_[worker.node].erase(id);
}

std::vector<WorkerId> Roster::lose(NodeId node) {
  std::vector<WorkerId> lived;
  for (auto& [id, worker] : workers_) {
    if (worker.node != node) {
      continue;
    }
    if (worker.status != Status::kGone) {
      lived.push_back(id);
      worker.status = Status::kGone;
    }
    unconfirmed_.erase(id);  // nobody is left on that node to confirm it
    ending_.erase(id);
  }
  spares_.erase(node);
  return lived;
}

std::vector<WorkerId> Roster::forget_the_gone(const std::function<bool(WorkerId, const Worker&)>& needed) {
  std::vector<WorkerId> forgotten;
  std::erase_if(workers_, [&](const auto& each) {
    const auto& [id, worker] = each;
    const bool goes = worker.status == Status::kGone && !is_ending(id) && !needed(id, worker);
    if (goes) {
      forgotten.push_back(id);
    }
    return goes;
  });
  return forgotten;
}

size_t Roster::spares_on(NodeId node) const {
  const auto found = spares_.find(node);
  return found == spares_.end() ? 0 : found->second.size();
}

uint32_t Roster::parked_on(NodeId node) const {
  const auto found = spares_.find(node);
  return found == spares_.end() ? 0 : static_cast<uint32_t>(std::ranges::count_if(found->second, [this](WorkerId id) {
    const Worker& worker = workers_.at(id);
    return worker.status == Status::kParked && !worker.killed_at;
  }));
}

WorkerId Roster::free(NodeId node, Status status) const {
  if (const auto spares = spares_.find(node); spares != spares_.end()) {
    for (const WorkerId id : spares->second) {
      const Worker& worker = workers_.at(id);
      if (worker.status == status && !worker.killed_at) {
        return id;
      }
    }
  }
  return kNoWorker;
}

bool Roster::confirm_exit(WorkerId id) {
  ending_.erase(id);
  return unconfirmed_.erase(id) > 0;
}

void Roster::look_again(WorkerId id, Time at) {
  std::optional<Time>& due = workers_.at(id).due;
  if (due && *due <= at) {
    return;
  }
  if (due) {
    due_.erase({*due, id});
  }
  due = at;
  due_.emplace(at, id);
}

WorkerId Roster::next_due(Time now) {
  while (!due_.empty() && due_.begin()->first <= now) {
    const WorkerId id = due_.begin()->second;
    due_.erase(due_.begin());
    if (Worker* const worker = find(id)) {
      worker->due.reset();
      return id;
    }
  }
  return kNoWorker;
}

}  // namespace keepstep::brain
