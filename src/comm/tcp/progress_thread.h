// The thread that accepts connections, hears them out, and keeps the words of send and receive in step with the peers.
//
// Connections for parts are handed on as soon as they proved where they belong (PartLinks). A connection that proves
// nothing is closed and counted; nothing of it reaches any other part of the program.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/tcp/handshake.h"
#include "comm/tcp/pair_mirror.h"
#include "comm/tcp/part_streams.h"
#include "comm/tcp/tcp_config.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

class ProgressThread {
 public:
  // `adopt` takes over a connection for parts: from, stream, descriptor.
  using Adopt = std::function<void(Rank, uint32_t, Fd)>;
  ProgressThread(const TcpConfig& config, Fd listener, Adopt adopt);
  // Tells peers first what they do not know yet (a send is over when its bytes are in the ring), unless interrupted or
  // they do not listen.
  ~ProgressThread();

  void start(const std::atomic<uint32_t>& interrupted, Bell& messages);
  Transport::Pair pair(Rank from, Rank to);
  void changed();
  void add_counters(Transport::Counters& counters) const;

 private:
  // What a peer sends on stream 0.
  class Incoming {
   public:
    explicit Incoming(Fd fd) : fd_(std::move(fd)) {}
    enum class State { kWait, kChanged, kLost, kMalformed };
    State advance(PairMirror& mirror);
    int fd() const { return fd_.get(); }
    const std::string& why() const { return why_; }  // lost or malformed

   private:
    State malformed();

    Fd fd_;
    std::string why_;
    std::array<std::byte, kFrameHeaderBytes> header_;
    size_t got_ = 0;  // of the header, then of the payload too
    Frame frame_;
    std::byte* destination_ = nullptr;
  };
  struct Link {
    std::unique_ptr<PairMirror> mirror;
    std::unique_ptr<SendStream> out;
    std::unique_ptr<Incoming> in;
    int64_t lost_at_ns = 0;
    std::string why;
    bool ended = false;
  };
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
  static void lose(Link& link, const std::string& why, int64_t now_ns);
  bool advance(Link& link, int64_t now_ns);
  bool may_end();         // nothing is left to tell, or nobody to tell it to
  Link& link(Rank peer);  // under mutex_
  int64_t collect(std::vector<pollfd>& fds);

  const TcpConfig& config_;
  const Fd listener_;
  const Adopt adopt_;
  const std::atomic<uint32_t>* interrupted_ = nullptr;
  Bell* messages_ = nullptr;
  Fd wake_fd_;
  std::atomic<bool> woken_ = false;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // guards the map of links, not what is in them
  std::map<Rank, Link> links_;

  // The thread's own.
  std::vector<Stranger> strangers_;
  std::set<std::pair<Rank, uint32_t>> admitted_;
  int64_t accept_again_ns_ = 0;
  int64_t stop_at_ns_ = 0;
  std::thread thread_;

  std::atomic<uint64_t> accepted_ = 0;
  std::atomic<uint64_t> wrong_token_ = 0;
  std::atomic<uint64_t> old_generation_ = 0;
  std::atomic<uint64_t> unknown_rank_ = 0;
  std::atomic<uint64_t> malformed_ = 0;
  std::atomic<uint64_t> too_slow_ = 0;
};

}  // namespace keepstep::comm::tcp
