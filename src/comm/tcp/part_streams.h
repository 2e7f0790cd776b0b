// One direction of one stream between two ranks: frames going out, or frames of parts coming in. They never wait.
//
// A part is cut into frames that say where in the part they belong, so several streams may share one part. The
// receiving end puts a frame's bytes where the posted receive wants them; while there is none for the next frame it
// leaves the stream alone, so nothing unexpected is ever stored and the sender feels it. One thread only.
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
  // What is referred to must outlive it. `context`: of the group whose parts go over it.
  SendStream(const TcpConfig& config, std::shared_ptr<const net::TlsContext> tls, Rank to, uint32_t stream,
             uint64_t context = 0)
      : config_(config),
        tls_(std::move(tls)),
        address_(config.addresses[to]),
        hello_{config.identity, config.self, to, stream, context, config.protection} {}

  // `request` (may be null) has `frame.bytes` fewer left once these are with the system.
  void push(const Frame& frame, const std::byte* payload, PartRequest* request);
  // Connects, sends, and finds out that what was sent goes nowhere. True when something changed.
  bool advance(int64_t now_ns);
  // Forgets what has not begun; of frames that have, the payload is copied.
  void cancel();
  // Copies what is queued, so that nobody else's memory is read any more.
  void copy_queued();

  int fd() const { return dial_ != nullptr ? dial_->fd() : out_ != nullptr ? out_->fd() : -1; }
  // What to poll for; 0: nothing.
  short events() const;
  // When to advance again without an event; kNoDeadline: never.
  int64_t next_try_ns() const;
  bool idle() const { return queue_.empty(); }
  bool connected() const { return out_ != nullptr; }
  const std::string& lost() const { return lost_; }  // why it broke; empty while it did not

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
  int64_t unreached_since_ns_ = 0;  // no sign of the peer since then; 0: not so
  int64_t reached_at_ns_ = 0;       // when the dial under way was accepted
  bool silenced_ = false;           // nothing was acknowledged of an earlier dial, and nothing has answered since
  int64_t looked_at_ns_ = 0;        // by connect(), the last time
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

// What has been posted of one group for one peer.
struct Inbox {
  uint64_t context = 0;  // of the group; frames of another one break the link
  std::vector<Posted> posted = {};
  bool given_up = false;  // the group is over; what still comes for it is dropped
  uint64_t bytes_taken = 0;
  Posted* find(const PartKey& key);
};

class ReceiveStream {
 public:
  explicit ReceiveStream(FrameReader reader) : reader_(std::move(reader)) {}

  // Takes in what came. True when something changed. `told`: the first member that told that it ended the group.
  bool advance(Inbox& inbox, std::optional<GivenUp>& told);
  // Its posted receives are gone: what still comes of the frame under way is dropped.
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
