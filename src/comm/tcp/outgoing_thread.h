// The thread that tells peers what they do not know yet: the words of send and receive, and the bytes of messages.
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
  // Both must outlive it.
  OutgoingThread(const TcpConfig& config, MessageLinks& links) : config_(config), links_(links) {}
  ~OutgoingThread() { stop(); }

  void start(const std::atomic<uint32_t>& interrupted, Bell& messages, std::atomic<uint64_t>& moved);
  // There is something to tell, or a link was lost. From any thread.
  void changed() { wake_up_.ring(); }
  // Tells peers first what they do not know yet, unless interrupted or they do not listen.
  void stop();

 private:
  void loop();
  bool tell(MessageLink& link, int64_t now_ns);
  bool advance(MessageLink& link, int64_t now_ns);
  bool may_end(const std::vector<MessageLink*>& links);  // nothing is left to tell, or nobody to tell it to
  int64_t collect(const std::vector<MessageLink*>& links, std::vector<pollfd>& fds) const;

  const TcpConfig& config_;
  MessageLinks& links_;
  const std::atomic<uint32_t>* interrupted_ = nullptr;
  Bell* messages_ = nullptr;
  std::atomic<uint64_t>* moved_ = nullptr;
  WakeUp wake_up_;
  std::atomic<bool> stop_ = false;
  int64_t stop_at_ns_ = 0;  // the thread's own
  std::thread thread_;
};

}  // namespace keepstep::comm::tcp
