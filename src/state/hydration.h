// Fills a newcomer's protected state straight from the live tensors of its peers.
//
// A Source answers requests out of its own tensors, through a few channels in its worker's shared memory
// (`region_bytes`). A target pulls from several sources at once, following brain/reshard/hydration_plan.h, in chunks
// with XXH3 checksums. A target reaches sources on other nodes through a Peer (peer.h); there a Relay (relay.h) answers
// from the same channels. A bad chunk is requested again elsewhere. No pickle: the manifest is text (JSON) that the
// caller made.
//
// Both sides are at the boundary between two generations: the source's main thread waits, so its tensors do not change.
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

// The size of the channels' region in a worker's memory; zeroed by the agent, aligned to 64 bytes.
size_t region_bytes();

// A range of memory: one protected tensor, contiguous. On a CUDA device the address is a device address.
struct Region {
  void* data = nullptr;
  uint64_t bytes = 0;
  int device = kMainMemory;
};

// Serves `manifest` and `regions` at `version` until stop(), or until `*interrupted` (may be null) becomes non-zero.
// Runs one thread while something is published; the caller owns the tensors, which must outlive that. One Source at a
// time per worker; call publish() and stop() from one thread.
class Source {
 public:
  Source(std::byte* region, DeviceCopy& copy, const std::atomic<uint32_t>* interrupted);
  ~Source();
  // Refuses requests with another identity. `manifest` at most 64 MiB. Ends what was published before and frees all
  // channels, whoever held them. INVALID_ARGUMENT for a manifest that is too long or an entry without memory; ABORTED
  // if already interrupted; FAILED_PRECONDITION for a device that cannot be read.
  Status publish(brain::Identity identity, brain::Version version, std::string manifest, std::vector<Region> regions);
  // After it returns, nobody reads the tensors any longer. Targets that are still pulling continue with other sources.
  void stop();
  // Bytes of tensors sent to targets since construction.
  uint64_t bytes_served() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct Pulled {
  uint64_t bytes = 0;                     // transferred, all sources together
  uint64_t bytes_skipped = 0;             // already equal (only with `compare`)
  std::vector<uint64_t> bytes_by_source;  // same order as `sources`, then the other siblings
  uint64_t chunks_repeated = 0;           // because of a bad checksum or a lost source
  int64_t duration_ns = 0;
};

class Peer;

// Where a source is: the region of its worker on this node, or the line to it on another node. Exactly one is set.
struct SourceAccess {
  std::byte* region = nullptr;
  Peer* peer = nullptr;
};

// Targets of one node whose sources are all on other nodes: each pulls its share, and gets the rest from the others
// once they have theirs, so that the state reaches the node once. `siblings` is the same, in the same order, on all.
struct Sharing {
  std::vector<std::byte*> siblings;  // their regions; this target's own is null
  // Makes the regions of the pull readable for the siblings, like Source::publish with an empty manifest, until all
  // siblings are done. Called when this target's share has arrived.
  std::function<Status()> publish;
};

// One target's view of its sources. Those on this node are used first; those on other nodes once no other is left. One
// thread at a time.
//
// A source is lost when it withdraws what it published, refuses, published a newer identity or another version, or is
// silent for 5 s; the others then supply what is missing.
class Puller {
 public:
  // `sources`: in the order of `Activate.sources`; they must outlive this. `self`: any number that differs between
  // concurrent targets. `interrupted` (may be null): set by the agent; every call then returns ABORTED within
  // a few milliseconds.
  Puller(const std::vector<SourceAccess>& sources, uint32_t self, DeviceCopy& copy,
         const std::atomic<uint32_t>* interrupted);
  ~Puller();

  // The manifest of the first source that answers; waits until one has published `identity`. DATA_LOSS if none can be
  // read, with each source's reason.
  StatusOr<std::string> manifest(brain::Identity identity);

  // Fills `regions` (same order and sizes as the source's; otherwise INVALID_ARGUMENT naming the entry number) with the
  // sources' bytes. `compare`: pull only entries whose digest differs. Waits like manifest(). DATA_LOSS if no source is
  // left, or if the same chunk arrived with a wrong checksum three times; FAILED_PRECONDITION for a device that cannot
  // be written. After any error `regions` holds a mixture of old and new bytes. `sharing`: not with `compare`. Waits
  // for a sibling until it has its share or the generation is interrupted; what it cannot supply comes from the
  // sources.
  StatusOr<Pulled> pull(brain::Identity identity, brain::Version version, const std::vector<Region>& regions,
                        bool compare, const Sharing* sharing = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keepstep::state
