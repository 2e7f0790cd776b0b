#include "agent/parts/moment.h"

#include "absl/strings/str_format.h"

namespace keepstep::agent {

// Recoveries should be visible without a terminal or a journal, too.
void Moment::recovered() {
  const brain::Prepare& prepare = *core_.brain.prepared();
  recoveries_ += prepare.resized ? 0 : 1;
  core_.pump.say(absl::StrFormat("keepstep: %s; generation %d goes on from step %d", prepare.because,
                                 prepare.identity.generation, prepare.version + 1));
}

std::string Moment::in_words() const {
  if (!what_.empty()) {
    return what_;
  }
  if (!saves_.late().empty()) {
    const auto& [where, step] = *saves_.late().begin();
    return absl::StrFormat("checkpoints to %s are late since step %d", where, step);
  }
  return pace_.in_words();
}

void Moment::show() {
  observe::RunStatus now;
  if (core_.metrics.last_step() != 0) {
    now.step = core_.metrics.last_step();
  }
  now.step_time_s = core_.metrics.step_time_s();
  now.loss = core_.metrics.last_loss();
  now.world_size = static_cast<uint32_t>(core_.config.spec.several_nodes() ? core_.ranks_here().size() : core_.world());
  for (const auto& [id, process] : core_.workers) {
    const bool has_rank = core_.rank_of(*process).has_value();
    now.ranks += !core_.is_dead(*process) && has_rank;
    now.spares += !core_.is_dead(*process) && !has_rank && process->parked;
  }
  now.generation = core_.brain.identity().generation;
  now.recoveries = recoveries_;
  now.note = in_words();
  if (core_.config.spec.several_nodes()) {
    now.note = absl::StrFormat("node %d%s%s", core_.config.node, now.note.empty() ? "" : ": ", now.note);
  }
  status_.update(now);
}

}  // namespace keepstep::agent
