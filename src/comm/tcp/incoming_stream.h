// What a peer sends on stream 0: words, and the bytes of messages, which go straight where they belong. One thread
// only, and it never waits.
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
    bool changed = false;    // the thread of messages should know
    bool more = false;       // come back before waiting for bytes: other links have their turn first
    bool lost = false;       // why() tells
    bool malformed = false;  // and it was lost for that
  };
  // Takes in what came, a few frames at most.
  Came advance(PairMirror& mirror, std::atomic<uint64_t>& moved);
  // What still comes of the message under way is dropped. Not while advance() runs.
  void drop() { reader_.drop(); }

  int fd() const { return reader_.fd(); }
  const std::string& why() const { return why_; }

 private:
  Came malformed();

  FrameReader reader_;
  PairMirror::Place place_;  // of the frame under way
  std::string why_;
};

}  // namespace keepstep::comm::tcp
