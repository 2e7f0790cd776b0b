#include "agent/parts/job_store.h"

#include <utility>
#include <variant>

#include "messages/store_value.h"

namespace keepstep::agent {

void JobStore::ask(const WorkerProcess& process, const messages::StoreQuestion& question, std::vector<Fd> fds) {
  StatusOr<std::string> value = messages::value_of(question.value, std::move(fds));
  if (!value.ok()) {
    core_.refuse(process, std::string(value.status().message()));
    return;
  }
  carry_out(store_.ask({process.id, question.id, question.op, question.key.bytes, *std::move(value)}));
}

void JobStore::carry_out(const SharedStore::Replies& replies) {
  const brain::Identity identity = core_.brain.identity();
  for (const StoreAnswer& answer : replies.answers) {
    if (const auto it = core_.workers.find(answer.worker); it != core_.workers.end()) {
      const auto reply = messages::store_answer(answer.id, answer.ok, answer.value);
      core_.tell(*it->second, identity, reply.message, reply.fds());
    }
  }
  for (const auto& [node, message] : replies.messages) {
    std::visit([&, to = node](const auto& each) { core_.route(to, each); }, message);
  }
}

}  // namespace keepstep::agent
