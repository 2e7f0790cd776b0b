#include "agent/memory/vault_maker.h"

#include <utility>

namespace keepstep::agent {

VaultMaker::VaultMaker(std::shared_ptr<EventLoop> loop, ShardVaults& vaults)
    : vaults_(vaults), thread_(std::move(loop)) {
  vaults_.discard_with([this](SharedMemory memory) { thread_.discard(std::move(memory)); });
}

void VaultMaker::ask(ShardVaults::Need need, const Answer& answer) {
  Question question{std::move(need), answer};
  if (answered(question)) {
    return;
  }
  waiting_.push_back(std::move(question));
  if (waiting_.size() == 1) {
    make_next();
  }
}

bool VaultMaker::answered(const Question& question) const {
  const StatusOr<std::optional<int>> found = vaults_.find(question.need);
  if (!found.ok()) {
    question.answer(found.status());
  } else if (found->has_value()) {
    question.answer(**found);
  }
  return !found.ok() || found->has_value();
}

void VaultMaker::make_next() {
  while (!waiting_.empty() && answered(waiting_.front())) {
    waiting_.pop_front();  // memory made for another request serves it, too
  }
  if (waiting_.empty()) {
    return;
  }
  const ShardVaults::Need& need = waiting_.front().need;
  thread_.make(need.label(), need.memory_bytes(), [this](StatusOr<SharedMemory> made) {
    const Question question = std::move(waiting_.front());
    waiting_.pop_front();
    question.answer(vaults_.add(question.need, std::move(made)));
    make_next();
  });
}

}  // namespace keepstep::agent
