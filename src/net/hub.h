// Many connections on one thread, for those that must not wait: whole messages in both directions, over TLS.
//
// A Connection has callers that wait for it; here the hub's thread waits for all of its links at once, and tells their
// receivers what came. What is sent is queued and goes out when the socket takes it. So OpenSSL sees a single thread,
// and nobody needs a lock around it.
//
// An empty message is a sign of life: a link with `ask_after` sends one when it has had nothing to say for so long, and
// takes a peer that has said nothing for five times as long for dead. It is never delivered.
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
  size_t max_message_bytes = size_t{4} << 20;  // received
  // Queued and not taken by the socket: a peer that leaves more unread has stopped reading, and the link breaks.
  size_t max_queued_messages = 100'000;
  size_t max_queued_bytes = size_t{256} << 20;
  std::chrono::milliseconds ask_after{0};                      // 0: never, the kernel tells of the dead (unix sockets)
  std::chrono::milliseconds linger = std::chrono::seconds(5);  // after end(), for a peer that takes nothing
};

// Called on the hub's thread; must not block, for all other links wait meanwhile. May call its link.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual void received(std::string message) = 0;
  // The very last call. OUT_OF_RANGE: the peer ended the connection in order; CANCELLED: abort(), or the hub is gone;
  // else it broke: UNAVAILABLE, DATA_LOSS, INVALID_ARGUMENT (a message over the limit), RESOURCE_EXHAUSTED (of
  // max_queued_...), DEADLINE_EXCEEDED (linger).
  virtual void closed(const Status& why) = 0;
};

// The bytes of a message that goes to many are kept once.
using SharedBytes = std::shared_ptr<const std::string>;

class Hub;

// One connection of a hub. Any thread may call it, at any time; all calls return at once. After the end of the
// connection they do nothing.
class Link : public std::enable_shared_from_this<Link> {
 public:
  // Queues a message: `head`, then `*tail` if there is one.
  void send(std::string head, SharedBytes tail = nullptr);
  // Sends what is queued, then ends the connection: the peer gets everything, and what it still says is dropped.
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

  // The hub's thread's.
  std::optional<TlsStream> stream_;  // none: closed
  Receiver* receiver_ = nullptr;
  MessageReader reader_;
  SharedBytes tail_;                     // of the message under way
  std::string_view tail_left_;           // what of it is not encrypted yet
  uint32_t events_ = 0;                  // that epoll watches for
  bool ended_ = false;                   // we said that nothing follows
  std::chrono::milliseconds silent_{0};  // how long the peer has been, as far as this process ran
  std::chrono::milliseconds quiet_{0};   // the same of what the socket takes from us
};

class Hub {
 public:
  // `name`: of its thread, at most 15 bytes. RESOURCE_EXHAUSTED and the like: no descriptors.
  static StatusOr<std::unique_ptr<Hub>> start(const char* name);
  // Closes all links, and joins the thread. Not from a receiver.
  ~Hub();

  // A connection whose handshake is done. Nothing comes of it before start().
  std::shared_ptr<Link> add(TlsStream stream, const LinkOptions& options);
  // `receiver` must live until its closed().
  void start(const std::shared_ptr<Link>& link, Receiver* receiver);

 private:
  friend class Link;
  using Clock = std::chrono::steady_clock;
  struct Started {
    std::shared_ptr<Link> link;
    Receiver* receiver;
  };

  Hub(Fd epoll, Fd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  void wake(Link* link);  // with the link's mutex held
  void notify();
  void run();
  bool take_calls();
  void serve(Link& link, uint32_t events);
  void read(Link& link);
  StatusOr<bool> read_some(Link& link, int most_records);
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

  // The thread's.
  std::map<Link*, std::shared_ptr<Link>> links_;
  std::vector<std::shared_ptr<Link>> unread_;  // others had their turn first
  std::vector<std::shared_ptr<Link>> closed_;  // epoll may still name them
  Clock::time_point ticked_ = Clock::now();
  std::thread thread_;
};

}  // namespace keepstep::net
