// A user's command to a running job over the network: one request to the launcher of node 0, at the endpoint to which
// the job's agents connect, and its answer. Both sides prove the job's key first, as agents and the coordinator do.
// Wire format: docs/formats/wire_control.md; requests: docs/design/control_door.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "net/shared_key.h"

namespace keepstep::agent {

// Where a job is reached: the host and port of its --rdzv-endpoint. `host`: a name, or a numeric address.
struct JobEndpoint {
  std::string host;
  uint16_t port = 0;
  std::string text() const;  // "node-a:29400", "[::1]:29400"
};

// Returns the answer's text, of at most kMaxAnswerBytes. Blocks up to `limit`, plus up to 5 s at first until somebody
// accepts the connection. NOT_FOUND: the name cannot be resolved. UNAVAILABLE: nobody accepts there, it is not a
// keepstep job, or the job is just starting or ending. UNAUTHENTICATED: it has another key. DEADLINE_EXCEEDED: no
// answer. RESOURCE_EXHAUSTED: too many commands are in progress.
StatusOr<std::string> ask_endpoint(const JobEndpoint& endpoint, const net::SharedKey& key, const std::string& request,
                                   std::chrono::milliseconds limit);

}  // namespace keepstep::agent
