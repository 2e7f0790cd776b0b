// How a rank's protected state reaches other ranks, and theirs reaches it, while a generation forms
// (state/hydration.h): over shared memory within a node, by messages between nodes. Main thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "rank/hydrate/remote_peer.h"
#include "rank/hydrate/remote_source.h"
#include "rank/link/agent_line.h"
#include "rank/link/rank_generation.h"
#include "state/device/cuda_copy.h"
#include "state/hydration.h"

namespace keepstep::rank {

class StateTransfer {
 public:
  StateTransfer(AgentLine& agent, RankGeneration& generation, state::CudaCopy& copy)
      : agent_(agent), generation_(generation), copy_(copy) {}

  Status publish(std::string manifest, std::vector<state::Region> regions);
  void stop_publishing();  // after form(); does nothing if nothing is published
  StatusOr<std::string> pull_manifest(const Activation& activation);
  // Once this has returned, other ranks of this node may read `regions` until stop_publishing(), which must follow
  // form(), or an error before it.
  StatusOr<state::Pulled> pull(const Activation& activation, const std::vector<state::Region>& regions);
  // A target's last message to its sources on other nodes: it pulls no more.
  void say_goodbye();
  // A source on another node that fell silent during a pull of this generation; names both ends. Empty if none.
  const std::string& silent_source() const { return silent_source_; }

  // Ends what the communicator still carries for other ranks' pulls; call it before the communicator ends.
  void stop_serving() { remote_source_.reset(); }
  void leave_generation();  // after the communicator

 private:
  std::vector<uint32_t> own_sources(const Activation& activation) const;
  std::vector<uint32_t> siblings(const Activation& activation) const;
  state::SourceAccess access_to(uint32_t source);
  state::Puller puller(const Activation& activation);
  std::unique_ptr<state::Source> new_source();
  void serve_elsewhere();
  void note_silent_sources();

  AgentLine& agent_;
  RankGeneration& generation_;
  state::CudaCopy& copy_;
  std::unique_ptr<state::Source> source_;
  std::unique_ptr<RemoteSource> remote_source_;                   // while it publishes, for targets on other nodes
  std::map<uint32_t, std::unique_ptr<RemotePeer>> remote_peers_;  // by rank: sources on other nodes
  std::string silent_source_;
};

}  // namespace keepstep::rank
