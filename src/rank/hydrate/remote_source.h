// Serves targets on other nodes for as long as a Source publishes: takes their requests from the communicator, lets a
// state::Relay answer them, sends the answers. Owns one thread.
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
  // After the Source in `region` published `identity`. Ends by itself once each of `targets` said goodbye, or when the
  // generation is interrupted. `comm` must outlive this.
  RemoteSource(comm::Communicator& comm, comm::Rank self, std::byte* region, brain::Identity identity,
               const std::atomic<uint32_t>* interrupted, std::set<comm::Rank> targets);
  // Ends at once, whoever still pulls.
  ~RemoteSource();
  // Waits until it ended by itself, for at most `limit_ns`; false: it did not. So no request is left behind that nobody
  // would ever take, as long as targets can be heard: the goodbye of one whose link to here broke never comes.
  bool finish(int64_t limit_ns);

 private:
  struct Incoming {
    state::RemoteRequest request;
    comm::OpId op = 0;
  };
  // What is on its way out; a slot of the region is used again only when it is gone.
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
  std::set<comm::Rank> targets_;  // that may still ask
  std::array<Incoming, 2> incoming_;
  size_t turn_ = 0;                // in incoming_
  std::deque<comm::Rank> asking_;  // whose requests are begun
  std::deque<Outgoing> outgoing_;  // elements stay where they are
  bool stopped_ = false;
  bool over_for_us_ = false;  // interrupted, or stopped
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace keepstep::rank
