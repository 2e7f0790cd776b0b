// A namespace of checkpoints: which there are, how one comes into being, how one goes.
//
//   step-000000000120/__0_0.1-1.distcp   data, as DCP writes it; "1-1": the owner's token, and its attempts
//   step-000000000120/.metadata          DCP's: torch.distributed.checkpoint alone loads the folder
//   step-000000000120/manifest.json      ours, last (manifest.h): without a whole one there is no checkpoint
//   pins/step-000000000120               is never removed
//   owner.json                           who writes here (owner.h)
//
// In the names of data files the token keeps apart what two owners wrote into one step: an owner that was taken over
// and does not know it yet changes no byte of what its follower commits.
//
// Calls block, and may come from any thread.
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
  bool complete = false;  // a manifest is there
  bool foreign = false;   // no manifest, and no file of ours: DCP's own, or somebody's; never touched
  bool pinned = false;
  uint64_t bytes = 0;
  uint64_t files = 0;
  int64_t modified_ns = 0;  // of what was written last, by the store's clock
};

std::string folder_of(uint64_t step);                      // "step-000000000120"
std::optional<uint64_t> step_of(std::string_view folder);  // the other way; nothing for other names
std::string data_file_name(uint32_t rank, uint32_t number, uint64_t token, uint64_t attempt);
bool is_data_file_name(std::string_view name);
// Who wrote a data file, and in which attempt: of two with the same step the greater pair is the later one. Nothing for
// other names.
std::optional<std::pair<uint64_t, uint64_t>> token_and_attempt(std::string_view name);

class Catalog {
 public:
  explicit Catalog(std::shared_ptr<ObjectStore> store) : store_(std::move(store)) {}

  ObjectStore& store() const { return *store_; }

  // All steps, in order.
  StatusOr<std::vector<CheckpointInfo>> list() const;

  // NOT_FOUND: there is none. Else parse_manifest's errors, naming the object.
  StatusOr<Manifest> manifest(uint64_t step) const;
  // The same for any folder ("" or with a slash at its end): one checkpoint by itself.
  StatusOr<Manifest> manifest_in(std::string_view folder) const;

  // The highest step with a whole manifest; NOT_FOUND if there is none. `skipped`: why higher ones are not it.
  StatusOr<Manifest> newest(std::vector<std::string>* skipped = nullptr) const;

  // Makes files that are there already a checkpoint: `.metadata`, then the manifest, each after the owner made sure
  // that it still is the owner. Then removes what earlier attempts at the step have left; what later ones write into it
  // meanwhile stays. ABORTED: it is not the owner, or the step is there already and `replace` is false.
  Status commit(Owner& owner, const Manifest& manifest, std::span<const std::byte> metadata, bool replace) const;

  // The manifest first: what is left of a removal that was cut short is no checkpoint. FAILED_PRECONDITION for a pinned
  // one. OK also if there was none.
  Status remove(uint64_t step) const;

  Status pin(uint64_t step, std::string_view why) const;  // NOT_FOUND: no such checkpoint
  Status unpin(uint64_t step) const;

  // Removes what the rules say, and what writers that died have left, for an owner that made sure of being it. Which
  // steps went and why.
  StatusOr<std::vector<brain::Removal>> prune(Owner& owner, const brain::RetentionRules& rules) const;

 private:
  std::shared_ptr<ObjectStore> store_;
};

// How the files of a checkpoint are read: sources in the order of nearness, each a store and the folder in it.
StoredFiles stored_files(const Manifest& manifest, std::vector<StoredFiles::Source> sources, bool with_metadata);

}  // namespace keepstep::checkpoint
