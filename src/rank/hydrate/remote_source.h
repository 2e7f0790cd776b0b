// Serves targets on other nodes for as long as a Source publishes: receives their requests through the communicator,
// lets a state::Relay answer them, and sends the answers. Owns one thread.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <thread>

#include "comm/communicator.h"
#include "state/relay.h"

namespace keepstep::rank {

class RemoteSource {
 public:
  // Call it after the Source in `region` has published `identity`. Ends on its own once all `targets` have said
  // goodbye, or when the generation is interrupted. `comm` must outlive it.
  RemoteSource(comm::Communicator& comm, comm::Rank self, std::byte* region, brain::Identity identity,
               const std::atomic<uint32_t>* interrupted, std::set<comm::Rank> targets);
  // Ends at once, even if targets still pull.
  ~RemoteSource();
  // Waits until it has ended on its own, for at most `limit_ns`; false if it has not. This leaves no request behind
  // that nobody would ever receive, as long as targets can be heard: the goodbye of a target whose link broke never
  // arrives.
  bool finish(int64_t limit_ns);

 private:
  struct Incoming {
    state::RemoteRequest request;
    comm::OpId op = 0;
  };
  // Answers being sent; a slot of the region is reused only after its answer has gone out.
  struct Outgoing {
    state::RemoteAnswer head;
    comm::OpId head_sent = 0;
    comm::OpId bytes_sent = 0;
  };
  void run();
  void post(Incoming& incoming);
  bool take_request(bool wait_for_one);
  bool is_sent(const Outgoing& outgoing);
  void answer();
  void wait_first_sent();
  comm::Completion wait(comm::OpId op);

  comm::Communicator& comm_;
  const comm::Rank self_;
  state::Relay relay_;
  std::set<comm::Rank> targets_;  // that may still send requests
  std::array<Incoming, 2> incoming_;
  size_t turn_ = 0;                // in incoming_
  std::deque<comm::Rank> asking_;  // ranks whose requests have been started
  std::deque<Outgoing> outgoing_;  // its elements' addresses must not change
  bool stopped_ = false;
  bool over_for_us_ = false;  // interrupted, or stopped
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace keepstep::rank
