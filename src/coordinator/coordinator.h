// The shell around brain::Membership: agents attend over TLS, one thread runs the brain, effects go back.
//
// Everything an agent says is an event for the brain; everything the brain answers is sent to the agents it concerns
// (Spawn and Kill to one node, the rest to all that are connected, in the brain's order) or written into the journal.
// Peers that cannot prove the job's key, and messages that make no sense, are refused, counted and journalled as
// "refused"; events of another term are dropped and counted as "stale"; the job goes on.
// Wire format and every refusal: docs/formats/wire_control.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/membership/membership.h"
#include "net/shared_key.h"
#include "observe/journal.h"

namespace keepstep::coordinator {

struct CoordinatorConfig {
  brain::MembershipConfig membership;
  std::string listen = "127.0.0.1:0";  // as net/address.h has it
  net::SharedKey key;                  // SharedKey::control()
  bool plain_data = false;             // for the agents: whether ranks protect data by MACs, not by TLS
  // From accepting a connection until its key is proved, and from then until its hello has come.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);
  std::function<void(const std::string&)> say;  // a line for the console, from the brain's thread; null: none
};

class Coordinator {
 public:
  // Listens and starts the brain's thread. `journal` must outlive the coordinator. UNAVAILABLE with the reason when
  // it cannot listen ("... 127.0.0.1:4711: Address already in use").
  static StatusOr<std::unique_ptr<Coordinator>> start(CoordinatorConfig config, observe::Journal* journal);
  ~Coordinator();

  // What an agent connects to: `listen` with the port that is really bound.
  std::string address() const;

  // Sends what is queued, closes all streams and joins the brain's thread. Idempotent.
  void stop();

  // Who answers users' commands that come to the endpoint: `commands` is called on the hub's thread, with the request
  // and what sends its answer (once; from any thread, also when this coordinator is gone). It must not block. Null:
  // nobody, and commands hear that the job starts or ends just now; calls that began before may still be under way.
  using Commands = std::function<void(std::string request, std::function<void(const std::string&)> answer)>;
  void take_commands(Commands commands);

  // The nodes that attend right now.
  std::vector<brain::NodeId> attending() const;
  // What the brain said last about the size of an elastic job; nothing: not a word yet. From any thread.
  struct SizeNews {
    std::string event;  // of the journal: "size_kept", "resize_planned", ...
    std::string because;
    std::chrono::steady_clock::time_point at;
  };
  std::optional<SizeNews> size_news() const;

  // Peers and messages refused, and events dropped for their term, so far.
  uint64_t refused() const;
  uint64_t stale() const;

 private:
  class Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::coordinator
