// A generation's life, from gathering to the end (membership.h gives an overview): what each phase does, and what
// becomes of the sealed words. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brain/ladder/recovery_ladder.h"
#include "brain/membership/corruption.h"
#include "brain/membership/deadlines.h"
#include "brain/membership/job.h"
#include "brain/membership/node_replacement.h"
#include "brain/membership/renewal.h"
#include "brain/membership/sizing.h"

namespace keepstep::brain {

// Writes the Job's phase, versions, verdict and round. If it finds a fault (no source of the state is left), it stores
// it for take_found() and does nothing more; Membership takes the ladder's rung for it.
class Phases {
 public:
  Phases(Job& job, RecoveryLadder& ladder, Deadlines& deadlines, NodeReplacement& replacement, Corruption& corruption,
         Renewal& renewal, std::optional<Sizing>& sizing)
      : job_(job),
        ladder_(ladder),
        deadlines_(deadlines),
        replacement_(replacement),
        corruption_(corruption),
        renewal_(renewal),
        sizing_(sizing) {}

  std::optional<Fault> take_found() { return std::exchange(found_, std::nullopt); }
  void heard() { sent_at_ = job_.now; }  // an answer: thousands of them may take longer than the wait for one
  void note_fault() { after_fault_ = true; }

  // ---- gathering and forming ----
  void start_if_enough();
  void gather();
  void prepare();
  void check_left_behind();
  void activate();

  // ---- running ----
  void formed();
  void forget_the_gone();
  void check_finished();
  void release();
  void pause();
  bool resize();  // false: found a fault

  // ---- sealing ----
  void seal(const std::string& because);
  void conclude_if_sealed();

  // ---- the end, and time ----
  void restart(const std::string& because);
  void end(int exit_code, const std::string& message, const std::string& traceback);
  bool waits_too_long() const { return job_.now - sent_at_ >= job_.config.repeat_after; }
  void repeat_unanswered();

 private:
  using Slot = Placement::Slot;
  using Status = Roster::Status;
  using Worker = Roster::Worker;

  void find(Fault fault);
  bool all_left();
  void send_prepare();
  void send_activate();
  void remember_formed();
  void conclude();
  bool judge(const std::vector<SealedWord>& words);
  void note_what_they_hold();
  std::optional<Holdings::Kept> kept_or_found(const Verdict& verdict, bool resharded, const std::set<NodeId>* only);
  std::optional<Verdict> whole(const Verdict& verdict);
  bool still_whole();
  void journal_verdict(const Verdict& verdict, Version reached);
  bool begins_again();
  void clear_for_restart(const std::string& because);
  void start_over(Cause cause, const std::string& because);
  void next_function();

  Job& job_;
  RecoveryLadder& ladder_;
  Deadlines& deadlines_;
  NodeReplacement& replacement_;
  Corruption& corruption_;
  Renewal& renewal_;
  std::optional<Sizing>& sizing_;
  std::optional<Fault> found_;
  uint32_t restarts_ = 0;     // see Prepare::restarts
  bool after_fault_ = false;  // the next generation is
  Time sent_at_{};            // of the last Seal, Prepare, Activate or Release, or of the last answer
};

}  // namespace keepstep::brain
