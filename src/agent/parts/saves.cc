#include "agent/parts/saves.h"

namespace keepstep::agent {

void Saves::on_saved(brain::Identity identity, const messages::Saved& saved) {
  core_.link->send(brain::Saved{saved.version, saved.generation});
  core_.journal.write("saved", identity, saved.where,
                      {{"version", static_cast<int64_t>(saved.version)},
                       {"seconds", saved.seconds},
                       {"left_out", saved.left_out},
                       {"left_out_steps", saved.left_out_steps}});
  spoke_of(saved.where);
  late_.erase(saved.where);
}

bool Saves::on_note(const WorkerProcess& process, brain::Identity identity, const messages::Note& note) {
  const bool of_a_save = note.event == "not_saved" || note.event == "save_late";
  const bool of_a_shard = note.event == "shard_rebuilt" || note.event == "corrupt_copy";
  if (!of_a_save && !of_a_shard && note.event != "veto" && note.event != "not_compared" &&
      note.event != "without_loss") {
    return false;
  }
  const auto step = static_cast<int64_t>(note.step);
  if (of_a_save) {
    spoke_of(note.where);
    late_.try_emplace(note.where, step);
  }
  core_.journal.write(
      note.event, identity, note.because,
      {{"worker", int64_t{process.id}}, {"rank", int64_t{core_.rank_of(process).value_or(0)}}, {"step", step}});
  return true;
}

void Saves::spoke_of(const std::string& where) {
  if (!where.empty() && destinations_.size() < kMax) {
    destinations_.insert(where);
  }
}

}  // namespace keepstep::agent
