// manifest.json: what makes a folder of files a checkpoint. Written last; without a complete one there is no
// checkpoint.
//
// It names every file with its size and sums, and every tensor with its shape and the place of each of its parts, so
// inspecting, comparing, exporting and loading need neither a pickle nor torch. docs/formats/checkpoint.md describes it
// byte by byte.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/layout.h"
#include "checkpoint/sums.h"

namespace keepstep::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int kManifestVersion = 1;
inline constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 29;

struct Manifest {
  uint64_t step = 0;
  uint32_t world = 0;          // ranks that wrote it
  int64_t created_s = 0;       // since the epoch, by the clock of the rank that committed
  std::string job;             // in words: which job wrote it
  uint64_t token = 0;          // of the owner that committed it (owner.h)
  Layout layout;               // its `files` are the data files
  std::vector<FileSums> sums;  // one for each of layout.files
  FileSums metadata;           // of DCP's `.metadata` next to it

  uint64_t bytes() const;  // of all files but the manifest
};

std::string encode_manifest(const Manifest& manifest);

// FAILED_PRECONDITION: its version is newer than this program. DATA_LOSS: truncated, or not the bytes that were
// written. INVALID_ARGUMENT: not a manifest.
StatusOr<Manifest> parse_manifest(std::span<const std::byte> text);

}  // namespace keepstep::checkpoint
