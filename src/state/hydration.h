// Filling a newcomer's protected state straight from the live tensors of its peers.
//
// A Source answers requests out of its own tensors, through a few channels in its worker's shared memory
// (`region_bytes`); a target pulls from several sources at once, following brain/reshard/hydration_plan.h, in chunks
// with XXH3 checksums. Sources on other nodes are reached through a Peer (peer.h), and answered there by a Relay
// (relay.h) out of the same channels. A bad chunk is asked for again elsewhere. No pickle: the manifest is text (JSON)
// that the caller made.
//
// Both sides sit at the boundary between two generations: the source's main thread waits, so its tensors do not change.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/types.h"
#include "state/device/device_copy.h"

namespace keepstep::state {

// Bytes of the channels' region in a worker's memory; zeroed by the agent, aligned to 64 bytes.
size_t region_bytes();

// A piece of memory: one protected tensor, contiguous. On a CUDA device the address is one of that device.
struct Region {
  void* data = nullptr;
  uint64_t bytes = 0;
  int device = kMainMemory;
};

// Serves `manifest` and `regions` at `version` until stop(), or until `*interrupted` (may be null) becomes non-zero.
// Owns one thread while something is published; the tensors stay the caller's and must outlive that. One Source at a
// time per worker; publish() and stop() from one thread.
class Source {
 public:
  Source(std::byte* region, DeviceCopy& copy, const std::atomic<uint32_t>* interrupted);
  ~Source();
  // Refuses requests of another identity. `manifest` at most 64 MiB. Ends what was published before and frees all
  // channels, whoever held them. INVALID_ARGUMENT for a manifest too long or an entry without memory; ABORTED when
  // interrupted already; FAILED_PRECONDITION for a device that cannot be read.
  Status publish(brain::Identity identity, brain::Version version, std::string manifest, std::vector<Region> regions);
  // Once it returned, nobody reads the tensors any more. Targets that still pull go on with other sources.
  void stop();
  // Bytes of tensors given to targets, since construction.
  uint64_t bytes_served() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct Pulled {
  uint64_t bytes = 0;                     // moved, all sources together
  uint64_t bytes_skipped = 0;             // equal already (only with `compare`)
  std::vector<uint64_t> bytes_by_source;  // same order as `sources`, then the other siblings
  uint64_t chunks_repeated = 0;           // because of a bad checksum or a lost source
  int64_t duration_ns = 0;
};

class Peer;

// Where a source is: the region of its worker on this node, or the line to it on another one. One of the two.
struct Place {
  std::byte* region = nullptr;
  Peer* peer = nullptr;
};

// Targets of one node whose sources are all elsewhere: each pulls its share, and the rest from the others when they
// have theirs, so that the node gets the state once. `siblings` are the same on all of them and in the same order.
struct Sharing {
  std::vector<std::byte*> siblings;  // their regions; this target's own is null
  // Makes these regions readable for the siblings, as Source::publish with an empty manifest does, until all of them
  // are through. Called when this target's share has come.
  std::function<Status()> publish;
};

// One target's view of its sources. Those on this node are asked first; those elsewhere once no other is left. One
// thread at a time.
//
// A source is lost when it withdraws what it published, refuses, published a newer identity or another version, or is
// silent for 5 s; the others then give what it owed.
class Puller {
 public:
  // `sources`: in the order of `Activate.sources`; they must outlive this. `self`: any number that differs between
  // concurrent targets. `interrupted` (may be null): set by the agent; every call then returns ABORTED within
  // a few milliseconds.
  Puller(const std::vector<Place>& sources, uint32_t self, DeviceCopy& copy, const std::atomic<uint32_t>* interrupted);
  ~Puller();

  // The manifest of the first source that answers; waits until one has published `identity`. DATA_LOSS if none can be
  // read, with each source's reason.
  StatusOr<std::string> manifest(brain::Identity identity);

  // Fills `regions` (same order and sizes as the source's: INVALID_ARGUMENT naming the entry number otherwise) with
  // the sources' bytes. `compare`: pull only entries whose digest differs. Waits like manifest(). DATA_LOSS when no
  // source is left, or when the same chunk came with a wrong checksum three times; FAILED_PRECONDITION for a device
  // that cannot be written. After any error `regions` holds a mixture of old and new bytes.
  // `sharing`: not with `compare`. A sibling is waited for until it has its share or the generation is interrupted;
  // what it cannot give comes from the sources.
  StatusOr<Pulled> pull(brain::Identity identity, brain::Version version, const std::vector<Region>& regions,
                        bool compare, const Sharing* sharing = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::state
