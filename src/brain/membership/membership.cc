#include "brain/membership/membership.h"

#include <algorithm>
#include <utility>

#include "brain/membership/staffing.h"
#include "brain/text.h"

namespace keepstep::brain {

Membership::Membership(MembershipConfig config)
    : job_(std::move(config)),
      ladder_(job_.config.ladder),
      deadlines_(job_),
      replacement_(job_, ladder_),
      corruption_(job_),
      renewal_(job_),
      phases_(job_, ladder_, deadlines_, replacement_, corruption_, renewal_, sizing_) {
  if (job_.config.elastic) {
    sizing_.emplace(job_);
  }
}

Effects Membership::step(const Event& event, Time now) {
  job_.now = now;
  const bool tick = std::holds_alternative<Tick>(event);
  const auto forget_view = [this] {
    if (sizing_) {
      sizing_->forget_view();
    }
  };
  if (!tick) {
    forget_view();
  }
  if (job_.phase != Phase::kEnded) {
    std::visit([this](const auto& happened) { on(happened); }, event);
    take_found();
  }
  if (!tick || !job_.effects.empty()) {
    forget_view();  // ticks that change nothing need not look at all ranks again
  }
  return std::exchange(job_.effects, {});
}

// ---- gathering ----------------------------------------------------------------------------------------------------

void Membership::on(const NodeJoined& event) {
  if (event.endpoint.port_base + job_.max_ranks_of_a_node() > 65536) {
    const std::string what = "node " + std::to_string(event.node) + " announced port base " +
                             std::to_string(event.endpoint.port_base) + ", too high for the ports of " +
                             std::to_string(job_.max_ranks_of_a_node()) + " ranks";
    if (job_.phase == Phase::kWaiting) {
      phases_.end(1, what, "");
    } else {
      job_.journal("refused", what);
    }
    return;
  }
  const bool fresh = !job_.nodes.contains(event.node);
  const auto unused = std::count_if(job_.nodes.begin(), job_.nodes.end(),
                                    [this](const auto& node) { return job_.waits_unused(node.first); });
  const uint32_t most = job_.config.elastic ? job_.config.max_nodes : job_.config.nodes;
  if (fresh && job_.nodes.size() - static_cast<size_t>(unused) >= most + job_.config.spare_nodes) {
    job_.journal("refused", "node " + std::to_string(event.node) + " came when the job had all its nodes");
    return;
  }
  job_.nodes[event.node] = event.endpoint;
  if (fresh) {
    job_.bad_nodes.erase(event.node);  // another agent, maybe another machine; the ladder still counts its faults
  }
  if (job_.phase == Phase::kWaiting) {
    if (sizing_) {
      sizing_->note_nodes();
    }
    phases_.start_if_enough();
  } else if (fresh) {
    job_.journal("node_joined",
                 !job_.placement.unassigned().empty() ? "it takes the place of a lost node"
                 : sizing_                            ? "it gets ready while training goes on"
                                                      : "it waits as a spare",
                 {{"joined_node", int64_t{event.node}}});
    replacement_.reassign_lost_nodes();
    start_spares(job_, event.node, "node " + std::to_string(event.node) + " gets ready");
    phases_.gather();
  }
}

void Membership::on(const WorkerParked& event) {
  Worker* worker = job_.roster.find(event.worker);
  if (worker == nullptr) {
    return;
  }
  if (worker->status == Status::kMember && job_.round.ending().released() && event.functions == job_.functions + 1) {
    job_.round.ending().call_again(worker->rank);
    phases_.check_finished();
    return;
  }
  if (worker->status != Status::kStarting) {
    return;
  }
  worker->status = Status::kParked;
  if (worker->taken) {
    job_.placement.parked(worker->rank);
  }
  worker->pid = event.pid;
  worker->killed_at.reset();
  job_.journal("parked", worker->taken ? rank_text(worker->rank) + " counts on it" : "no rank needs it yet",
               {{"worker", int64_t{event.worker}}, {"pid", event.pid}});
  replacement_.reassign_lost_nodes();
  phases_.gather();
}

void Membership::on(const WorkerRecoverable& event) {
  if (Worker* worker = job_.roster.find(event.worker)) {
    if (!std::exchange(worker->recoverable, true) && !job_.ever_formed) {
      job_.longest_start = std::max(job_.longest_start.value_or(Time{}), job_.now - worker->spawned_at);
    }
    worker->recoverable_since = job_.now;
    deadlines_.watch(event.worker);
  }
}

// ---- forming ------------------------------------------------------------------------------------------------------

void Membership::on(const Ready& event) {
  if (job_.phase != Phase::kForming || event.identity != job_.round.identity()) {
    return;
  }
  bool news = false;
  for (const MemberState& member : event.members) {
    Worker* worker = job_.roster.find(member.worker);
    if (worker == nullptr || worker->status != Status::kMember || !job_.round.answer(worker->rank, member.state)) {
      continue;
    }
    news = true;
    worker->killed_at.reset();
    if (member.sharded) {
      job_.holdings.shard();
    }
    job_.journal("rank_ready", "it left the old step",
                 {{"rank", int64_t{worker->rank}},
                  {"worker", int64_t{member.worker}},
                  {"state", std::string(name(member.state.kind))},
                  {"version", static_cast<int64_t>(member.state.version)},
                  {"waited", std::chrono::duration<double>(member.waited).count()}});
  }
  if (!news) {
    return;
  }
  phases_.heard();
  if (job_.round.all_answered()) {
    phases_.activate();
  } else {
    phases_.check_left_behind();
  }
}

// ---- running ------------------------------------------------------------------------------------------------------

void Membership::on(const Formed& event) {
  if (event.identity == job_.round.identity()) {
    phases_.formed();
  }
}

void Membership::on(const Progress& event) {
  if (event.identity != job_.round.identity() || !job_.round.activated() || event.version <= job_.progress) {
    return;
  }
  job_.progress = event.version;
  job_.roster.forget_lost_starts();
  ladder_.on_progress(event.version);
  replacement_.forget_reports();
  job_.round.step();
  phases_.formed();
  phases_.forget_the_gone();
  keep_spares(job_);
  if (const std::optional<Corruption::Dismissed> liar = corruption_.judge_by_redo(event)) {
    member_died(liar->rank, true, 1, liar->because, "");
  }
}

// A save outlives the ranks it was made of, so this may be news of a generation that no longer exists. It counts unless
// a later generation began below it: that one redoes these steps, maybe with other bits, and a start that continued
// from the old ones would mix two histories. The later generation's rank 0 gives up or removes the save
// (docs/design/checkpoints.md). A generation has begun once it was prepared: its ranks were told the version and act on
// it, whatever else happens.
void Membership::on(const Saved& event) {
  if (event.version <= job_.holdings.origin() || job_.holdings.precedes(event.generation)) {
    return;
  }
  const std::optional<Version> again = job_.holdings.begun_below(event.version, event.generation);
  if (job_.ever_formed && again) {
    job_.journal("orphan_save",
                 "step " + std::to_string(event.version) + " was saved after the job had restarted from step " +
                     std::to_string(*again) + ": it is ignored",
                 {{"version", static_cast<int64_t>(event.version)}});
    return;
  }
  if (job_.phase == Phase::kGathering && job_.cause == Cause::kRestart && job_.round.members().empty()) {
    job_.journal(
        "orphan_save",
        "step " + std::to_string(event.version) + " was saved although its ranks are gone: the job continues from it",
        {{"version", static_cast<int64_t>(event.version)},
         {"regained_steps", static_cast<int64_t>(event.version - job_.version)}});
    job_.version = event.version;
    job_.progress = event.version;
  }
  job_.holdings.saved(event.version);
  if (!job_.ever_formed && job_.phase == Phase::kForming) {
    job_.because = "the job goes on from step " + std::to_string(event.version) + ", which was saved before";
    phases_.prepare();
  }
}

void Membership::on(const WorkerFinished& event) {
  const Worker* worker = job_.roster.find(event.worker);
  if (event.identity != job_.round.identity() || job_.phase != Phase::kRunning || worker == nullptr ||
      worker->status != Status::kMember) {
    return;
  }
  job_.round.ending().finish(worker->rank);
  phases_.check_finished();
}

// ---- sealing ------------------------------------------------------------------------------------------------------

void Membership::on(const Sealed& event) {
  if (job_.phase != Phase::kSealing || event.identity != job_.round.identity()) {
    return;
  }
  if (job_.round.take(event)) {
    phases_.heard();
  }
  if (!job_.round.has_lost(event.node)) {
    job_.holdings.note_copies(event);
  }
  phases_.conclude_if_sealed();
}

// ---- another size -------------------------------------------------------------------------------------------------

void Membership::on(const ScaleRequested& event) {
  if (!sizing_) {
    job_.journal("refused", "the job is not elastic: its size cannot be changed (--nnodes MIN:MAX)");
  } else if (sizing_->scale(event)) {
    consider_size();
  }
}

void Membership::on(const PolicyChanged& event) {
  if (!sizing_) {
    job_.journal("refused", "the job is not elastic: it has no policy to change (--nnodes MIN:MAX)");
  } else if (sizing_->configure(event)) {
    consider_size();
  }
}

void Membership::on(const UsefulWorlds& event) {
  const std::optional<std::string> impossible = sizing_ ? sizing_->limit(event) : std::nullopt;
  if (impossible) {
    phases_.end(1, *impossible, "");
  }
}

void Membership::on(const NodeLeaves& event) {
  if (sizing_ && sizing_->leave(event)) {
    consider_size();
  }
}

void Membership::consider_size() {
  using What = Sizing::Next::What;
  if (!sizing_ || job_.placement.world() == 0) {
    return;
  }
  if (job_.is_plain()) {
    keep_spares(job_);
    sizing_->part_from_leavers();
  }
  const Sizing::Next next = sizing_->next();
  switch (next.what) {
    case What::kNothing:
      break;
    case What::kResize:
      phases_.resize();
      take_found();  // workers that get a rank afterwards belong to the resulting world
      replacement_.reassign_lost_nodes();
      phases_.gather();
      break;
    case What::kPause:
      phases_.pause();
      break;
    case What::kSeal:
      phases_.seal(next.because);
      break;
  }
  take_found();
}

void Membership::on(const WorkerPaused& event) {
  const Worker* worker = job_.roster.find(event.worker);
  const bool plain = job_.is_plain();
  const bool runs = job_.phase == Phase::kRunning || (job_.phase == Phase::kForming && plain);
  if (!sizing_ || event.identity != job_.round.identity() || !runs || worker == nullptr ||
      worker->status != Status::kMember || !job_.round.pause(worker->rank)) {
    return;
  }
  phases_.heard();
  sizing_->note_pause();
  if (job_.round.paused() < job_.round.members().size() || plain) {
    return;
  }
  phases_.formed();  // a rank pauses only after its generation formed
  const std::string because = sizing_->all_paused();
  if (job_.phase == Phase::kRunning) {
    phases_.seal(because);
  }
}

// ---- the end, and time --------------------------------------------------------------------------------------------

void Membership::on(const StopRequested& event) { phases_.end(event.exit_code, event.because, ""); }

void Membership::on(const Tick&) {
  if (job_.phase == Phase::kWaiting && sizing_) {
    phases_.start_if_enough();
    return;
  }
  consider_size();
  // If the job runs without their ranks, all of these had exited with 0.
  const bool missed = job_.phase == Phase::kSealing || job_.phase == Phase::kGathering;
  if (const auto why = missed ? replacement_.nobody_came() : std::nullopt) {
    phases_.end(1, *why, "");
    return;
  }
  deadlines_.kill_the_late();
  if (phases_.waits_too_long()) {
    phases_.repeat_unanswered();
  }
}

}  // namespace keepstep::brain
