#include "rank/link/rank_generation.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport.h"

namespace keepstep::rank {
namespace {

// On top of the time the communicator already waited for a broken link. After that it is reported as the link's own
// fault.
constexpr int64_t kToldNs = 1'000'000'000;

}  // namespace

void RankGeneration::enter(Prepared& prepared, const std::vector<std::byte*>& here) {
  assignment = prepared.assignment;
  activation = {};
  members.assign(assignment.world, nullptr);
  for (size_t i = 0; i < here.size(); ++i) {
    members[prepared.ranks[i]] = here[i];
  }
  if (pages_.size() > 1) {
    pages_.erase(pages_.begin());
  }
  pages_.push_back(std::move(prepared.generation));
  page = reinterpret_cast<GenerationPage*>(pages_.back().data());
  nodes = across() ? prepared.locations.nodes : std::vector<uint32_t>();
}

void RankGeneration::make_communicator(Prepared& prepared) {
  comm::Endpoint endpoint;
  endpoint.self = assignment.rank;
  for (std::byte* member : members) {
    endpoint.arenas.push_back(member == nullptr ? nullptr : member + layout.arena);
  }
  endpoint.generation = pages_.back().data() + kHeaderBytes;
  endpoint.interrupted = &page.load()->interrupted;
  endpoint.progress = &progress().collectives;
  endpoint.nodes = nodes;
  if (across()) {
    endpoint.transport = comm::make_tcp_transport({.identity = assignment.identity,
                                                   .self = assignment.rank,
                                                   .addresses = std::move(prepared.locations.addresses),
                                                   .key = *prepared.key,
                                                   .protection = prepared.protection},
                                                  std::move(prepared.listener));
  }
  communicator = std::make_shared<comm::Communicator>(config, std::move(endpoint));
}

std::vector<const WorkerPage*> RankGeneration::member_pages() const {
  std::vector<const WorkerPage*> found;
  for (const std::byte* member : members) {
    found.push_back(reinterpret_cast<const WorkerPage*>(member));
  }
  return found;
}

bool RankGeneration::speaks_for_node() const {
  const auto first = std::find_if(members.begin(), members.end(), [](const std::byte* m) { return m != nullptr; });
  return members[assignment.rank] == *first;
}

Status status_of(const comm::Completion& completion) {
  if (completion.outcome == comm::Outcome::kInterrupted) {
    return absl::AbortedError("the generation was interrupted");
  }
  return completion.outcome == comm::Outcome::kDone ? absl::OkStatus() : absl::UnavailableError(completion.error);
}

Status RankGeneration::exchange(comm::OpId op) const {
  const Status status = status_of(communicator->wait(op));
  communicator->forget(op);
  return passed_on(status);
}

Status RankGeneration::await_interruption(const Status& why) const {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);
  GenerationPage& gen = *page.load();
  const int64_t end_ns = monotonic_ns() + kToldNs;
  while (monotonic_ns() < end_ns) {
    const uint32_t seen = gen.bell.load();
    if (gen.interrupted.load() != 0) {
      return absl::AbortedError("the generation was interrupted");
    }
    wait_bell(gen, seen);
  }
  return why;
}

Status RankGeneration::passed_on(const Status& status) const {
  return absl::IsUnavailable(status) ? await_interruption(status) : status;
}

}  // namespace keepstep::rank
