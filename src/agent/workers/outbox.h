// What an agent has to tell one worker: sent at once, or kept in order until the worker reads again (it may be
// stopped). Nothing is dropped in silence: a request of the worker would wait for its answer for ever.
//
// Loop thread only. Never waits.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"

namespace keepstep::agent {

inline constexpr size_t kMaxKeptMessages = 4096;
inline constexpr size_t kMaxKeptBytes = size_t{64} << 20;  // together; a longer message may be the only one

class Outbox {
 public:
  // `encoded`: messages::encode() of a message; of `fds` copies are made if it has to wait. UNAVAILABLE: the worker is
  // gone. INVALID_ARGUMENT: the message is longer than any may be. RESOURCE_EXHAUSTED: the worker has not read so much
  // that no more is kept, or there is no descriptor to keep it with. It will not be told then.
  Status send(const PacketSocket& socket, std::string encoded, std::span<const int> fds);
  // Sends what waits, as far as there is room now.
  void flush(const PacketSocket& socket);
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Message {
    std::string encoded;
    std::vector<Fd> fds;
  };
  std::deque<Message> waiting_;
  size_t bytes_ = 0;  // of these
};

}  // namespace keepstep::agent
