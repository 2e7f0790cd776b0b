#include "agent/parts/vaults.h"

#include <utility>

namespace keepstep::agent {

void Vaults::answer(const std::shared_ptr<WorkerProcess>& process, brain::Identity identity,
                    const messages::VaultQuestion& question) {
  const auto reply = [this, process, identity, id = question.id](const StatusOr<int>& memory) {
    const std::vector<int> fds = memory.ok() ? std::vector<int>{*memory} : std::vector<int>{};
    core_.tell(*process, identity, messages::VaultAnswer{id, std::string(memory.status().message())}, fds);
  };
  ShardVaults::Of of{question.sharding, {}};
  if (question.block.has_value()) {
    if (!brain::is_possible(*question.block)) {
      reply(absl::InvalidArgumentError("no code has such a block of parity"));
      return;
    }
    of.what = *question.block;
  } else {
    of.what = question.rank;
  }
  if (question.version.has_value()) {
    reply(all_.holding(of, *question.version));
  } else {
    maker_->ask({std::move(of), question.data_bytes, question.text_room}, reply);
  }
}

}  // namespace keepstep::agent
