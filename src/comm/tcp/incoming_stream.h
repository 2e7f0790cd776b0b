// What a peer sends on stream 0: words, and the bytes of messages, which go straight to their destination. One thread
// only; never waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "comm/tcp/frame_reader.h"
#include "comm/tcp/pair_mirror.h"

namespace keepstep::comm::tcp {

class IncomingStream {
 public:
  explicit IncomingStream(FrameReader reader) : reader_(std::move(reader)) {}

  struct Came {
    bool changed = false;    // the message thread should know
    bool more = false;       // call again before waiting for bytes: other links get their turn first
    bool lost = false;       // see why()
    bool malformed = false;  // and lost for that reason
  };
  // Processes what arrived, a few frames at most.
  Came advance(PairMirror& mirror, std::atomic<uint64_t>& moved);
  // Drops the rest of the current message. Must not be called while advance() runs.
  void drop() { reader_.drop(); }

  int fd() const { return reader_.fd(); }
  const std::string& why() const { return why_; }

 private:
  Came malformed();

  FrameReader reader_;
  PairMirror::Target target_;  // of the frame under way
  std::string why_;
};

}  // namespace keepstep::comm::tcp
