// The streams for parts between this rank and its peers, and waiting for them.
//
// No thread of its own: whoever carries out a collective drives the sockets while it waits, because on a machine with
// few cores handing each frame over from a progress thread costs more than the frame. So one thread at a time, but for
// adopt() and wake().
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/tcp/part_streams.h"
#include "comm/tcp/tcp_config.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

class PartLinks {
 public:
  explicit PartLinks(const TcpConfig& config);
  void start(const std::atomic<uint32_t>& interrupted, std::atomic<uint64_t>& moved) {
    interrupted_ = &interrupted;
    moved_ = &moved;
  }

  // As in Transport.
  void send(PartRequest& request, Rank to, const PartKey& key, std::span<const std::byte> bytes);
  void receive(PartRequest& request, Rank from, const PartKey& key, std::span<std::byte> buffer);
  Waited wait(const PartRequest& request, int64_t deadline_ns, const std::atomic<uint64_t>& given_up);
  void cancel();
  void give_up(uint64_t context, GivenUp who);
  GivenUp given_up(uint64_t context) const;
  std::string why_lost(Rank peer) const;

  // A connection that proved to be `stream` from `from`. Any thread.
  void adopt(Rank from, uint32_t stream, Fd fd);
  // Who sleeps in wait() looks again. Any thread.
  void wake();

  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  uint64_t bytes_received() const { return bytes_received_.load(std::memory_order_relaxed); }
  uint64_t malformed() const { return malformed_.load(std::memory_order_relaxed); }

 private:
  struct Peer {
    std::vector<std::unique_ptr<SendStream>> out;
    std::vector<std::unique_ptr<ReceiveStream>> in;
    Inbox inbox;
    std::string lost;
    int64_t lost_at_ns = 0;
  };
  Peer& peer(Rank rank);
  SendStream& out(Rank rank, Peer& peer, size_t stream);
  void take_adopted();
  bool advance_all();
  bool advance(Peer& peer, SendStream& stream, int64_t now_ns);
  bool advance(Peer& peer, ReceiveStream& stream);
  void lose(Peer& peer, const std::string& why);
  void sleep(int64_t until_ns);

  const TcpConfig& config_;
  const std::atomic<uint32_t>* interrupted_ = nullptr;
  std::atomic<uint64_t>* moved_ = nullptr;
  Fd wake_fd_;
  std::atomic<bool> has_adopted_ = false;
  std::mutex mutex_;
  struct Adopted {
    Rank from;
    uint32_t stream;
    Fd fd;
  };
  std::vector<Adopted> adopted_;

  std::map<Rank, Peer> peers_;
  std::set<uint64_t> given_up_;
  std::map<uint64_t, GivenUp> given_up_by_;
  std::set<uint64_t> told_;  // what we told others is given up
  std::vector<ReceiveStream::News> news_;
  int tries_ = 0;  // before sleeping; grows while that helps
  size_t next_stream_ = 0;
  std::atomic<uint64_t> bytes_sent_ = 0;
  std::atomic<uint64_t> bytes_received_ = 0;
  std::atomic<uint64_t> malformed_ = 0;
};

}  // namespace keepstep::comm::tcp
