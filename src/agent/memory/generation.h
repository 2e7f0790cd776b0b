// One generation on this node: its page, its members' words. Sealing and verdicts happen here, in shared memory,
// without asking any worker.
//
// Loop thread only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/shared_memory.h"
#include "base/status.h"
#include "brain/membership/membership_messages.h"
#include "comm/communicator.h"
#include "rank/link/page.h"

namespace keepstep::agent {

class Generation {
 public:
  // `prepare` has the members of this node and the table of all: where those differ the votes go across nodes.
  static StatusOr<std::unique_ptr<Generation>> create(const brain::Prepare& prepare, const comm::CommConfig& config);

  brain::Identity identity() const { return identity_; }
  int fd() const { return memory_.fd(); }

  // Marks the generation interrupted, seals the word of each page in `holders` and reads what it was; then wakes
  // whoever waits in a vote or a collective. Repeating it changes nothing. The dead are sealed with the living: what
  // their words prove stays true (one that had not voted forces a redo, and its capsule of that step is not needed).
  struct Holder {
    brain::Rank rank;
    brain::WorkerId worker;
    rank::WorkerPage* page;
  };
  std::vector<brain::SealedWord> seal(const std::vector<Holder>& holders);

  // All ranks were released, and one of them is gone: whoever waits for another is woken, as by a seal. No word
  // changes.
  void cut_collectives_short();

  // The newest step that is known here to be decided by all nodes, with what came with the decision; step 0: none.
  struct DecidedStep {
    brain::Step step = 0;
    double mean_loss = 0;
    uint32_t flags = 0;
  };
  DecidedStep newest_decided_step() const;

  // Tells those that wait for the verdict. Both come after seal(). announce_end: there is none, the job is over.
  // `mean_loss`, `flags`: of step `version`, for the ranks of several nodes, which cannot read each other's pages.
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
