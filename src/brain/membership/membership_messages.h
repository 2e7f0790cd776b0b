// What the coordinator's brain receives and what it orders: events in, effects out (membership.h, node.h). Value types.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "brain/commit/step_commit.h"
#include "brain/copies/shard_copies.h"
#include "brain/elastic/elastic_policy.h"
#include "brain/table/rank_table.h"
#include "brain/types.h"

namespace keepstep::brain {

// ---- events: what happened ----------------------------------------------------------------------------------------

// An agent is present. Repeated when it reconnects.
struct NodeJoined {
  NodeId node = 0;
  NodeEndpoint endpoint;  // where peers find the node's ranks
};
// The connection to a node's agent broke, or the agent died: nothing on that node can be reached, sealed or read any
// more. Its workers end on their own (every worker without its agent does) and can no longer take part in this
// identity.
struct NodeLost {
  NodeId node = 0;
  std::string because;
};
// A worker attached, ran the script and waits at the first call that needs a rank. A released member that sends this
// has entered the next recoverable function. `functions`: how many are over for it.
struct WorkerParked {
  WorkerId worker = kNoWorker;
  int64_t pid = 0;
  uint32_t functions = 0;
};
// The worker entered a `keepstep.recoverable` function: faults of others need not restart it. If it parks there, this
// comes before WorkerParked: the shell preserves this order.
struct WorkerRecoverable {
  WorkerId worker = kNoWorker;
};
// The worker is gone, or will be as soon as its memory is torn down (the notice may come before the exit).
struct WorkerDied {
  WorkerId worker = kNoWorker;
  int64_t pid = 0;
  int signal = 0;           // the signal that ended it; 0 if it exited, -1 if not known yet (a second event follows)
  int exit_code = 0;        // meaningful only if signal == 0
  std::string detected_by;  // "robust mutex", "pidfd", "kill"
  std::string traceback;    // of an uncaught exception, if the worker reported one
  std::string unfit = "";   // what its health check found before it could join; empty if the check did not fail
  Version committed = 0;    // the newest step that it committed
};
// The worker is alive but makes no progress while others wait for it (failure_detector.h): it is killed, and that
// counts as its death. For reports of an identity that is not the newest, the membership has its own limits.
struct WorkerHung {
  WorkerId worker = kNoWorker;
  Identity identity;
  int64_t pid = 0;
  Time idle{};          // since its last progress
  std::string because;  // one line: where it hangs and who waits
};
// The worker ended on its own with exit code 0. A member counts as finished then, unless it is recoverable and its
// generation had not started.
struct WorkerExited {
  WorkerId worker = kNoWorker;
};
// User code raised inside the recoverable function, or the connection to another node broke during it. The process is
// alive and waits.
struct WorkerFaulted {
  WorkerId worker = kNoWorker;
  Identity identity;
  Step step = 0;  // 0: before the first step
  std::string what;
  std::string traceback;
  bool fatal = false;         // a mistake that no retry can fix (ranks protect different names): end the job
  bool link = false;          // a connection between two nodes broke, `what` names both ends; not the user's fault
  bool digests = false;       // all voted, but for different things (digests.h); the sealed words show whose fault
  bool after_commit = false;  // `step` was committed: the code that raised followed it
};
// Answer to Seal from one node.
struct Sealed {
  NodeId node = 0;
  Identity identity;
  // For the node's members, and for dead ones, too: they are sealed as well while their pages exist. A dead rank that
  // had not voted may not have saved its capsule of the step: its word makes the verdict a redo. For a member without a
  // word, WorkerDied is awaited.
  std::vector<SealedWord> words;
  // With several nodes: the newest decided step whose mean loss this node knows; 0: none.
  Step mean_step = 0;
  double mean_loss = 0;
  uint32_t mean_flags = 0;  // union over the votes on that step
  // Sharded state: the copies in the node's memory, for ranks here and elsewhere.
  std::vector<ShardCopy> copies = {};
  std::vector<ParityCopy> parity = {};  // and parity blocks
};
struct MemberState {
  WorkerId worker = kNoWorker;
  StateWord state;
  bool sharded = false;  // no other rank has its state, so only copies can replace it (shard_copies.h)
  Time waited{};         // from when it was ready until its node reported it
};
// Answer to Prepare from members of one node, in the order in which they left the old step. A node answers once for all
// of its members unless one of them is much slower than the others.
struct Ready {
  Identity identity;
  std::vector<MemberState> members;
};
// All members of the generation are clean at its version and continue.
struct Formed {
  Identity identity;
};
// All members committed a step (sent for the first one of a generation, then from time to time). It renews budgets and
// allows spares to be spawned; no verdict follows from it.
struct Progress {
  Identity identity;
  Version version = 0;
  std::optional<StepDigest> digest = std::nullopt;  // what all ranks agreed on in that step, if known
};
// The training function returned on this worker; it waits for Release.
struct WorkerFinished {
  WorkerId worker = kNoWorker;
  Identity identity;
};
struct StopRequested {
  int exit_code = 0;
  std::string because;
};
// Answer to Pause from one member: it committed a step with all others and waits at its end. Without a Pause: it waits
// before its first step, because the batches cannot feed this many ranks. From a plain script: it has noticed, and is
// about to exit with 0.
struct WorkerPaused {
  WorkerId worker = kNoWorker;
  Identity identity;
};
// The node was told to leave, by a signal or a notice. Repeated until it receives ReleaseNode.
struct NodeLeaves {
  NodeId node = 0;
  std::string because;
};
// Somebody wants this many replicas; std::nullopt: as many as the policy chooses.
struct ScaleRequested {
  std::optional<uint32_t> replicas;
};
// The limits of an elastic job change. Invalid limits change nothing and are journalled.
struct PolicyChanged {
  ElasticConfig config;
};
// The job's batches feed no more ranks than this and, if they must be shared evenly, only these numbers of ranks.
struct UsefulWorlds {
  uint32_t ranks = 0;
  std::vector<uint32_t> sizes = {};  // ranks, ascending; empty: any number
};
// The state of this version, as it was in this generation, is where every process can load it, including those of
// another start of the job (then generation 0). Before the first generation has formed: training continues from there.
struct Saved {
  Version version = 0;
  uint32_t generation = 0;
};
struct Tick {};

using Event = std::variant<NodeJoined, NodeLost, WorkerParked, WorkerRecoverable, WorkerDied, WorkerHung, WorkerExited,
                           WorkerFaulted, Sealed, Ready, Formed, Progress, WorkerFinished, StopRequested, WorkerPaused,
                           NodeLeaves, ScaleRequested, PolicyChanged, UsefulWorlds, Saved, Tick>;

// ---- effects: what the shell must do ------------------------------------------------------------------------------

struct Spawn {
  NodeId node = 0;
  WorkerId worker = kNoWorker;
  bool spare = false;  // for names and logs only
  std::string because;
  uint32_t functions = 0;  // recoverable functions that are over: the worker skips them
};
struct Seal {
  Identity identity;
  std::string because;
};
// The verdict over generation `identity`: survivors that had voted on `version` apply it, all others stay where they
// are. Must reach a node before the following Prepare.
struct Decide {
  Identity identity;
  Verdict verdict;
  std::optional<double> mean_loss = std::nullopt;  // of step `verdict.version`, for nodes that never learned it
  uint32_t flags = 0;                              // union over the votes on that step, likewise
};
struct Member {
  Rank rank = 0;
  WorkerId worker = kNoWorker;
  NodeId node = 0;
  bool newcomer = false;          // did not hold this rank in the last generation that formed
  WorkerId previous = kNoWorker;  // if newcomer: the worker that did; its capsule is taken over
  bool operator==(const Member&) const = default;
};
struct Prepare {
  Identity identity;
  Version version = 0;
  RankTable table;
  std::vector<Member> members;  // by rank; an agent receives only those of its node
  std::string because;
  bool resized = false;   // the world differs from that of the last generation that formed
  uint32_t restarts = 0;  // faults so far that were followed by a new generation; a resize is none
  // The current sharding, and the one in which `version` is kept whole. If they differ, each rank takes what it needs
  // from those shards (reshard_plan.h).
  Sharding sharding;
  Sharding from;
  uint32_t functions = 0;  // recoverable functions that are over; after each, the job starts again at version 0
};
// Start: `targets` pull the state at `version` from `sources`, then all members continue. `compare`: the targets
// compare digests first and pull only what differs (at the start of a job, where `sources` is the lowest rank). If
// state is sharded, or `version` was saved, there may be no sources: then each target takes its shard from a copy, or
// loads it.
struct Activate {
  Identity identity;
  Version version = 0;
  std::vector<Rank> sources;
  std::vector<Rank> targets;
  bool compare = false;
};
struct Kill {
  WorkerId worker = kNoWorker;
  std::string because;
  NodeId node = 0;  // where it runs
};
// Tells members to pause at the end of the current step. If state is sharded, ranks on nodes not in `stay` first give
// their shards to ranks on nodes in `stay`.
struct Pause {
  Identity identity;
  std::string because;
  std::vector<NodeId> stay = {};  // ascending
};
// The node has no ranks any more and may end, with everything it runs.
struct ReleaseNode {
  NodeId node = 0;
  std::string because;
};
// All members finished: let them return. `because`: one has died since, so any rank that waits for another is
// interrupted and gets an error; nobody is killed for it. Empty if none has died.
struct Release {
  Identity identity;
  std::string because = {};
};
// The job is over: end what still runs and exit with `exit_code`. `message` and `traceback` are for the user. With exit
// code 0, the lines of `message` after the first are failures that a redo hid.
struct EndJob {
  int exit_code = 0;
  std::string message;
  std::string traceback;
};
// One line for the journal; every decision has one, with its reason.
struct Journal {
  std::string event;
  std::string because;
  std::vector<Field> fields;
  bool aloud = false;  // the reason goes to the console, too
};

using Effect = std::variant<Spawn, Seal, Decide, Prepare, Activate, Kill, Pause, ReleaseNode, Release, EndJob, Journal>;
using Effects = std::vector<Effect>;

}  // namespace keepstep::brain
