// One generation on this node: its page and its members' words. Sealing and verdicts happen here, in shared memory,
// without the help of any worker.
//
// Loop thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/shared_memory.h"
#include "base/status.h"
#include "brain/membership/membership_messages.h"
#include "comm/comm_config.h"
#include "rank/link/page.h"

namespace keepstep::agent {

class Generation {
 public:
  // `prepare` has the members of this node and the table of all ranks. If they differ, votes cross nodes.
  static StatusOr<std::unique_ptr<Generation>> create(const brain::Prepare& prepare, const comm::CommConfig& config);

  brain::Identity identity() const { return identity_; }
  int fd() const { return memory_.fd(); }

  // Marks the generation interrupted, seals the word of each page in `holders` and returns what each word was; then
  // wakes processes that wait in a vote or a collective. Idempotent. Words of dead workers are sealed too: what they
  // prove stays true. (A rank that died before it voted forces a redo, and its capsule of that step is not needed.)
  struct Holder {
    brain::Rank rank;
    brain::WorkerId worker;
    rank::WorkerPage* page;
  };
  std::vector<brain::SealedWord> seal(const std::vector<Holder>& holders);

  // All ranks were released, and one of them is gone: wakes waiting processes, as seal() does. No word changes.
  void cut_collectives_short();

  // The newest step known here to be decided by all nodes, and what arrived with the decision. Step 0 if there is none.
  struct DecidedStep {
    brain::Step step = 0;
    double mean_loss = 0;
    uint32_t flags = 0;
  };
  DecidedStep newest_decided_step() const;

  // Announces the verdict to the processes that wait for it. Call after seal(). announce_end(): there is no verdict,
  // the job is over. `mean_loss` and `flags`: of step `version`, for the ranks of several nodes, which cannot read each
  // other's pages.
  void announce(brain::Version version, std::optional<double> mean_loss = std::nullopt, uint32_t flags = 0);
  void announce_end();

 private:
  Generation(brain::Identity identity, comm::CommConfig config, SharedMemory memory)
      : identity_(identity), config_(config), memory_(std::move(memory)) {}
  rank::GenerationPage& page() const { return *reinterpret_cast<rank::GenerationPage*>(memory_.data()); }
  void interrupt();

  brain::Identity identity_;
  comm::CommConfig config_;
  SharedMemory memory_;
};

}  // namespace keepstep::agent
