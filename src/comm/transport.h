// What collectives and messages need from the link between two ranks on different nodes. TCP is one (tcp/); another
// (RDMA through UCX) implements this interface and nothing else changes.
//
// Two halves. *Parts* are what collectives exchange: both sides know that and when, so a receive is posted for each and
// bytes go straight to where they belong. Each group has links of its own, so that none waits for another group's
// parts. *Pairs* carry send and receive: the words of one ordered pair of ranks
// (layout.h), each end with a copy of its own, which the transport keeps in step; so the code above them is the same as
// in shared memory. Only there is no ring: the bytes of granted messages go from the sender's memory into the
// receiver's.
//
// A transport belongs to one generation and one rank. Everything it is told to keep must live until it is destroyed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/layout.h"

namespace keepstep::comm {

// Which part of which operation of which group. Two ranks name the same part alike; none is used twice.
struct PartKey {
  uint64_t context = 0;    // of the group
  uint64_t operation = 0;  // its number in the group
  uint32_t part = 0;
  bool operator==(const PartKey&) const = default;
};

// A part under way. Owned by the caller; must stay where it is until done or cancelled.
struct PartRequest {
  Rank peer = 0;
  PartKey key;
  bool done = false;
  uint64_t bytes = 0;  // once done: how many came, or went
  // The transport's own:
  uint64_t left = 0;    // bytes yet to move
  uint64_t placed = 0;  // bytes of the frames that have come or are coming, over all streams
  bool begun = false;   // `bytes` is known
};

enum class Waited : uint8_t {
  kDone,
  kInterrupted,
  kTimedOut,
  kLost,     // the link to the peer broke, and no interruption came in time; see why_lost()
  kGivenUp,  // a member ended the group, see given_up()
};

// The parts of one group, between this rank and members on other nodes. By one thread at a time. Its links end with it.
class Parts {
 public:
  virtual ~Parts() = default;

  // Begins to send; the bytes must stay as they are until the part is done, that is: nobody will read them here again.
  virtual void send(PartRequest& request, Rank to, const PartKey& key, std::span<const std::byte> bytes) = 0;
  // Begins to receive at most buffer.size() bytes. A longer message breaks the link. Parts from one peer must be posted
  // in the order in which that peer sends them.
  virtual void receive(PartRequest& request, Rank from, const PartKey& key, std::span<std::byte> buffer) = 0;
  // Makes progress on all parts until this one is done, or until there is another answer. `given_up`: not zero once a
  // rank of this node ended the group.
  virtual Waited wait(const PartRequest& request, int64_t deadline_ns, const std::atomic<uint64_t>& given_up) = 0;
  // After anything but kDone: forgets all parts; their memory is not touched again.
  virtual void cancel() = 0;
  // Tells those that this rank is linked to that it ended the group: their waits answer kGivenUp.
  virtual void give_up(GivenUp who) = 0;
  virtual GivenUp given_up() const = 0;
  virtual std::string why_lost(Rank peer) const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Once, before anything else. `interrupted` is looked at after `interruption` rang; `messages` is rung when the words
  // of a pair changed, or all of a message moved. `moved` grows whenever bytes came or went (progress.h).
  virtual void start(const std::atomic<uint32_t>& interrupted, Bell& interruption, Bell& messages,
                     std::atomic<uint64_t>& moved) = 0;

  // The parts of the group that all members know as `context`; one at a time of each. Any thread. Must end before this.
  virtual std::unique_ptr<Parts> open_parts(uint64_t context) = 0;

  // ---- pairs; by the thread that makes progress on messages ----
  // Granted messages of one direction, in the order of their grants at both ends.
  class Bytes {
   public:
    virtual ~Bytes() = default;
    // The next one. At the receiving end before the grant is written. The memory must stay until moved() has passed it
    // or cancel() returned; a sender's is only read.
    virtual void add(std::span<std::byte> message) = 0;
    // Bytes of all those together that are with the system, or came.
    virtual uint64_t moved() const = 0;
    // For good: once it returned, no memory that was added is touched any more.
    virtual void cancel() = 0;
  };
  struct Pair {
    PairBlock* words;
    std::byte* ring;  // in shared memory; and then no `bytes`
    size_t ring_bytes;
    Bytes* bytes = nullptr;
    // Why the link broke, once words->given_up_by says that it did, and not before.
    const std::string* why_lost = nullptr;
  };
  // This end of the ordered pair from -> to, one of which is this rank.
  virtual Pair pair(Rank from, Rank to) = 0;
  // This rank changed words of a pair with `peer`. Any thread.
  virtual void changed(Rank peer) = 0;

  // What was refused and what was moved, for metrics and tests. Any thread.
  struct Counters {
    uint64_t accepted = 0;          // connections that proved to belong here
    uint64_t wrong_key = 0;         // closed because ...
    uint64_t other_generation = 0;  // ... of another term or generation
    uint64_t unknown_rank = 0;      // ... of an unknown rank or stream, or one that was there, or protected otherwise
    uint64_t malformed = 0;         // ... it sent what no peer sends, or too much of it
    uint64_t too_slow = 0;          // ... it did not introduce itself in time, or too many were waiting
    uint64_t bytes_sent = 0;        // payload of parts
    uint64_t bytes_received = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace keepstep::comm
