// Behind include/keepstep/trainer.h: an engine, the protected memory, and this process's place in the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brain/rank/rank.h"
#include "keepstep/trainer.h"
#include "rank/checks/bit_flip.h"
#include "rank/checks/fault_injector.h"
#include "rank/checks/protected_state.h"
#include "rank/engine/engine.h"
#include "rank/trainer/public_communicator.h"

namespace keepstep {

struct Trainer::Impl {
  Impl(std::unique_ptr<rank::Engine> engine, Communicator::Impl* binding, std::unique_ptr<Communicator> communicator);

  // public_trainer.cc: the loop
  Status advance(uint64_t until);
  Status attempt(uint64_t until);
  Status commit(const std::function<Status()>& update);
  Status vote_and_update(const std::function<Status()>& update);
  Status check_outstanding(const char* where);
  // The state of this process's loop.
  brain::RankBrain brain() const { return engine->brain(); }
  bool has_rank() const { return brain().phase() != brain::RankPhase::kNoRank; }
  bool finished() const { return brain().phase() == brain::RankPhase::kFinished; }
  // The step that reports belong to: the current one, else the last committed one.
  uint64_t logged_step() const { return brain().step() != 0 ? brain().step() : brain().version(); }

  // public_trainer_membership.cc: joining a generation and leaving it
  Status join();
  Status form();
  Status hydrate();
  Status report(const Status& why);
  Status leave_after(const Status& why);
  void leave();

  // Any thread: remembers the first failure of this step, for next_step to report.
  void fail(const Status& why, bool mistake = false);
  // Records a failure that is a mistake, for `return mistake(...)`.
  Status mistake(const std::string& what);
  Status failure();
  bool made_mistake();
  Status inject(std::string_view phase);  // any thread
  void record_digests();                  // digests of this rank's vote
  bool checking() const { return check_all || checks_left > 0; }

  std::unique_ptr<rank::Engine> engine;
  Communicator::Impl* binding;  // of `communicator`
  std::unique_ptr<Communicator> communicator;
  rank::ProtectedState state;
  std::vector<rank::NamedMemory> compared;  // at each step; the same on all ranks
  bool digests = true;                      // unless --digests off
  uint64_t digest_every = 0;                // in steps, for the protected memory; 0: never
  Status status;
  std::function<void()> on_notice;
  double loss_sum = 0;
  uint64_t loss_count = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  bool check_all = false;
  int checks_left = 3;  // steps whose protected memory is compared without --check

  std::mutex mutex;
  std::optional<Status> failed;
  bool mistaken = false;
  std::mutex injecting;
  rank::FaultInjector injector;
};

}  // namespace keepstep
