#include "comm/tcp/tcp_transport.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/engine_thread.h"
#include "comm/sync.h"
#include "comm/tcp/incoming_thread.h"
#include "comm/tcp/message_links.h"
#include "comm/tcp/outgoing_thread.h"
#include "comm/tcp/part_groups.h"
#include "net/listener.h"
#include "net/tls_context.h"

namespace keepstep::comm {
namespace {

constexpr int64_t kWatchNs = 1'000'000'000;

TcpConfig bounded(TcpConfig config) {
  config.streams = std::clamp<uint32_t>(config.streams, 1, tcp::kMaxStreams);
  config.socket_buffer_bytes = grantable_socket_buffer(config.socket_buffer_bytes);
  config.stripe_bytes = std::clamp<size_t>(config.stripe_bytes, 4096, tcp::kMaxFrameBytes);
  config.message_frame_bytes = std::clamp<size_t>(config.message_frame_bytes, 4096, tcp::kMaxFrameBytes);
  return config;
}

std::shared_ptr<const net::TlsContext> tls_of(const net::SharedKey& key) {
  StatusOr<std::shared_ptr<const net::TlsContext>> context = net::TlsContext::create(key);
  KEEPSTEP_CHECK(context.ok(), std::string(context.status().message()).c_str());
  return *std::move(context);
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(TcpConfig config, Fd listener)
      : config_(bounded(std::move(config))),
        tls_(tls_of(config_.key)),
        socket_(std::move(listener)),
        parts_(config_, tls_),
        messages_(config_, tls_),
        outgoing_(config_, messages_),
        incoming_(config_, messages_, parts_, [this] { outgoing_.changed(); }) {
    KEEPSTEP_CHECK(config_.self < config_.addresses.size(), "a rank needs an address of its own");
  }

  ~TcpTransport() override {
    if (watcher_.joinable()) {
      stop_.store(true, std::memory_order_seq_cst);
      ring(*interruption_);
      watcher_.join();
    }
    outgoing_.stop();  // while we still take in what peers tell, who do the same
    listener_.reset();
  }

  void start(const std::atomic<uint32_t>& interrupted, Bell& interruption, Bell& messages,
             std::atomic<uint64_t>& moved) override {
    KEEPSTEP_CHECK(interruption_ == nullptr, "a transport serves one communicator");
    interruption_ = &interruption;
    parts_.start(interrupted, moved);
    incoming_.start(messages, moved);
    listen();
    outgoing_.start(interrupted, messages, moved);
    watcher_ = start_engine_thread("ks-interruption", [this, &interrupted] { watch(interrupted); });
  }

  std::unique_ptr<Parts> open_parts(uint64_t context) override { return parts_.open(context); }

  Pair pair(Rank from, Rank to) override { return messages_.pair(from, to); }
  void changed(Rank) override { outgoing_.changed(); }

  Counters counters() const override {
    Counters counters;
    incoming_.add_counters(counters);
    parts_.add_counters(counters);
    return counters;
  }

 private:
  // The interruption is a word in shared memory and a futex; who waits in poll() needs a descriptor.
  void watch(const std::atomic<uint32_t>& interrupted) {
    const auto over = [&] {
      return stop_.load(std::memory_order_seq_cst) || interrupted.load(std::memory_order_seq_cst);
    };
    while (!over()) {
      sleep_on(*interruption_, kWatchNs, over);
    }
    parts_.wake();
  }

  void listen() {
    const net::ListenerOptions options{
        .handshake_limit = std::chrono::milliseconds(config_.handshake_ns / 1'000'000),
        .max_strangers = config_.max_strangers,
        .max_strangers_per_source = config_.max_strangers_per_source,
        .socket_buffer_bytes = config_.socket_buffer_bytes,
    };
    StatusOr<std::unique_ptr<net::Listener>> listener = net::Listener::start(
        std::move(socket_), tls_, options, [this](net::TlsStream stream) { incoming_.hear(std::move(stream)); },
        [this](const Status& why) { incoming_.refused(why); });
    KEEPSTEP_CHECK(listener.ok(), std::string(listener.status().message()).c_str());
    listener_ = *std::move(listener);
  }

  const TcpConfig config_;
  const std::shared_ptr<const net::TlsContext> tls_;
  Fd socket_;  // until the listener has it
  tcp::PartGroups parts_;
  tcp::MessageLinks messages_;
  tcp::OutgoingThread outgoing_;
  tcp::IncomingThread incoming_;
  std::unique_ptr<net::Listener> listener_;
  Bell* interruption_ = nullptr;
  std::atomic<bool> stop_ = false;
  std::thread watcher_;
};

}  // namespace

MaxSockets max_sockets(uint64_t peers_elsewhere, uint32_t streams, size_t socket_buffer_bytes) {
  return {peers_elsewhere * 2 * (1 + streams), max_socket_memory(grantable_socket_buffer(socket_buffer_bytes))};
}

std::unique_ptr<Transport> make_tcp_transport(TcpConfig config, Fd listener) {
  return std::make_unique<TcpTransport>(std::move(config), std::move(listener));
}

}  // namespace keepstep::comm
