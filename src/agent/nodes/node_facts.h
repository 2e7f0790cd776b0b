// What the nodes of a job must have in common. Every agent tells node 0 what it was started with. Node 0 ends the job
// before a rank starts that would behave differently from the others. Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/job/job_spec.h"
#include "messages/schema.h"

namespace keepstep::agent {

// The options that must be equal, by name; keepstep's version; and the script's text.
messages::Texts node_facts(const JobSpec& spec, const std::string& version);

// One line per fact that differs: "--seed is 1 on node 2 (node-c) and 0 on node 0". Empty if they can work together.
std::vector<std::string> differences(const messages::Texts& first, const messages::Texts& other,
                                     const std::string& other_name);

}  // namespace keepstep::agent
