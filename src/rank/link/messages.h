// Messages between a worker and its agent: a fixed header and a JSON body in one packet (base/socket/packet_socket.h).
// A body that is too long for a packet travels in sealed memory, whose descriptor is the packet's last.
//
// Every message carries node, term and generation from the first version on. The socket is one half of a pair that the
// agent made, so there is nobody to authenticate; sizes and types are checked all the same.
// The byte layout is written down in docs/design/wire_worker.md.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "brain/types.h"

namespace keepstep::rank {

enum class MessageType : uint16_t {
  // worker to agent
  kAttach = 1,       // {pid, fingerprint}
  kParked = 2,       // {}: waits for a rank
  kRecoverable = 3,  // {}: entered a recoverable function
  kPreload = 4,      // {modules: [name]}: what the script imported beyond the zygote
  kReady = 5,        // {state, version, sharded, ns}: left the old generation
  kHydrated = 6,     // {bytes, skipped, seconds, repeated, bytes_from: [..]}
  kFormed = 7,       // {ns}: all members are clean; sent by the last
  kCollect = 8,      // {}: the log (log_ring.h) should be read now
  kPaused = 9,       // {}: committed a step with all others, and waits at its end; or heard of a change and will exit
  kFault = 10,     // {step, what, traceback, fatal, link, digests, after_commit}: user code raised (after the commit of
                   // `step`), a link broke, or the ranks voted for different things; the process lives
  kFinished = 11,  // {notice}: the training function returned, or (notice) left its loop because of a notice
  kCrashed = 12,   // {traceback}: uncaught exception, the process is about to exit
  kInjected = 13,  // {key}: this injected fault is being carried out now
  kStore = 14,     // {id, op, key, value, ...}
  kJoin = 15,      // {key, rank, world}: to a node's agent, by a rank that somebody else started (node_link.h)
  kLeave = 16,     // {}: the same rank needs its communicator no more
  kAbort = 17,     // {because}: ends the communicator for all its ranks
  kNote = 18,      // {event, step, because}: a line for the journal; `event` is one of those the agent knows
  kUseful = 19,    // {ranks, sizes: [ranks]}: the job's batches feed no more ranks; perhaps only so many, evenly
  kUnfit = 20,     // {check, measured, limit}: its health check failed before it had a rank; it is about to exit
  kVault = 21,     // {id, sharding, rank, data_bytes, text_room} or {.., rank, version}: memory for copies of a shard;
                   // or {members, row} instead of {rank}: for their parity
  kSaved = 22,     // {version, generation}: any process can load this version, also of another start of the job
  kSettled = 23,   // {sharding}: a step was done in this division of the state; copies of those before may go
  kKept = 24,      // {}, fd: the memory in which this rank keeps capsules of others (kept_capsules.h)
  // agent to worker
  kWelcome = 32,     // {worker, seed, check, inject: [..], preload}
  kPrepare = 33,     // {rank, version, workers, ..}, fds: generation page, this node's members, perhaps a listener
  kActivate = 34,    // {version, sources, targets, compare, copies: [rank], copies_from: [rank], parity: [{members,
                     // row}]}: of shards at `version`, on this node, as the state is divided now, and as it was
  kRelease = 35,     // {}
  kEnd = 36,         // {message}: the job is over
  kStoreReply = 37,  // {id, ok, value}
  kInterrupt = 38,   // {}: the words of the message's identity are sealed; {because} to a rank that joined
  kMembers = 39,     // {comm}, fds: generation page, then each rank's arena: all ranks that were waited for joined
  kWaiting = 40,     // {missing: [rank]}: who has not joined yet
  kRefused = 41,     // {because}: the join, or the connection
  kNotice = 42,      // {because}: the job has to stop soon; this rank says so with its next vote
  kPause = 43,       // {because, stay: [node]}: this rank says with its next vote that all pause at the step's end
  kVaultReply = 44,  // {id, error}, fd: the memory asked for; an error: without it
  kInherit = 45,     // {}, fd: of kKept, of the process that was the rank before; a prepare for that rank follows
  kInject = 48,      // a fault to carry out, as in the welcome's `inject`: of `keepstep inject`
};

struct Message {
  MessageType type = MessageType::kAttach;
  uint32_t node = 0;
  brain::Identity identity;
  nlohmann::json body = nlohmann::json::object();
};

inline constexpr size_t kMaxMessageFds = 64;  // of its own
inline constexpr size_t kMaxBodyBytes = size_t{32} << 20;

// Header and body in one piece, however long.
std::string encode(const Message& message);
// INVALID_ARGUMENT for a wrong magic or version, a length that does not match, or a body that is not a JSON object.
StatusOr<Message> decode(std::string_view encoded);

// Sends what encode() gave, waiting for room in the socket if `waits`. INVALID_ARGUMENT: longer, or with more
// descriptors, than a message may be; it names both and the type. UNAVAILABLE: the other side is gone.
// RESOURCE_EXHAUSTED: no room now, or no memory or descriptor to carry a long one in.
Status send_encoded(const PacketSocket& socket, const std::string& encoded, std::span<const int> fds, bool waits);
// What came; the message's own descriptors stay in `packet`. Errors of decode(); INVALID_ARGUMENT also for a body that
// is longer than kMaxBodyBytes or whose memory is not what the header says; nothing is allocated then.
StatusOr<Message> decode(Packet& packet);

}  // namespace keepstep::rank
