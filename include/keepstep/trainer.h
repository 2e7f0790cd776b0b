// Training in C++ that survives the death of its processes: no Python, no torch.
//
// A program started by `keepstep run --no-python` attaches to its job, names the memory that holds its state, and
// trains in a loop. When a process dies, a new one takes its rank and gets the state from its peers' memory. The others
// keep their process and their memory, and repeat at most the step they were in. No committed step is lost, and none is
// applied twice.
//
//   auto attached = keepstep::Trainer::attach();
//   keepstep::Trainer& trainer = **attached;                    // after checking attached.status()
//   trainer.protect("weights", weights.data(), {weights.size()}, keepstep::DataType::kFloat32);
//   while (trainer.next_step(1000)) {
//     compute_gradients(trainer.samples(64, dataset_size));
//     if (!trainer.communicator().all_reduce(gradient.data(), gradient.size(), type).wait().ok()) {
//       continue;                                               // interrupted: go on to next_step
//     }
//     trainer.commit([&] { apply(gradient); return absl::OkStatus(); });   // all ranks, or none
//   }
//   return trainer.status().ok() ? 0 : 1;
//
// For results to stay bit-identical, protected memory must change only inside commit, and a step's computation must
// depend only on the protected memory, the step's number, rank, and world. For the first steps (for all, with
// `keepstep run --check`) commit compares digests, and refuses a step during which protected memory changed.
//
// Errors are values. ABORTED: the step was interrupted because a process died or a rank failed; go on to next_step.
// Every other error of an operation or of `commit` is remembered: next_step reports it to the job as this rank's
// failure, and the step is redone. The same failure twice at the same step ends the job. Misuse of this class ends the
// job at once, with a message that explains the mistake. Nothing is thrown; an exception thrown by an update
// propagates.
//
// Threads: one thread calls these methods; fail() and interrupted() may be called from any thread, and so may the
// communicator's methods. One trainer per process. Protected memory belongs to the caller and must outlive the trainer.
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

  // Attaches this process to its job. Call it once, early: from then on the job knows that this process can survive
  // faults of others. FAILED_PRECONDITION: not started by `keepstep run --no-python`, or already attached. CANCELLED:
  // the job is over.
  static absl::StatusOr<std::unique_ptr<Trainer>> attach();
  // Detaches from the job. A process that exits with 0 before all ranks have finished counts as finished, otherwise as
  // dead.
  ~Trainer();

  // ---- state ----
  // Names memory that is part of the state, which a new process gets from its peers. `shape`: elements in each
  // dimension (empty: one element). All ranks name the same pieces, in the same order, with the contents they have at
  // the start of the job. Call it before join(). INVALID_ARGUMENT: the name is taken or contains a '/', or there is no
  // memory; FAILED_PRECONDITION: too late.
  absl::Status protect(const std::string& name, void* data, const std::vector<size_t>& shape, DataType type);

  // Names memory that holds the same on all ranks whenever commit is called: gradients after their reduction. The vote
  // then detects a bit that flipped on one rank, the step is redone, and that rank is replaced. Protected memory, which
  // must be the same on all ranks, is compared every --digest-every steps without being named here
  // (docs/design/corruption.md). The memory stays the caller's. Call it before join(). INVALID_ARGUMENT: there is no
  // memory; FAILED_PRECONDITION: too late.
  absl::Status compare(const std::string& name, void* data, size_t bytes);

  // ---- membership ----
  // Waits until this process has a rank and the same state as its peers; next_step does so too. A spare waits here,
  // possibly until the job ends, so do expensive work that needs no rank first. CANCELLED: the job is over.
  absl::Status join();
  uint32_t rank() const;               // kNoRank before join(); a process keeps its rank
  uint32_t world() const;              // number of ranks in the job
  uint32_t generation() const;         // membership counter, from 1; each fault makes a new one. 0 before join()
  const std::string& because() const;  // why this generation began, as a sentence
  bool newcomer() const;               // this process got its rank in this generation
  bool interrupted() const;            // this generation is over; long computations may poll this and stop early
  uint64_t seed() const;               // of the job (--seed)

  // Connects all ranks of this generation, on all nodes; use it after join(). Operations of an interrupted generation
  // end within a millisecond, with ABORTED. None may be in progress when commit or next_step is called, and an update
  // must not start any: a death during one could leave ranks with different states. abort() acts like fail().
  Communicator& communicator();

  // ---- the loop ----
  // Begins the next step that this job still has to make, up to number `until`. True: step() is its number. After an
  // interruption it may be the previous step again. First waits for a rank, or for peers after a fault; after the last
  // step, waits until all ranks have finished it. False: all steps are done, or status() reports what happened.
  bool next_step(uint64_t until);
  // OK while all goes well and after all ranks have finished. CANCELLED: the job ended without this process (for
  // example, a spare that was never used); nothing needs reporting. Any other status is what ended the loop; the job
  // already knows it.
  const absl::Status& status() const;
  uint64_t step() const;     // the step being computed, from 1; 0 between steps
  uint64_t version() const;  // number of committed steps

  // Called on every rank after the last step of a job that has to stop soon (the launcher got a signal, see
  // docs/how-to/slurm.md). Save here: all ranks are at version(). next_step then returns false, with status CANCELLED.
  void on_notice(std::function<void()> function);

  // The samples of this rank in this step: its share of `global_batch` consecutive positions in the job's order, which
  // is a new shuffle of 0 .. dataset_size - 1 for each epoch (or the dataset's own order). Together the ranks get each
  // position once, whatever the world size. Empty outside a step, and for an empty dataset.
  std::vector<uint64_t> samples(uint64_t global_batch, uint64_t dataset_size, bool shuffle = true) const;

  // Records this rank's loss in this step: a sum, and the number of terms in it. Call it before commit.
  void record_loss(double sum, uint64_t count);

  // All ranks vote; then `update` changes the protected memory. The step is committed on all ranks or on none, wherever
  // a process dies. OK: committed. ABORTED: the step will be redone. The error that `update` returned: this rank's
  // memory is then restored from its peers. Any other error: a mistake in the step, which was not voted on.
  absl::Status commit(const std::function<absl::Status()>& update);
  // The mean loss over all ranks in the last committed step, bit-identical on each; NaN: no rank recorded one.
  double loss() const;

  // Reports that this rank cannot do the step, and why: next_step passes it on, and all ranks redo the step.
  void fail(const absl::Status& why);

  // Logs a value to metrics.jsonl with this step's number (after commit: the number of the step just committed). It is
  // published once, if the step is committed. If several ranks log the same name, the lowest rank's value is used.
  // INVALID_ARGUMENT: more than 100 KB of text in one call.
  absl::Status log(const std::string& name, double value);
  absl::Status log(const std::string& name, const std::string& value);
  absl::Status log(const std::string& name, const std::vector<uint64_t>& values);

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep
