#include "comm/tcp/incoming_stream.h"

#include <optional>

#include "comm/progress.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int kMaxFramesAtOnce = 32;  // then the other links have their turn

}  // namespace

IncomingStream::Came IncomingStream::advance(PairMirror& mirror, std::atomic<uint64_t>& moved) {
  Came came;
  const int most = mirror.incoming_bytes().cancelled() ? 1 : kMaxFramesAtOnce;
  for (int frames = 0; frames < most;) {
    switch (reader_.advance()) {
      case FrameReader::Came::kNothing:
        return came;
      case FrameReader::Came::kLost:
        why_ = reader_.why();
        return {.lost = true};
      case FrameReader::Came::kMalformed:
        why_ = reader_.why();
        return {.lost = true, .malformed = true};
      case FrameReader::Came::kHeader: {
        target_ = {};
        if (reader_.frame().kind == FrameKind::kBytes) {
          const std::optional<PairMirror::Target> found = mirror.target(reader_.frame());
          if (!found.has_value()) {
            return malformed();
          }
          target_ = *found;
        }
        reader_.place(target_.to);
        break;
      }
      case FrameReader::Came::kFrame: {
        if (!mirror.apply(reader_.frame())) {
          return malformed();
        }
        if (target_.to != nullptr) {
          note_moved(moved);
        }
        came.changed = came.changed || reader_.frame().kind != FrameKind::kBytes || target_.ends_message;
        ++frames;
        break;
      }
    }
  }
  came.more = true;
  return came;
}

IncomingStream::Came IncomingStream::malformed() {
  why_ = "it sent a malformed frame";
  return {.lost = true, .malformed = true};
}

}  // namespace keepstep::comm::tcp
