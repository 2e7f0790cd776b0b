// What a peer sends on stream 0: words, and the bytes of messages, which go straight where they belong. One thread
// only, and it never waits.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "base/fd.h"
#include "comm/tcp/pair_mirror.h"
#include "comm/tcp/wire.h"

namespace keepstep::comm::tcp {

class IncomingStream {
 public:
  explicit IncomingStream(Fd fd) : fd_(std::move(fd)) {}

  enum class State { kWait, kChanged, kLost, kMalformed };  // kChanged: the thread of messages should know
  // Takes in what came, a few frames at most.
  State advance(PairMirror& mirror, std::atomic<uint64_t>& moved);
  // What still comes of the message under way is dropped. Not while advance() runs.
  void drop() { destination_ = nullptr; }

  int fd() const { return fd_.get(); }
  const std::string& why() const { return why_; }  // lost or malformed

 private:
  State malformed();
  std::optional<State> read();
  bool begin(PairMirror& mirror);

  Fd fd_;
  std::string why_;
  std::array<std::byte, kFrameHeaderBytes> header_;  // of the next frame
  size_t got_ = 0;                                   // of it
  std::optional<Frame> frame_;                       // under way
  size_t left_ = 0;                                  // of its payload
  std::byte* destination_ = nullptr;                 // null: it is dropped
  bool ends_message_ = false;
};

}  // namespace keepstep::comm::tcp
