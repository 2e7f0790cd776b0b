// The thread that accepts connections, hears them out, and takes in what peers tell on those that carry messages.
//
// Connections for parts are handed on as soon as they proved where they belong (PartGroups). A connection that proves
// nothing is closed and counted; nothing of it reaches any other part of the program.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "comm/tcp/handshake.h"
#include "comm/tcp/message_links.h"
#include "comm/tcp/part_groups.h"
#include "comm/tcp/tcp_config.h"
#include "comm/tcp/wake_up.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

class IncomingThread {
 public:
  // `parts` takes over connections for parts. `lost` is called by the thread: a link of messages was. What is referred
  // to must outlive it.
  IncomingThread(const TcpConfig& config, MessageLinks& links, PartGroups& parts, Fd listener,
                 std::function<void()> lost);
  ~IncomingThread();

  void start(Bell& messages, std::atomic<uint64_t>& moved);
  void add_counters(Transport::Counters& counters) const;

 private:
  struct Stranger {
    std::unique_ptr<Reception> reception;
    int64_t deadline_ns;
  };

  void loop();
  void accept_all(int64_t now_ns);
  void hear(int64_t now_ns);
  void admit(Reception& reception);
  void refuse(Refusal why);
  Verdict judge(const Hello& hello) const;
  bool advance(MessageLink& link, int64_t now_ns);
  int64_t collect(const std::vector<MessageLink*>& links, std::vector<pollfd>& fds) const;

  const TcpConfig& config_;
  MessageLinks& links_;
  PartGroups& parts_;
  const Fd listener_;
  const std::function<void()> lost_;
  Bell* messages_ = nullptr;
  std::atomic<uint64_t>* moved_ = nullptr;
  WakeUp wake_up_;
  std::atomic<bool> stop_ = false;

  // The thread's own.
  std::vector<Stranger> strangers_;
  std::set<Rank> admitted_;  // for messages
  int64_t accept_again_ns_ = 0;
  std::thread thread_;

  std::atomic<uint64_t> accepted_ = 0;
  std::atomic<uint64_t> wrong_token_ = 0;
  std::atomic<uint64_t> old_generation_ = 0;
  std::atomic<uint64_t> unknown_rank_ = 0;
  std::atomic<uint64_t> malformed_ = 0;
  std::atomic<uint64_t> too_slow_ = 0;
};

}  // namespace keepstep::comm::tcp
