#include "agent/parts/programs.h"

#include <utility>

namespace keepstep::agent {

void Programs::on_attached(const WorkerProcess& process) {
  on_attach();
  core_.step(brain::Attached{process.id});  // it may have got its rank before we knew that it would attach
}

void Programs::on_attach() {
  if (std::exchange(attach_, true)) {
    return;
  }
  for (const auto& [id, process] : Workers(core_.workers)) {
    if (process->attached || core_.is_dead(*process)) {
      continue;
    }
    process->recoverable = true;
    core_.link->send(brain::WorkerRecoverable{id});
    if (process->pid == 0 && !core_.rank_of(*process).has_value()) {
      spawn_(process);  // a spare that was not started yet
    }
  }
  for (const auto& [node, name] : core_.joined) {
    tell(node);
  }
}

void Programs::tell(brain::NodeId node) {
  if (attach_ && node != core_.config.node) {
    core_.route(node, messages::ProgramsAttach{});
  }
}

}  // namespace keepstep::agent
