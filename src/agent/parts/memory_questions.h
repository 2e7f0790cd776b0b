// What the agents of all nodes hold of the job's state in their memory, for who asks node 0: `keepstep ckpt` of a place
// memory://JOB. Node 0's agent asks the others (memory_tier.h is each one's part); it does not wait for a node that is
// gone.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <vector>

#include "agent/control/control_door.h"
#include "agent/memory/memory_tier.h"
#include "agent/parts/core.h"
#include "agent/parts/saves.h"

namespace keepstep::agent {

class MemoryQuestions {
 public:
  // `vaults`: this node's.
  MemoryQuestions(AgentCore& core, ShardVaults& vaults, const Saves& saves)
      : core_(core), saves_(saves), tier_(core.loop, vaults) {}

  void ask(const nlohmann::json& request, const ControlDoor::Answer& answer);
  void on_question(const messages::MemoryQuestion& question);  // of node 0's
  void on_answer(brain::NodeId from, const messages::MemoryAnswer& answer);
  // Those that are gone, or say nothing, are waited for no longer.
  void give_up_the_silent();

 private:
  struct Question {
    bool of_all = false;  // nodes; else of one
    ControlDoor::Answer answer;
    std::set<brain::NodeId> awaited;
    std::map<brain::NodeId, messages::Json> answers;
    int64_t deadline_ns = 0;
    std::set<brain::NodeId> silent;  // that are not waited for any longer
  };
  void conclude(uint64_t id);
  nlohmann::json answer_of(const Question& question) const;

  AgentCore& core_;
  const Saves& saves_;
  MemoryTier tier_;
  std::map<uint64_t, Question> questions_;  // node 0's, to be answered
  uint64_t asked_ = 0;
};

}  // namespace keepstep::agent
