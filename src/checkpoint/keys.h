// The checks and errors about keys and conditions that both stores share.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/object_store.h"

namespace keepstep::checkpoint {

// Checks a prefix for list: like a key, but it may be empty and may end in the middle of a part or at a slash.
Status check_prefix(std::string_view prefix);

// The one form of "your condition does not hold". `there`: what is in the way; empty if nothing is there.
Status condition_failed(std::string_view key, const PutCondition& condition, std::string_view there,
                        std::string_view store);
// The same, with `there` as head() returned it (NOT_FOUND: nothing is there); any other error is passed on.
Status condition_failed(std::string_view key, const PutCondition& condition, const StatusOr<ObjectInfo>& there,
                        std::string_view store);

Status no_such_object(std::string_view key, std::string_view store);
Status too_large_for_put(std::string_view key, uint64_t bytes);
Status too_large_to_read(std::string_view key, uint64_t bytes, uint64_t max_bytes, std::string_view store);
Status beyond_end(std::string_view key, uint64_t bytes, uint64_t offset, uint64_t wanted, std::string_view store);
Status too_many_listed(std::string_view prefix, std::string_view store);
Status interrupted(std::string_view store);

// "2026-11-22 06:10:00 UTC", for messages.
std::string time_text(int64_t ns_since_epoch);

}  // namespace keepstep::checkpoint
