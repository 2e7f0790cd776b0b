// The layout of an arena and of a generation's region. Plain offsets: each process maps them at different addresses.
//
// An arena (one per rank, written by that rank only):
//   groups x 4 slots:  [input 0 | result 0 | input 1 | result 1]   slot_bytes each for the world, group_slot_bytes else
//   max_local rings:   the bytes this rank streams to each peer on its node (p2p/point_to_point.h)
// A generation's region (all ranks write, zero at first):
//   Header | groups x (GroupBlock, members, a RankLine per member) | a Bell per rank | a PairBlock per ordered pair
// A generation on several nodes has a region on each, for the ranks there. A group across nodes has a place on each,
// where the members there meet; lines are numbered by the members' order on the node. Rings, bells and pairs serve the
// ranks of one node only and are numbered by *local* rank: a rank's position among the ranks of its node, in rank
// order. So a node's memory grows with the square of its own ranks, and with the world only by the groups' member
// lists.
//
// Why slots are never overwritten while another rank reads them: the ranks of a group meet at numbered barriers
// ("phases", sync.h), and all data follow two rules:
//   (1) What a rank publishes with phase p is in its slots (and descriptor) of parity p & 1, and is written after it
//       passed phase p-1 and before it publishes p.
//   (2) A rank reads what others published with phase p after it passed phase p and before it publishes p+1.
// A writer reuses the slots of parity p & 1 for phase p+2, by (1) after it passed p+1. By then every rank has published
// p+1, so by (2) all reads of phase p are over. None of this depends on which operation a phase belongs to, how large
// the operation is or how many phases it takes: small after large, a mismatch after one phase, and size zero (one
// phase, nothing read) are all the same case. A group of one has no phases. Each group has its own slots and phases, so
// groups never conflict; the order of members only permutes lines. A group's place is reused only after every member
// has left it, and a member leaves after its last operation.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/comm_config.h"

namespace keepstep::comm {

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t whole_lines(size_t bytes) { return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine; }
inline constexpr size_t kPendingOffers = 16;  // a power of two; further offers wait at the sender

// A futex with a count of its sleepers, so ringing costs only a load when nobody sleeps.
struct alignas(kCacheLine) Bell {
  std::atomic<uint32_t> ring;
  std::atomic<uint32_t> sleepers;
};

// A rank's description of the operation it enters; the ranks compare these before anything is computed.
struct Descriptor {
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t op = 0;
  uint8_t unused = 0;
  uint32_t root = 0;  // for a canonical reduction: the number of leaves of its tree
  uint64_t bytes = 0;
  bool operator==(const Descriptor&) const = default;
};

// A member's line in a group; only that member writes it.
struct alignas(kCacheLine) RankLine {
  std::atomic<uint64_t> phase;
  Descriptor descriptors[2];
};

// Which rank ended a group, or the messages between two ranks, and whether the cause was a broken link to another node
// (otherwise it was a timeout). One word, so it can be stored atomically.
struct GivenUp {
  Rank by = 0;
  bool link = false;
  Rank to = 0;  // the other end of that link; for messages it is one of the two anyway

  uint64_t word() const { return (uint64_t{by} + 1) | (link ? kLinkBit | uint64_t{to} << 32 : 0); }
  static GivenUp from(uint64_t word) {
    return {static_cast<Rank>((word & (kLinkBit - 1)) - 1), (word & kLinkBit) != 0, static_cast<Rank>(word >> 32)};
  }

 private:
  static constexpr uint64_t kLinkBit = uint64_t{1} << 31;  // ranks are far smaller
};

// A group's words. The table's lock (group_table.h) guards the non-atomic ones.
struct alignas(kCacheLine) GroupBlock {
  Bell bell;
  std::atomic<uint64_t> given_up_by;  // GivenUp::word() of the first member that ended the group; 0 if none did
  uint32_t incarnation;               // how often this place was used before
  uint64_t identity;                  // from its key; 0: free
  uint32_t member_count;
  uint32_t local_count;  // of these on this node
  uint32_t left;
};

struct Offer {  // "I have `bytes` for you under (context, tag)"
  uint64_t context;
  uint64_t bytes;
  uint32_t tag;
  uint32_t unused;
};
struct Grant {  // "I accept offer number `offer`" or, if capacity < bytes, "it does not fit"
  uint64_t offer;
  uint64_t capacity;
};

// One ordered pair of ranks. Counters only grow; entry n is at n % kPendingOffers, byte n at n % ring_bytes (within a
// node; between nodes there is no ring, and bytes are not counted here).
struct PairBlock {
  struct alignas(kCacheLine) {
    std::atomic<uint64_t> offers_written;
    std::atomic<uint64_t> grants_read;
    std::atomic<uint64_t> bytes_written;
  } sender;
  struct alignas(kCacheLine) {
    std::atomic<uint64_t> offers_read;
    std::atomic<uint64_t> grants_written;
    std::atomic<uint64_t> bytes_read;
  } receiver;
  alignas(kCacheLine) std::atomic<uint64_t> given_up_by;  // as in GroupBlock
  alignas(kCacheLine) Offer offers[kPendingOffers];
  alignas(kCacheLine) Grant grants[kPendingOffers];
};

struct alignas(kCacheLine) Header {
  std::atomic<uint64_t> fingerprint;  // of the configuration; the same on all ranks
  std::atomic<uint32_t> table_lock;   // world rank + 1 of the holder
  Bell table_bell;
  Bell interruption;  // rung by wake_all only
};

static_assert(sizeof(Bell) == kCacheLine && sizeof(RankLine) == kCacheLine);
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);
static_assert((kPendingOffers & (kPendingOffers - 1)) == 0);

class Layout {
 public:
  // Rounds slots and rings up to whole cache lines, and slots to at least one line per rank.
  explicit Layout(const CommConfig& config);

  uint32_t max_world() const { return max_world_; }
  uint32_t max_local() const { return max_local_; }
  uint32_t groups() const { return groups_; }
  size_t ring_bytes() const { return ring_bytes_; }
  size_t slot_bytes(uint32_t group) const { return group == kWorld ? slot_bytes_ : group_slot_bytes_; }
  size_t arena_bytes() const;
  size_t generation_bytes() const;
  uint64_t fingerprint(size_t world) const;

  // In an arena: the four slots of a group, and the ring to a peer, by its local rank.
  std::byte* slots(std::byte* arena, uint32_t group) const;
  std::byte* ring(std::byte* arena, uint32_t to) const;

  // In a generation's region. Ranks are local.
  Header& header(std::byte* generation) const;
  GroupBlock& group(std::byte* generation, uint32_t group) const;
  uint32_t* members(std::byte* generation, uint32_t group) const;  // max_world of them
  RankLine* lines(std::byte* generation, uint32_t group) const;    // max_local of them
  Bell& bell(std::byte* generation, uint32_t rank) const;
  PairBlock& pair(std::byte* generation, uint32_t from, uint32_t to) const;

 private:
  size_t members_bytes() const;
  size_t group_stride() const;
  size_t bells_offset() const;
  size_t pairs_offset() const;

  uint32_t max_world_;
  uint32_t max_local_;
  uint32_t groups_;
  size_t slot_bytes_;
  size_t group_slot_bytes_;
  size_t ring_bytes_;
};

}  // namespace keepstep::comm
