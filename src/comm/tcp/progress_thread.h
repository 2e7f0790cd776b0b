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
#include <optional>
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

  void start(const std::atomic<uint32_t>& interrupted, Bell& messages, std::atomic<uint64_t>& moved);
  Transport::Pair pair(Rank from, Rank to);
  void changed();
  void add_counters(Transport::Counters& counters) const;

 private:
  // What a peer sends on stream 0.
  class Incoming {
   public:
    explicit Incoming(Fd fd) : fd_(std::move(fd)) {}
    enum class State { kWait, kChanged, kLost, kMalformed };  // kChanged: the thread of messages should know
    State advance(PairMirror& mirror, std::atomic<uint64_t>& moved);
    void drop() { destination_ = nullptr; }  // what comes of the message under way
    int fd() const { return fd_.get(); }
    const std::string& why() const { return why_; }  // lost or malformed

   private:
    State malformed();
    std::optional<State> read();
    bool begin(PairMirror& mirror);

    Fd fd_;
    std::string why_;
    std::array<std::byte, kFrameHeaderBytes> header_;  // of the next frame
    size_t got_ = 0;                                   // of it
    std::optional<Frame> frame_;                       // under way
    size_t left_ = 0;                                  // of its payload
    std::byte* destination_ = nullptr;                 // null: it is dropped
    bool ends_message_ = false;
  };
  struct Link {
    std::unique_ptr<PairMirror> mirror;
    // Held while memory of messages may be touched; so who cancels them can wait until it is not. Guards `out`, `in`.
    std::mutex in_use;
    std::unique_ptr<SendStream> out;
    std::unique_ptr<Incoming> in;
    size_t leaving = 0;  // bytes of a message in the queue of `out`
    bool leaving_ends_message = false;
    int64_t lost_at_ns = 0;
    std::string why;
    bool ended = false;
  };
  // One direction of a link's messages.
  class LinkBytes final : public Transport::Bytes {
   public:
    LinkBytes(Link& link, bool outgoing) : link_(link), outgoing_(outgoing) {}
    void add(std::span<std::byte> message) override { bytes().add(message); }
    uint64_t moved() const override { return bytes().moved(); }
    void cancel() override;

   private:
    MessageBytes& bytes() const { return outgoing_ ? link_.mirror->outgoing_bytes() : link_.mirror->incoming_bytes(); }
    Link& link_;
    const bool outgoing_;
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
  bool tell(Link& link, int64_t now_ns);
  bool may_end();         // nothing is left to tell, or nobody to tell it to
  Link& link(Rank peer);  // under mutex_
  int64_t collect(std::vector<pollfd>& fds);

  const TcpConfig& config_;
  const Fd listener_;
  const Adopt adopt_;
  const std::atomic<uint32_t>* interrupted_ = nullptr;
  Bell* messages_ = nullptr;
  std::atomic<uint64_t>* moved_ = nullptr;
  Fd wake_fd_;
  std::atomic<bool> woken_ = false;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // guards the map of links, not what is in them
  std::map<Rank, Link> links_;
  std::map<std::pair<Rank, bool>, LinkBytes> bytes_;  // of the peer, outgoing

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
