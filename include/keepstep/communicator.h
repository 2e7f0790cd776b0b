// keepstep's communicator for C++ programs: no Python, no torch, no TCPStore, no rank 0.
//
// The ranks of a job on one machine find each other through the node's agent, which starts by itself (it needs the
// command `keepstep`, see Options). Collectives go through shared memory; for each element sums are taken in rank
// order, so the result depends neither on timing nor on how buffers are cut. float16 and bfloat16 are summed in float32
// and rounded once.
//
// A program that `keepstep run --no-python` started gets its communicator from its Trainer (trainer.h) instead of
// join(): it reaches other nodes too, and survives the end of a rank.
//
// Errors: every operation's Work says how it ended; nothing is thrown. When a rank ends without leaving, or somebody
// calls abort(), all operations of all ranks return within about a millisecond, with the reason; the communicator is of
// no more use then. Ranks that call different operations are told which, both sides, instead of hanging.
//
// Threads: all methods may be called from any thread; collectives run in the order of the calls, which must be the same
// on all ranks. Buffers are the caller's and must stay untouched until the Work was waited for.
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

// An operation under way. Movable; waits in its destructor if nobody did.
class Work {
 public:
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  bool done() const;
  // OK; ABORTED when interrupted (in-place buffers stay as they are, other outputs are zeros); DEADLINE_EXCEEDED,
  // naming who did not come; INVALID_ARGUMENT for what the arguments forbid or the ranks disagree about.
  absl::Status wait();
  // Of a receive from any rank, after wait(): who sent.
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
    std::string job;                   // a name that the ranks of this job share and nobody else has
    uint32_t rank = 0;                 // this process's
    uint32_t world = 1;                // number of ranks; at most 63
    int64_t join_timeout_ms = 60'000;  // for the others to come; < 0: none
    int64_t timeout_ms = 1'800'000;    // of an operation, from when it is its turn; < 0: none
    std::string command = "keepstep";  // starts the node's agent if none runs
  };
  static constexpr uint32_t kAnyRank = ~uint32_t{0};

  // Waits until all ranks have joined. DEADLINE_EXCEEDED names who has not; FAILED_PRECONDITION when the rank is taken
  // or the others say another world; NOT_FOUND when the command cannot be started.
  static absl::StatusOr<std::unique_ptr<Communicator>> join(const Options& options);
  // Leaves. What is under way is interrupted for all ranks.
  ~Communicator();

  uint32_t rank() const;
  uint32_t world() const;

  // `count` elements, in place on all ranks.
  Work all_reduce(void* data, size_t count, DataType type, ReduceOp reduction = ReduceOp::kSum);
  // As all_reduce, but only the root's data is the result; the others' stays as it is.
  Work reduce(void* data, size_t count, DataType type, ReduceOp reduction, uint32_t root);
  Work broadcast(void* data, size_t bytes, uint32_t root);
  // outputs[r] gets rank r's input, all of `bytes`.
  Work all_gather(const void* input, const std::vector<void*>& outputs, size_t bytes);
  // output = reduction over the ranks of what each gave for this one in inputs[rank()], `count` elements.
  Work reduce_scatter(const std::vector<const void*>& inputs, void* output, size_t count, DataType type,
                      ReduceOp reduction = ReduceOp::kSum);
  // outputs are empty but on the root.
  Work gather(const void* input, const std::vector<void*>& outputs, size_t bytes, uint32_t root);
  // inputs are empty but on the root.
  Work scatter(const std::vector<const void*>& inputs, void* output, size_t bytes, uint32_t root);
  // inputs[r] (input_bytes[r]) goes to rank r, outputs[r] (output_bytes[r]) comes from it; sizes may be 0.
  Work all_to_all(const std::vector<const void*>& inputs, const std::vector<size_t>& input_bytes,
                  const std::vector<void*>& outputs, const std::vector<size_t>& output_bytes);
  Work barrier();
  // Matched by rank and tag, in order. A send completes after its receive was posted; a message longer than the
  // receiver's buffer fails on both sides.
  Work send(const void* data, size_t bytes, uint32_t to, uint32_t tag = 0);
  Work receive(void* data, size_t bytes, uint32_t from, uint32_t tag = 0);  // from: a rank or kAnyRank

  // Ends everything that is under way, on all ranks; they are told why.
  void abort(const std::string& because);

 private:
  friend class Trainer;
  friend class Work;
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep
