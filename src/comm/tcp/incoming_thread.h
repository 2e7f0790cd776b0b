// The thread that receives the hellos of new connections, and processes what peers send on those that carry messages.
//
// Connections for parts are passed on to PartGroups as soon as they have proved where they belong. A connection that
// proves nothing is closed and counted; none of its data reach any other part of the program.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
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
  // `parts` takes over connections for parts. The thread calls `lost` when a message link was lost. All references must
  // outlive this object.
  IncomingThread(const TcpConfig& config, MessageLinks& links, PartGroups& parts, std::function<void()> lost);
  ~IncomingThread();

  void start(Bell& messages, std::atomic<uint64_t>& moved);
  // Takes over a connection whose peer has proved the key. Any thread.
  void hear(net::TlsStream connection);
  // Counts a connection that was turned away before that. Any thread.
  void refused(const Status& why);
  void add_counters(Transport::Counters& counters) const;

 private:
  struct Newcomer {
    std::unique_ptr<Reception> reception;
    int64_t deadline_ns;
  };

  void loop();
  void take_proved(int64_t now_ns);
  void hear_newcomers(int64_t now_ns);
  void admit(Reception& reception);
  void count(std::atomic<uint64_t>& counter, const std::string& what);
  Verdict judge(const Hello& hello) const;
  IncomingStream::Came advance(MessageLink& link, int64_t now_ns);
  int64_t collect(const std::vector<MessageLink*>& links, std::vector<pollfd>& fds) const;

  const TcpConfig& config_;
  MessageLinks& links_;
  PartGroups& parts_;
  const std::function<void()> lost_;
  Bell* messages_ = nullptr;
  std::atomic<uint64_t>* moved_ = nullptr;
  WakeUp wake_up_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::vector<net::TlsStream> proved_;

  // Used by the thread only.
  std::vector<Newcomer> newcomers_;
  std::set<Rank> admitted_;  // for messages
  std::thread thread_;

  std::atomic<uint64_t> accepted_ = 0;
  std::atomic<uint64_t> wrong_key_ = 0;
  std::atomic<uint64_t> other_generation_ = 0;
  std::atomic<uint64_t> unknown_rank_ = 0;
  std::atomic<uint64_t> malformed_ = 0;
  std::atomic<uint64_t> too_slow_ = 0;
};

}  // namespace keepstep::comm::tcp
