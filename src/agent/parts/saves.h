// Notes of ranks for the journal, and their reports about checkpoints: the destinations they save to, and which of
// those are behind.
#pragma once

#include <map>
#include <set>
#include <string>

#include "agent/parts/core.h"

namespace keepstep::agent {

class Saves {
 public:
  explicit Saves(AgentCore& core) : core_(core) {}

  void on_saved(brain::Identity identity, const messages::Saved& saved);
  // A line for the journal, about a save or something else. False: the agent does not know its event.
  bool on_note(const WorkerProcess& process, brain::Identity identity, const messages::Note& note);

  const std::set<std::string>& destinations() const { return destinations_; }
  const std::map<std::string, int64_t>& late() const { return late_; }  // the step since when

 private:
  static constexpr size_t kMax = 64;
  void spoke_of(const std::string& where);

  AgentCore& core_;
  std::set<std::string> destinations_;
  std::map<std::string, int64_t> late_;
};

}  // namespace keepstep::agent
