// Messages between the agents of a job's nodes, through the coordinator, which does not read them. A message longer
// than the coordinator's limit is split into parts (agent/workers/message_parts.h). The purpose of each:
// docs/design/several_nodes.md#messages-between-agents.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "brain/detect/progress.h"
#include "brain/detect/stragglers.h"
#include "brain/types.h"
#include "messages/schema.h"

namespace keepstep::messages {

// ---- joining --------------------------------------------------------------------------------------------------------

// The offset of a node's wall clock from node 0's.
struct ClockReport {
  static constexpr std::string_view kName = "clock_report";
  int64_t offset_ns = 0;
  int64_t round_trip_ns = 0;
  KEEPSTEP_FIELDS(offset_ns, round_trip_ns)
};

// What a node was started with, for node 0; sent every second until it is answered.
struct Facts {
  static constexpr std::string_view kName = "facts";
  std::string name;  // of the host
  Texts facts;       // agent/nodes/node_facts.h
  std::optional<ClockReport> clock;
  KEEPSTEP_FIELDS(name, facts, clock)
};
// Node 0's answer: this node fits.
struct Fits {
  static constexpr std::string_view kName = "fits";
};
// Node 0's answer to Facts or Fingerprint once the job has begun: this node does not fit, and ends.
struct DoesNotFit {
  static constexpr std::string_view kName = "does_not_fit";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

// The fingerprint in a worker's Attach: that of a node's first worker, for node 0.
struct Fingerprint {
  static constexpr std::string_view kName = "fingerprint";
  Texts fingerprint;
  KEEPSTEP_FIELDS(fingerprint)
};

// Asks node 0 for its time; and node 0's answer.
struct ClockQuestion {
  static constexpr std::string_view kName = "clock_question";
  uint64_t number = 0;
  KEEPSTEP_FIELDS(number)
};
struct ClockAnswer {
  static constexpr std::string_view kName = "clock_answer";
  uint64_t number = 0;
  int64_t wall_ns = 0;
  KEEPSTEP_FIELDS(number, wall_ns)
};

// ---- while it runs --------------------------------------------------------------------------------------------------

// The job has to stop soon: the sending node got a notice.
struct NoticeCame {
  static constexpr std::string_view kName = "notice_came";
  std::string because;
  KEEPSTEP_FIELDS(because)
};

// How long a node of an elastic job has once it is told to leave; from node 0.
struct Grace {
  static constexpr std::string_view kName = "grace";
  brain::Time grace{};
  KEEPSTEP_FIELDS(grace)
};

// The programs of --no-python attach; sent by node 0 once it knows.
struct ProgramsAttach {
  static constexpr std::string_view kName = "programs_attach";
};

// Ranks that wait for other nodes; sent to the agents there (docs/design/hangs.md).
struct WaitingRanks {
  static constexpr std::string_view kName = "waiting_ranks";
  brain::Identity identity;
  std::vector<brain::RankProgress> ranks;
  KEEPSTEP_FIELDS(identity, ranks)
};

// How long ranks computed in recent steps, for node 0 (docs/design/stragglers.md).
struct Paces {
  static constexpr std::string_view kName = "paces";
  brain::Identity identity;
  std::vector<brain::RankPace> ranks;
  KEEPSTEP_FIELDS(identity, ranks)
};

// Node 0 asks what an agent holds in memory, with a question in the control door's form (docs/design/control_door.md).
struct MemoryQuestion {
  static constexpr std::string_view kName = "memory_question";
  uint64_t id = 0;
  Json question;
  KEEPSTEP_FIELDS(id, question)
};
struct MemoryAnswer {
  static constexpr std::string_view kName = "memory_answer";
  uint64_t id = 0;
  Json answer;
  KEEPSTEP_FIELDS(id, answer)
};

// Messages between the background writers (agent/workers/background_writer.h), which agents do not read.
struct WriterNews {
  static constexpr std::string_view kName = "writer_news";
  std::string text;
  KEEPSTEP_FIELDS(text)
};

// ---- the Store (agent/store/shared_store.h) -------------------------------------------------------------------------

struct KeyQuestion {
  static constexpr std::string_view kName = "key_question";
  uint32_t worker = 0;
  uint64_t id = 0;
  std::string op;
  Bytes key;
  Bytes value;
  uint64_t round = 0;
  KEEPSTEP_FIELDS(worker, id, op, key, value, round)
};
struct KeyAnswer {
  static constexpr std::string_view kName = "key_answer";
  uint32_t worker = 0;
  uint64_t id = 0;
  bool ok = false;
  Bytes value;
  uint64_t round = 0;
  KEEPSTEP_FIELDS(worker, id, ok, value, round)
};
// A worker is gone: drop its questions.
struct ForgetQuestions {
  static constexpr std::string_view kName = "forget_questions";
  uint32_t worker = 0;
  KEEPSTEP_FIELDS(worker)
};
using StoreMessage = std::variant<KeyQuestion, KeyAnswer, ForgetQuestions>;

// Between the agents of a Store without a coordinator (agent/store/rootless_store.h): the first message, repeated when
// the keys start over; and what changes in between.
struct StoreHello {
  static constexpr std::string_view kName = "store_hello";
  uint64_t origin = 0;  // of its keys; another one: it has none of the earlier ones
  bool busy = false;    // it has clients
  KEEPSTEP_FIELDS(origin, busy)
};
struct StoreBusy {
  static constexpr std::string_view kName = "store_busy";
  bool busy = false;
  KEEPSTEP_FIELDS(busy)
};
using ToRootlessStore = std::variant<StoreHello, StoreBusy, KeyQuestion, KeyAnswer, ForgetQuestions>;

// ---- who sends what to whom -----------------------------------------------------------------------------------------

// To node 0's agent, which acts for the job; from it; and from any agent to any other.
using ToFirst = std::variant<Facts, Fingerprint, ClockQuestion, ClockReport, Paces, MemoryAnswer>;
using ByFirst = std::variant<Fits, DoesNotFit, ClockAnswer, Grace, ProgramsAttach, MemoryQuestion>;
using ByAny = std::variant<NoticeCame, WaitingRanks, WriterNews, KeyQuestion, KeyAnswer, ForgetQuestions>;

}  // namespace keepstep::messages
