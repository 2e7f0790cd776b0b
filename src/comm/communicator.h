// Collectives between the ranks of one generation, over shared memory, adding in rank order, interruptible.
//
// What it is: one Communicator per rank and generation. Calls enqueue an operation and return its number at once; a
// thread per group carries out its collectives in the order of the calls, another one makes progress on point-to-point
// transfers (which must not block each other). All ranks of a group must call the same collectives in the same order,
// as with every communicator; kind, type or size that differ are found and told, not waited for. Groups do not wait for
// each other: several threads may use a group each, in whatever order on each rank.
//
// A caller that waits for a collective helps to carry out what is queued in its group up to it, on its own thread.
//
// Numbers: for each element, sums are taken in rank order, so the result depends neither on how a caller cuts tensors
// into buckets nor on timing. float16 and bfloat16 are summed in float32 and rounded once.
//
// Memory: each rank owns an arena (`arena_bytes`) in its worker's memory, into which only it writes; synchronization
// words live in a region per generation (`generation_bytes`), zeroed by the agent. Buffers passed in must stay alive
// and unchanged by others until the operation completed.
//
// Time: `timeout_ns` of a collective runs from when it is its turn, of a message from the call. A collective that runs
// out of time ends its group, a message that does so half way ends the messages between these two ranks, in this
// generation and for all members: later operations there fail and say so. So use timeouts to find a hang, not to poll.
//
// Interruption (interruption.md): when `*interrupted` becomes non-zero (the agent then calls wake_all), the current
// and all later operations complete at once with kInterrupted: in-place buffers stay as they are, other outputs are
// filled with zeros. Nothing is raised here.
//
// Threads: all public methods may be called from any thread; the order of a group's collectives is that of the calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/types.h"
#include "comm/collectives/canonical_tree.h"
#include "keepstep/types.h"

namespace keepstep::comm {

using brain::Rank;
using keepstep::DataType;
using keepstep::ReduceOp;

size_t size_of(DataType type);

struct CommConfig {
  uint32_t max_world = 16;              // ranks of a generation
  uint32_t max_local = 0;               // of these on one node, at most; 0: all of them
  uint32_t groups = 16;                 // groups at one time, the world's included
  size_t slot_bytes = 1 << 20;          // chunk of the world group (two in, two out)
  size_t group_slot_bytes = 128 << 10;  // of each other group
  size_t ring_bytes = 128 << 10;        // one ring per ordered pair of ranks of a node
};
size_t arena_bytes(const CommConfig& config);
size_t generation_bytes(const CommConfig& config);
// Wakes whoever sleeps in this generation, after `*interrupted` was set. By the agent, or anyone.
void wake_all(const CommConfig& config, std::byte* generation);

class Transport;
class WaitClock;         // wait_clock.h
struct CollectiveWords;  // progress.h

struct Endpoint {
  Rank self = 0;
  std::vector<std::byte*> arenas;   // by rank, null for those on other nodes; all must outlive the communicator
  std::byte* generation = nullptr;  // this node's; zero before the first use
  const std::atomic<uint32_t>* interrupted = nullptr;
  std::vector<uint32_t> nodes;           // by rank: which node; empty: all on one
  std::shared_ptr<Transport> transport;  // to the ranks of other nodes (transport.h); null when there are none
  CollectiveWords* progress = nullptr;   // where to say how far this rank is; null: nowhere. Must outlive us
};

using OpId = uint64_t;
using GroupId = uint32_t;
inline constexpr GroupId kWorld = 0;
inline constexpr Rank kAnySource = ~Rank{0};

enum class Outcome : uint8_t { kPending, kDone, kInterrupted, kFailed };
struct Completion {
  OpId op = 0;
  Outcome outcome = Outcome::kDone;
  std::string error;  // for kFailed: which ranks differ in what, or who did not come in time
  Rank source = 0;    // of a receive: the sender, as a rank in the group
  // Of a collective that ran out of time, on every rank that waited: who had not come, as ranks in the group.
  std::vector<Rank> missing = {};
};

// What the flight recorder keeps of one collective.
struct FlightRecord {
  OpId op = 0;
  GroupId group = kWorld;
  uint64_t number = 0;  // of this collective in its group, from 1; 0: not its turn yet
  std::string kind;     // "all_reduce"
  std::string type;     // "float32", where it reduces
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
  // Waits for what is queued to complete; interrupt first where a peer may be gone. No other call may be under way:
  // close() and join who sits in next_completed() before.
  ~Communicator();

  // A group of the world's ranks, in the order given (which is the order of its ranks and of its sums). Non-members do
  // not call. Does not wait for other members; members find each other by `key` (same text on all members; the nth use
  // of a key meets the nth use), so groups with different keys may be created in different orders.
  // Ids are this rank's own. RESOURCE_EXHAUSTED when all slots are used, with the way out; INVALID_ARGUMENT when
  // another member gave other ranks under this key; UNAVAILABLE when interrupted.
  StatusOr<GroupId> create_group(const std::vector<Rank>& members, const std::string& key);
  // After its last operation; the slot is free once every member released the group. The world cannot be released.
  void release_group(GroupId group);

  // A call that its arguments forbid (a root outside the group, avg of integers, a null buffer) completes with kFailed
  // on all ranks, like a disagreement. All sizes in elements unless they say bytes. `timeout_ns` < 0: none. Roots and
  // peers are ranks in the group.
  OpId all_reduce(GroupId group, void* data, size_t count, DataType type, ReduceOp op, int64_t timeout_ns = -1);
  OpId reduce(GroupId group, void* data, size_t count, DataType type, ReduceOp op, Rank root, int64_t timeout_ns = -1);
  OpId broadcast(GroupId group, void* data, size_t bytes, Rank root, int64_t timeout_ns = -1);
  // outputs[r] gets rank r's input; all of `bytes`.
  OpId all_gather(GroupId group, const void* input, const std::vector<void*>& outputs, size_t bytes,
                  int64_t timeout_ns = -1);
  // inputs[r] goes to rank r; output = reduction of what all ranks gave for this one.
  OpId reduce_scatter(GroupId group, const std::vector<const void*>& inputs, void* output, size_t count, DataType type,
                      ReduceOp op, int64_t timeout_ns = -1);
  OpId gather(GroupId group, const void* input, const std::vector<void*>& outputs, size_t bytes, Rank root,
              int64_t timeout_ns = -1);  // outputs empty except on root
  OpId scatter(GroupId group, const std::vector<const void*>& inputs, void* output, size_t bytes, Rank root,
               int64_t timeout_ns = -1);  // inputs empty except on root
  // inputs[r] (input_bytes[r]) goes to rank r; outputs[r] (output_bytes[r]) comes from rank r; sizes may be 0.
  OpId all_to_all(GroupId group, const std::vector<const void*>& inputs, const std::vector<size_t>& input_bytes,
                  const std::vector<void*>& outputs, const std::vector<size_t>& output_bytes, int64_t timeout_ns = -1);
  // The sum over all leaves of a tree, in the order of canonical_tree.h: the same bits whoever owns which leaves. Each
  // rank owns `run` (the ranks' runs make up the tree; empty ones are allowed, so there may be more ranks than leaves)
  // and gives the sums of its maximal subtrees in order (CanonicalSum in canonical_sum.h makes them): `count` elements
  // each, of sum_type(type). `output` gets `count` elements of `type` (float32, float64, float16, bfloat16): the sum,
  // divided once by the sum of all ranks' weights if that is not 0, rounded once; it must not overlap the partial sums.
  OpId all_reduce_canonical(GroupId group, const LeafRun& run, const std::vector<const void*>& partials, void* output,
                            size_t count, DataType type, uint64_t weight, int64_t timeout_ns = -1);
  OpId barrier(GroupId group, int64_t timeout_ns = -1);
  // Matched by (peer, tag) in order, whatever the order of the tags; to oneself too. A send completes after its receive
  // was posted. `from` may be kAnySource: the first message with this tag from any rank of the group; receives take
  // messages in the order in which they were posted, whether they name their source or not. A message longer than the
  // receiver's buffer fails on both sides; a shorter one leaves the rest alone.
  OpId send(GroupId group, const void* data, size_t bytes, Rank to, uint32_t tag, int64_t timeout_ns = -1);
  OpId receive(GroupId group, void* data, size_t bytes, Rank from, uint32_t tag, int64_t timeout_ns = -1);

  // Where an operation stands.
  Completion test(OpId op) const;
  // Waits for one operation.
  Completion wait(OpId op);
  // The same for at most `limit_ns`: kPending if it is over; carries out nothing itself. Unlike an operation's own
  // timeout it ends nothing: the operation goes on.
  Completion wait_for(OpId op, int64_t limit_ns);
  // Waits until no operation is under way; nothing touches their memory then.
  void wait_all();
  // Forgets an operation's record. Each operation must be taken once by `forget`, or by next_completed. Who is in
  // wait() then still gets the answer; later questions get kFailed.
  void forget(OpId op);

  // Operations marked with `watch` are reported here once they completed, in order of completion. Blocks until there
  // is one; returns empty after close().
  void watch(OpId op);
  std::vector<Completion> next_completed();
  void close();

  bool interrupted() const;
  // The error of the first operation that failed because a link between two nodes broke; empty: none did. It stands
  // there before anybody learns that the operation failed. Any thread.
  std::string broken_link() const;
  // Collectives this rank has begun to carry out so far (for progress counters and metrics).
  uint64_t collectives_entered() const;
  // How long this rank waited for others; who waits for something else of theirs (a vote) counts there too.
  WaitClock& waits();
  // The last collectives of this rank, oldest first: the flight recorder.
  std::vector<FlightRecord> recent() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::comm
