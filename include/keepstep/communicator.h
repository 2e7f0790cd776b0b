// keepstep's communicator for C++ programs: no Python, no torch, no TCPStore, no rank 0.
//
// The ranks of a job on one machine find each other through the node's agent, which is started automatically (this
// needs the command `keepstep`, see Options). Collectives use shared memory. Each element is summed in rank order, so
// the result depends neither on timing nor on how buffers are cut. float16 and bfloat16 are summed in float32 and
// rounded once.
//
// A program started by `keepstep run --no-python` gets its communicator from its Trainer (trainer.h) instead of join().
// That communicator also reaches other nodes and survives the death of a rank.
//
// Errors: every operation's Work reports how it ended; nothing is thrown. When a rank ends without leaving, or any rank
// calls abort(), all operations of all ranks return within about a millisecond, with the reason, and the communicator
// is no longer usable. Ranks that call different operations do not hang: both sides get an error that names the
// operations.
//
// Threads: all methods may be called from any thread. Collectives run in the order of the calls, which must be the same
// on all ranks. Buffers belong to the caller and must stay untouched until the Work has been waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "keepstep/types.h"

namespace keepstep {

class Trainer;

// An operation in progress. Movable. The destructor waits if wait() was not called.
class Work {
 public:
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  bool done() const;
  // OK; ABORTED if interrupted (in-place buffers keep their contents, other outputs are zeros); DEADLINE_EXCEEDED,
  // naming the missing ranks; INVALID_ARGUMENT if the arguments are invalid or differ between ranks.
  absl::Status wait();
  // The sender of a receive from kAnyRank; valid after wait().
  uint32_t source() const;

 private:
  friend class Communicator;
  struct State;
  explicit Work(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Communicator {
 public:
  struct Options {
    std::string job;                   // a name that the ranks of this job share and no other job uses
    uint32_t rank = 0;                 // of this process
    uint32_t world = 1;                // number of ranks; at most 63
    int64_t join_timeout_ms = 60'000;  // to wait for the other ranks; < 0: no limit
    int64_t timeout_ms = 1'800'000;    // of an operation, once its turn has come; < 0: no limit
    std::string command = "keepstep";  // starts the node's agent if none is running
  };
  static constexpr uint32_t kAnyRank = ~uint32_t{0};

  // Waits until all ranks have joined. DEADLINE_EXCEEDED names the ranks that have not; FAILED_PRECONDITION if the rank
  // is taken or the others gave a different world size; NOT_FOUND if the command cannot be started.
  static absl::StatusOr<std::unique_ptr<Communicator>> join(const Options& options);
  // Leaves. Operations in progress are interrupted on all ranks.
  ~Communicator();

  uint32_t rank() const;
  uint32_t world() const;

  // `count` elements, in place on all ranks.
  Work all_reduce(void* data, size_t count, DataType type, ReduceOp reduction = ReduceOp::kSum);
  // Like all_reduce, but only the root's data receives the result; the others' stays unchanged.
  Work reduce(void* data, size_t count, DataType type, ReduceOp reduction, uint32_t root);
  Work broadcast(void* data, size_t bytes, uint32_t root);
  // outputs[r] receives rank r's input; all are `bytes` long.
  Work all_gather(const void* input, const std::vector<void*>& outputs, size_t bytes);
  // output = the reduction over all ranks of their inputs[rank()], `count` elements.
  Work reduce_scatter(const std::vector<const void*>& inputs, void* output, size_t count, DataType type,
                      ReduceOp reduction = ReduceOp::kSum);
  // outputs is empty except on the root.
  Work gather(const void* input, const std::vector<void*>& outputs, size_t bytes, uint32_t root);
  // inputs is empty except on the root.
  Work scatter(const std::vector<const void*>& inputs, void* output, size_t bytes, uint32_t root);
  // Sends inputs[r] (input_bytes[r]) to rank r and receives outputs[r] (output_bytes[r]) from it; sizes may be 0.
  Work all_to_all(const std::vector<const void*>& inputs, const std::vector<size_t>& input_bytes,
                  const std::vector<void*>& outputs, const std::vector<size_t>& output_bytes);
  Work barrier();
  // Matched by rank and tag, in order. A send completes once its receive has been posted; a message longer than the
  // receiver's buffer fails on both sides.
  Work send(const void* data, size_t bytes, uint32_t to, uint32_t tag = 0);
  Work receive(void* data, size_t bytes, uint32_t from, uint32_t tag = 0);  // from: a rank or kAnyRank

  // Ends all operations in progress on all ranks, with this reason.
  void abort(const std::string& because);

 private:
  friend class Trainer;
  friend class Work;
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep
