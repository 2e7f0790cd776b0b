// Where a rank stands in its collectives: a few words in shared memory that its node's agent may read at any time.
//
// Written by the communicator with relaxed stores, read by the agent's failure detector (docs/design/hangs.md). They
// are about one generation: a new communicator begins at zero. Nothing is decided by one look at them, so a reader need
// not see them at one instant.
#pragma once

#include <atomic>
#include <cstdint>

namespace keepstep::comm {

struct alignas(64) CollectiveWords {
  std::atomic<uint64_t> entered;        // collectives begun, of whatever group; one of a group at a time
  std::atomic<uint64_t> left;           // of those, over
  std::atomic<uint64_t> entered_world;  // of those begun, in the group of all ranks
  // Of the collectives under way, or of the last one (under_way.h).
  std::atomic<uint64_t> members;  // bit r is rank r; 0: unknown, or ranks above 63
  std::atomic<uint32_t> kind;     // Kind (operation.h)
  std::atomic<uint32_t> world;    // 1: one of the groups is that of all ranks
  std::atomic<uint32_t> waiting;  // threads in Communicator::wait
  std::atomic<uint64_t> waited;   // calls of Communicator::wait that are over
  std::atomic<uint64_t> moved;    // chunks, frames and pieces of what is not over yet; by more than one thread
};

static_assert(sizeof(CollectiveWords) == 64);  // the agent reads one cache line

// A part of something long went through, so that a collective or a message that takes minutes is seen to go on. Once a
// chunk: never inside a loop over elements.
inline void note_moved(std::atomic<uint64_t>& moved) { moved.fetch_add(1, std::memory_order_relaxed); }

// "all_reduce": what `kind` above means; "" for what it cannot.
const char* collective_name(uint32_t kind);

}  // namespace keepstep::comm
