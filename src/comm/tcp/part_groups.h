// The links for parts of all groups of this rank; assigns each connection to its group.
//
// A peer may connect before this rank has created the group. Such a connection waits here: a bounded number from each
// peer, and nothing is read from them. Any thread may call anything.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "comm/tcp/part_links.h"
#include "comm/tcp/tcp_config.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

class PartGroups {
 public:
  // `config` must outlive it.
  PartGroups(const TcpConfig& config, std::shared_ptr<const net::TlsContext> tls)
      : shared_{.config = config, .tls = std::move(tls)} {}
  // Call it before the first open().
  void start(const std::atomic<uint32_t>& interrupted, std::atomic<uint64_t>& moved);

  // Like Transport::open_parts. Destroy the result before this object.
  std::unique_ptr<Parts> open(uint64_t context);
  // Whether stream `stream` of `from` may connect to this group: it is not connected yet, and there is room.
  bool has_room(Rank from, uint64_t context, uint32_t stream) const;
  // Takes over a connection that proved where it belongs. False: there is no room for it anymore.
  bool adopt(Rank from, uint64_t context, uint32_t stream, FrameReader connection);
  // Makes all threads that sleep in a wait() check again.
  void wake();
  void add_counters(Transport::Counters& counters) const;

 private:
  class Opened;
  struct Group {
    PartLinks* links = nullptr;                            // null: not opened here yet
    std::set<std::pair<Rank, uint32_t>> known;             // streams that are connected
    std::vector<std::pair<Rank, FrameReader>> early = {};  // connections that wait for open()
  };
  void close(uint64_t context);
  bool has_room_locked(Rank from, uint64_t context, uint32_t stream) const;

  PartsShared shared_;
  mutable std::mutex mutex_;
  std::map<uint64_t, Group> groups_;  // by context
  std::map<Rank, size_t> early_;      // number of waiting connections by peer
};

}  // namespace keepstep::comm::tcp
