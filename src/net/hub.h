// Many connections on one thread, for callers that must not wait: whole messages in both directions, over TLS.
//
// Callers of a Connection wait for it; here the hub's thread waits for all of its links at once and passes what arrives
// to their receivers. Sent messages are queued and leave when the socket accepts them. So OpenSSL sees a single thread
// and needs no lock around it.
//
// An empty message is a sign of life. A link with `ask_after` sends one after that long without sending, and declares
// its peer dead after five times as long without hearing from it. Empty messages are never delivered.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "net/message_reader.h"
#include "net/tls_stream.h"

namespace keepstep::net {

struct LinkOptions {
  size_t max_message_bytes = size_t{4} << 20;  // of a received message
  // Limits on what is queued but not yet accepted by the socket. Beyond them the peer is taken to have stopped reading,
  // and the link breaks.
  size_t max_queued_messages = 100'000;
  size_t max_queued_bytes = size_t{256} << 20;
  std::chrono::milliseconds ask_after{0};                      // 0: never (unix: the kernel reports dead peers)
  std::chrono::milliseconds linger = std::chrono::seconds(5);  // after end(), for a peer that reads nothing
};

// Called on the hub's thread. Must not block, because all other links wait meanwhile. May call its link.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void received(std::string message) = 0;
  // The last call. OUT_OF_RANGE: the peer ended the connection cleanly; CANCELLED: abort(), or the hub was destroyed;
  // otherwise the connection broke: UNAVAILABLE, DATA_LOSS, INVALID_ARGUMENT (a message over the limit),
  // RESOURCE_EXHAUSTED (over max_queued_...), DEADLINE_EXCEEDED (linger).
  virtual void closed(const Status& why) = 0;
};

// The bytes of a message to many receivers are stored once.
using SharedBytes = std::shared_ptr<const std::string>;

class Hub;

// One connection of a hub. Any thread may call it at any time; all calls return at once. After the connection has ended
// they do nothing.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // Queues a message: `head`, then `*tail` if there is one.
  void send(std::string head, SharedBytes tail = nullptr);
  // Sends what is queued, then ends the connection: the peer gets everything, and anything it still sends is dropped.
  void end();
  // Ends the connection at once.
  void abort();
  const std::string& peer() const { return peer_; }

 private:
  friend class Hub;
  enum class Wish { kGoOn, kEnd, kAbort };
  struct Message {
    std::string head;
    SharedBytes tail;
    size_t bytes() const { return head.size() + (tail == nullptr ? 0 : tail->size()); }
  };

  Link(Hub* hub, TlsStream stream, const LinkOptions& options);
  void wish(Wish wish);

  const LinkOptions options_;
  const std::string peer_;

  std::mutex mutex_;
  Hub* hub_;  // null: the connection is over
  std::deque<Message> queue_;
  size_t queued_bytes_ = 0;
  Wish wish_ = Wish::kGoOn;
  bool overfull_ = false;
  bool woken_ = false;  // the hub's thread will look at this link

  // Used by the hub's thread only.
  std::optional<TlsStream> stream_;  // std::nullopt once closed
  Receiver* receiver_ = nullptr;
  MessageReader reader_;
  SharedBytes tail_;                     // of the message being sent
  std::string_view tail_left_;           // the part of it that is not encrypted yet
  uint32_t events_ = 0;                  // the events that epoll watches for
  bool ended_ = false;                   // we told the peer that nothing follows
  std::chrono::milliseconds silent_{0};  // the peer's silence, counting only time in which this process ran
  std::chrono::milliseconds quiet_{0};   // the same for the time since the socket last accepted data
};

class Hub {
 public:
  // `name`: the thread's name, at most 15 bytes. RESOURCE_EXHAUSTED and the like: no descriptors.
  static StatusOr<std::unique_ptr<Hub>> start(const char* name);
  // Closes all links and joins the thread. Must not be called from a receiver.
  ~Hub();

  // Adds a connection whose handshake is done. Nothing is received before start().
  std::shared_ptr<Link> add(TlsStream stream, const LinkOptions& options);
  // `receiver` must live until its closed() was called.
  void start(const std::shared_ptr<Link>& link, Receiver* receiver);

 private:
  friend class Link;
  using Clock = std::chrono::steady_clock;
  struct Started {
    std::shared_ptr<Link> link;
    Receiver* receiver;
  };

  Hub(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  void wake(Link* link);  // called with the link's mutex held
  void notify();
  void run();
  bool take_calls();
  void serve(Link& link, uint32_t events);
  void read(Link& link);
  StatusOr<bool> read_some(Link& link, int max_records);
  void write(Link& link);
  StatusOr<TlsStream::Wait> write_some(Link& link);
  StatusOr<bool> encrypt_some(Link& link);
  void watch(Link& link, uint32_t events);
  std::chrono::milliseconds since_tick() const;
  void tick(std::chrono::milliseconds passed);
  void close(Link& link, const Status& why);

  const Fd epoll_;
  const Fd wake_;  // an eventfd

  std::mutex mutex_;  // taken after a link's own, never before
  std::vector<Started> started_;
  std::vector<std::shared_ptr<Link>> woken_;
  bool stopping_ = false;

  // Used by the hub's thread only.
  std::map<Link*, std::shared_ptr<Link>> links_;
  std::vector<std::shared_ptr<Link>> unread_;  // links with unread data that let others take a turn
  std::vector<std::shared_ptr<Link>> closed_;  // events from epoll may still point to them
  Clock::time_point ticked_ = Clock::now();
  std::thread thread_;
};

}  // namespace keepstep::net
