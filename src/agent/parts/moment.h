// What people are told of the moment: the line of status, and how `keepstep jobs` shows the job.
#pragma once

#include <cstdint>
#include <string>

#include "agent/parts/core.h"
#include "agent/parts/pace.h"
#include "agent/parts/saves.h"
#include "observe/status_line.h"

namespace keepstep::agent {

class Moment {
 public:
  Moment(AgentCore& core, const Saves& saves, const Pace& pace, observe::StatusLine& status)
      : core_(core), saves_(saves), pace_(pace), status_(status) {}

  // What goes on; empty: the job trains.
  void is(std::string what) { what_ = std::move(what); }
  void recovered();  // the generation after a fault formed
  // What goes on, else what or who holds the job up.
  std::string in_words() const;
  uint32_t recoveries() const { return recoveries_; }
  void show();

 private:
  AgentCore& core_;
  const Saves& saves_;
  const Pace& pace_;
  observe::StatusLine& status_;
  std::string what_ = "starting";
  uint32_t recoveries_ = 0;
};

}  // namespace keepstep::agent
