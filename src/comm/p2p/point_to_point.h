// Sends and receives: one thread makes progress on all of them, so none can block another.
//
// Each ordered pair of ranks has three queues in shared memory (layout.h; between nodes each end has a copy, which the
// transport keeps in step). The sender *offers* each message (context, tag, size), the receiver *grants* the offers
// that match a posted receive, and the bytes of granted messages follow each other through the ring (between nodes,
// from buffer to buffer) in the order of the grants. So bytes only flow to waiting buffers: nothing unexpected is ever
// stored, tags may match in any order, and no message can get stuck behind another one whose receive is posted later. A
// send completes when its bytes are in the ring or with the system, and thus after its receive was posted. An offer
// larger than the buffer is granted with the smaller capacity, which fails both sides.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/completions.h"
#include "comm/layout.h"
#include "comm/p2p/channel.h"
#include "comm/sync.h"

namespace keepstep::comm {

class PointToPoint {
 public:
  // `moved` grows with all progress (progress.h).
  PointToPoint(const Layout& layout, const Endpoint& endpoint, Completions& completions, std::atomic<uint64_t>& moved);
  // Waits for all transfers to complete.
  ~PointToPoint();

  // Any thread; the first call starts the progress thread.
  void post(Transfer transfer);

  // Wakes the progress thread.
  Bell& bell() const { return bell_; }

 private:
  void loop();
  bool advance_all();  // does what can be done now; true if anything was
  bool take_posted();
  void start(Transfer transfer);
  int64_t sleep_ns() const;
  Channel& channel(Rank peer, bool is_send);
  bool is_here(Rank peer) const { return endpoint_.arenas[peer] != nullptr; }
  void tell(Rank peer);  // that the words of a pair changed

  const Layout& layout_;
  const Endpoint& endpoint_;
  Completions& completions_;
  std::atomic<uint64_t>& moved_;
  const std::vector<uint32_t> locals_;  // by rank: its local rank (layout.h), if it is on this node
  Bell& bell_;                          // rung by peers and by post()

  std::mutex mutex_;
  std::vector<Transfer> posted_;
  std::thread thread_;
  std::atomic<bool> has_posted_ = false;
  std::atomic<bool> stop_ = false;

  // Used by the progress thread only; indexed by 2 * peer + is_send.
  std::vector<std::unique_ptr<Channel>> channels_;
  AnySource any_;
  uint64_t receives_ = 0;  // posted so far
  Spin spin_;
};

}  // namespace keepstep::comm
