// The streams for parts of one group between this rank and its peers, and waiting for parts.
//
// Has no thread of its own: the thread that carries out a collective drives the sockets while it waits, because on a
// machine with few cores, passing each frame on from a progress thread costs more than the frame itself. So one thread
// at a time, except for adopt() and wake().
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/tcp/part_streams.h"
#include "comm/tcp/tcp_config.h"
#include "comm/tcp/wake_up.h"
#include "comm/transport.h"

namespace keepstep::comm::tcp {

// What all groups of a transport share.
struct PartsShared {
  const TcpConfig& config;
  const std::shared_ptr<const net::TlsContext> tls;
  const std::atomic<uint32_t>* interrupted = nullptr;
  std::atomic<uint64_t>* moved = nullptr;
  std::atomic<uint64_t> bytes_sent = 0;
  std::atomic<uint64_t> bytes_received = 0;
  std::atomic<uint64_t> malformed = 0;
};

class PartLinks : public Parts {
 public:
  // `shared` must outlive this object.
  PartLinks(PartsShared& shared, uint64_t context);

  void send(PartRequest& request, Rank to, const PartKey& key, std::span<const std::byte> bytes) override;
  void receive(PartRequest& request, Rank from, const PartKey& key, std::span<std::byte> buffer) override;
  Waited wait(const PartRequest& request, int64_t deadline_ns, const std::atomic<uint64_t>& given_up) override;
  void cancel() override;
  void give_up(GivenUp who) override;
  GivenUp given_up() const override { return given_up_.value_or(GivenUp{}); }
  std::string why_lost(Rank peer) const override;

  // Takes over a connection that proved to be a stream from `from`. Any thread.
  void adopt(Rank from, FrameReader connection);
  // Makes the thread that sleeps in wait() check again. Any thread.
  void wake() { wake_up_.ring(); }

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

  void end_group(GivenUp who);

  PartsShared& shared_;
  const TcpConfig& config_;
  const uint64_t context_;
  WakeUp wake_up_;
  std::atomic<bool> has_adopted_ = false;
  std::mutex mutex_;
  struct Adopted {
    Rank from;
    FrameReader connection;
  };
  std::vector<Adopted> adopted_;

  std::map<Rank, Peer> peers_;
  std::optional<GivenUp> given_up_;
  bool told_ = false;  // whether we told the others that the group is given up
  int tries_ = 0;      // number of tries before sleeping; grows while that helps
  size_t next_stream_ = 0;
};

}  // namespace keepstep::comm::tcp
