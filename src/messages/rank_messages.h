// Messages between a rank and the agent of its node, each in an Envelope (envelope.h). When each is sent, and what
// follows: docs/formats/wire_worker.md.
//
// Descriptors sent with a message are named in its comment. Times are nanoseconds of CLOCK_MONOTONIC, or seconds where
// the name says so.
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
#include "comm/comm_config.h"
#include "messages/schema.h"

namespace keepstep::messages {

// ---- parts of messages ----------------------------------------------------------------------------------------------

// A fault to carry out (docs/reference/inject.md), parsed and checked by the agent.
struct Fault {
  std::string key;   // distinguishes the faults of a job
  std::string text;  // as given
  std::string kind;
  std::string phase;
  std::string what;       // flip: "gradient" or "parameter"; oom: "error" or "kill"
  bool on_spare = false;  // only in a worker that started as a spare
  bool late = false;      // added while the job runs: if its step has passed, the next one is used
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

// A value of the Store: in the message, or in memory whose descriptor is sent with it (store_value.h).
struct StoreValue {
  Bytes here;
  uint64_t beside = 0;  // number of bytes in that memory; 0: `here` is the value
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
  std::string because;  // why it was not done
  KEEPSTEP_FIELDS(done, seconds, because)
};

// ---- from a rank ----------------------------------------------------------------------------------------------------

// The first message.
struct Attach {
  static constexpr std::string_view kName = "attach";
  Texts fingerprint;  // what determines results to the bit, by name: the same on all workers
  KEEPSTEP_FIELDS(fingerprint)
};

// The worker waits for a rank.
struct Parked {
  static constexpr std::string_view kName = "parked";
  std::optional<Rehearsed> rehearsed;
  uint32_t functions = 0;  // recoverable functions that have ended for it
  KEEPSTEP_FIELDS(rehearsed, functions)
};

// The worker entered a recoverable function.
struct Recoverable {
  static constexpr std::string_view kName = "recoverable";
  double timeout_s = 0;  // time to leave an interrupted generation; 0: no limit
  KEEPSTEP_FIELDS(timeout_s)
};

// Modules that the script imported in addition to the zygote's.
struct Preload {
  static constexpr std::string_view kName = "preload";
  std::vector<std::string> modules;
  std::string path;  // where the script's own modules are found
  KEEPSTEP_FIELDS(modules, path)
};

// The worker left the previous generation. Answers Prepare.
struct Ready {
  static constexpr std::string_view kName = "ready";
  brain::StateKind state = brain::StateKind::kEmpty;
  brain::Version version = 0;
  bool sharded = false;  // no other rank holds this one's state
  KEEPSTEP_FIELDS(state, version, sharded)
};

struct Hydrated {
  static constexpr std::string_view kName = "hydrated";
  int64_t bytes = 0;
  int64_t skipped = 0;   // bytes that it already had
  int64_t repeated = 0;  // chunks that arrived damaged
  double seconds = 0;
  std::vector<int64_t> sources;     // ranks
  std::vector<int64_t> bytes_from;  // by source
  KEEPSTEP_FIELDS(bytes, skipped, repeated, seconds, sources, bytes_from)
};

// All members are clean; sent by the last one.
struct Formed {
  static constexpr std::string_view kName = "formed";
};

// Makes the agent read this worker's log (rank/link/log_ring.h), which it does before it handles any message.
struct Collect {
  static constexpr std::string_view kName = "collect";
};

// The worker committed a step with all others, and waits at its end. Or, from a plain script: it was told that the
// world changes, and is about to exit with 0.
struct Paused {
  static constexpr std::string_view kName = "paused";
};

// User code raised, a link broke, or the ranks voted for different things; the process lives.
struct Faulted {
  static constexpr std::string_view kName = "faulted";
  brain::Step step = 0;  // 0: before the first
  std::string what;      // one line
  std::string traceback;
  bool fatal = false;         // no retry can help
  bool link = false;          // the connection to another node broke; `what` names both ends
  bool digests = false;       // all ranks voted, but for different things
  bool after_commit = false;  // the exception followed the commit of `step`
  KEEPSTEP_FIELDS(step, what, traceback, fatal, link, digests, after_commit)
};

// The training function returned.
struct Finished {
  static constexpr std::string_view kName = "finished";
  bool notice = false;  // because of a notice
  KEEPSTEP_FIELDS(notice)
};

// An uncaught exception: the process is about to exit.
struct Crashed {
  static constexpr std::string_view kName = "crashed";
  std::string traceback;
  KEEPSTEP_FIELDS(traceback)
};

// The worker is about to carry out this injected fault.
struct Injected {
  static constexpr std::string_view kName = "injected";
  std::string key;
  std::string detail;  // what was chosen at random
  bool last = true;    // the fault does not recur
  int64_t ns = 0;
  KEEPSTEP_FIELDS(key, detail, last, ns)
};

// The rank has given up waiting for the answer to this question.
struct StoreCancel {
  static constexpr std::string_view kName = "store_cancel";
  uint64_t id = 0;
  KEEPSTEP_FIELDS(id)
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
  std::string event;  // one that the agent knows
  brain::Step step = 0;
  std::string because;
  std::string where;  // for a save: its destination
  KEEPSTEP_FIELDS(event, step, because, where)
};

// The job's batches feed no more ranks than this; sent by rank 0 when a loop begins.
struct Useful {
  static constexpr std::string_view kName = "useful";
  uint32_t ranks = 0;
  std::vector<uint32_t> sizes;  // if micro-batches must be shared evenly: the only possible world sizes
  KEEPSTEP_FIELDS(ranks, sizes)
};

// The worker's health check failed before it had a rank; it is about to exit.
struct Unfit {
  static constexpr std::string_view kName = "unfit";
  std::string check;
  std::string measured;
  std::string limit;
  bool counts = true;  // against its node
  KEEPSTEP_FIELDS(check, measured, limit, counts)
};

// Asks for memory for copies of a rank's shard, or for a parity block: the memory that holds `version`, or, without a
// version, memory of this size, made if it does not exist.
struct VaultQuestion {
  static constexpr std::string_view kName = "vault_question";
  uint64_t id = 0;
  uint32_t sharding = 0;  // number of the sharding
  brain::Rank rank = 0;
  std::optional<brain::ParityBlock> block;  // instead of `rank`
  std::optional<brain::Version> version;
  uint64_t data_bytes = 0;
  uint64_t text_room = 0;  // bytes
  KEEPSTEP_FIELDS(id, sharding, rank, block, version, data_bytes, text_room)
};

// Any process can load this version, even in another start of the job; sent by rank 0.
struct Saved {
  static constexpr std::string_view kName = "saved";
  brain::Version version = 0;
  uint32_t generation = 0;  // generation in which it was saved; 0: another start of the job
  std::string where;
  double seconds = 0;
  int64_t left_out = 0;                 // number of failed saves before it
  std::vector<int64_t> left_out_steps;  // the most recent ones
  KEEPSTEP_FIELDS(version, generation, where, seconds, left_out, left_out_steps)
};

// A step was committed in this sharding; copies of earlier shardings may be freed.
struct Settled {
  static constexpr std::string_view kName = "settled";
  uint32_t sharding = 0;
  KEEPSTEP_FIELDS(sharding)
};

// Sent with the memory in which this rank keeps other ranks' capsules (rank/shards/kept_capsules.h).
struct Kept {
  static constexpr std::string_view kName = "kept";
};

// Sent with a publication in sealed memory (agent/publications/publication_service.h).
struct Publish {
  static constexpr std::string_view kName = "publish";
  std::string name;
  brain::Version version = 0;
  KEEPSTEP_FIELDS(name, version)
};

// Messages of ranks that keepstep did not start, to the service of their node (docs/design/node_service.md).
struct Join {
  static constexpr std::string_view kName = "join";
  std::string key;  // of the communicator
  uint32_t rank = 0;
  uint32_t world = 0;
  KEEPSTEP_FIELDS(key, rank, world)
};
struct Leave {  // it no longer needs its communicator
  static constexpr std::string_view kName = "leave";
};
struct Abort {  // ends the communicator for all its ranks
  static constexpr std::string_view kName = "abort";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

using FromRank =
    std::variant<Attach, Parked, Recoverable, Preload, Ready, Hydrated, Formed, Collect, Paused, Faulted, Finished,
                 Crashed, Injected, StoreQuestion, Note, Useful, Unfit, VaultQuestion, Saved, Settled, Kept, Publish>;
using ToService = std::variant<Attach, Join, Leave, Abort, StoreQuestion, StoreCancel>;

// ---- to a rank ------------------------------------------------------------------------------------------------------

// Answers Attach.
struct Welcome {
  static constexpr std::string_view kName = "welcome";
  bool spare = false;
  uint32_t functions = 0;  // recoverable functions that have ended in this job: the worker skips them
  uint64_t seed = 0;
  bool check_all = false;     // --check: check all steps for changes outside the commit, not only the first
  std::string digests;        // "auto", "on" or "off"
  uint64_t digest_every = 0;  // steps; 0: never
  uint32_t world = 0;
  bool several_nodes = false;
  bool elastic = false;
  bool health_check = false;
  bool learn = false;                       // the agent wants a Preload when the worker parks
  bool term_is_notice = false;              // SIGTERM from outside is meant for the agent
  std::string rings;                        // path of the socket for rings of batches; empty: none
  std::string background_writer;            // the same for the background writer
  std::vector<std::string> rank_variables;  // names of environment variables that depend on the rank
  std::vector<Fault> inject;                // faults that may still come
  comm::CommConfig comm;
  KEEPSTEP_FIELDS(spare, functions, seed, check_all, digests, digest_every, world, several_nodes, elastic, health_check,
                  learn, term_is_notice, rings, background_writer, rank_variables, inject, comm)
};

// A rank in the envelope's generation, which is new. Sent with the generation's page, the memory of each of `workers`
// and, with several nodes, this rank's listening socket.
struct Prepare {
  static constexpr std::string_view kName = "prepare";
  brain::Rank rank = 0;
  brain::Version version = 0;
  std::vector<uint32_t> workers;   // of this node's members, by rank
  std::vector<brain::Rank> ranks;  // of those workers
  std::vector<TableEntry> table;   // of all ranks, in their order; empty: all are on this node
  bool newcomer = false;           // was not in the previous generation
  bool resized = false;            // the world size differs from that of the generation that formed last
  std::string entry;               // why the loop is entered: "start", "recovery", "replacement", "resize" or "joined"
  std::string because;
  uint32_t sharding = 0;  // number of the sharding
  brain::Sharding from;   // the one in which `version` is kept
  Texts environment;
  std::string data_key;     // for the connections to other nodes, hexadecimal; empty: none
  bool plain_data = false;  // they protect frames by MACs, not by TLS
  KEEPSTEP_FIELDS(rank, version, workers, ranks, table, newcomer, resized, entry, because, sharding, from, environment,
                  data_key, plain_data)
};

// The generation starts: which ranks give the state of `version`, and which get it.
struct Activate {
  static constexpr std::string_view kName = "activate";
  brain::Version version = 0;
  std::vector<brain::Rank> sources;
  std::vector<brain::Rank> targets;
  bool compare = false;                    // targets compare digests first and pull only the differences
  std::vector<brain::Rank> copies;         // ranks whose shard has a copy at `version` on this node
  std::vector<brain::Rank> copies_from;    // the same for the sharding in which `version` is kept
  std::vector<brain::ParityBlock> parity;  // blocks of `version` on this node
  KEEPSTEP_FIELDS(version, sources, targets, compare, copies, copies_from, parity)
};

// All ranks have finished, and the function may return.
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
  std::string error;  // the agent has a value and cannot send it
  KEEPSTEP_FIELDS(id, ok, value, error)
};

// The words of the envelope's generation are sealed; for a rank that joined, its communicator is interrupted.
struct Interrupt {
  static constexpr std::string_view kName = "interrupt";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

// The job has to stop soon: this rank sets the flag for that in its votes from now on.
struct Notice {
  static constexpr std::string_view kName = "notice";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

// The world changes: this rank's votes announce that all ranks pause after their step.
struct Pause {
  static constexpr std::string_view kName = "pause";
  std::vector<uint32_t> stay;  // nodes; with sharded state, ranks on other nodes hand over their shards first
  KEEPSTEP_FIELDS(stay)
};

// Sent with the requested memory; or why there is none.
struct VaultAnswer {
  static constexpr std::string_view kName = "vault_answer";
  uint64_t id = 0;
  std::string error;
  KEEPSTEP_FIELDS(id, error)
};

// Sent with the memory of Kept that the rank's previous process sent; the Prepare for that rank follows.
struct Inherit {
  static constexpr std::string_view kName = "inherit";
};

struct Inject {
  static constexpr std::string_view kName = "inject";
  Fault fault;
  KEEPSTEP_FIELDS(fault)
};

// From a node's service: the answer to Attach, the ranks that have not joined yet, the refusal of a join, and the news
// that all joined, with the page of the group and each rank's arena.
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
