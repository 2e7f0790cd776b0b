// A rank's progress in its collectives: a few words in shared memory that its node's agent may read at any time.
//
// The communicator writes them with relaxed atomics; the agent's failure detector reads them (docs/design/hangs.md).
// They cover one generation: a new communicator starts at zero. No decision depends on a single reading, so a reader
// need not see a consistent snapshot.
#pragma once

#include <atomic>
#include <cstdint>

namespace keepstep::comm {

struct alignas(64) CollectiveWords {
  std::atomic<uint64_t> entered;        // collectives begun, in any group; one at a time per group
  std::atomic<uint64_t> left;           // of those, completed
  std::atomic<uint64_t> entered_world;  // of those begun, in the world group
  // About the collectives under way, or the last one (under_way.h).
  std::atomic<uint64_t> members;  // bit r is rank r; 0: unknown, or ranks above 63
  std::atomic<uint32_t> kind;     // Kind (operation.h)
  std::atomic<uint32_t> world;    // 1: one of the groups is the world
  std::atomic<uint32_t> waiting;  // threads in Communicator::wait
  std::atomic<uint64_t> waited;   // finished calls of Communicator::wait
  std::atomic<uint64_t> moved;    // chunks, frames and pieces moved so far, in any operation; several threads write it
};

static_assert(sizeof(CollectiveWords) == 64);  // the agent reads one cache line

// Notes that part of a long operation is done, so that a collective or a message that takes minutes is seen to
// progress. Call once per chunk, never in a loop over elements.
inline void note_moved(std::atomic<uint64_t>& moved) { moved.fetch_add(1, std::memory_order_relaxed); }

// The name of `kind` above ("all_reduce"); "" if it is invalid.
const char* collective_name(uint32_t kind);

}  // namespace keepstep::comm
