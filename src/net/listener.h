// Accepts connections on its own thread and admits those that prove the key. No single stranger makes the thread wait.
//
// A connection that has not proved the key yet is a stranger. It costs a descriptor and, once it sends something, the
// memory that OpenSSL needs for a handshake (about 200 KiB at most), but nothing more. The number of strangers and
// their time are limited. When there are too many, the oldest that has sent nothing is closed, or else the oldest. So a
// flood does not keep out a member, which proves the key within one round trip.
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
  size_t max_strangers_per_source = 16;  // per IP address; not for a unix socket, where all are this user's
  size_t socket_buffer_bytes = 0;        // for TCP (tcp_socket.h)
};

class Listener {
 public:
  // Both are called on the listener's thread, one at a time. They must not block, because all connections wait
  // meanwhile, and must not destroy the listener.
  // A member connected: pass the stream to a Connection or a Hub, which reads from it.
  using OnMember = std::function<void(TlsStream)>;
  // A stranger was turned away: its address and the reason. Strangers can cause any number of these calls.
  using OnRefused = std::function<void(const Status& why)>;

  // Listens at `address`. Errors of listen_at().
  static StatusOr<std::unique_ptr<Listener>> start(const Address& address, std::shared_ptr<const TlsContext> context,
                                                   ListenerOptions options, OnMember on_member,
                                                   OnRefused on_refused = nullptr);
  // The same over `socket`, which must already listen and be non-blocking. For TCP.
  static StatusOr<std::unique_ptr<Listener>> start(Fd socket, std::shared_ptr<const TlsContext> context,
                                                   ListenerOptions options, OnMember on_member,
                                                   OnRefused on_refused = nullptr);
  // Ends the thread; admitted connections live on. Removes the path of a unix socket.
  ~Listener();

  // Includes the port that was chosen.
  const Address& address() const { return address_; }

  struct Counters {
    uint64_t let_in = 0;
    uint64_t refused = 0;          // did not prove the key, broke off, or belongs to another user
    uint64_t too_slow = 0;         // did not prove the key in time
    uint64_t made_room = 0;        // closed as the oldest when there were too many
    uint64_t accept_failures = 0;  // the system returned no connection, for example for lack of descriptors
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

  // Used by the listener's thread only.
  std::list<Stranger> strangers_;  // oldest first
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
