// One direction between two ranks: this end's outstanding transfers, and what can be done about them now.
//
// A Channel never waits. The progress thread (point_to_point.h, which explains offers, grants and bytes) polls all of
// them in turn. One thread only.
#pragma once

#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/completions.h"
#include "comm/layout.h"
#include "comm/transport.h"

namespace keepstep::comm {

struct Transfer {
  OpId op = 0;
  bool is_send = false;
  std::byte* data = nullptr;  // a send only reads it
  size_t bytes = 0;
  Rank peer = 0;         // world rank
  Rank group_peer = 0;   // the same as a rank in its group
  uint64_t context = 0;  // tags of different contexts never match
  uint32_t tag = 0;
  int64_t timeout_ns = -1;
  int64_t deadline_ns = 0;
  std::string title;         // "send to rank 2 (tag 7) in group world"
  std::vector<Rank> any_of;  // a receive from any source: the possible sources (world ranks), in group order
  uint64_t order = 0;        // the position in which this rank posted this receive

  bool from_any() const { return !any_of.empty(); }
  void came_from(Rank world_rank);  // sets the source of a receive from any source
};

// Waiting receives from any source: each takes the first message that arrives. Shared by the receiving channels of a
// rank; progress thread only.
class AnySource {
 public:
  using Key = std::pair<uint64_t, uint32_t>;  // context, tag

  void add(Transfer transfer);
  // The oldest receive under `key`, if `peer` is a possible source and it was posted before `before`.
  std::optional<Transfer> take(const Key& key, Rank peer, uint64_t before);
  bool empty() const { return waiting_.empty(); }
  int64_t next_deadline_ns() const;
  void expire(int64_t now_ns, Completions& completions);
  void end_all(Outcome outcome, Completions& completions);

 private:
  std::multimap<Key, Transfer> waiting_;  // equal keys in the order they were added
};

class Channel {
 public:
  // `pair`: the words and the ring of an ordered pair; `self`: this end's world rank.
  Channel(const Transport::Pair& pair, Rank self, Completions& completions)
      : pair_(*pair.words),
        why_lost_(pair.why_lost),
        ring_(pair.ring),
        ring_bytes_(pair.ring_bytes),
        bytes_(pair.bytes),
        self_(self),
        completions_(completions) {}
  virtual ~Channel() = default;

  virtual void add(Transfer transfer) = 0;
  virtual bool idle() const = 0;
  virtual int64_t next_deadline_ns() const = 0;

  enum class Change : uint8_t {
    kNone,
    kHere,   // messages completed; the peer need not know
    kWords,  // the peer must be rung
  };
  // Does what can be done now.
  Change advance(const std::atomic<uint32_t>& interrupted);
  // Fails what timed out. True if the peer must be rung.
  bool expire(int64_t now_ns);
  // Completes everything outstanding; an interrupted receive is filled with zeros.
  virtual void end_all(Outcome outcome, const std::string& why) = 0;

 protected:
  virtual Change move(const std::atomic<uint32_t>& interrupted) = 0;
  // `words`: offers or grants changed. `moved`: messages progressed or completed.
  Change change_of(bool words, bool moved) const;
  // Ends transfers that timed out; false if one of them was under way, so the two ends are out of step.
  virtual bool end_expired(int64_t now_ns) = 0;

  void end(const Transfer& transfer, Outcome outcome, const std::string& why = {});
  void end_misfit(const Transfer& transfer, uint64_t message_bytes, uint64_t capacity);
  // Both ends stop using this pair in this generation.
  void give_up();
  // Called before a message that may be under way is reported as over, because the caller then reuses its memory.
  void stop_bytes();
  // Copies between a buffer and the ring at a counter's position; at most the ring's size.
  void to_ring(uint64_t position, const std::byte* from, size_t bytes);
  void from_ring(uint64_t position, std::byte* to, size_t bytes) const;
  size_t piece_bytes() const { return ring_bytes_ / 4; }  // so both ends can copy at the same time

  PairBlock& pair_;
  const std::string* why_lost_;
  std::byte* ring_;
  size_t ring_bytes_;
  Transport::Bytes* bytes_;  // null: uses the ring
  Rank self_;
  Completions& completions_;
};

class SendChannel final : public Channel {
 public:
  using Channel::Channel;
  void add(Transfer transfer) override { waiting_.push_back(std::move(transfer)); }
  bool idle() const override { return waiting_.empty() && offered_.empty() && granted_.empty(); }
  int64_t next_deadline_ns() const override;
  void end_all(Outcome outcome, const std::string& why) override;

 private:
  Change move(const std::atomic<uint32_t>& interrupted) override;
  bool end_expired(int64_t now_ns) override;
  bool write_offers();
  bool read_grants();
  bool write_bytes();
  bool end_moved();

  std::deque<Transfer> waiting_;          // no room for the offer yet
  std::map<uint64_t, Transfer> offered_;  // by number of the offer
  std::deque<Transfer> granted_;          // in the order of their bytes in the ring
  size_t sent_ = 0;                       // bytes of the first one, into the ring
  uint64_t over_ = 0;                     // without a ring: bytes of completed messages
};

class ReceiveChannel final : public Channel {
 public:
  // `peer`: the sender's world rank. `any` must outlive the channel.
  ReceiveChannel(const Transport::Pair& pair, Rank self, Completions& completions, Rank peer, AnySource& any)
      : Channel(pair, self, completions), peer_(peer), any_(any) {}
  // Matches a receive from any source with a message already offered on this channel; false if there is none.
  bool take_offered(Transfer& transfer);
  void add(Transfer transfer) override;
  bool idle() const override { return posted_ == 0 && matched_.empty() && incoming_.empty(); }
  int64_t next_deadline_ns() const override;
  void end_all(Outcome outcome, const std::string& why) override;

 private:
  struct Known {  // an offer's number and size
    uint64_t number;
    uint64_t bytes;
  };
  struct Queues {  // of one (context, tag); one of the two is always empty
    std::deque<Known> offers;
    std::deque<Transfer> receives;
  };
  struct Match {
    Known offer;
    Transfer receive;
  };
  Change move(const std::atomic<uint32_t>& interrupted) override;
  bool end_expired(int64_t now_ns) override;
  bool read_offers();
  bool write_grants();
  bool read_bytes(const std::atomic<uint32_t>& interrupted);
  bool end_moved(const std::atomic<uint32_t>& interrupted);

  Rank peer_;
  AnySource& any_;
  std::map<AnySource::Key, Queues> queues_;
  size_t posted_ = 0;           // receives in queues_
  bool untold_ = false;         // offers were read since the peer was rung
  std::deque<Match> matched_;   // no room for the grant yet
  std::deque<Match> incoming_;  // in the order of their bytes in the ring
  size_t got_ = 0;              // bytes of the first one, from the ring
  uint64_t over_ = 0;           // without a ring: bytes of completed messages
};

}  // namespace keepstep::comm
