// The engine's part in what ranks on different nodes do for each other's state: which sources are elsewhere, when
// serving those elsewhere begins and ends, and copies of capsules.
#include <algorithm>
#include <iterator>
#include <set>

#include "base/clock.h"
#include "rank/engine/engine.h"
#include "rank/hydrate/source_choice.h"

namespace keepstep::worker {
namespace {

// A link that broke is mostly a process that is gone, and the interruption is on its way: this long, beyond what the
// communicator waited for it already. Then it is the link's own fault, and told as that.
constexpr int64_t kToldNs = 1'000'000'000;

}  // namespace

std::vector<uint32_t> Engine::own_sources(const Activation& activation) const {
  return sources_for(assignment_.rank, activation.sources, nodes_);
}

// The targets of this node, this rank among them, where all that they want comes from other nodes: they share it. Else
// none.
std::vector<uint32_t> Engine::siblings(const Activation& activation) const {
  const auto is_here = [&](uint32_t rank) { return members_.at(rank) != nullptr; };
  std::vector<uint32_t> here;
  if (!activation.compare && std::none_of(activation.sources.begin(), activation.sources.end(), is_here)) {
    std::copy_if(activation.targets.begin(), activation.targets.end(), std::back_inserter(here), is_here);
  }
  return here.size() > 1 ? here : std::vector<uint32_t>();
}

state::Place Engine::place_of(uint32_t source) {
  std::byte* member = members_.at(source);
  if (member != nullptr) {
    return {.region = member + layout_->hydration};
  }
  std::unique_ptr<RemotePeer>& peer = remote_peers_[source];
  if (peer == nullptr) {
    peer = std::make_unique<RemotePeer>(communicator_, source);
  }
  return {.peer = peer.get()};
}

void Engine::serve_elsewhere() {
  std::set<uint32_t> elsewhere;
  {
    std::lock_guard lock(mutex_);
    for (const uint32_t target : activation_->targets) {
      const std::vector<uint32_t> asked = sources_for(target, activation_->sources, nodes_);
      if (members_.at(target) == nullptr && std::find(asked.begin(), asked.end(), assignment_.rank) != asked.end()) {
        elsewhere.insert(target);
      }
    }
  }
  if (!elsewhere.empty()) {
    remote_source_ =
        std::make_unique<RemoteSource>(*communicator_, assignment_.rank, memory_.data() + layout_->hydration,
                                       assignment_.identity, &generation()->interrupted, elsewhere);
  }
}

void Engine::leave_sources() {
  std::vector<uint32_t> sources;
  {
    std::lock_guard lock(mutex_);
    const std::vector<uint32_t>& targets = activation_->targets;
    if (std::find(targets.begin(), targets.end(), assignment_.rank) != targets.end()) {
      sources = own_sources(*activation_);
    }
  }
  for (const uint32_t source : sources) {
    if (const state::Place place = place_of(source); place.peer != nullptr) {
      static_cast<RemotePeer*>(place.peer)->leave();
    }
  }
}

Status Engine::share_capsules() {
  brain::Version version = 0;
  {
    std::lock_guard lock(mutex_);
    version = activation_->version;
  }
  std::optional<std::string> own = wants_capsule_ ? load_capsule(version) : std::nullopt;
  if (wants_capsule_ && !own.has_value() && assignment_.resized) {
    // A rank that nobody had before: it begins with what another one's forward passes led to.
    own = neighbours_capsule(version);
    if (own.has_value()) {
      KEEPSTEP_RETURN_IF_ERROR(save_capsule(version, *own));
    }
  }
  const StatusOr<std::optional<std::string>> got =
      capsule_copies_.share(version, wants_capsule_, own, assignment_.resized);
  if (absl::IsUnavailable(got.status())) {
    return await_interruption(got.status());
  }
  KEEPSTEP_RETURN_IF_ERROR(got.status());
  return got->has_value() ? save_capsule(version, **got) : absl::OkStatus();
}

Status Engine::copy_capsule(brain::Version version) {
  Status status = capsule_copies_.copy(version, load_capsule(version).value_or(std::string()));
  if (absl::IsUnavailable(status)) {
    status = await_interruption(status);
  }
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

std::string Engine::broken_link() const {
  const std::string broken = communicator_ == nullptr ? std::string() : communicator_->broken_link();
  return broken.empty() ? silent_source_ : broken;
}

// A source that says nothing ends no connection, but it is as little user code's fault.
void Engine::note_silent_sources() {
  for (const auto& [source, peer] : remote_peers_) {
    if (peer->silent && silent_source_.empty()) {
      silent_source_ = absl::StrFormat("rank %d, asked for its state by rank %d on another node, %s", source,
                                       assignment_.rank, peer->lost);
    }
  }
}

// ABORTED once the generation is interrupted; `why` if that does not come.
Status Engine::await_interruption(const Status& why) {
  const Waiting waiting(progress(), brain::WaitsIn::kJoin);  // as in wait_interruption()
  GenerationPage& gen = *generation();
  const int64_t end_ns = monotonic_ns() + kToldNs;
  while (monotonic_ns() < end_ns) {
    const uint32_t seen = gen.bell.load();
    if (gen.interrupted.load() != 0) {
      return absl::AbortedError("the generation was interrupted");
    }
    wait_bell(gen, seen);
  }
  return why;
}

void Engine::leave_generation() {
  remote_source_.reset();  // it uses both of the next
  if (shard_replicas_ != nullptr) {
    shard_replicas_->stop();
  }
  communicator_.reset();
  shard_replicas_.reset();
  shard_exchange_.reset();
  settled_ = false;
  rebuild_memory_.clear();
  {
    const std::lock_guard lock(vaults_mutex_);
    vaults_.clear();
  }
  source_.reset();
  remote_peers_.clear();
}

}  // namespace keepstep::worker
