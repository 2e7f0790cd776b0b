// The thread that accepts connections, hears them out, and takes in what peers tell on those that carry messages.
//
// Connections for parts are handed on as soon as they proved where they belong (PartLinks). A connection that proves
// nothing is closed and counted; nothing of it reaches any other part of the program.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "comm/tcp/handshake.h"
#include "comm/tcp/message_links.h"
#include "comm/tcp/tcp_config.h"
#include "comm/tcp/wake_up.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

class IncomingThread {
 public:
  // `adopt` takes over a connection for parts: from, stream, descriptor. `lost`: a link of messages was. Both are
  // called by the thread. `config` and `links` must outlive it.
  using Adopt = std::function<void(Rank, uint32_t, Fd)>;
  IncomingThread(const TcpConfig& config, MessageLinks& links, Fd listener, Adopt adopt, std::function<void()> lost);
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
  const Fd listener_;
  const Adopt adopt_;
  const std::function<void()> lost_;
  Bell* messages_ = nullptr;
  std::atomic<uint64_t>* moved_ = nullptr;
  WakeUp wake_up_;
  std::atomic<bool> stop_ = false;

  // The thread's own.
  std::vector<Stranger> strangers_;
  std::set<std::pair<Rank, uint32_t>> admitted_;
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
