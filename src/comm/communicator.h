// Collectives between the ranks of one generation: over shared memory, summed in rank order, interruptible.
//
// Overview: one Communicator per rank and generation. Calls enqueue an operation and return its number at once. One
// thread per group runs its collectives in call order; another thread makes progress on point-to-point transfers (which
// must not block each other). All ranks of a group must call the same collectives in the same order, as with any
// communicator; a mismatch in kind, type or size is reported instead of hanging. Groups do not wait for each other:
// several threads may each use a group, in any order on each rank.
//
// A caller that waits for a collective helps: its own thread runs what is queued in the group, up to that collective.
//
// Numbers: each element is summed in rank order, so the result depends neither on how a caller cuts tensors into
// buckets nor on timing. float16 and bfloat16 are summed in float32 and rounded once.
//
// Memory: each rank owns an arena (`arena_bytes`) in its worker's memory, and only that rank writes to it.
// Synchronization words are in one region per generation and node (`generation_bytes`), which the agent zeroes. Buffers
// passed in must stay alive, and unchanged by others, until the operation has completed.
//
// Timeouts: the `timeout_ns` of a collective runs from when its turn comes, that of a message from the call. For the
// rest of the generation and for all members, a collective that times out ends its group, and a message that times out
// half way ends the messages between its two ranks: later operations there fail and report it. So use timeouts to find
// a hang, not to poll.
//
// Interruption (interruption.md): when `*interrupted` becomes non-zero (the agent then calls wake_all), the current and
// all later operations complete at once with kInterrupted. In-place buffers are left as they are, perhaps with part of
// the result; other outputs are filled with zeros. No exception is thrown here.
//
// Threads: any thread may call any public method; a group's collectives run in the order of the calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "comm/collectives/canonical_tree.h"
#include "comm/comm_config.h"
#include "keepstep/types.h"

namespace keepstep::comm {

using keepstep::DataType;
using keepstep::ReduceOp;

class Transport;
class WaitClock;         // wait_clock.h
struct CollectiveWords;  // progress.h

struct Endpoint {
  Rank self = 0;
  std::vector<std::byte*> arenas;   // by rank; null for ranks on other nodes; all must outlive the communicator
  std::byte* generation = nullptr;  // this node's region; zero before the first use
  const std::atomic<uint32_t>* interrupted = nullptr;
  std::vector<uint32_t> nodes;           // by rank: its node; empty: all on one
  std::shared_ptr<Transport> transport;  // to ranks on other nodes (transport.h); null if none
  CollectiveWords* progress = nullptr;   // for this rank's progress; may be null. Must outlive the communicator
};

using OpId = uint64_t;
inline constexpr Rank kAnySource = ~Rank{0};

enum class Outcome : uint8_t { kPending, kDone, kInterrupted, kFailed };
struct Completion {
  OpId op = 0;
  Outcome outcome = Outcome::kDone;
  std::string error;  // for kFailed: which ranks differ and how, or which missed the timeout
  Rank source = 0;    // for a receive: the sender, as a rank in the group
  // For a collective that timed out, on every rank that waited: the ranks (in the group) that had not arrived.
  std::vector<Rank> missing = {};
};

// The flight recorder's record of one collective.
struct FlightRecord {
  OpId op = 0;
  GroupId group = kWorld;
  uint64_t number = 0;  // position in its group, from 1; 0: not its turn yet
  std::string kind;     // "all_reduce"
  std::string type;     // "float32"; only if it reduces
  std::string reduction;
  uint64_t bytes = 0;  // of one buffer
  Outcome outcome = Outcome::kPending;
  int64_t queued_ns = 0;  // CLOCK_MONOTONIC; 0: not yet
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
};

class Communicator {
 public:
  Communicator(CommConfig config, Endpoint endpoint);
  // Waits for queued operations to complete; interrupt first if a peer may be gone. No other call may be in progress:
  // first call close() and join the threads in next_completed().
  ~Communicator();

  // Creates a group of world ranks, in the given order (which is also the order of summation). Only members call it.
  // Does not wait for other members. They find each other by `key`, the same text on all members; a member's nth use of
  // a key matches the others' nth use. So groups with different keys may be created in different orders.
  // Ids are local to this rank. RESOURCE_EXHAUSTED: all places are taken; the message names the remedy.
  // INVALID_ARGUMENT: `members` is not valid, or another member passed other ranks under this key. UNAVAILABLE:
  // interrupted.
  StatusOr<GroupId> create_group(const std::vector<Rank>& members, const std::string& key);
  // Call it after the group's last operation. The place is free once every member on this node has released the group.
  // The world cannot be released.
  void release_group(GroupId group);

  // A call with invalid arguments (a root outside the group, avg of integers, a null buffer) completes with kFailed on
  // all ranks, like a disagreement. Sizes are in elements unless named bytes. `timeout_ns` < 0: no timeout. Roots and
  // peers are ranks in the group.
  OpId all_reduce(GroupId group, void* data, size_t count, DataType type, ReduceOp op, int64_t timeout_ns = -1);
  OpId reduce(GroupId group, void* data, size_t count, DataType type, ReduceOp op, Rank root, int64_t timeout_ns = -1);
  OpId broadcast(GroupId group, void* data, size_t bytes, Rank root, int64_t timeout_ns = -1);
  // outputs[r] gets rank r's input; each has `bytes` bytes.
  OpId all_gather(GroupId group, const void* input, const std::vector<void*>& outputs, size_t bytes,
                  int64_t timeout_ns = -1);
  // inputs[r] goes to rank r; output = the reduction of all ranks' inputs for this rank.
  OpId reduce_scatter(GroupId group, const std::vector<const void*>& inputs, void* output, size_t count, DataType type,
                      ReduceOp op, int64_t timeout_ns = -1);
  OpId gather(GroupId group, const void* input, const std::vector<void*>& outputs, size_t bytes, Rank root,
              int64_t timeout_ns = -1);  // outputs empty except on root
  OpId scatter(GroupId group, const std::vector<const void*>& inputs, void* output, size_t bytes, Rank root,
               int64_t timeout_ns = -1);  // inputs empty except on root
  // inputs[r] (input_bytes[r]) goes to rank r; outputs[r] (output_bytes[r]) comes from rank r; sizes may be 0.
  OpId all_to_all(GroupId group, const std::vector<const void*>& inputs, const std::vector<size_t>& input_bytes,
                  const std::vector<void*>& outputs, const std::vector<size_t>& output_bytes, int64_t timeout_ns = -1);
  // The sum over all leaves of a tree, in the order of canonical_tree.h: the same bits whichever rank owns which
  // leaves. Each rank owns `run` (the ranks' runs make up the tree; runs may be empty, so there may be more ranks than
  // leaves) and passes the sums of its maximal subtrees in order (CanonicalSum in canonical_sum.h computes them):
  // `count` elements each, of sum_type(type). `output` gets `count` elements of `type` (float32, float64, float16,
  // bfloat16): the sum, divided once by the sum of all ranks' weights unless that is 0, and rounded once. It must not
  // overlap the partial sums.
  OpId all_reduce_canonical(GroupId group, const LeafRun& run, const std::vector<const void*>& partials, void* output,
                            size_t count, DataType type, uint64_t weight, int64_t timeout_ns = -1);
  OpId barrier(GroupId group, int64_t timeout_ns = -1);
  // Messages with the same (peer, tag) match in order; different tags may match in any order. The peer may be this rank
  // itself. A send completes only after its receive was posted. `from` may be kAnySource: the first message with this
  // tag from any rank of the group. Receives take messages in the order in which they were posted, whether or not they
  // name their source. A message longer than the receiver's buffer fails on both sides; a shorter one leaves the rest
  // of the buffer unchanged.
  OpId send(GroupId group, const void* data, size_t bytes, Rank to, uint32_t tag, int64_t timeout_ns = -1);
  OpId receive(GroupId group, void* data, size_t bytes, Rank from, uint32_t tag, int64_t timeout_ns = -1);

  // The current state of an operation.
  Completion test(OpId op) const;
  // Waits for one operation.
  Completion wait(OpId op);
  // Like wait(), but for at most `limit_ns`, and this thread does not help. Returns kPending after that. Unlike an
  // operation's own timeout, this does not end the operation.
  Completion wait_for(OpId op, int64_t limit_ns);
  // Waits until no operation is under way. After that nothing touches their buffers.
  void wait_all();
  // Deletes the record of a completed operation. Each operation must be taken exactly once, by `forget` or by
  // next_completed. A thread already in wait() still gets the result; later queries get kFailed.
  void forget(OpId op);

  // next_completed() returns operations marked with `watch`, in order of completion. It blocks until there is one, and
  // returns an empty list after close().
  void watch(OpId op);
  std::vector<Completion> next_completed();
  void close();

  bool interrupted() const;
  // The error of the first operation that failed because a link between two nodes broke; empty if none did. It is set
  // before that operation completes. Any thread.
  std::string broken_link() const;
  // The number of collectives that this rank has begun (for progress counters and metrics).
  uint64_t collectives_entered() const;
  // How long this rank waited for others. Code that waits for other ranks in another way (a vote) reports its waiting
  // there too.
  WaitClock& waits();
  // The flight recorder: the last collectives of this rank, oldest first.
  std::vector<FlightRecord> recent() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::comm
