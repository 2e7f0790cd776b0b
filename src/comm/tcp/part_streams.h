// One direction of one stream between two ranks: outgoing frames, or incoming frames of parts. Never waits.
//
// A part is cut into frames that contain their offset in the part, so several streams may share one part. The receiving
// end puts a frame's bytes straight into the posted receive; while none is posted for the next frame it does not read
// the stream, so nothing unexpected is ever stored and the sender gets backpressure. One thread only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/tcp/frame_reader.h"
#include "comm/tcp/frame_writer.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/tcp_config.h"
#include "comm/tcp/wire.h"

namespace keepstep::comm::tcp {

class SendStream {
 public:
  // All references must outlive this object. `context`: of the group whose parts it carries.
  SendStream(const TcpConfig& config, std::shared_ptr<const net::TlsContext> tls, Rank to, uint32_t stream,
             uint64_t context = 0)
      : config_(config),
        tls_(std::move(tls)),
        address_(config.addresses[to]),
        hello_{config.identity, config.self, to, stream, context, config.protection} {}

  // `request` (may be null) has its `left` reduced by `frame.bytes` once these are with the system.
  void push(const Frame& frame, const std::byte* payload, PartRequest* request);
  // Connects, sends, and detects when sent data are not acknowledged. True if something changed.
  bool advance(int64_t now_ns);
  // Drops frames that have not begun; copies the payload of those that have.
  void cancel();
  // Copies what is queued, so no one else's memory is read anymore.
  void copy_queued();

  int fd() const { return dial_ != nullptr ? dial_->fd() : out_ != nullptr ? out_->fd() : -1; }
  // What to poll for; 0: nothing.
  short events() const;
  // When to call advance() again without an event; kNoDeadline: never.
  int64_t next_try_ns() const;
  bool idle() const { return queue_.empty(); }
  bool connected() const { return out_ != nullptr; }
  const std::string& lost() const { return lost_; }  // why it broke; empty if it did not

 private:
  bool connect(int64_t now_ns);
  bool fell_silent(int64_t now_ns);
  bool write();
  void lose(std::string why);

  const TcpConfig& config_;
  const std::shared_ptr<const net::TlsContext> tls_;
  const SocketAddress& address_;
  const Hello hello_;
  std::unique_ptr<Dial> dial_;
  int64_t unreached_since_ns_ = 0;  // no sign of the peer since then; 0: not counting
  int64_t reached_at_ns_ = 0;       // when the dial under way was accepted
  bool silenced_ = false;           // an earlier dial got no acknowledgement, and nothing has answered since
  int64_t looked_at_ns_ = 0;        // when connect() was last called
  int64_t retry_at_ns_ = 0;
  int64_t pause_ns_ = 0;
  int64_t silence_looked_for_ns_ = 0;
  int64_t silent_since_ns_ = 0;  // 0: not silent
  std::unique_ptr<FrameWriter> out_;
  std::deque<OutgoingFrame> queue_;
  std::string lost_;
};

// A posted receive.
struct Posted {
  PartRequest* request;
  std::span<std::byte> buffer;
};

// The receives of one group posted for one peer.
struct Inbox {
  uint64_t context = 0;  // of the group; frames of another one break the link
  std::vector<Posted> posted = {};
  bool given_up = false;  // the group is over; data that still arrive for it are dropped
  uint64_t bytes_taken = 0;
  Posted* find(const PartKey& key);
};

class ReceiveStream {
 public:
  explicit ReceiveStream(FrameReader reader) : reader_(std::move(reader)) {}

  // Processes what arrived. True if something changed. `told`: the first member that reported that it ended the group.
  bool advance(Inbox& inbox, std::optional<GivenUp>& told);
  // Its posted receives are gone: drops the rest of the current frame.
  void cancel();

  int fd() const { return reader_.fd(); }
  bool stuck() const { return stuck_; }  // the next frame waits for a receive: do not poll
  const std::string& lost() const { return lost_; }
  bool malformed() const { return malformed_; }

 private:
  bool begin(Inbox& inbox, std::optional<GivenUp>& told);
  bool begin_part(Inbox& inbox);
  void finish(Inbox& inbox);
  bool lose(std::string why, bool malformed = false);

  FrameReader reader_;
  PartRequest* request_ = nullptr;  // of the frame under way
  bool stuck_ = false;
  std::string lost_;
  bool malformed_ = false;
};

}  // namespace keepstep::comm::tcp
