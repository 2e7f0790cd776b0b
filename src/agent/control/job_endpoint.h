// A user's command to a running job over the network: one question to the launcher of node 0, at the endpoint where the
// agents of the job attend, and its answer. Both sides prove the job's key first, as agents and coordinator do.
// Wire format: docs/formats/wire_control.md; what may be asked: docs/design/control_door.md.
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

// The answer's text, of at most kMaxAnswerBytes. Blocks up to `limit`, and up to 5 s before that until somebody accepts
// the connection. NOT_FOUND: the name cannot be resolved. UNAVAILABLE: nobody accepts there, it is no keepstep job, or
// the job starts or ends just now. UNAUTHENTICATED: it has another key. DEADLINE_EXCEEDED: no answer.
// RESOURCE_EXHAUSTED: too many commands are there.
StatusOr<std::string> ask_endpoint(const JobEndpoint& endpoint, const net::SharedKey& key, const std::string& request,
                                   std::chrono::milliseconds limit);

}  // namespace keepstep::agent
