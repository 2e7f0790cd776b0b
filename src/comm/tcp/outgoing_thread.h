// The thread that sends peers what they do not know yet: the words of send and receive, and the bytes of messages.
#pragma once

#include <poll.h>

#include <atomic>
#include <thread>
#include <vector>

#include "comm/tcp/message_links.h"
#include "comm/tcp/tcp_config.h"
#include "comm/tcp/wake_up.h"

namespace keepstep::comm::tcp {

class OutgoingThread {
 public:
  // Both must outlive this object.
  OutgoingThread(const TcpConfig& config, MessageLinks& links) : config_(config), links_(links) {}
  ~OutgoingThread() { stop(); }

  void start(const std::atomic<uint32_t>& interrupted, Bell& messages, std::atomic<uint64_t>& moved);
  // There is something to send, or a link was lost. Any thread.
  void changed() { wake_up_.ring(); }
  // First sends peers what they do not know yet, unless interrupted or they do not listen.
  void stop();

 private:
  void loop();
  bool tell(MessageLink& link, int64_t now_ns);
  bool advance(MessageLink& link, int64_t now_ns);
  bool may_end(const std::vector<MessageLink*>& links);  // nothing is left to send, or nobody to send it to
  int64_t collect(const std::vector<MessageLink*>& links, std::vector<pollfd>& fds) const;

  const TcpConfig& config_;
  MessageLinks& links_;
  const std::atomic<uint32_t>* interrupted_ = nullptr;
  Bell* messages_ = nullptr;
  std::atomic<uint64_t>* moved_ = nullptr;
  WakeUp wake_up_;
  std::atomic<bool> stop_ = false;
  int64_t stop_at_ns_ = 0;  // used by the thread only
  std::thread thread_;
};

}  // namespace keepstep::comm::tcp
