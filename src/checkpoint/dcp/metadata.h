// Reads the layout that DCP's `.metadata` describes. The file is a pickle, and is read as data (pickle.h).
//
// Both torch.distributed.checkpoint.FileSystemWriter and our own writer produce it: the dataclasses of
// torch/distributed/checkpoint/metadata.py, and `_StorageInfo` of filesystem.py. Files of torch 2.0 and later are
// accepted.
#pragma once

#include <span>

#include "base/status.h"
#include "checkpoint/layout.h"

namespace keepstep::checkpoint::dcp {

inline constexpr const char* kMetadataName = ".metadata";

// PERMISSION_DENIED names a class that does not belong there; INVALID_ARGUMENT says what is wrong with the file.
StatusOr<Layout> read_metadata(std::span<const std::byte> pickle);

}  // namespace keepstep::checkpoint::dcp
