// A user's commands to the running job: they arrive at this node's control door or, at node 0's agent, also at the
// job's endpoint (docs/design/control_door.md).
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "agent/control/control_door.h"
#include "agent/parts/core.h"
#include "agent/parts/elastic_size.h"
#include "agent/parts/faults.h"
#include "agent/parts/memory_questions.h"
#include "agent/parts/moment.h"
#include "agent/parts/pace.h"
#include "agent/publications/publication_service.h"

namespace keepstep::agent {

class Commands {
 public:
  struct Parts {
    Faults& faults;
    MemoryQuestions& memory;
    ElasticSize& elastic;
    const Pace& pace;
    const Moment& moment;
    PublicationService* publications;  // null: none
  };
  Commands(AgentCore& core, Parts parts) : core_(core), parts_(parts) {}

  void open();
  void keep_open();
  void close();

 private:
  void open_door();
  void open_endpoint();
  void on_asked(const std::string& request, const std::function<void(const std::string&)>& answer);
  void on_request(const nlohmann::json& request, const ControlDoor::Answer& answer);
  nlohmann::json describe() const;
  void answer_stacks(bool native, const ControlDoor::Answer& answer);
  nlohmann::json publications() const;
  nlohmann::json piece_of_publication(const nlohmann::json& request) const;

  AgentCore& core_;
  Parts parts_;
  std::unique_ptr<ControlDoor> door_;
  int64_t door_checked_ns_ = 0;
};

}  // namespace keepstep::agent
