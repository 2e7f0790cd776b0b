#include "comm/tcp/outgoing_thread.h"

#include <algorithm>

#include "base/clock.h"
#include "base/engine_thread.h"
#include "base/short_turns.h"
#include "comm/progress.h"
#include "comm/sync.h"

namespace keepstep::comm::tcp {
namespace {

constexpr int64_t kLongestSleepNs = 900'000'000;
constexpr int kMaxFramesAtOnce = 32;  // of one link, then the others have their turn

}  // namespace

void OutgoingThread::start(const std::atomic<uint32_t>& interrupted, Bell& messages, std::atomic<uint64_t>& moved) {
  interrupted_ = &interrupted;
  messages_ = &messages;
  moved_ = &moved;
  thread_ = start_engine_thread("ks-outgoing", [this] { loop(); });
}

void OutgoingThread::stop() {
  if (thread_.joinable()) {
    stop_.store(true);
    changed();
    thread_.join();
  }
}

// What the peer does not know yet. True when a message left as a whole.
bool OutgoingThread::tell(MessageLink& link, int64_t now_ns) {
  MessageLink::Outgoing& out = link.outgoing;
  bool over = false;
  for (int frames = 0; frames < kMaxFramesAtOnce; ++frames) {
    out.stream.advance(now_ns);
    if (!out.stream.idle() || !out.stream.lost().empty()) {
      break;
    }
    if (out.leaving > 0) {
      link.mirror.outgoing_bytes().add_moved(out.leaving);
      note_moved(*moved_);
      over = over || out.leaving_ends_message;
      out.leaving = 0;
    }
    // Words leave together with the bytes that follow them.
    while (out.leaving == 0) {
      const std::optional<PairMirror::Telling> telling = link.mirror.next();
      if (!telling.has_value()) {
        break;
      }
      out.stream.push(telling->frame, telling->payload, nullptr);
      out.leaving = telling->frame.bytes;
      out.leaving_ends_message = telling->ends_message;
    }
    if (out.stream.idle()) {
      break;
    }
  }
  return over;
}

bool OutgoingThread::advance(MessageLink& link, int64_t now_ns) {
  MessageLink::Outgoing& out = link.outgoing;
  const std::lock_guard in_use(out.in_use);
  bool over = false;
  if (out.stream.lost().empty()) {
    over = tell(link, now_ns);
  }
  if (!out.stream.lost().empty()) {
    link.lose(out.stream.lost(), now_ns);
  }
  const int64_t lost_at_ns = link.lost_at_ns();
  if (lost_at_ns != 0 && !out.ended && now_ns - lost_at_ns >= config_.patience_ns) {
    out.ended = true;  // no interruption came
    link.mirror.end(link.why_lost());
    over = true;
  }
  return over;
}

// What to poll for, and until when.
int64_t OutgoingThread::collect(const std::vector<MessageLink*>& links, std::vector<pollfd>& fds) const {
  int64_t until_ns = monotonic_ns() + kLongestSleepNs;
  if (stop_at_ns_ != 0) {
    until_ns = std::min(until_ns, stop_at_ns_);
  }
  fds.clear();
  fds.push_back({wake_up_.fd(), POLLIN, 0});
  for (const MessageLink* link : links) {
    const SendStream& stream = link->outgoing.stream;
    if (const short events = stream.events(); events != 0) {
      fds.push_back({stream.fd(), events, 0});
    }
    until_ns = std::min(until_ns, stream.next_try_ns());
    if (const int64_t lost_at_ns = link->lost_at_ns(); lost_at_ns != 0 && !link->outgoing.ended) {
      until_ns = std::min(until_ns, lost_at_ns + config_.patience_ns);
    }
  }
  return until_ns;
}

bool OutgoingThread::may_end(const std::vector<MessageLink*>& links) {
  const int64_t now_ns = monotonic_ns();
  if (stop_at_ns_ == 0) {
    stop_at_ns_ = now_ns + config_.patience_ns;
  }
  return interrupted_->load() != 0 || now_ns >= stop_at_ns_ ||
         std::all_of(links.begin(), links.end(),
                     [](const MessageLink* link) { return link->outgoing.stream.idle() || link->lost_at_ns() != 0; });
}

void OutgoingThread::loop() {
  take_short_turns();
  std::vector<pollfd> fds;
  while (true) {
    wake_up_.begin_round();
    const bool stopping = stop_.load();  // before we look for what is left to tell
    const int64_t now_ns = monotonic_ns();
    const std::vector<MessageLink*> links = links_.all();
    bool over = false;
    for (MessageLink* link : links) {
      over = advance(*link, now_ns) || over;
    }
    if (over) {
      ring(*messages_);
    }
    if (stopping && may_end(links)) {
      return;
    }
    wake_up_.sleep(fds, collect(links, fds));
  }
}

}  // namespace keepstep::comm::tcp
