// Answers, at node 0, what the agents of all nodes hold of the job's state in their memory: `keepstep ckpt` of a
// destination memory://JOB. Node 0's agent asks the others (memory_tier.h is each one's part), and does not wait for a
// node that is gone.
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
  // `vaults`: of this node.
  MemoryQuestions(AgentCore& core, ShardVaults& vaults, const Saves& saves)
      : core_(core), saves_(saves), tier_(core.loop, vaults) {}

  void ask(const nlohmann::json& request, const ControlDoor::Answer& answer);
  void on_question(const messages::MemoryQuestion& question);  // from node 0
  void on_answer(brain::NodeId from, const messages::MemoryAnswer& answer);
  // Stops waiting for nodes that are gone or do not answer.
  void give_up_the_silent();

 private:
  struct Question {
    bool of_all = false;  // asks all nodes, not just one
    ControlDoor::Answer answer;
    std::set<brain::NodeId> awaited;
    std::map<brain::NodeId, messages::Json> answers;
    int64_t deadline_ns = 0;
    std::set<brain::NodeId> silent;  // nodes that we no longer wait for
  };
  void conclude(uint64_t id);
  nlohmann::json answer_of(const Question& question) const;

  AgentCore& core_;
  const Saves& saves_;
  MemoryTier tier_;
  std::map<uint64_t, Question> questions_;  // node 0: open questions
  uint64_t asked_ = 0;
};

}  // namespace keepstep::agent
