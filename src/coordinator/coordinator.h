// The shell around brain::Membership: agents attend over TLS, one thread runs the brain, and effects are sent back.
//
// Every message from an agent is an event for the brain; every effect is sent to the agents it concerns (Spawn and Kill
// to one node, the rest to all that are connected, in the brain's order) or written to the journal. Peers that cannot
// prove the job's key, and invalid messages, are refused, counted and journaled as "refused"; events of another term
// are dropped and counted as "stale". The job continues. Wire format and every refusal: docs/formats/wire_control.md.
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
  std::string listen = "127.0.0.1:0";  // as in net/address.h
  net::SharedKey key;                  // SharedKey::control()
  bool plain_data = false;             // sent to the agents: ranks protect data by MACs, not by TLS
  // The limit from accepting a connection until its key is proved, and again from then until its hello arrives.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);
  std::function<void(const std::string&)> say;  // prints a line to the console, on the brain's thread; null: none
};

class Coordinator {
 public:
  // Listens and starts the brain's thread. `journal` must outlive the coordinator. UNAVAILABLE if it cannot listen,
  // with the reason ("... 127.0.0.1:4711: Address already in use").
  static StatusOr<std::unique_ptr<Coordinator>> start(CoordinatorConfig config, observe::Journal* journal);
  ~Coordinator();

  // The address that agents connect to: `listen` with the port that was actually bound.
  std::string address() const;

  // Sends what is queued, closes all streams and joins the brain's thread. Idempotent.
  void stop();

  // Sets who answers users' commands that arrive at the endpoint. `commands` is called on the hub's thread, with the
  // request and a function that sends its answer (call it once, from any thread, even after this coordinator is gone).
  // It must not block. Null: nobody answers, and commands are told that the job is starting or ending; earlier calls
  // may still be running.
  using Commands = std::function<void(std::string request, std::function<void(const std::string&)> answer)>;
  void take_commands(Commands commands);

  // The nodes that currently attend.
  std::vector<brain::NodeId> attending() const;
  // The brain's latest message about the size of an elastic job; std::nullopt if none so far. Any thread.
  struct SizeNews {
    std::string event;  // of the journal: "size_kept", "resize_planned", ...
    std::string because;
    std::chrono::steady_clock::time_point at;
  };
  std::optional<SizeNews> size_news() const;

  // Numbers so far of refused peers and messages, and of events dropped for their term.
  uint64_t refused() const;
  uint64_t stale() const;

 private:
  class Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::coordinator
