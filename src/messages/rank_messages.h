// What a rank and the agent of its node tell each other, each in an Envelope (envelope.h). When each is said, and what
// follows: docs/formats/wire_worker.md.
//
// Descriptors that go with a message are said beside it. Times are nanoseconds of CLOCK_MONOTONIC, or seconds where the
// name says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "brain/copies/parity_rebuild.h"
#include "brain/copies/shard_copies.h"
#include "brain/types.h"
#include "comm/communicator.h"
#include "messages/schema.h"

namespace keepstep::messages {

// ---- parts of messages ----------------------------------------------------------------------------------------------

// A fault to carry out (docs/reference/inject.md), parsed and checked by the agent.
struct Fault {
  std::string key;   // tells the faults of a job apart
  std::string text;  // as given
  std::string kind;
  std::string phase;
  std::string what;       // flip: "gradient" or "parameter"; oom: "error" or "kill"
  bool on_spare = false;  // only in a worker that started as a spare
  bool late = false;      // came while the job ran: a step that is past means the next one
  std::optional<uint32_t> rank;
  std::optional<uint64_t> step;
  std::optional<double> probability;
  std::optional<uint64_t> seed;
  std::optional<uint64_t> times;
  std::optional<double> seconds;
  std::optional<double> factor;
  std::optional<uint64_t> ms;
  std::optional<uint64_t> mib;
  KEEPSTEP_FIELDS(key, text, kind, phase, what, on_spare, late, rank, step, probability, seed, times, seconds, factor,
                  ms, mib)
};

// A value of the Store: in the message, or in memory whose descriptor goes with it (store_value.h).
struct StoreValue {
  Bytes here;
  uint64_t beside = 0;  // bytes in that memory; 0: `here` is the value
  KEEPSTEP_FIELDS(here, beside)
};

// Consecutive ranks of one node, in an entry of the rank table.
struct TableEntry {
  uint32_t node = 0;
  std::string address;     // numeric, IPv4 or IPv6
  uint32_t port_base = 0;  // of local rank 0
  uint32_t ranks = 0;
  uint32_t first_local = 0;
  KEEPSTEP_FIELDS(node, address, port_base, ranks, first_local)
};

// How a spare's rehearsal of its first step went.
struct Rehearsed {
  bool done = false;
  double seconds = 0;
  std::string because;  // it was not done
  KEEPSTEP_FIELDS(done, seconds, because)
};

// ---- from a rank ----------------------------------------------------------------------------------------------------

// The first message.
struct Attach {
  static constexpr std::string_view kName = "attach";
  Texts fingerprint;  // what decides about bits, by name: the same on all workers
  KEEPSTEP_FIELDS(fingerprint)
};

// It waits for a rank.
struct Parked {
  static constexpr std::string_view kName = "parked";
  std::optional<Rehearsed> rehearsed;
  uint32_t functions = 0;  // recoverable functions that are over for it
  KEEPSTEP_FIELDS(rehearsed, functions)
};

// It entered a recoverable function.
struct Recoverable {
  static constexpr std::string_view kName = "recoverable";
  double timeout_s = 0;  // within which it leaves a generation that was interrupted; 0: none
  KEEPSTEP_FIELDS(timeout_s)
};

// What the script imported beyond the zygote.
struct Preload {
  static constexpr std::string_view kName = "preload";
  std::vector<std::string> modules;
  std::string path;  // where the script's own modules are found
  KEEPSTEP_FIELDS(modules, path)
};

// It left the generation before. Answers Prepare.
struct Ready {
  static constexpr std::string_view kName = "ready";
  brain::StateKind state = brain::StateKind::kEmpty;
  brain::Version version = 0;
  bool sharded = false;  // no other rank holds what this one does
  KEEPSTEP_FIELDS(state, version, sharded)
};

struct Hydrated {
  static constexpr std::string_view kName = "hydrated";
  int64_t bytes = 0;
  int64_t skipped = 0;   // bytes that it had already
  int64_t repeated = 0;  // chunks that came damaged
  double seconds = 0;
  std::vector<int64_t> sources;     // ranks
  std::vector<int64_t> bytes_from;  // by source
  KEEPSTEP_FIELDS(bytes, skipped, repeated, seconds, sources, bytes_from)
};

// All members are clean; said by the last one.
struct Formed {
  static constexpr std::string_view kName = "formed";
};

// The agent reads its log (rank/link/log_ring.h) before it looks at any message: one that says no more than that.
struct Collect {
  static constexpr std::string_view kName = "collect";
};

// It committed a step with all others, and waits at its end. Or, from a plain script: it heard that the world changes,
// and is about to exit with 0.
struct Paused {
  static constexpr std::string_view kName = "paused";
};

// User code raised, a link broke, or the ranks voted for different things; the process lives.
struct Faulted {
  static constexpr std::string_view kName = "faulted";
  brain::Step step = 0;  // 0: before the first
  std::string what;      // one line
  std::string traceback;
  bool fatal = false;         // no retry can mend it
  bool link = false;          // the connection to another node broke, and `what` names both ends
  bool digests = false;       // all voted, but for different things
  bool after_commit = false;  // what raised followed the commit of `step`
  KEEPSTEP_FIELDS(step, what, traceback, fatal, link, digests, after_commit)
};

// The training function returned.
struct Finished {
  static constexpr std::string_view kName = "finished";
  bool notice = false;  // it left its loop because of a notice
  KEEPSTEP_FIELDS(notice)
};

// An uncaught exception: the process is about to exit.
struct Crashed {
  static constexpr std::string_view kName = "crashed";
  std::string traceback;
  KEEPSTEP_FIELDS(traceback)
};

// This injected fault is carried out now.
struct Injected {
  static constexpr std::string_view kName = "injected";
  std::string key;
  std::string detail;  // what of it chance decided
  bool last = true;    // it will not come again
  int64_t ns = 0;
  KEEPSTEP_FIELDS(key, detail, last, ns)
};

struct StoreQuestion {
  static constexpr std::string_view kName = "store_question";
  uint64_t id = 0;
  std::string op;  // agent/store/store.h
  Bytes key;
  StoreValue value;
  KEEPSTEP_FIELDS(id, op, key, value)
};

// A line for the journal.
struct Note {
  static constexpr std::string_view kName = "note";
  std::string event;  // one of those that the agent knows
  brain::Step step = 0;
  std::string because;
  std::string where;  // of a save: its place
  KEEPSTEP_FIELDS(event, step, because, where)
};

// The job's batches feed no more ranks than this; rank 0's, when a loop begins.
struct Useful {
  static constexpr std::string_view kName = "useful";
  uint32_t ranks = 0;
  std::vector<uint32_t> sizes;  // where micro-batches must be shared evenly: only so many
  KEEPSTEP_FIELDS(ranks, sizes)
};

// Its health check failed before it had a rank; it is about to exit.
struct Unfit {
  static constexpr std::string_view kName = "unfit";
  std::string check;
  std::string measured;
  std::string limit;
  bool counts = true;  // against its node
  KEEPSTEP_FIELDS(check, measured, limit, counts)
};

// Memory for copies of a rank's shard, or for a block of parity: that which holds `version`, or, without one, of this
// size, made if there is none.
struct VaultQuestion {
  static constexpr std::string_view kName = "vault_question";
  uint64_t id = 0;
  uint32_t sharding = 0;  // the division of the state, by its number
  brain::Rank rank = 0;
  std::optional<brain::ParityBlock> block;  // in place of `rank`
  std::optional<brain::Version> version;
  uint64_t data_bytes = 0;
  uint64_t text_room = 0;  // bytes
  KEEPSTEP_FIELDS(id, sharding, rank, block, version, data_bytes, text_room)
};

// Any process can load this version, also of another start of the job; rank 0's.
struct Saved {
  static constexpr std::string_view kName = "saved";
  brain::Version version = 0;
  uint32_t generation = 0;  // in which it was; 0: another start of the job
  std::string where;
  double seconds = 0;
  int64_t left_out = 0;                 // saves before it that failed
  std::vector<int64_t> left_out_steps;  // the last of them
  KEEPSTEP_FIELDS(version, generation, where, seconds, left_out, left_out_steps)
};

// A step was done in this division of the state; copies of those before may go.
struct Settled {
  static constexpr std::string_view kName = "settled";
  uint32_t sharding = 0;
  KEEPSTEP_FIELDS(sharding)
};

// With the memory in which this rank keeps capsules of others (rank/shards/kept_capsules.h).
struct Kept {
  static constexpr std::string_view kName = "kept";
};

// Of ranks that somebody else started, to the service of their node (docs/design/node_service.md).
struct Join {
  static constexpr std::string_view kName = "join";
  std::string key;  // of the communicator
  uint32_t rank = 0;
  uint32_t world = 0;
  KEEPSTEP_FIELDS(key, rank, world)
};
struct Leave {  // it needs its communicator no more
  static constexpr std::string_view kName = "leave";
};
struct Abort {  // ends the communicator for all its ranks
  static constexpr std::string_view kName = "abort";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

using FromRank =
    std::variant<Attach, Parked, Recoverable, Preload, Ready, Hydrated, Formed, Collect, Paused, Faulted, Finished,
                 Crashed, Injected, StoreQuestion, Note, Useful, Unfit, VaultQuestion, Saved, Settled, Kept>;
using ToService = std::variant<Attach, Join, Leave, Abort, StoreQuestion>;

// ---- to a rank ------------------------------------------------------------------------------------------------------

// Answers Attach.
struct Welcome {
  static constexpr std::string_view kName = "welcome";
  bool spare = false;
  uint32_t functions = 0;  // recoverable functions that are over in this job: it passes over them
  uint64_t seed = 0;
  bool check_all = false;     // digests of all steps of a rank that joins
  std::string digests;        // "auto", "on" or "off"
  uint64_t digest_every = 0;  // steps; 0: never
  uint32_t world = 0;
  bool several_nodes = false;
  bool elastic = false;
  bool health_check = false;
  bool learn = false;                       // Preload is wanted when it parks
  bool term_is_notice = false;              // SIGTERM from outside is for the agent
  std::string rings;                        // path of the socket for rings of batches; empty: there is none
  std::string drain;                        // the same of the process that writes checkpoints
  std::vector<std::string> rank_variables;  // names of environment variables that follow from a rank
  std::vector<Fault> inject;                // that may still come
  comm::CommConfig comm;
  KEEPSTEP_FIELDS(spare, functions, seed, check_all, digests, digest_every, world, several_nodes, elastic, health_check,
                  learn, term_is_notice, rings, drain, rank_variables, inject, comm)
};

// A rank in a new generation, that of the envelope. With the generation's page, the memory of each of `workers` and,
// where there are several nodes, this rank's listening socket.
struct Prepare {
  static constexpr std::string_view kName = "prepare";
  brain::Rank rank = 0;
  brain::Version version = 0;
  std::vector<uint32_t> workers;   // of this node's members, by rank
  std::vector<brain::Rank> ranks;  // theirs
  std::vector<TableEntry> table;   // of all ranks, in their order; empty: all are on this node
  bool newcomer = false;           // was not in the generation before
  bool resized = false;            // the world is not that of the generation that formed last
  std::string entry;               // why the loop is entered: "start", "recovery", "replacement", "resize" or "joined"
  std::string because;
  uint32_t sharding = 0;  // the division of sharded state, by its number
  brain::Sharding from;   // that in which `version` is kept
  Texts environment;
  std::string data_key;     // of the connections to other nodes, hexadecimal; empty: there are none
  bool plain_data = false;  // they protect frames by MACs, not by TLS
  KEEPSTEP_FIELDS(rank, version, workers, ranks, table, newcomer, resized, entry, because, sharding, from, environment,
                  data_key, plain_data)
};

// The generation starts: who gives the state of `version` to whom.
struct Activate {
  static constexpr std::string_view kName = "activate";
  brain::Version version = 0;
  std::vector<brain::Rank> sources;
  std::vector<brain::Rank> targets;
  bool compare = false;                    // targets compare digests first and pull only what differs
  std::vector<brain::Rank> copies;         // ranks of whose shard a copy at `version` lies on this node
  std::vector<brain::Rank> copies_from;    // the same of the division in which `version` is kept
  std::vector<brain::ParityBlock> parity;  // that lie there at `version`
  KEEPSTEP_FIELDS(version, sources, targets, compare, copies, copies_from, parity)
};

// All finished, and the function may return.
struct Release {
  static constexpr std::string_view kName = "release";
};

// The job is over.
struct End {
  static constexpr std::string_view kName = "end";
  std::string message;
  KEEPSTEP_FIELDS(message)
};

struct StoreAnswer {
  static constexpr std::string_view kName = "store_answer";
  uint64_t id = 0;
  bool ok = false;
  StoreValue value;
  std::string error;  // the agent has a value and cannot hand it on
  KEEPSTEP_FIELDS(id, ok, value, error)
};

// The words of the envelope's generation are sealed; of a rank that joined: its communicator is interrupted.
struct Interrupt {
  static constexpr std::string_view kName = "interrupt";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

// The job has to stop soon: this rank says so with its votes from now on.
struct Notice {
  static constexpr std::string_view kName = "notice";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

// The world changes: this rank says with its votes that all pause after their step.
struct Pause {
  static constexpr std::string_view kName = "pause";
  std::vector<uint32_t> stay;  // nodes; where state is sharded, who is on another one hands its shard over before
  KEEPSTEP_FIELDS(stay)
};

// With the memory asked for, or why there is none.
struct VaultAnswer {
  static constexpr std::string_view kName = "vault_answer";
  uint64_t id = 0;
  std::string error;
  KEEPSTEP_FIELDS(id, error)
};

// With the memory of Kept, of the process that was the rank before; the Prepare for that rank follows.
struct Inherit {
  static constexpr std::string_view kName = "inherit";
};

struct Inject {
  static constexpr std::string_view kName = "inject";
  Fault fault;
  KEEPSTEP_FIELDS(fault)
};

// Of a node's service: the answer to Attach, who has not joined yet, that the join was refused, and that all joined,
// with the page of the group and each rank's arena.
struct Attached {
  static constexpr std::string_view kName = "attached";
};
struct Waiting {
  static constexpr std::string_view kName = "waiting";
  std::vector<brain::Rank> missing;
  KEEPSTEP_FIELDS(missing)
};
struct Refused {
  static constexpr std::string_view kName = "refused";
  std::string because;
  KEEPSTEP_FIELDS(because)
};
struct Members {
  static constexpr std::string_view kName = "members";
  comm::CommConfig comm;
  KEEPSTEP_FIELDS(comm)
};

using ToRank = std::variant<Welcome, Prepare, Activate, Release, End, StoreAnswer, Interrupt, Notice, Pause,
                            VaultAnswer, Inherit, Inject>;
using FromService = std::variant<Attached, Waiting, Refused, Members, Interrupt, StoreAnswer>;

}  // namespace keepstep::messages
