#include "brain/membership/staffing.h"

#include <algorithm>
#include <utility>

namespace keepstep::brain {

using Origin = Placement::Origin;
using Status = Roster::Status;

void start_workers(Job& job) {
  Rank rank = 0;
  uint32_t index = 0;
  for (const auto& [node, endpoint] : job.nodes) {
    uint32_t share = 0;  // a spare node has none
    if (index < job.config.nodes) {
      share = job.config.world_size / job.config.nodes + (index < job.config.world_size % job.config.nodes ? 1 : 0);
    }
    ++index;
    for (uint32_t local = 0; local < share; ++local, ++rank) {
      job.placement.add(node, local);
      job.take(job.spawn(node, false, job.because), rank, Origin::kStart);
    }
    const uint32_t spares = job.config.spares + (share == 0 ? job.max_ranks_of_a_node() : 0);
    for (uint32_t spare = 0; spare < spares; ++spare) {
      job.spawn(node, true, job.because);
    }
  }
}

void fill(Job& job, Rank rank) {
  const NodeId node = job.placement.at(rank).node;
  const Origin fresh = job.cause == Cause::kStart ? Origin::kStart : Origin::kRestart;
  if (const WorkerId parked = job.roster.free(node, Status::kParked); parked != kNoWorker) {
    job.take(parked, rank, job.cause == Cause::kReplace ? Origin::kSpare : fresh);
    return;
  }
  // A spare that is still starting is ahead of any worker that would be started now.
  WorkerId starting = job.roster.free(node, Status::kStarting);
  if (starting == kNoWorker) {
    starting = job.spawn(node, false, job.because);
  }
  job.take(starting, rank, job.cause == Cause::kReplace ? Origin::kZygote : fresh);
}

void start_spares(Job& job, NodeId node, const std::string& because) {
  while (job.roster.spares_on(node) < job.spares_of(node)) {
    job.spawn(node, true, because);
  }
}

void keep_spares(Job& job) {
  const bool runs = (job.phase == Phase::kRunning && job.round.stepped()) || job.is_plain();
  if (!runs || job.round.ending().released() || job.round.ending().anybody_through()) {
    return;
  }
  if (job.config.spares == 0 && job.config.spare_nodes == 0 && !job.config.elastic) {
    return;
  }
  for (const auto& [node, endpoint] : job.nodes) {
    const uint32_t wanted = job.spares_of(node);
    Roster::LostStarts& lost = job.roster.lost_starts(node);
    if (lost.in_a_row > job.config.start_failures) {
      if (job.roster.spares_on(node) < wanted && !std::exchange(lost.told, true)) {
        job.journal("spares_given_up",
                    std::to_string(lost.in_a_row) + " spares of node " + std::to_string(node) +
                        " were lost in a row without progress",
                    {{"given_up_node", int64_t{node}}});
      }
      continue;
    }
    while (job.roster.spares_on(node) < wanted) {
      job.spawn(node, true, "the node keeps " + std::to_string(wanted) + " spares");
    }
  }
}

const char* replaced_by(const Job& job, const std::vector<int64_t>& newcomers) {
  const auto any = [&](Origin origin) {
    return std::any_of(newcomers.begin(), newcomers.end(),
                       [&](int64_t rank) { return job.placement.at(static_cast<Rank>(rank)).origin == origin; });
  };
  // The slowest kind stands for all of them: the generation waited for it.
  if (any(Origin::kRestart)) {
    return "restart";
  }
  if (any(Origin::kZygote)) {
    return "zygote";
  }
  if (any(Origin::kSpare)) {
    return "spare";
  }
  return any(Origin::kStart) ? "start" : "same process";
}

}  // namespace keepstep::brain
