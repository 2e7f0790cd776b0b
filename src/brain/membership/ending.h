// How one generation ends without a fault: which of its members are through with the training function, which ended
// their process, and which entered the next function. Pure.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "brain/membership/membership_messages.h"

namespace keepstep::brain {

class Ending {
 public:
  // A member's training function returned.
  void finish(Rank rank) { finished_.insert(rank); }
  // A member's process ended with exit code 0.
  void exit(Rank rank) { exited_.insert(rank); }
  const std::set<Rank>& exited() const { return exited_; }
  bool anybody_through() const { return !finished_.empty() || !exited_.empty(); }
  // Each of `members` finished or exited.
  bool all_through(const std::vector<Member>& members) const;
  // All members are through: none does another step.
  void release() { released_ = true; }
  bool released() const { return released_; }
  struct LateDeath {
    int exit_code = 1;
    std::string what;
    std::string traceback;
  };
  // Members that died after they were released.
  void die_late(const std::vector<Rank>& ranks, LateDeath death);
  const std::vector<LateDeath>& late_deaths() const { return late_deaths_; }
  // A member entered the next recoverable function, and waits for a rank.
  void call_again(Rank rank) { called_again_.insert(rank); }
  bool anybody_called_again() const { return !called_again_.empty(); }
  Rank first_called_again() const { return *called_again_.begin(); }
  // Of `members`, the first that is alive and has not called again, or that ended on its own: it rules out the next
  // function.
  std::optional<Rank> not_called_again(const std::vector<Member>& members) const;

 private:
  bool released_ = false;
  std::set<Rank> finished_;
  std::set<Rank> exited_;
  std::set<Rank> died_late_;  // of those that exited or finished
  std::vector<LateDeath> late_deaths_;
  std::set<Rank> called_again_;
};

}  // namespace keepstep::brain
