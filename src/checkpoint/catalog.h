// A namespace of checkpoints: lists, commits, pins and removes them.
//
//   step-000000000120/__0_0.1-1.distcp   data, as DCP writes it; "1-1": the owner's token and its attempt
//   step-000000000120/.metadata          DCP's: torch.distributed.checkpoint can load the folder without us
//   step-000000000120/manifest.json      ours, written last (manifest.h): without a complete one there is no checkpoint
//   pins/step-000000000120               protects the step from removal
//   owner.json                           who writes here (owner.h)
//
// The token in the names of data files separates what two owners wrote into one step: an owner that was taken over and
// does not know it yet changes no byte of what its successor commits.
//
// Calls block, and any thread may make them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/copies/retention.h"
#include "checkpoint/manifest.h"
#include "checkpoint/object_store.h"
#include "checkpoint/owner.h"
#include "checkpoint/range_reader.h"

namespace keepstep::checkpoint {

struct CheckpointInfo {
  uint64_t step = 0;
  bool complete = false;  // it has a manifest
  bool foreign = false;   // no manifest and none of our files: written by DCP or somebody else; never touched
  bool pinned = false;
  uint64_t bytes = 0;
  uint64_t files = 0;
  int64_t modified_ns = 0;  // of the last write, by the store's clock
};

std::string folder_of(uint64_t step);                      // "step-000000000120"
std::optional<uint64_t> step_of(std::string_view folder);  // the inverse; std::nullopt for other names
std::string data_file_name(uint32_t rank, uint32_t number, uint64_t token, uint64_t attempt);
bool is_data_file_name(std::string_view name);
// Which owner wrote a data file, and in which attempt. Of two files for the same step the greater pair is the later
// one. std::nullopt for other names.
std::optional<std::pair<uint64_t, uint64_t>> token_and_attempt(std::string_view name);

class Catalog {
 public:
  explicit Catalog(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  ObjectStore& store() const { return *store_; }

  // All steps, in ascending order.
  StatusOr<std::vector<CheckpointInfo>> list() const;

  // NOT_FOUND if there is none. Otherwise parse_manifest's errors, naming the object.
  StatusOr<Manifest> manifest(uint64_t step) const;
  // The same for any folder ("" or with a trailing slash) that holds a single checkpoint.
  StatusOr<Manifest> manifest_in(std::string_view folder) const;

  // The highest step with a complete manifest; NOT_FOUND if there is none. `skipped`: why higher steps were passed
  // over.
  StatusOr<Manifest> newest(std::vector<std::string>* skipped = nullptr) const;

  // Turns files that are already there into a checkpoint: writes `.metadata`, then the manifest, each after the owner
  // confirmed that it still is the owner. Then removes what earlier attempts at the step left behind; files that later
  // attempts write into it meanwhile stay. ABORTED: it is not the owner, or the step already exists and `replace` is
  // false.
  Status commit(Owner& owner, const Manifest& manifest, std::span<const std::byte> metadata, bool replace) const;

  // Removes the manifest first, so what a removal that was cut short leaves behind is no checkpoint.
  // FAILED_PRECONDITION if the step is pinned. OK also if there was none.
  Status remove(uint64_t step) const;

  Status pin(uint64_t step, std::string_view why) const;  // NOT_FOUND: no such checkpoint
  Status unpin(uint64_t step) const;

  // Removes the steps that the rules select, and leftovers of dead writers, after the owner confirmed that it still is
  // the owner. Returns which steps were removed and why.
  StatusOr<std::vector<brain::Removal>> prune(Owner& owner, const brain::RetentionRules& rules) const;

 private:
  std::shared_ptr<ObjectStore> store_;
};

// How to read the files of a checkpoint. `sources`: the nearest first, each a store and the folder in it.
StoredFiles stored_files(const Manifest& manifest, std::vector<StoredFiles::Source> sources, bool with_metadata);

}  // namespace keepstep::checkpoint
