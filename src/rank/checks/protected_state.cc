#include "rank/checks/protected_state.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "base/checksum.h"

namespace keepstep::rank {
namespace {

// "float32[512, 64]"
template <typename Shape>
std::string text_of(const std::string& dtype, const Shape& shape) {
  return absl::StrFormat("%s[%s]", dtype, absl::StrJoin(shape, ", "));
}

constexpr char kWayOut[] =
    "All ranks must protect the same names, shapes and types in the same order; does a size depend on the rank, or on "
    "the environment?";

}  // namespace

Status ProtectedState::add(const std::string& name, void* data, const std::vector<size_t>& shape,
                           const std::string& dtype, size_t element_bytes) {
  if (name.empty() || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrFormat("protect: '%s' is no name: give one without a '/'", name));
  }
  if (std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) { return piece.name == name; })) {
    return absl::InvalidArgumentError(absl::StrFormat("protect: the name '%s' is taken", name));
  }
  uint64_t bytes = element_bytes;
  for (const size_t extent : shape) {
    if (extent != 0 && bytes > std::numeric_limits<uint64_t>::max() / extent) {
      return absl::InvalidArgumentError(
          absl::StrFormat("protect: '%s' is %s, more than there can be", name, text_of(dtype, shape)));
    }
    bytes *= extent;
  }
  if (data == nullptr || bytes == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("protect: '%s' (%s) has no memory", name, text_of(dtype, shape)));
  }
  pieces_.push_back({name, dtype, shape, {data, bytes}});
  return absl::OkStatus();
}

std::vector<state::Region> ProtectedState::regions() const {
  std::vector<state::Region> regions;
  regions.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    regions.push_back(piece.region);
  }
  return regions;
}

std::vector<NamedMemory> ProtectedState::memory() const {
  std::vector<NamedMemory> memory;
  memory.reserve(pieces_.size());
  for (const Piece& piece : pieces_) {
    memory.push_back({piece.name, piece.region.data, piece.region.bytes});
  }
  return memory;
}

std::string ProtectedState::manifest() const {
  nlohmann::json tensors = nlohmann::json::array();
  for (const Piece& piece : pieces_) {
    tensors.push_back({piece.name, piece.dtype, piece.shape});
  }
  return nlohmann::json{{"tensors", tensors}, {"values", nlohmann::json::object()}}.dump();
}

Status ProtectedState::same_as(const std::string& theirs, const std::string& self, const std::string& source) const {
  const nlohmann::json manifest = nlohmann::json::parse(theirs, nullptr, false);
  if (!manifest.is_object() || !manifest.contains("tensors") || !manifest["tensors"].is_array()) {
    return absl::InvalidArgumentError(absl::StrFormat("protect: %s publishes no list of what it protects", source));
  }
  const nlohmann::json& tensors = manifest["tensors"];
  if (tensors.size() != pieces_.size()) {
    return absl::InvalidArgumentError(absl::StrFormat("protect: %s has %d names; %s has %d. %s", self, pieces_.size(),
                                                      source, tensors.size(), kWayOut));
  }
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& mine = pieces_[i];
    if (tensors[i] != nlohmann::json{mine.name, mine.dtype, mine.shape}) {
      return absl::InvalidArgumentError(absl::StrFormat("protect: %s has '%s' %s; %s has %s there. %s", self, mine.name,
                                                        text_of(mine.dtype, mine.shape), source, tensors[i].dump(),
                                                        kWayOut));
    }
  }
  return absl::OkStatus();
}

void ProtectedState::remember() {
  digests_.clear();
  for (const Piece& piece : pieces_) {
    digests_.push_back(checksum(piece.region.data, piece.region.bytes));
  }
}

Status ProtectedState::unchanged(uint64_t step) const {
  std::vector<std::string> changed;
  for (size_t i = 0; i < digests_.size(); ++i) {
    if (checksum(pieces_[i].region.data, pieces_[i].region.bytes) != digests_[i]) {
      changed.push_back("'" + pieces_[i].name + "'");
    }
  }
  if (changed.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("check: protected memory changed outside of commit in step %d: %s. A step that is done again "
                      "would not start from the committed state. Move what changes it into the update.",
                      step, absl::StrJoin(changed, ", ")));
}

}  // namespace keepstep::rank
