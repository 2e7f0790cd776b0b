#include "memory_server/drains.h"

#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/socket/tcp_socket.h"
#include "checkpoint/catalog.h"
#include "checkpoint/dcp/metadata.h"
#include "checkpoint/manifest.h"
#include "checkpoint/owner.h"

namespace keepstep::memory_server {
namespace {

using checkpoint::Catalog;
using checkpoint::Manifest;
using checkpoint::ObjectStore;

constexpr uint64_t kMaxMetadataBytes = uint64_t{1} << 29;

StatusOr<std::unique_ptr<ObjectStore>> open(const DrainRequest& request) {
  checkpoint::StoreOptions options;
  options.environment = [values = request.environment](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
  return checkpoint::open_store(request.url, options);
}

Status ended() { return absl::CancelledError("the memory server ends"); }

}  // namespace

void Drains::stop() {
  std::map<std::string, std::unique_ptr<Drain>> drains;
  {
    const std::lock_guard lock(mutex_);
    drains.swap(drains_);
    for (const auto& [destination, drain] : drains) {
      drain->thread.request_stop();
      drain->store->interrupt();
    }
    changed_.notify_all();
  }
  for (auto& [destination, drain] : drains) {
    drain->thread.join();
  }
}

Status Drains::set(const DrainRequest& request) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<ObjectStore> store, open(request));
  const std::vector<Shelves::Version> versions = library_.shelves().versions();
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Drain>& drain = drains_[request.destination];
  if (drain != nullptr && drain->request.url != request.url) {
    const bool done = std::none_of(versions.begin(), versions.end(), [&](const Shelves::Version& version) {
      return version.facts.destination == request.destination && drained(*drain, version) == brain::Drained::kWaiting;
    });
    if (!done || drain->now) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "memory://%s still drains to %s (%s); wait until it is done (keepstep memory status), or use another name",
          request.destination, drain->request.url, drain->failure.empty() ? "under way" : drain->failure));
    }
    drain->done.clear();
  }
  if (drain == nullptr) {
    drain = std::make_unique<Drain>();
    drain->request = request;
    drain->store = std::move(store);
    drain->thread = std::jthread([this, destination = request.destination](const std::stop_token& stop) {
      pthread_setname_np(pthread_self(), "drain");
      run(destination, stop);
    });
  } else {
    drain->request = request;  // from the next checkpoint on
  }
  return absl::OkStatus();
}

brain::Drained Drains::drained(const Drain& drain, const Shelves::Version& version) const {
  // A version whose manifest came from another server is that one's to drain.
  if (!version.own) {
    return brain::Drained::kNone;
  }
  const auto done = drain.done.find(version.facts.step);
  return done != drain.done.end() && done->second == version.manifest ? brain::Drained::kDone
                                                                      : brain::Drained::kWaiting;
}

void Drains::describe(const Shelves::Version& version, brain::ServedVersion& facts) {
  const std::lock_guard lock(mutex_);
  if (const auto found = drains_.find(version.facts.destination); found != drains_.end()) {
    facts.drained = drained(*found->second, version);
    facts.in_use |= found->second->now == version.facts.step;
  }
}

void Drains::wake() {
  const std::lock_guard lock(mutex_);
  ++wakes_;
  changed_.notify_all();
}

size_t Drains::waiting() {
  const std::vector<Shelves::Version> versions = library_.shelves().versions();
  const std::lock_guard lock(mutex_);
  size_t waiting = 0;
  for (const auto& [destination, drain] : drains_) {
    std::vector<brain::ServedVersion> facts;
    for (const Shelves::Version& version : versions) {
      if (version.facts.destination == destination) {
        facts.push_back(version.facts);
        facts.back().drained = drained(*drain, version);
      }
    }
    while (const auto next = brain::to_drain(facts, drain->request.keep)) {
      facts[*next].drained = brain::Drained::kDone;
      ++waiting;
    }
  }
  return waiting;
}

checkpoint::memory::Json Drains::describe(const std::string& destination) {
  const std::lock_guard lock(mutex_);
  const auto found = drains_.find(destination);
  if (found == drains_.end()) {
    return nullptr;
  }
  const Drain& drain = *found->second;
  std::vector<uint64_t> steps;
  for (const auto& [step, etag] : drain.done) {
    steps.push_back(step);
  }
  return {{"url", drain.request.url},
          {"keep", drain.request.keep},
          {"drained", steps},
          {"now", drain.now ? checkpoint::memory::Json(*drain.now) : checkpoint::memory::Json(nullptr)},
          {"failures", drain.failures},
          {"failure", drain.failure}};
}

std::optional<Shelves::Version> Drains::next(Drain& drain) {
  std::vector<Shelves::Version> versions = library_.shelves().versions();
  std::erase_if(versions,
                [&](const Shelves::Version& each) { return each.facts.destination != drain.request.destination; });
  const std::lock_guard lock(mutex_);
  std::erase_if(drain.done, [&](const auto& done) {
    return std::none_of(versions.begin(), versions.end(),
                        [&](const Shelves::Version& each) { return each.facts.step == done.first; });
  });
  std::vector<brain::ServedVersion> facts;
  for (const Shelves::Version& version : versions) {
    facts.push_back(version.facts);
    facts.back().drained = drained(drain, version);
  }
  const auto chosen = brain::to_drain(facts, drain.request.keep);
  return chosen ? std::optional(versions[*chosen]) : std::nullopt;
}

void Drains::run(const std::string& destination, const std::stop_token& stop) {
  std::chrono::seconds pause{1};
  while (!stop.stop_requested()) {
    Drain* drain = nullptr;
    DrainRequest request;
    uint64_t wakes = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = drains_.find(destination);
      if (found == drains_.end()) {
        return;
      }
      drain = found->second.get();
      request = drain->request;
      wakes = wakes_;
    }
    const std::optional<Shelves::Version> version = next(*drain);
    if (!version) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, stop, [&] { return wakes_ != wakes; });
      continue;
    }
    const uint64_t step = version->facts.step;
    // A new one each time: letting go of a destination that cannot be reached ends the store.
    StatusOr<std::shared_ptr<ObjectStore>> store = open(request);
    {
      const std::lock_guard lock(mutex_);
      if (stop.stop_requested()) {
        return;
      }
      drain->now = step;
      drain->store = store.ok() ? *store : drain->store;
    }
    const Status copied = store.ok() ? copy(request, *store, step, stop) : store.status();
    std::unique_lock lock(mutex_);
    drain->now.reset();
    if (copied.ok()) {
      drain->done[step] = version->manifest;
      drain->failure.clear();
      pause = std::chrono::seconds(1);
    } else if (!absl::IsNotFound(copied)) {  // otherwise it was removed meanwhile
      drain->failure = std::string(copied.message());
      ++drain->failures;
      spdlog::warn("step {} of memory://{} is not drained yet: {}", step, destination, drain->failure);
      changed_.wait_for(lock, stop, pause, [] { return false; });
      pause = std::min(2 * pause, kMostPause);
    }
  }
}

StatusOr<std::string> Drains::read_all(const Shelves::Key& key, uint64_t most) {
  const ObjectPointer object = library_.find(key);
  if (object == nullptr) {
    return absl::NotFoundError(absl::StrFormat("'%s' is gone", key.second));
  }
  if (object->bytes() > most) {
    return absl::OutOfRangeError(absl::StrFormat("'%s' has %d bytes", key.second, object->bytes()));
  }
  std::string bytes(object->bytes(), '\0');
  for (size_t i = 0; i < object->pieces.size(); ++i) {
    const Piece& piece = object->pieces[i];
    KEEPSTEP_ASSIGN_OR_RETURN(const ChunkPointer chunk, library_.chunk_of(piece));
    KEEPSTEP_RETURN_IF_ERROR(
        chunk->read(std::as_writable_bytes(std::span(bytes).subspan(object->ends[i] - piece.bytes, piece.bytes))));
  }
  return bytes;
}

Status Drains::copy_object(ObjectStore& store, const Shelves::Key& key, const std::stop_token& stop) {
  const ObjectPointer object = library_.find(key);
  if (object == nullptr) {
    return absl::NotFoundError(absl::StrFormat("'%s' is gone", key.second));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const auto writer, store.create(key.second, object->bytes()));
  std::vector<std::byte> bytes;
  for (const Piece& piece : object->pieces) {
    if (stop.stop_requested()) {
      return ended();
    }
    KEEPSTEP_ASSIGN_OR_RETURN(const ChunkPointer chunk, library_.chunk_of(piece));
    bytes.resize(piece.bytes);
    KEEPSTEP_RETURN_IF_ERROR(chunk->read(bytes));
    KEEPSTEP_RETURN_IF_ERROR(writer->append(bytes));
  }
  return writer->commit().status();
}

Status Drains::copy(const DrainRequest& request, const std::shared_ptr<ObjectStore>& store, uint64_t step,
                    const std::stop_token& stop) {
  const std::string& destination = request.destination;
  const std::string folder = checkpoint::folder_of(step) + "/";
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string text,
                            read_all({destination, folder + checkpoint::kManifestName}, checkpoint::kMaxManifestBytes));
  KEEPSTEP_ASSIGN_OR_RETURN(const Manifest manifest, checkpoint::parse_manifest(std::as_bytes(std::span(text))));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::Owner> owner,
                            checkpoint::Owner::claim(store, {.job = absl::StrFormat("drain of memory://%s on %s",
                                                                                    destination, host_name())}));
  const Catalog catalog(store);
  const auto release = [&](const Status& status) {
    (void)owner->release();
    return status;
  };
  const StatusOr<Manifest> there = catalog.manifest(step);
  if (there.ok() && checkpoint::encode_manifest(*there) == checkpoint::encode_manifest(manifest)) {
    return release(absl::OkStatus());  // another server, or this one's predecessor, has drained it
  }
  if (there.ok() || !absl::IsNotFound(there.status())) {
    // Another one of the same step: its files may have the names of ours. It goes as a whole before the first of them.
    if (!there.ok() && !absl::IsDataLoss(there.status()) && !absl::IsInvalidArgument(there.status())) {
      return release(there.status());
    }
    if (const Status removed = catalog.remove(step); !removed.ok()) {
      return release(removed);
    }
  }
  for (const std::string& name : manifest.layout.files) {
    if (const Status copied = copy_object(*store, {destination, folder + name}, stop); !copied.ok()) {
      return release(copied);
    }
  }
  const StatusOr<std::string> metadata =
      read_all({destination, folder + checkpoint::dcp::kMetadataName}, kMaxMetadataBytes);
  if (!metadata.ok()) {
    return release(metadata.status());
  }
  Status done = catalog.commit(*owner, manifest, std::as_bytes(std::span(*metadata)), true);
  if (done.ok() && request.keep > 0) {
    const auto keep = static_cast<uint32_t>(std::min<uint64_t>(request.keep, UINT32_MAX));
    const auto pruned = catalog.prune(*owner, {.keep = keep});
    if (!pruned.ok()) {
      spdlog::warn("{}: what is too old could not be removed: {}", store->describe(),
                   std::string(pruned.status().message()));
    }
  }
  return release(done);
}

}  // namespace keepstep::memory_server
