// Where checkpoints are stored: named objects in a folder of a disk, under a prefix of an S3 bucket, or in the memory
// of this machine's memory server, behind one interface.
//
// Keys are paths below the store's root: "step-000000000123/.metadata". Printable ASCII without '\'; parts of 1 to 255
// bytes between single slashes, none of them "." or "..", none that begins with ".keepstep-" (the stores' own); 1 to
// kMaxKeyBytes bytes in total.
//
// An object is complete or it does not exist: nobody sees one half-written, whatever ends the writer. Once `put` or
// `commit` has returned, the object survives a power loss. There are no real folders: a folder exists while some key
// has it in its name.
//
// All calls block, and any thread may make them. A store must outlive the writers it made. Errors of every call:
//   NOT_FOUND            there is no such object
//   ABORTED              a condition does not hold, or somebody else changed what was being read or written; the
//                        message says what is there
//   INVALID_ARGUMENT     an impossible key or size
//   OUT_OF_RANGE         the object is shorter than what was asked for, or longer than what may be read at once
//   PERMISSION_DENIED    no rights, no credentials, wrong credentials
//   FAILED_PRECONDITION  the destination itself is wrong: read-only, no such bucket, another region, a wrong clock
//   RESOURCE_EXHAUSTED   disk, quota or memory full
//   UNAVAILABLE          not reachable for longer than `give_up_after`; may work later
//   DATA_LOSS            the device reports errors, or the bytes are not those that were written
//   CANCELLED            `interrupt` was called
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace keepstep::checkpoint {

inline constexpr size_t kMaxKeyBytes = 700;
inline constexpr uint64_t kMaxPutBytes = uint64_t{64} << 20;     // anything larger goes through a writer
inline constexpr uint64_t kMaxReadAllBytes = uint64_t{1} << 30;  // whatever limit the caller gives
inline constexpr size_t kMaxListed = 4'000'000;                  // objects or folders in one listing

struct ObjectInfo {
  std::string key;
  uint64_t bytes = 0;
  // Identifies the content: differs when the content does. Only for comparing and for PutCondition::matches. Empty in
  // listings of a disk, where computing it would mean reading the files.
  std::string etag;
  int64_t modified_ns = 0;  // since the epoch, by the clock of the store
};

struct Object {
  std::string bytes;
  std::string etag;
};

// What must hold at the moment of a put; a put that loses a race for it gets ABORTED.
struct PutCondition {
  enum class Kind { kNone, kAbsent, kMatches };
  Kind kind = Kind::kNone;
  std::string etag;

  static PutCondition none() { return {}; }
  static PutCondition absent() { return {Kind::kAbsent, {}}; }
  static PutCondition matches(std::string etag) { return {Kind::kMatches, std::move(etag)}; }
};

// One large object being written, front to back. One thread at a time; after an error only the destructor may be
// called.
class ObjectWriter {
 public:
  ObjectWriter() = default;
  ObjectWriter(const ObjectWriter&) = delete;
  ObjectWriter& operator=(const ObjectWriter&) = delete;
  // Without a commit, nothing of the object remains.
  virtual ~ObjectWriter() = default;

  // Takes or copies all of `bytes` before it returns. An error may concern bytes appended earlier.
  virtual Status append(std::span<const std::byte> bytes) = 0;

  // A hint: what is appended next may be somewhere else already, such as a tensor that did not change. A store that
  // keeps equal pieces once begins a new one here.
  virtual void begin_piece() {}

  // When it returns, the object is there, complete and durable, and replaces any other of its name. Returns its etag.
  virtual StatusOr<std::string> commit() = 0;
};

class ObjectStore {
 public:
  ObjectStore() = default;
  ObjectStore(const ObjectStore&) = delete;
  ObjectStore& operator=(const ObjectStore&) = delete;
  virtual ~ObjectStore() = default;

  // Writes a small object, at most kMaxPutBytes, all at once. Returns its etag. Conditions hold against other puts and
  // removes, not against commits of writers. If an S3 server's answer was lost and the condition then fails because of
  // an object with the very bytes of this put, the put counts as successful: contents that writers race for must name
  // their writer.
  virtual StatusOr<std::string> put(std::string_view key, std::span<const std::byte> bytes,
                                    const PutCondition& condition) = 0;

  // Begins a large object. `expected_bytes` is a hint (0: unknown): with it a full disk is noticed at once, and parts
  // get a good size. A dead writer of this key has left its parts in an S3 bucket: those with the same bytes are not
  // sent again. So two live writers must not write one key. A dropped writer waits for its requests in flight.
  virtual StatusOr<std::unique_ptr<ObjectWriter>> create(std::string_view key, uint64_t expected_bytes) = 0;

  // Reads exactly [offset, offset + into.size()), large ranges in parallel pieces.
  virtual Status read(std::string_view key, uint64_t offset, std::span<std::byte> into) = 0;

  // Reads all of an object of at most `max_bytes` (and at most kMaxReadAllBytes).
  virtual StatusOr<Object> read_all(std::string_view key, uint64_t max_bytes) = 0;

  virtual StatusOr<ObjectInfo> head(std::string_view key) = 0;

  // All objects whose keys begin with `prefix` (may be empty, need not end at a slash), sorted by key.
  virtual StatusOr<std::vector<ObjectInfo>> list(std::string_view prefix) = 0;

  // The names of the folders directly below `folder` ("" is the root, otherwise "step-1" or "a/b"), sorted, without
  // listing their contents.
  virtual StatusOr<std::vector<std::string>> list_folders(std::string_view folder) = 0;

  // OK also if there was none.
  virtual Status remove(std::string_view key) = 0;

  // Removes what dead writers left under `prefix`: temporary files, uploads that were never completed. Returns how
  // many. On this machine's disk it recognizes those of live writers and leaves them; what may belong to another
  // machine it removes when nothing was written to it for `older_than`.
  virtual StatusOr<uint64_t> remove_leftovers(std::string_view prefix, std::chrono::seconds older_than) = 0;

  // For people: "file:///data/run", "s3://bucket/prefix at http://127.0.0.1:9000".
  virtual std::string describe() const = 0;

  // All current and future calls soon end with CANCELLED. For a process that is about to end.
  virtual void interrupt() = 0;
};

struct StoreOptions {
  // The environment variables in which S3 finds its credentials; getenv unless given. nullptr: not set.
  std::function<const char*(const char* name)> environment;
  // S3 only. How many times in all a request is tried, and for how long, before it is UNAVAILABLE.
  int tries = 10;
  std::chrono::milliseconds give_up_after{120'000};
  std::chrono::milliseconds first_pause{100};  // the longest before the second try; doubled for each further one
  std::chrono::milliseconds connect_timeout{5'000};
  // A transfer that moves no byte for this long is aborted and tried again.
  std::chrono::milliseconds stall_timeout{20'000};
  // S3 only. Parallel requests of one writer or one large read, and the bytes in each. A writer holds at most
  // `parallel` + 1 parts in memory. Parts grow where an object would need more than 10,000 (S3's limit).
  int parallel = 4;
  uint64_t part_bytes = uint64_t{16} << 20;  // 5 MiB (S3's limit) to 1 GiB
  uint64_t seed = 0;                         // for the pauses' jitter; 0: a random one
  // Memory only: the program `keepstep`, which starts the server. Empty: KEEPSTEP_COMMAND, otherwise from PATH.
  std::string command;
};

// Opens "file:///folder", "s3://bucket/prefix?endpoint=URL&region=NAME&..." or "memory://NAME?drain=URL" (all
// parameters: store_url.h). This neither connects nor creates anything: the first call finds out whether the
// destination exists. INVALID_ARGUMENT says what is wrong with the URL or the options.
StatusOr<std::unique_ptr<ObjectStore>> open_store(std::string_view url, const StoreOptions& options = {});

// OK, or INVALID_ARGUMENT with what is wrong with the key.
Status check_key(std::string_view key);

}  // namespace keepstep::checkpoint
