// The engine's part of hydration across nodes: which sources are elsewhere, and when serving them begins and ends.
#include <algorithm>
#include <set>

#include "worker/engine.h"

namespace keepstep::worker {

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
      if (members_.at(target) == nullptr) {
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
      sources = activation_->sources;
    }
  }
  for (const uint32_t source : sources) {
    if (const state::Place place = place_of(source); place.peer != nullptr) {
      static_cast<RemotePeer*>(place.peer)->leave();
    }
  }
}

void Engine::leave_generation() {
  remote_source_.reset();  // it uses both of the next
  communicator_.reset();
  source_.reset();
  remote_peers_.clear();
}

}  // namespace keepstep::worker
