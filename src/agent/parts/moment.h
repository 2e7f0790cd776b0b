// The current state of the job for people: the status line, and what `keepstep jobs` shows.
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

  // What is going on; empty if the job trains.
  void is(std::string what) { what_ = std::move(what); }
  void recovered();  // the generation after a fault formed
  // What is going on; otherwise what or who slows the job down.
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
