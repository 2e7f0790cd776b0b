// An agent's messages to one worker: sent at once, or kept in order until the worker reads again (it may be stopped).
// Nothing is dropped silently: a request of the worker would wait for its answer forever.
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
inline constexpr size_t kMaxKeptBytes = size_t{64} << 20;  // in total; a longer message is kept only if it is alone

class Outbox {
 public:
  // `encoded`: messages::encode() of a message. If it has to wait, `fds` are duplicated. UNAVAILABLE: the worker is
  // gone. INVALID_ARGUMENT: the message is too long. RESOURCE_EXHAUSTED: too much is waiting already, or there is no
  // descriptor to keep it with; it will not be sent.
  Status send(const PacketSocket& socket, std::string encoded, std::span<const int> fds);
  // Sends what is waiting, as far as there is room now.
  void flush(const PacketSocket& socket);
  size_t waiting() const { return waiting_.size(); }

 private:
  struct Message {
    std::string encoded;
    std::vector<Fd> fds;
  };
  std::deque<Message> waiting_;
  size_t bytes_ = 0;  // of waiting_
};

}  // namespace keepstep::agent
