// Who is late: workers that do not ask for a rank, members that do not leave their step, and those that are to end.
// Pure.
#pragma once

#include "brain/membership/job.h"

namespace keepstep::brain {

class Deadlines {
 public:
  explicit Deadlines(Job& job) : job_(job) {}

  // A generation was prepared: its members are to answer.
  void prepared();
  // Sets its next deadline, after what it depends on has changed.
  void watch(WorkerId id);
  // Whose time has come.
  void kill_the_late();

 private:
  std::optional<Time> deadline_of(WorkerId id, const Roster::Worker& worker) const;
  std::string lateness_of(WorkerId id, const Roster::Worker& worker) const;
  bool builds(const Roster::Worker& member) const;

  Job& job_;
  Time prepared_at_{};
  Time look_at_members_ = Time::max();  // who has not answered Prepare by then gets a deadline of its own
};

}  // namespace keepstep::brain
