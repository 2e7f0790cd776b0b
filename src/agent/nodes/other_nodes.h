// Messages from the agents of other nodes (messages/agent_messages.h), handed to the part that handles them.
#pragma once

#include <string>

#include "agent/nodes/clocks.h"
#include "agent/nodes/joining.h"
#include "agent/parts/core.h"
#include "agent/parts/elastic_size.h"
#include "agent/parts/hangs.h"
#include "agent/parts/job_store.h"
#include "agent/parts/memory_questions.h"
#include "agent/parts/notice.h"
#include "agent/parts/pace.h"
#include "agent/parts/programs.h"
#include "agent/workers/background_writer.h"
#include "agent/workers/message_parts.h"

namespace keepstep::agent {

class OtherNodes {
 public:
  // All must outlive this.
  struct Parts {
    JobStore& store;
    Joining& joining;
    Programs& programs;
    Clocks& clocks;
    Notice& notice;
    ElasticSize& elastic;
    Hangs& hangs;
    Pace& pace;
    MemoryQuestions& memory;
    BackgroundWriter* background_writer;  // null if this node has none
  };
  OtherNodes(AgentCore& core, Parts parts) : core_(core), parts_(parts) {}

  // Journals a text that is not a valid message, or that comes from or to a node that has no part in it.
  void on_routed(brain::NodeId from, const std::string& text);

 private:
  Status on_said_to_first(brain::NodeId from, const std::string& text);
  Status on_said_by_first(const std::string& text);
  Status on_said(brain::NodeId from, const std::string& text);

  AgentCore& core_;
  Parts parts_;
  PartJoiner joiner_;
};

}  // namespace keepstep::agent
