// What collectives and messages need from the link between two ranks on different nodes. TCP (tcp/) implements it;
// another implementation (RDMA through UCX) would change nothing outside this interface.
//
// There are two halves. Collectives exchange *parts*: both sides know which parts to expect and when, so a receive is
// posted for each and bytes go straight to their destination. Each group has its own links, so no group waits for
// another's parts. *Pairs* carry send and receive: the words of one ordered pair of ranks (layout.h). Each end has its
// own copy, and the transport keeps the copies in step, so the code above is the same as for shared memory. Only the
// ring is missing: the bytes of granted messages go from the sender's memory into the receiver's.
//
// A transport belongs to one generation and one rank. Everything passed to it by reference must outlive it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/layout.h"

namespace keepstep::comm {

// Which part of which operation of which group. Two ranks use the same key for the same part; no key is used twice.
struct PartKey {
  uint64_t context = 0;    // of the group
  uint64_t operation = 0;  // its number in the group
  uint32_t part = 0;
  bool operator==(const PartKey&) const = default;
};

// A part under way. Owned by the caller; must not move until done or cancelled.
struct PartRequest {
  Rank peer = 0;
  PartKey key;
  bool done = false;
  uint64_t bytes = 0;  // once done: how many were received or sent
  // Used by the transport only:
  uint64_t left = 0;    // bytes yet to move
  uint64_t placed = 0;  // bytes of the frames that have arrived or are arriving, over all streams
  bool begun = false;   // `bytes` is known
};

enum class Waited : uint8_t {
  kDone,
  kInterrupted,
  kTimedOut,
  kLost,     // the link to the peer broke, and no interruption arrived in time; see why_lost()
  kGivenUp,  // a member ended the group; see given_up()
};

// The parts of one group, between this rank and members on other nodes. One thread at a time. Its links end with it.
class Parts {
 public:
  virtual ~Parts() = default;

  // Starts to send. The bytes must stay unchanged until the part is done; they are not read after that.
  virtual void send(PartRequest& request, Rank to, const PartKey& key, std::span<const std::byte> bytes) = 0;
  // Starts to receive at most buffer.size() bytes. A longer message breaks the link. Parts from one peer must be posted
  // in the order in which that peer sends them.
  virtual void receive(PartRequest& request, Rank from, const PartKey& key, std::span<std::byte> buffer) = 0;
  // Makes progress on all parts until this one is done or there is another result. `given_up`: non-zero once a rank of
  // this node ended the group.
  virtual Waited wait(const PartRequest& request, int64_t deadline_ns, const std::atomic<uint64_t>& given_up) = 0;
  // Call it after any result but kDone. Drops all parts; their memory is not touched again.
  virtual void cancel() = 0;
  // Tells all linked ranks that this rank ended the group; their waits return kGivenUp.
  virtual void give_up(GivenUp who) = 0;
  virtual GivenUp given_up() const = 0;
  virtual std::string why_lost(Rank peer) const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Call once, before anything else. `interrupted` is checked after `interruption` rang; `messages` is rung when the
  // words of a pair changed or a message was moved completely. `moved` grows whenever bytes are received or sent
  // (progress.h).
  virtual void start(const std::atomic<uint32_t>& interrupted, Bell& interruption, Bell& messages,
                     std::atomic<uint64_t>& moved) = 0;

  // The parts of the group that all members know as `context`; only one Parts per group at a time. Any thread. Destroy
  // it before the transport.
  virtual std::unique_ptr<Parts> open_parts(uint64_t context) = 0;

  // ---- pairs; for the thread that makes progress on messages ----
  // Granted messages in one direction, in the order of their grants at both ends.
  class Bytes {
   public:
    virtual ~Bytes() = default;
    // Adds the next message; at the receiving end, before the grant is written. The memory must stay valid until
    // moved() has passed it or cancel() returned; the sender's is only read.
    virtual void add(std::span<std::byte> message) = 0;
    // How many bytes of all these messages were passed to the system or received.
    virtual uint64_t moved() const = 0;
    // Permanent: once it has returned, no memory that was added is touched again.
    virtual void cancel() = 0;
  };
  struct Pair {
    PairBlock* words;
    std::byte* ring;  // if the pair shares memory; then `bytes` is null
    size_t ring_bytes;
    Bytes* bytes = nullptr;
    // Why the link broke; valid only once words->given_up_by says that it did.
    const std::string* why_lost = nullptr;
  };
  // This end of the ordered pair from -> to; one of them is this rank.
  virtual Pair pair(Rank from, Rank to) = 0;
  // Call it after this rank changed words of a pair with `peer`. Any thread.
  virtual void changed(Rank peer) = 0;

  // Connections accepted and refused, and bytes moved, for metrics and tests. Any thread.
  struct Counters {
    uint64_t accepted = 0;          // connections that proved that they belong here
    uint64_t wrong_key = 0;         // refused: the peer does not have the key
    uint64_t other_generation = 0;  // refused: another term or generation
    uint64_t unknown_rank = 0;      // refused: rank or stream unknown or already connected, or other protection
    uint64_t malformed = 0;         // closed: the peer sent invalid data, or too much
    uint64_t too_slow = 0;          // closed: the peer did not introduce itself in time, or too many were waiting
    uint64_t bytes_sent = 0;        // payload of parts
    uint64_t bytes_received = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace keepstep::comm
