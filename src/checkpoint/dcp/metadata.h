// DCP's `.metadata`, which is a pickle, read as data (pickle.h): the layout it describes.
//
// It is what torch.distributed.checkpoint.FileSystemWriter and our own writer leave: dataclasses of
// torch/distributed/checkpoint/metadata.py, and `_StorageInfo` of filesystem.py. Those of torch 2.0 and later are read.
#pragma once

#include <span>

#include "base/status.h"
#include "checkpoint/layout.h"

namespace keepstep::checkpoint::dcp {

inline constexpr const char* kMetadataName = ".metadata";

// PERMISSION_DENIED names a class that has no business in it; INVALID_ARGUMENT what is wrong with it.
StatusOr<Layout> read_metadata(std::span<const std::byte> pickle);

}  // namespace keepstep::checkpoint::dcp
