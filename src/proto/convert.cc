#include "proto/convert.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/overloaded.h"
#include "proto/held_tables.h"

namespace keepstep::proto {
namespace {

// At most kMaxTextBytes: the start, with the main message, and the end, where a Python traceback names the exception.
std::string text(const std::string& whole) {
  if (whole.size() <= kMaxTextBytes) {
    return whole;
  }
  constexpr char kCut[] = "\n[... cut ...]\n";
  constexpr size_t kHalf = (kMaxTextBytes - sizeof(kCut)) / 2;
  return whole.substr(0, kHalf) + kCut + whole.substr(whole.size() - kHalf);
}

template <class Message>
void set_identity(brain::Identity identity, Message& message) {
  message.set_term(identity.term);
  message.set_generation(identity.generation);
}

template <class Message>
brain::Identity identity_of(const Message& message) {
  return {message.term(), message.generation()};
}

void set_word(const brain::SealedWord& from, control::Sealed::Word* to) {
  to->set_rank(from.rank);
  to->set_worker(from.worker);
  set_identity(from.word.identity, *to->mutable_word());
  to->mutable_word()->set_step(from.word.step);
  to->mutable_word()->set_vote(static_cast<control::Vote>(from.word.vote));
  to->mutable_word()->set_sealed(from.word.sealed);
  to->mutable_state()->set_kind(static_cast<control::StateKind>(from.state.kind));
  to->mutable_state()->set_version(from.state.version);
  if (from.digest) {
    to->set_gradients(from.digest->gradients);
    to->set_state_digest(from.digest->state);
  }
}

// From a sealed word, or from progress.
template <class Message>
std::optional<brain::StepDigest> digest_from(const Message& from) {
  return from.has_gradients() ? std::optional(brain::StepDigest{from.gradients(), from.state_digest()}) : std::nullopt;
}

StatusOr<brain::StateWord> state_from(const control::StateWord& from) {
  if (!control::StateKind_IsValid(from.kind())) {
    return absl::InvalidArgumentError(absl::StrFormat("state kind %d does not exist", from.kind()));
  }
  return brain::StateWord{static_cast<brain::StateKind>(from.kind()), from.version()};
}

StatusOr<brain::SealedWord> word_from(const control::Sealed::Word& from) {
  if (!control::Vote_IsValid(from.word().vote())) {
    return absl::InvalidArgumentError(absl::StrFormat("vote %d does not exist", from.word().vote()));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const brain::StateWord state, state_from(from.state()));
  const brain::StepWord word{identity_of(from.word()), from.word().step(), static_cast<brain::Vote>(from.word().vote()),
                             from.word().sealed()};
  return brain::SealedWord{from.rank(), from.worker(), word, state, digest_from(from)};
}

StatusOr<brain::Event> sealed_from(const control::Sealed& from, brain::NodeId node, brain::Identity identity) {
  brain::Sealed sealed{node, identity, {}, from.mean_step(), from.mean_loss(), from.mean_flags()};
  sealed.words.reserve(from.words_size());
  for (const control::Sealed::Word& word : from.words()) {
    KEEPSTEP_ASSIGN_OR_RETURN(sealed.words.emplace_back(), word_from(word));
  }
  sealed.copies.reserve(from.copies_size());
  for (const control::Sealed::Copy& copy : from.copies()) {
    sealed.copies.push_back({copy.rank(), copy.version(), copy.sharding()});
  }
  sealed.parity.reserve(from.parity_size());
  for (const control::Sealed::Parity& copy : from.parity()) {
    brain::ParityBlock block{{copy.members().begin(), copy.members().end()}, copy.row()};
    if (!brain::is_possible(block)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("no code has a parity block of %d shards in row %d", block.members.size(), block.row));
    }
    sealed.parity.push_back({std::move(block), copy.version()});
  }
  return sealed;
}

StatusOr<brain::Event> joined_from(const control::NodeJoined& from, brain::NodeId node) {
  brain::NodeJoined joined{node, {}};
  if (from.address().size() != joined.endpoint.address.bytes.size() || from.port_base() > 65535) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "an address of %d bytes (not 16) with port base %d (at most 65535)", from.address().size(), from.port_base()));
  }
  std::copy(from.address().begin(), from.address().end(), joined.endpoint.address.bytes.begin());
  joined.endpoint.port_base = static_cast<uint16_t>(from.port_base());
  return joined;
}

void set_policy(const brain::ElasticConfig& from, control::PolicyChanged* to) {
  to->set_min_replicas(from.min_replicas);
  to->set_max_replicas(from.max_replicas);
  to->set_increment_step(from.increment_step);
  to->mutable_discrete_values()->Assign(from.discrete_values.begin(), from.discrete_values.end());
  to->set_scaling_timeout(from.scaling_timeout.count());
  to->set_graceful_shutdown_timeout(from.graceful_shutdown_timeout.count());
  to->set_faulty_scale_down_timeout(from.faulty_scale_down_timeout.count());
  to->set_scale_up_snooze(from.scale_up_snooze.count());
  to->set_min_between_changes(from.min_between_changes.count());
  to->set_backoff_factor(from.backoff_factor);
  to->set_max_backoff(from.max_backoff.count());
}

StatusOr<brain::Event> policy_from(const control::PolicyChanged& from) {
  constexpr int kMaxValues = 4096;
  if (from.discrete_values_size() > kMaxValues) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d sizes that a job may have, %d is the most", from.discrete_values_size(), kMaxValues));
  }
  brain::ElasticConfig config;
  config.min_replicas = from.min_replicas();
  config.max_replicas = from.max_replicas();
  config.increment_step = from.increment_step();
  config.discrete_values.assign(from.discrete_values().begin(), from.discrete_values().end());
  config.scaling_timeout = brain::Time(from.scaling_timeout());
  config.graceful_shutdown_timeout = brain::Time(from.graceful_shutdown_timeout());
  config.faulty_scale_down_timeout = brain::Time(from.faulty_scale_down_timeout());
  config.scale_up_snooze = brain::Time(from.scale_up_snooze());
  config.min_between_changes = brain::Time(from.min_between_changes());
  config.backoff_factor = from.backoff_factor();
  config.max_backoff = brain::Time(from.max_backoff());
  return brain::PolicyChanged{std::move(config)};  // the brain checks whether it makes sense
}

StatusOr<brain::Effect> prepare_from(const control::FromCoordinator& message, HeldTables& tables) {
  const control::Prepare& from = message.effect().prepare();
  brain::Prepare prepare{identity_of(message), from.version(), {}, {}, from.because(), from.resized(), from.restarts()};
  KEEPSTEP_ASSIGN_OR_RETURN(prepare.table, tables.take(from, prepare.identity));
  prepare.sharding = {from.sharding(), static_cast<brain::Rank>(prepare.table.world_size())};
  if (from.from_world() > brain::kMaxWorldSize) {
    return absl::InvalidArgumentError(absl::StrFormat("state that was divided among %d ranks", from.from_world()));
  }
  prepare.from = {from.from_sharding(), from.from_world()};
  prepare.functions = from.functions();
  prepare.members.reserve(message.members_size());
  for (const control::Member& member : message.members()) {
    prepare.members.push_back({member.rank(), member.worker(), message.node(), member.newcomer(), member.previous()});
  }
  return prepare;
}

// Ascending ranks as runs: how many are skipped, how many follow, and so on.
void set_runs(const std::vector<brain::Rank>& ranks, google::protobuf::RepeatedField<uint32_t>* runs) {
  brain::Rank next = 0;
  for (const brain::Rank rank : ranks) {
    KEEPSTEP_CHECK(rank >= next, "ranks travel in ascending order");
    if (rank > next || runs->empty()) {
      runs->Add(rank - next);
      runs->Add(0);
    }
    *runs->Mutable(runs->size() - 1) += 1;
    next = rank + 1;
  }
}

StatusOr<std::vector<brain::Rank>> ranks_from(const google::protobuf::RepeatedField<uint32_t>& runs) {
  uint64_t next = 0;
  uint64_t count = 0;
  for (int i = 0; i < runs.size(); ++i) {
    next += runs[i];
    count += i % 2 == 1 ? runs[i] : 0;
  }
  if (next > brain::kMaxWorldSize || runs.size() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("%d runs of ranks up to %d", runs.size(), next));
  }
  std::vector<brain::Rank> ranks;
  ranks.reserve(count);
  brain::Rank rank = 0;
  for (int i = 0; i < runs.size(); i += 2) {
    rank += runs[i];
    for (uint32_t left = runs[i + 1]; left > 0; --left) {
      ranks.push_back(rank++);
    }
  }
  return ranks;
}

StatusOr<brain::Effect> activate_from(const control::Activate& from, brain::Identity identity) {
  brain::Activate activate{identity, from.version(), {}, {}, from.compare()};
  KEEPSTEP_ASSIGN_OR_RETURN(activate.sources, ranks_from(from.sources()));
  KEEPSTEP_ASSIGN_OR_RETURN(activate.targets, ranks_from(from.targets()));
  return activate;
}

// Writes an event of the agent of `node` into `message`.
struct EventWriter {
  brain::NodeId node;
  control::FromAgent& message;
  control::AgentEvent& out;

  void operator()(const brain::NodeJoined& e) {
    KEEPSTEP_CHECK(e.node == node, "an agent reports for its own node only");
    const auto& address = e.endpoint.address.bytes;
    out.mutable_node_joined()->set_address(address.data(), address.size());
    out.mutable_node_joined()->set_port_base(e.endpoint.port_base);
  }
  void operator()(const brain::WorkerParked& e) {
    out.mutable_worker_parked()->set_worker(e.worker);
    out.mutable_worker_parked()->set_pid(e.pid);
    out.mutable_worker_parked()->set_functions(e.functions);
  }
  void operator()(const brain::WorkerRecoverable& e) { out.mutable_worker_recoverable()->set_worker(e.worker); }
  void operator()(const brain::WorkerDied& e) {
    control::WorkerDied* died = out.mutable_worker_died();
    died->set_worker(e.worker);
    died->set_pid(e.pid);
    died->set_signal(e.signal);
    died->set_exit_code(e.exit_code);
    died->set_detected_by(text(e.detected_by));
    died->set_traceback(text(e.traceback));
    died->set_unfit(text(e.unfit));
    died->set_committed(e.committed);
  }
  void operator()(const brain::WorkerHung& e) {
    set_identity(e.identity, message);
    control::WorkerHung* hung = out.mutable_worker_hung();
    hung->set_worker(e.worker);
    hung->set_pid(e.pid);
    hung->set_idle_ns(e.idle.count());
    hung->set_because(text(e.because));
  }
  void operator()(const brain::WorkerExited& e) { out.mutable_worker_exited()->set_worker(e.worker); }
  void operator()(const brain::WorkerFaulted& e) {
    set_identity(e.identity, message);
    control::WorkerFaulted* faulted = out.mutable_worker_faulted();
    faulted->set_worker(e.worker);
    faulted->set_step(e.step);
    faulted->set_what(text(e.what));
    faulted->set_traceback(text(e.traceback));
    faulted->set_fatal(e.fatal);
    faulted->set_link(e.link);
    faulted->set_digests(e.digests);
    faulted->set_after_commit(e.after_commit);
  }
  void operator()(const brain::Sealed& e) {
    KEEPSTEP_CHECK(e.node == node, "an agent reports for its own node only");
    set_identity(e.identity, message);
    control::Sealed* sealed = out.mutable_sealed();
    for (const brain::SealedWord& word : e.words) {
      set_word(word, sealed->add_words());
    }
    sealed->set_mean_step(e.mean_step);
    sealed->set_mean_loss(e.mean_loss);
    sealed->set_mean_flags(e.mean_flags);
    for (const brain::ShardCopy& copy : e.copies) {
      control::Sealed::Copy* out_copy = sealed->add_copies();
      out_copy->set_rank(copy.rank);
      out_copy->set_version(copy.version);
      out_copy->set_sharding(copy.sharding);
    }
    for (const brain::ParityCopy& copy : e.parity) {
      control::Sealed::Parity* out_copy = sealed->add_parity();
      out_copy->mutable_members()->Add(copy.block.members.begin(), copy.block.members.end());
      out_copy->set_row(copy.block.row);
      out_copy->set_version(copy.version);
    }
  }
  void operator()(const brain::Ready& e) {
    set_identity(e.identity, message);
    control::Ready* ready = out.mutable_ready();
    for (const brain::MemberState& member : e.members) {
      control::Ready::Member* out_member = ready->add_members();
      out_member->set_worker(member.worker);
      out_member->mutable_state()->set_kind(static_cast<control::StateKind>(member.state.kind));
      out_member->mutable_state()->set_version(member.state.version);
      out_member->set_sharded(member.sharded);
      out_member->set_waited_ns(member.waited.count());
    }
  }
  void operator()(const brain::Formed& e) {
    set_identity(e.identity, message);
    out.mutable_formed();
  }
  void operator()(const brain::Progress& e) {
    set_identity(e.identity, message);
    out.mutable_progress()->set_version(e.version);
    if (e.digest) {
      out.mutable_progress()->set_gradients(e.digest->gradients);
      out.mutable_progress()->set_state_digest(e.digest->state);
    }
  }
  void operator()(const brain::WorkerFinished& e) {
    set_identity(e.identity, message);
    out.mutable_worker_finished()->set_worker(e.worker);
  }
  void operator()(const brain::StopRequested& e) {
    out.mutable_stop_requested()->set_exit_code(e.exit_code);
    out.mutable_stop_requested()->set_because(text(e.because));
  }
  void operator()(const brain::WorkerPaused& e) {
    set_identity(e.identity, message);
    out.mutable_worker_paused()->set_worker(e.worker);
  }
  void operator()(const brain::NodeLeaves& e) {
    KEEPSTEP_CHECK(e.node == node, "an agent reports for its own node only");
    out.mutable_node_leaves()->set_because(text(e.because));
  }
  void operator()(const brain::ScaleRequested& e) {
    control::ScaleRequested* scale = out.mutable_scale_requested();
    if (e.replicas.has_value()) {
      scale->set_replicas(*e.replicas);
    }
  }
  void operator()(const brain::PolicyChanged& e) { set_policy(e.config, out.mutable_policy_changed()); }
  void operator()(const brain::Saved& e) {
    out.mutable_saved()->set_version(e.version);
    out.mutable_saved()->set_generation(e.generation);
  }
  void operator()(const brain::UsefulWorlds& e) {
    out.mutable_useful_worlds()->set_ranks(e.ranks);
    out.mutable_useful_worlds()->mutable_sizes()->Assign(e.sizes.begin(), e.sizes.end());
  }
  void operator()(const brain::NodeLost&) { KEEPSTEP_CHECK(false, "no agent says that a node is lost"); }
  void operator()(const brain::Tick&) { KEEPSTEP_CHECK(false, "Tick never travels"); }
};

}  // namespace

control::FromAgent to_wire(const brain::Event& event, brain::NodeId node, brain::Identity newest) {
  control::FromAgent message;
  message.set_node(node);
  set_identity(newest, message);
  std::visit(EventWriter{node, message, *message.mutable_event()}, event);
  return message;
}

namespace {

StatusOr<brain::Event> event_from(const control::AgentEvent& in, brain::NodeId node, brain::Identity identity) {
  switch (in.kind_case()) {
    case control::AgentEvent::kNodeJoined:
      return joined_from(in.node_joined(), node);
    case control::AgentEvent::kWorkerParked:
      return brain::WorkerParked{in.worker_parked().worker(), in.worker_parked().pid(), in.worker_parked().functions()};
    case control::AgentEvent::kWorkerRecoverable:
      return brain::WorkerRecoverable{in.worker_recoverable().worker()};
    case control::AgentEvent::kWorkerDied: {
      const control::WorkerDied& died = in.worker_died();
      return brain::WorkerDied{died.worker(),      died.pid(),       died.signal(), died.exit_code(),
                               died.detected_by(), died.traceback(), died.unfit(),  died.committed()};
    }
    case control::AgentEvent::kWorkerHung:
      return brain::WorkerHung{in.worker_hung().worker(), identity, in.worker_hung().pid(),
                               std::chrono::nanoseconds(in.worker_hung().idle_ns()), in.worker_hung().because()};
    case control::AgentEvent::kWorkerExited:
      return brain::WorkerExited{in.worker_exited().worker()};
    case control::AgentEvent::kWorkerFaulted: {
      const control::WorkerFaulted& faulted = in.worker_faulted();
      return brain::WorkerFaulted{faulted.worker(),      identity,        faulted.step(), faulted.what(),
                                  faulted.traceback(),   faulted.fatal(), faulted.link(), faulted.digests(),
                                  faulted.after_commit()};
    }
    case control::AgentEvent::kSealed:
      return sealed_from(in.sealed(), node, identity);
    case control::AgentEvent::kReady: {
      brain::Ready ready{identity, {}};
      for (const control::Ready::Member& member : in.ready().members()) {
        KEEPSTEP_ASSIGN_OR_RETURN(const brain::StateWord state, state_from(member.state()));
        ready.members.push_back(
            {member.worker(), state, member.sharded(), std::chrono::nanoseconds(member.waited_ns())});
      }
      return ready;
    }
    case control::AgentEvent::kFormed:
      return brain::Formed{identity};
    case control::AgentEvent::kProgress:
      return brain::Progress{identity, in.progress().version(), digest_from(in.progress())};
    case control::AgentEvent::kWorkerFinished:
      return brain::WorkerFinished{in.worker_finished().worker(), identity};
    case control::AgentEvent::kStopRequested:
      return brain::StopRequested{in.stop_requested().exit_code(), in.stop_requested().because()};
    case control::AgentEvent::kWorkerPaused:
      return brain::WorkerPaused{in.worker_paused().worker(), identity};
    case control::AgentEvent::kNodeLeaves:
      return brain::NodeLeaves{node, in.node_leaves().because()};
    case control::AgentEvent::kScaleRequested:
      return brain::ScaleRequested{in.scale_requested().has_replicas() ? std::optional(in.scale_requested().replicas())
                                                                       : std::nullopt};
    case control::AgentEvent::kPolicyChanged:
      return policy_from(in.policy_changed());
    case control::AgentEvent::kSaved:
      return brain::Saved{in.saved().version(), in.saved().generation()};
    case control::AgentEvent::kUsefulWorlds:
      return brain::UsefulWorlds{in.useful_worlds().ranks(),
                                 {in.useful_worlds().sizes().begin(), in.useful_worlds().sizes().end()}};
    case control::AgentEvent::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without an event that this version knows");
}

}  // namespace

StatusOr<brain::Event> event_from_wire(const control::FromAgent& message) {
  return event_from(message.event(), message.node(), identity_of(message));
}

control::FromCoordinator envelope(const brain::Effect& effect, brain::NodeId node, brain::Identity newest,
                                  const std::vector<const brain::Member*>& members) {
  control::FromCoordinator message;
  message.set_node(node);
  set_identity(std::visit(
                   [&](const auto& e) {
                     if constexpr (requires { e.identity; }) {
                       return e.identity;
                     } else {
                       return newest;
                     }
                   },
                   effect),
               message);
  for (const brain::Member* member : members) {
    KEEPSTEP_CHECK(member->node == node, "a member goes to its own node");
    control::Member* entry = message.add_members();
    entry->set_rank(member->rank);
    entry->set_worker(member->worker);
    entry->set_newcomer(member->newcomer);
    entry->set_previous(member->previous);
  }
  return message;
}

control::FromCoordinator payload(const brain::Effect& effect) {
  control::FromCoordinator message;
  control::CoordinatorEffect& out = *message.mutable_effect();
  std::visit(Overloaded{
                 [&](const brain::Spawn& e) {
                   out.mutable_spawn()->set_worker(e.worker);
                   out.mutable_spawn()->set_spare(e.spare);
                   out.mutable_spawn()->set_because(text(e.because));
                   out.mutable_spawn()->set_functions(e.functions);
                 },
                 [&](const brain::Seal& e) { out.mutable_seal()->set_because(text(e.because)); },
                 [&](const brain::Decide& e) {
                   out.mutable_decide()->set_version(e.verdict.version);
                   out.mutable_decide()->set_forward(e.verdict.forward);
                   out.mutable_decide()->set_because(text(e.verdict.because));
                   if (e.mean_loss.has_value()) {
                     out.mutable_decide()->set_mean_loss(*e.mean_loss);
                     out.mutable_decide()->set_flags(e.flags);
                   }
                 },
                 [&](const brain::Prepare& e) {
                   out.mutable_prepare()->set_version(e.version);
                   out.mutable_prepare()->set_because(text(e.because));
                   out.mutable_prepare()->set_resized(e.resized);
                   out.mutable_prepare()->set_restarts(e.restarts);
                   out.mutable_prepare()->set_sharding(e.sharding.number);
                   out.mutable_prepare()->set_from_sharding(e.from.number);
                   out.mutable_prepare()->set_from_world(e.from.world);
                   out.mutable_prepare()->set_functions(e.functions);
                 },
                 [&](const brain::Activate& e) {
                   control::Activate* activate = out.mutable_activate();
                   activate->set_version(e.version);
                   set_runs(e.sources, activate->mutable_sources());
                   set_runs(e.targets, activate->mutable_targets());
                   activate->set_compare(e.compare);
                 },
                 [&](const brain::Kill& e) {
                   out.mutable_kill()->set_worker(e.worker);
                   out.mutable_kill()->set_because(text(e.because));
                 },
                 [&](const brain::Pause& e) {
                   out.mutable_pause()->set_because(text(e.because));
                   out.mutable_pause()->mutable_stay()->Assign(e.stay.begin(), e.stay.end());
                 },
                 [&](const brain::ReleaseNode& e) { out.mutable_release_node()->set_because(text(e.because)); },
                 [&](const brain::Release& e) { out.mutable_release()->set_because(text(e.because)); },
                 [&](const brain::EndJob& e) {
                   out.mutable_end_job()->set_exit_code(e.exit_code);
                   out.mutable_end_job()->set_message(text(e.message));
                   out.mutable_end_job()->set_traceback(text(e.traceback));
                 },
                 [&](const brain::Journal&) { KEEPSTEP_CHECK(false, "Journal never travels"); },
             },
             effect);
  return message;
}

StatusOr<brain::Effect> effect_from_wire(const control::FromCoordinator& message, HeldTables& tables) {
  const brain::Identity identity = identity_of(message);
  const control::CoordinatorEffect& in = message.effect();
  switch (in.kind_case()) {
    case control::CoordinatorEffect::kSpawn:
      return brain::Spawn{message.node(), in.spawn().worker(), in.spawn().spare(), in.spawn().because(),
                          in.spawn().functions()};
    case control::CoordinatorEffect::kSeal:
      return brain::Seal{identity, in.seal().because()};
    case control::CoordinatorEffect::kDecide:
      return brain::Decide{identity,
                           {in.decide().version(), in.decide().forward(), in.decide().because()},
                           in.decide().has_mean_loss() ? std::optional(in.decide().mean_loss()) : std::nullopt,
                           in.decide().flags()};
    case control::CoordinatorEffect::kPrepare:
      return prepare_from(message, tables);
    case control::CoordinatorEffect::kActivate:
      return activate_from(in.activate(), identity);
    case control::CoordinatorEffect::kKill:
      return brain::Kill{in.kill().worker(), in.kill().because(), message.node()};
    case control::CoordinatorEffect::kPause:
      return brain::Pause{identity, in.pause().because(), {in.pause().stay().begin(), in.pause().stay().end()}};
    case control::CoordinatorEffect::kReleaseNode:
      return brain::ReleaseNode{message.node(), in.release_node().because()};
    case control::CoordinatorEffect::kRelease:
      return brain::Release{identity, in.release().because()};
    case control::CoordinatorEffect::kEndJob:
      return brain::EndJob{in.end_job().exit_code(), in.end_job().message(), in.end_job().traceback()};
    case control::CoordinatorEffect::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("a message without an effect that this version knows");
}

}  // namespace keepstep::proto
