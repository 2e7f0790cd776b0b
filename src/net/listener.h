// Accepts connections and lets in those that prove the key, on a thread of its own that waits for no stranger.
//
// A connection that has not proved the key yet is a stranger. It costs a descriptor, and once it speaks what OpenSSL
// takes for a handshake (some 200 KiB at most), nothing more. Strangers are few and have little time; when there are
// too many the oldest makes room, one that has said nothing first, so that a flood does not keep out a member, which
// proves itself in a round trip.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "base/fd.h"
#include "base/status.h"
#include "net/address.h"
#include "net/tls_stream.h"

namespace keepstep::net {

struct ListenerOptions {
  std::chrono::milliseconds handshake_limit = std::chrono::seconds(10);  // from accept to proof
  size_t max_strangers = 64;
  size_t max_strangers_per_source = 16;  // of one IP address; a unix socket's are all of this user
  size_t socket_buffer_bytes = 0;        // of TCP (tcp_socket.h)
};

class Listener {
 public:
  // Both are called on the listener's thread, one at a time. They must not block, for everything waits meanwhile, nor
  // destroy the listener.
  // A member: what comes over this stream is for a Connection or a Hub to read.
  using OnMember = std::function<void(TlsStream)>;
  // A stranger was turned away: its address and the reason. As often as strangers like.
  using OnRefused = std::function<void(const Status& why)>;

  // Listens at `address`. Errors of listen_at().
  static StatusOr<std::unique_ptr<Listener>> start(const Address& address, std::shared_ptr<const TlsContext> context,
                                                   ListenerOptions options, OnMember on_member,
                                                   OnRefused on_refused = nullptr);
  // The same over `socket`, which listens already, without blocking. For TCP.
  static StatusOr<std::unique_ptr<Listener>> start(Fd socket, std::shared_ptr<const TlsContext> context,
                                                   ListenerOptions options, OnMember on_member,
                                                   OnRefused on_refused = nullptr);
  // Ends the thread; connections that were let in live on. A unix socket's path is removed.
  ~Listener();

  // With the port that was chosen.
  const Address& address() const { return address_; }

  struct Counters {
    uint64_t let_in = 0;
    uint64_t refused = 0;          // it did not prove the key, broke off, or is another user
    uint64_t too_slow = 0;         // it did not prove it in time
    uint64_t made_room = 0;        // it was the oldest when there were too many
    uint64_t accept_failures = 0;  // the system gave no connection, say for want of descriptors
  };
  Counters counters() const;

 private:
  struct Stranger;

  static StatusOr<std::unique_ptr<Listener>> start(Fd socket, Address address,
                                                   std::shared_ptr<const TlsContext> context, ListenerOptions options,
                                                   OnMember on_member, OnRefused on_refused);
  Listener(Fd socket, Address address, std::shared_ptr<const TlsContext> context, ListenerOptions options,
           OnMember on_member, OnRefused on_refused);
  void run();
  void accept_some();
  void admit(Fd fd);
  void make_room(const std::string& source);
  void accept_failed(const Status& why);
  bool advance(Stranger& stranger);
  bool is_late(const Stranger& stranger);
  void refuse(std::atomic<uint64_t>& counter, const Status& why);

  const Fd socket_;
  const Address address_;
  const std::shared_ptr<const TlsContext> context_;
  const ListenerOptions options_;
  const OnMember on_member_;
  const OnRefused on_refused_;
  const Fd stop_;  // an eventfd

  // Of the thread.
  std::list<Stranger> strangers_;  // the oldest first
  Deadline accept_again_ = Deadline::after({});
  std::chrono::milliseconds accept_pause_{0};

  std::atomic<uint64_t> let_in_ = 0;
  std::atomic<uint64_t> refused_ = 0;
  std::atomic<uint64_t> too_slow_ = 0;
  std::atomic<uint64_t> made_room_ = 0;
  std::atomic<uint64_t> accept_failures_ = 0;
  std::thread thread_;
};

}  // namespace keepstep::net
