// The Store's answer to a rank, or none.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "messages/store_value.h"

namespace keepstep::rank {

struct StoreReply {
  bool answered = false;     // false: timed out, or interrupted
  bool interrupted = false;  // the generation was sealed, or the job ended
  bool ok = false;           // the agent's answer: the key existed, the condition held
  std::string value;
  std::string error;  // why the agent, which has the answer, could not send it
};

inline StoreReply store_reply(const messages::StoreAnswer& answer, std::vector<Fd> fds) {
  StoreReply reply{.answered = true, .ok = answer.ok, .error = answer.error};
  StatusOr<std::string> value = messages::value_of(answer.value, std::move(fds));
  if (value.ok()) {
    reply.value = *std::move(value);
  } else {
    reply.error = std::string(value.status().message());
  }
  return reply;
}

}  // namespace keepstep::rank
