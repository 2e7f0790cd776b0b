// Who is late: workers that do not ask for a rank, members that do not leave their step or do not come
// to it, and workers that are to end. Pure.
#pragma once

#include "brain/membership/job.h"

namespace keepstep::brain {

class Deadlines {
 public:
  explicit Deadlines(Job& job) : job_(job) {}

  // A generation was prepared: its members must answer.
  void prepared();
  // Sets the worker's next deadline, after something it depends on has changed.
  void watch(WorkerId id);
  // Kills the workers whose deadline has passed.
  void kill_the_late();

 private:
  std::optional<Time> deadline_of(WorkerId id, const Roster::Worker& worker) const;
  std::string lateness_of(WorkerId id, const Roster::Worker& worker) const;
  bool builds(const Roster::Worker& member) const;
  bool repeats_a_start(const Roster::Worker& worker) const;
  Time start_limit() const;

  Job& job_;
  Time prepared_at_{};
  Time look_at_members_ = Time::max();  // members that have not answered Prepare by then get a deadline of their own
};

}  // namespace keepstep::brain
