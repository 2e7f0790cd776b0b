// The links of this rank to its peers that carry messages: for each peer, the words of both pairs and a stream each
// way.
//
// Two threads serve them: the outgoing one sends peers what they do not know yet, the incoming one processes what they
// send. Each direction keeps one core busy with copying in the kernel, so one thread for both would be half as fast.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/tcp/incoming_stream.h"
#include "comm/tcp/pair_mirror.h"
#include "comm/tcp/part_streams.h"
#include "comm/tcp/tcp_config.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

struct MessageLink {
  MessageLink(const TcpConfig& config, std::shared_ptr<const net::TlsContext> tls, Rank peer)
      : mirror(peer, config.message_frame_bytes), outgoing{.stream = SendStream(config, std::move(tls), peer, 0)} {}

  PairMirror mirror;
  // `in_use` is held while message memory may be touched, so a thread that cancels messages can wait for that to end.
  // Cancelling is all that another thread does to a stream: it removes that memory from what is under way.
  struct Outgoing {
    std::mutex in_use = {};
    SendStream stream;
    size_t leaving = 0;  // bytes of a message in the queue of `stream`
    bool leaving_ends_message = false;
    bool ended = false;  // the mirror was ended: the link was lost, and no interruption arrived
  } outgoing;
  struct Incoming {
    std::mutex in_use;
    std::unique_ptr<IncomingStream> stream;  // null: the peer has not connected yet, or the stream was lost
  } incoming;

  // Called when either stream broke, by either of the two threads; only the first reason is kept.
  void lose(const std::string& why, int64_t now_ns);
  int64_t lost_at_ns() const { return lost_at_ns_.load(std::memory_order_acquire); }  // 0: not lost
  const std::string& why_lost() const { return why_lost_; }                           // once it is lost

 private:
  std::mutex losing_;
  std::string why_lost_;
  std::atomic<int64_t> lost_at_ns_ = 0;
};

class MessageLinks {
 public:
  // `config` must outlive it.
  MessageLinks(const TcpConfig& config, std::shared_ptr<const net::TlsContext> tls)
      : config_(config), tls_(std::move(tls)) {}

  // Any thread; what they return has a stable address.
  MessageLink& at(Rank peer);  // created on first use
  std::vector<MessageLink*> all();
  Transport::Pair pair(Rank from, Rank to);

 private:
  // One direction of a link's messages.
  class Bytes final : public Transport::Bytes {
   public:
    Bytes(MessageLink& link, bool outgoing) : link_(link), outgoing_(outgoing) {}
    void add(std::span<std::byte> message) override { bytes().add(message); }
    uint64_t moved() const override { return bytes().moved(); }
    void cancel() override;

   private:
    MessageBytes& bytes() const { return outgoing_ ? link_.mirror.outgoing_bytes() : link_.mirror.incoming_bytes(); }
    MessageLink& link_;
    const bool outgoing_;
  };
  MessageLink& link(Rank peer);  // under mutex_

  const TcpConfig& config_;
  const std::shared_ptr<const net::TlsContext> tls_;
  std::mutex mutex_;  // guards the maps, not what is in them
  std::map<Rank, MessageLink> links_;
  std::map<std::pair<Rank, bool>, Bytes> bytes_;  // key: the peer, and whether outgoing
};

}  // namespace keepstep::comm::tcp
