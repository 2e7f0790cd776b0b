// Training in C++ that survives the death of its processes: no Python, no torch.
//
// A program that `keepstep run --no-python` starts attaches to its job, names the memory that holds its state, and
// trains in a loop. When a process dies, a new one takes its rank and gets the state from the memory of its peers; the
// others keep their process and their memory and repeat at most the step they were in. No committed step is lost, none
// is applied twice.
//
//   auto attached = keepstep::Trainer::attach();
//   keepstep::Trainer& trainer = **attached;                    // after looking at attached.status()
//   trainer.protect("weights", weights.data(), {weights.size()}, keepstep::DataType::kFloat32);
//   while (trainer.next_step(1000)) {
//     compute_gradients(trainer.samples(64, dataset_size));
//     if (!trainer.communicator().all_reduce(gradient.data(), gradient.size(), type).wait().ok()) {
//       continue;                                               // interrupted: next_step says what comes next
//     }
//     trainer.commit([&] { apply(gradient); return absl::OkStatus(); });   // all ranks, or none
//   }
//   return trainer.status().ok() ? 0 : 1;
//
// What must hold for "no bit changes": protected memory changes inside commit only, and what a step computes follows
// from the protected memory, the step's number, rank and world alone. For the first steps (with `keepstep run --check`
// for all) commit compares digests, and refuses a step during which protected memory changed.
//
// Errors are values. ABORTED: the step was interrupted, because a process died or a rank failed; go on to next_step.
// Every other error of an operation or of `commit` is remembered: next_step reports it to the job as this rank's
// failure, and the step is done again; the same failure at the same step twice ends the job. A mistake in how this
// class is used ends the job at once, and says what is wrong. Nothing is thrown; an exception of an update passes.
//
// Threads: one thread calls these methods; fail() and interrupted() any. The communicator's may be called from
// any thread. One trainer a process. Memory that is protected stays the caller's and must outlive the trainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "keepstep/communicator.h"

namespace keepstep {

class Trainer {
 public:
  static constexpr uint32_t kNoRank = ~uint32_t{0};

  // Attaches this process to its job; call it once, early: from here on the job knows that faults of others need not
  // end this process. FAILED_PRECONDITION: not started by `keepstep run --no-python`, or attached already. CANCELLED:
  // the job is over.
  static absl::StatusOr<std::unique_ptr<Trainer>> attach();
  // Lets go of the job. A process that ends with 0 before all ranks finished counts as finished, else as dead.
  ~Trainer();

  // ---- state ----
  // Names memory that makes up the state: what a new process needs of its peers. `shape`: elements in each dimension
  // (empty: one element). All ranks name the same, in the same order, with what it holds at the start of the job;
  // before join(). INVALID_ARGUMENT: the name is taken or holds a '/', or there is no memory; FAILED_PRECONDITION: too
  // late.
  absl::Status protect(const std::string& name, void* data, const std::vector<size_t>& shape, DataType type);

  // Names memory that holds the same on all ranks whenever commit is called: gradients after their reduction. Then a
  // bit that flipped on one rank is found by the vote, the step is done again, and that rank is replaced; the protected
  // memory, which must be the same on all ranks, is compared every --digest-every steps without being named here
  // (docs/design/corruption.md). The memory stays the caller's. Before join(). INVALID_ARGUMENT: there is no memory;
  // FAILED_PRECONDITION: too late.
  absl::Status compare(const std::string& name, void* data, size_t bytes);

  // ---- membership ----
  // Waits until this process has a rank and holds the same state as its peers; next_step does so too. A spare waits
  // here, possibly until the job ends: do what is expensive and needs no rank before. CANCELLED: the job is over.
  absl::Status join();
  uint32_t rank() const;               // kNoRank before join(); a process keeps its rank
  uint32_t world() const;              // ranks of the job
  uint32_t generation() const;         // counts memberships from 1; each fault makes a new one. 0 before join()
  const std::string& because() const;  // why this generation began, as a sentence
  bool newcomer() const;               // this process got its rank in this generation
  bool interrupted() const;            // this generation is over: long computations may look, and stop early
  uint64_t seed() const;               // of the job (--seed)

  // Among all ranks of this generation, on all nodes; after join(). Operations of an interrupted generation end within
  // a millisecond, with ABORTED. None may be under way when commit or next_step is called, and none may begin in an
  // update: a death in it could leave ranks with different states. abort() counts as fail().
  Communicator& communicator();

  // ---- the loop ----
  // Begins the next step that this job has still to make, up to number `until`; true: step() says which. After an
  // interruption that may be the step before once more. Waits for a rank first, for peers after a fault, and after the
  // last step until all ranks finished it. False: all is done, or status() says what happened.
  bool next_step(uint64_t until);
  // OK while all goes well and once all ranks finished. CANCELLED: the job ended without this process (a spare at its
  // end); there is nothing to say. Else what ended the loop; the job has been told.
  const absl::Status& status() const;
  uint64_t step() const;     // the step being computed, from 1; 0 between steps
  uint64_t version() const;  // committed steps so far

  // Called on every rank after the last step of a job that has to stop soon (a signal to the launcher, see
  // docs/how-to/slurm.md): the place to save, all ranks hold version(). Then next_step is false, with CANCELLED.
  void on_notice(std::function<void()> function);

  // The samples of this rank in this step: its share of `global_batch` consecutive positions of the job's order, which
  // is another shuffle of 0 .. dataset_size - 1 each epoch (or the dataset's own order). Together the ranks get each
  // position once, whatever the world size. Empty outside of a step, and for an empty dataset.
  std::vector<uint64_t> samples(uint64_t global_batch, uint64_t dataset_size, bool shuffle = true) const;

  // This rank's loss in this step: a sum, and how many things it is the sum of. Before commit.
  void record_loss(double sum, uint64_t count);

  // All ranks vote; then `update` changes the protected memory. The step counts on all ranks or on none, wherever a
  // process dies. OK: it counts. ABORTED: it is done again. What `update` returns, if that is an error: this rank's
  // memory is then taken from its peers. Anything else: a mistake in the step, which was not voted on.
  absl::Status commit(const std::function<absl::Status()>& update);
  double loss()
      const;  // of the last committed step: the mean over all ranks, the same bits on each; NaN: none recorded

  // The step cannot be done here, for the reason given: next_step reports it, and all ranks do the step again.
  void fail(const absl::Status& why);

  // A value for metrics.jsonl, with this step (after commit: with the step just committed), published once if the step
  // is committed. Where ranks log one name the lowest rank's value counts. At most 100 KB of text at once:
  // INVALID_ARGUMENT.
  absl::Status log(const std::string& name, double value);
  absl::Status log(const std::string& name, const std::string& value);
  absl::Status log(const std::string& name, const std::vector<uint64_t>& values);

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep
