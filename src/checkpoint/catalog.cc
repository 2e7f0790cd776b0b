#include "checkpoint/catalog.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "checkpoint/dcp/metadata.h"

namespace keepstep::checkpoint {
namespace {

constexpr std::string_view kStep = "step-";
constexpr std::string_view kPins = "pins/";

// Removes the digits at the beginning of `text` and returns their value.
std::optional<uint64_t> take_number(std::string_view& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::string pin_key(uint64_t step) { return std::string(kPins) + folder_of(step); }

Status with_name(const ObjectStore& store, std::string_view key, const Status& status) {
  return {status.code(), absl::StrFormat("%s: '%s': %s", store.describe(), key, status.message())};
}

// Writes a small or a large object, whole or not at all like every object. For a large one the condition is only
// checked beforehand; that is sufficient because of the owner's fence.
Status put_any(ObjectStore& store, const std::string& key, std::span<const std::byte> bytes,
               const PutCondition& condition) {
  if (bytes.size() <= kMaxPutBytes) {
    return store.put(key, bytes, condition).status();
  }
  if (condition.kind == PutCondition::Kind::kAbsent) {
    if (const StatusOr<ObjectInfo> there = store.head(key); there.ok()) {
      return absl::AbortedError(absl::StrFormat("%s: '%s' is there already", store.describe(), key));
    } else if (!absl::IsNotFound(there.status())) {
      return there.status();
    }
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectWriter> writer, store.create(key, bytes.size()));
  KEEPSTEP_RETURN_IF_ERROR(writer->append(bytes));
  return writer->commit().status();
}

}  // namespace

std::string folder_of(uint64_t step) { return absl::StrFormat("%s%012d", kStep, step); }

std::optional<uint64_t> step_of(std::string_view folder) {
  if (!folder.starts_with(kStep)) {
    return std::nullopt;
  }
  std::string_view rest = folder.substr(kStep.size());
  const std::optional<uint64_t> step = take_number(rest);
  return step && folder == folder_of(*step) ? step : std::nullopt;
}

std::string data_file_name(uint32_t rank, uint32_t number, uint64_t token, uint64_t attempt) {
  return absl::StrFormat("__%d_%d.%d-%d.distcp", rank, number, token, attempt);
}

bool is_data_file_name(std::string_view name) { return token_and_attempt(name).has_value(); }

std::optional<std::pair<uint64_t, uint64_t>> token_and_attempt(std::string_view name) {
  std::string_view rest = name;
  std::vector<uint64_t> numbers;
  for (const std::string_view before : {"__", "_", ".", "-"}) {
    if (!rest.starts_with(before)) {
      return std::nullopt;
    }
    rest.remove_prefix(before.size());
    const std::optional<uint64_t> number = take_number(rest);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  const bool ours = numbers[0] <= UINT32_MAX && numbers[1] <= UINT32_MAX &&
                    name == data_file_name(static_cast<uint32_t>(numbers[0]), static_cast<uint32_t>(numbers[1]),
                                           numbers[2], numbers[3]);
  return ours ? std::optional(std::pair(numbers[2], numbers[3])) : std::nullopt;
}

StatusOr<std::vector<CheckpointInfo>> Catalog::list() const {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list(kStep));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> pins, store_->list(kPins));
  std::set<uint64_t> pinned;
  for (const ObjectInfo& pin : pins) {
    if (const auto step = step_of(std::string_view(pin.key).substr(kPins.size()))) {
      pinned.insert(*step);
    }
  }
  std::map<uint64_t, CheckpointInfo> found;
  std::set<uint64_t> ours;
  for (const ObjectInfo& object : objects) {
    const std::string_view key = object.key;
    const size_t slash = key.find('/');
    const auto step = step_of(key.substr(0, slash));
    if (!step || slash == std::string_view::npos) {
      continue;
    }
    const std::string_view name = key.substr(slash + 1);
    CheckpointInfo& info = found[*step];
    info.step = *step;
    info.complete |= name == kManifestName;
    if (is_data_file_name(name)) {
      ours.insert(*step);
    }
    info.pinned = pinned.contains(*step);
    info.bytes += object.bytes;
    ++info.files;
    info.modified_ns = std::max(info.modified_ns, object.modified_ns);
  }
  std::vector<CheckpointInfo> result;
  for (auto& [step, info] : found) {
    info.foreign = !info.complete && !ours.contains(step);
    result.push_back(info);
  }
  return result;
}

StatusOr<Manifest> Catalog::manifest_in(std::string_view folder) const {
  const std::string key = std::string(folder) + kManifestName;
  KEEPSTEP_ASSIGN_OR_RETURN(const Object object, store_->read_all(key, kMaxManifestBytes));
  StatusOr<Manifest> manifest = parse_manifest(std::as_bytes(std::span(object.bytes)));
  if (!manifest.ok()) {
    return with_name(*store_, key, manifest.status());
  }
  return manifest;
}

StatusOr<Manifest> Catalog::manifest(uint64_t step) const {
  KEEPSTEP_ASSIGN_OR_RETURN(Manifest manifest, manifest_in(folder_of(step) + "/"));
  if (manifest.step != step) {
    return absl::DataLossError(absl::StrFormat("%s: the manifest in '%s' is that of step %d: was a folder renamed?",
                                               store_->describe(), folder_of(step), manifest.step));
  }
  return manifest;
}

StatusOr<Manifest> Catalog::newest(std::vector<std::string>* skipped) const {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> folders, store_->list_folders(""));
  std::vector<uint64_t> steps;
  for (const std::string& folder : folders) {
    if (const auto step = step_of(folder)) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.rbegin(), steps.rend());
  for (const uint64_t step : steps) {
    StatusOr<Manifest> found = manifest(step);
    if (found.ok()) {
      return found;
    }
    const bool none = absl::IsNotFound(found.status());
    if (!none && !absl::IsDataLoss(found.status()) && !absl::IsInvalidArgument(found.status())) {
      return found.status();  // it may well exist: taking an older one in its place would lose steps
    }
    if (skipped != nullptr) {
      skipped->push_back(none
                             ? absl::StrFormat("step %d has no manifest: its save is unfinished or still running", step)
                             : std::string(found.status().message()));
    }
  }
  return absl::NotFoundError(absl::StrFormat("%s has no complete checkpoint", store_->describe()));
}

Status Catalog::commit(Owner& owner, const Manifest& manifest, std::span<const std::byte> metadata,
                       bool replace) const {
  const std::string folder = folder_of(manifest.step) + "/";
  PutCondition condition = PutCondition::absent();
  if (const StatusOr<ObjectInfo> there = store_->head(folder + kManifestName); there.ok()) {
    if (!replace) {
      return absl::AbortedError(absl::StrFormat("%s: step %d is there already", store_->describe(), manifest.step));
    }
    condition = PutCondition::matches(there->etag);
  } else if (!absl::IsNotFound(there.status())) {
    return there.status();
  }
  KEEPSTEP_RETURN_IF_ERROR(owner.renew());
  KEEPSTEP_RETURN_IF_ERROR(put_any(*store_, folder + dcp::kMetadataName, metadata, PutCondition::none()));
  const std::string text = encode_manifest(manifest);
  // What was written must be readable, by the reader's own rules.
  KEEPSTEP_RETURN_IF_ERROR(parse_manifest(std::as_bytes(std::span(text))).status());
  KEEPSTEP_RETURN_IF_ERROR(owner.renew());
  KEEPSTEP_RETURN_IF_ERROR(put_any(*store_, folder + kManifestName, std::as_bytes(std::span(text)), condition));
  // Removes earlier attempts at this step. A new owner may already be writing into it: its files count as later.
  std::pair<uint64_t, uint64_t> own = {manifest.token, 0};
  for (const std::string& name : manifest.layout.files) {
    own = std::max(own, token_and_attempt(name).value_or(own));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list(folder));
  const std::set<std::string> listed(manifest.layout.files.begin(), manifest.layout.files.end());
  for (const ObjectInfo& object : objects) {
    const std::string name = object.key.substr(folder.size());
    if (const auto of = token_and_attempt(name); of && *of < own && !listed.contains(name)) {
      KEEPSTEP_RETURN_IF_ERROR(store_->remove(object.key));
    }
  }
  return absl::OkStatus();
}

Status Catalog::remove(uint64_t step) const {
  const std::string folder = folder_of(step) + "/";
  if (const StatusOr<ObjectInfo> pin = store_->head(pin_key(step)); pin.ok()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: step %d is pinned and stays; unpin it first", store_->describe(), step));
  } else if (!absl::IsNotFound(pin.status())) {
    return pin.status();
  }
  KEEPSTEP_RETURN_IF_ERROR(store_->remove(folder + kManifestName));
  KEEPSTEP_RETURN_IF_ERROR(store_->remove(folder + dcp::kMetadataName));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list(folder));
  for (const ObjectInfo& object : objects) {
    KEEPSTEP_RETURN_IF_ERROR(store_->remove(object.key));
  }
  return absl::OkStatus();
}

Status Catalog::pin(uint64_t step, std::string_view why) const {
  KEEPSTEP_RETURN_IF_ERROR(store_->head(folder_of(step) + "/" + kManifestName).status());
  return store_->put(pin_key(step), std::as_bytes(std::span(why)), PutCondition::none()).status();
}

Status Catalog::unpin(uint64_t step) const { return store_->remove(pin_key(step)); }

StatusOr<std::vector<brain::Removal>> Catalog::prune(Owner& owner, const brain::RetentionRules& rules) const {
  KEEPSTEP_RETURN_IF_ERROR(owner.renew());
  // The current time by the store's clock: the owner has just written.
  KEEPSTEP_ASSIGN_OR_RETURN(const ObjectInfo now, store_->head(kOwnerName));
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> found, list());
  std::vector<brain::StoredCheckpoint> stored;
  for (const CheckpointInfo& info : found) {
    if (!info.foreign) {
      stored.push_back({.step = info.step,
                        .complete = info.complete,
                        .pinned = info.pinned,
                        .age = std::chrono::nanoseconds(now.modified_ns - info.modified_ns)});
    }
  }
  std::vector<brain::Removal> removals = brain::to_remove(stored, rules);
  for (const brain::Removal& removal : removals) {
    KEEPSTEP_RETURN_IF_ERROR(remove(removal.step));
  }
  KEEPSTEP_RETURN_IF_ERROR(
      store_->remove_leftovers(kStep, std::chrono::duration_cast<std::chrono::seconds>(rules.save_limit)).status());
  return removals;
}

StoredFiles stored_files(const Manifest& manifest, std::vector<StoredFiles::Source> sources, bool with_metadata) {
  StoredFiles stored{.sources = std::move(sources)};
  for (size_t i = 0; i < manifest.layout.files.size(); ++i) {
    stored.files.push_back({manifest.layout.files[i], manifest.sums[i].bytes, manifest.sums[i].chunks});
  }
  if (with_metadata) {
    stored.files.push_back({dcp::kMetadataName, manifest.metadata.bytes, manifest.metadata.chunks});
  }
  return stored;
}

}  // namespace keepstep::checkpoint
