#include "rank/hydrate/state_transfer.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "rank/hydrate/source_choice.h"

namespace keepstep::rank {
namespace {

// Once all have formed, no rank pulls any more, and the goodbyes are on their way unless a link between two nodes
// broke.
constexpr int64_t kGoodbyesNs = 5'000'000'000;

}  // namespace

std::unique_ptr<state::Source> StateTransfer::new_source() {
  return std::make_unique<state::Source>(generation_.own + generation_.layout.hydration, copy_,
                                         &generation_.page.load()->interrupted);
}

Status StateTransfer::publish(std::string manifest, std::vector<state::Region> regions) {
  source_ = new_source();
  const Assignment& assignment = generation_.assignment;
  KEEPSTEP_RETURN_IF_ERROR(
      source_->publish(assignment.identity, assignment.version, std::move(manifest), std::move(regions)));
  serve_elsewhere();
  return absl::OkStatus();
}

void StateTransfer::stop_publishing() {
  if (remote_source_ != nullptr && !remote_source_->finish(kGoodbyesNs)) {
    remote_source_.reset();
  }
  source_.reset();
}

state::Puller StateTransfer::puller(const Activation& activation) {
  std::vector<state::SourceAccess> sources;
  for (uint32_t rank : own_sources(activation)) {
    sources.push_back(access_to(rank));
  }
  return state::Puller(sources, generation_.self(), copy_, &generation_.page.load()->interrupted);
}

StatusOr<std::string> StateTransfer::pull_manifest(const Activation& activation) {
  StatusOr<std::string> manifest = puller(activation).manifest(generation_.assignment.identity);
  if (!manifest.ok()) {
    note_silent_sources();
  }
  return manifest;
}

StatusOr<state::Pulled> StateTransfer::pull(const Activation& activation, const std::vector<state::Region>& regions) {
  const brain::Identity identity = generation_.assignment.identity;
  std::vector<uint32_t> sources = own_sources(activation);
  const std::vector<uint32_t> siblings = this->siblings(activation);
  state::Sharing sharing{.publish = [&] {
    source_ = new_source();
    return source_->publish(identity, activation.version, "", regions);
  }};
  for (const uint32_t rank : siblings) {
    const bool self = rank == generation_.self();
    sharing.siblings.push_back(self ? nullptr : generation_.members.at(rank) + generation_.layout.hydration);
    if (!self) {
      sources.push_back(rank);
    }
  }
  StatusOr<state::Pulled> result =
      puller(activation)
          .pull(identity, activation.version, regions, activation.compare, siblings.empty() ? nullptr : &sharing);
  if (!result.ok()) {
    source_.reset();  // the caller owns the tensors again
    note_silent_sources();
    return result.status();
  }
  const state::Pulled& pulled = *result;
  (void)agent_.send(messages::Hydrated{.bytes = static_cast<int64_t>(pulled.bytes),
                                       .skipped = static_cast<int64_t>(pulled.bytes_skipped),
                                       .repeated = static_cast<int64_t>(pulled.chunks_repeated),
                                       .seconds = static_cast<double>(pulled.duration_ns) * 1e-9,
                                       .sources = {sources.begin(), sources.end()},
                                       .bytes_from = {pulled.bytes_by_source.begin(), pulled.bytes_by_source.end()}});
  return pulled;
}

std::vector<uint32_t> StateTransfer::own_sources(const Activation& activation) const {
  return sources_for(generation_.self(), activation.sources, generation_.nodes);
}

// The targets on this node, including this rank, if everything they need comes from other nodes: they share it.
// Otherwise none.
std::vector<uint32_t> StateTransfer::siblings(const Activation& activation) const {
  const auto is_here = [&](uint32_t rank) { return generation_.members.at(rank) != nullptr; };
  std::vector<uint32_t> here;
  if (!activation.compare && std::none_of(activation.sources.begin(), activation.sources.end(), is_here)) {
    std::copy_if(activation.targets.begin(), activation.targets.end(), std::back_inserter(here), is_here);
  }
  return here.size() > 1 ? here : std::vector<uint32_t>();
}

state::SourceAccess StateTransfer::access_to(uint32_t source) {
  std::byte* member = generation_.members.at(source);
  if (member != nullptr) {
    return {.region = member + generation_.layout.hydration};
  }
  std::unique_ptr<RemotePeer>& peer = remote_peers_[source];
  if (peer == nullptr) {
    peer = std::make_unique<RemotePeer>(generation_.communicator, source);
  }
  return {.peer = peer.get()};
}

void StateTransfer::serve_elsewhere() {
  const Activation& activation = generation_.activation;
  std::set<uint32_t> elsewhere;
  for (const uint32_t target : activation.targets) {
    const std::vector<uint32_t> asked = sources_for(target, activation.sources, generation_.nodes);
    const bool asks_us = std::find(asked.begin(), asked.end(), generation_.self()) != asked.end();
    if (generation_.members.at(target) == nullptr && asks_us) {
      elsewhere.insert(target);
    }
  }
  if (!elsewhere.empty()) {
    remote_source_ = std::make_unique<RemoteSource>(
        *generation_.communicator, generation_.self(), generation_.own + generation_.layout.hydration,
        generation_.assignment.identity, &generation_.page.load()->interrupted, elsewhere);
  }
}

void StateTransfer::say_goodbye() {
  const Activation& activation = generation_.activation;
  if (std::find(activation.targets.begin(), activation.targets.end(), generation_.self()) == activation.targets.end()) {
    return;
  }
  for (const uint32_t source : own_sources(activation)) {
    if (const state::SourceAccess access = access_to(source); access.peer != nullptr) {
      static_cast<RemotePeer*>(access.peer)->leave();
    }
  }
}

// A silent source does not end a connection, but it is not user code's fault either.
void StateTransfer::note_silent_sources() {
  for (const auto& [source, peer] : remote_peers_) {
    if (peer->silent && silent_source_.empty()) {
      silent_source_ = absl::StrFormat("rank %d, asked for its state by rank %d on another node, %s", source,
                                       generation_.self(), peer->lost);
    }
  }
}

void StateTransfer::leave_generation() {
  source_.reset();
  remote_peers_.clear();
  silent_source_.clear();
}

}  // namespace keepstep::rank
