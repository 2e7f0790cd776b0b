#include "checkpoint/keys.h"

#include <ctime>

#include "checkpoint/text.h"

namespace keepstep::checkpoint {
namespace {

constexpr std::string_view kOwnNames = ".keepstep-";
constexpr size_t kMaxPartBytes = 255;

std::string printable(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, 80)) {
    result += c >= ' ' && c <= '~' ? c : '?';
  }
  return text.size() > 80 ? result + "..." : result;
}

// What is wrong with a part between slashes; empty if nothing is.
std::string_view fault_of(std::string_view part) {
  if (part.empty()) {
    return "has an empty part (a slash at an end, or two in a row)";
  }
  if (part == "." || part == "..") {
    return "has '.' or '..' as a part";
  }
  if (part.size() > kMaxPartBytes) {
    return "has a part of more than 255 bytes";
  }
  if (part.starts_with(kOwnNames)) {
    return "has a part that begins with '.keepstep-', which is what the stores name their own files";
  }
  return {};
}

std::string_view fault_of_characters(std::string_view key) {
  for (const char c : key) {
    if (c < ' ' || c > '~' || c == '\\') {
      return "has a character that is not printable ASCII, or '\\'";
    }
  }
  return {};
}

Status bad_key(std::string_view key, std::string_view fault) {
  return absl::InvalidArgumentError(absl::StrFormat("the key '%s' %s", printable(key), fault));
}

}  // namespace

Status check_key(std::string_view key) {
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return bad_key(key, absl::StrFormat("has %d bytes; it must have 1 to %d", key.size(), kMaxKeyBytes));
  }
  if (const std::string_view fault = fault_of_characters(key); !fault.empty()) {
    return bad_key(key, fault);
  }
  for (const std::string_view part : split(key, '/')) {
    if (const std::string_view fault = fault_of(part); !fault.empty()) {
      return bad_key(key, fault);
    }
  }
  return absl::OkStatus();
}

Status check_prefix(std::string_view prefix) {
  if (prefix.empty()) {
    return absl::OkStatus();
  }
  std::string_view folders = prefix;
  if (const size_t slash = prefix.rfind('/'); slash != std::string_view::npos) {
    folders = prefix.substr(0, slash);
    KEEPSTEP_RETURN_IF_ERROR(check_key(folders));
    const std::string_view begun = prefix.substr(slash + 1);
    return begun.empty() || begun == "." || begun == ".." ? absl::OkStatus() : check_key(begun);
  }
  return prefix == "." || prefix == ".." ? absl::OkStatus() : check_key(prefix);
}

Status condition_failed(std::string_view key, const PutCondition& condition, std::string_view there,
                        std::string_view store) {
  const std::string wanted = condition.kind == PutCondition::Kind::kAbsent
                                 ? std::string("must not be there yet")
                                 : absl::StrFormat("must still be the version %s", condition.etag);
  const std::string found = there.empty() ? "nothing is there now" : absl::StrFormat("there is %s", there);
  return absl::AbortedError(absl::StrFormat("'%s' in %s was not written: it %s, and %s. Somebody else writes there",
                                            key, store, wanted, found));
}

Status condition_failed(std::string_view key, const PutCondition& condition, const StatusOr<ObjectInfo>& there,
                        std::string_view store) {
  if (!there.ok()) {
    return absl::IsNotFound(there.status()) ? condition_failed(key, condition, "", store) : there.status();
  }
  return condition_failed(
      key, condition,
      absl::StrFormat("version %s, %d bytes, of %s", there->etag, there->bytes, time_text(there->modified_ns)), store);
}

Status no_such_object(std::string_view key, std::string_view store) {
  return absl::NotFoundError(absl::StrFormat("there is no '%s' in %s", key, store));
}

Status too_large_for_put(std::string_view key, uint64_t bytes) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "'%s' has %d bytes; at most %d are put at once, more goes through a writer", key, bytes, kMaxPutBytes));
}

Status too_large_to_read(std::string_view key, uint64_t bytes, uint64_t max_bytes, std::string_view store) {
  return absl::OutOfRangeError(
      absl::StrFormat("'%s' in %s has %d bytes; at most %d are taken here", key, store, bytes, max_bytes));
}

Status beyond_end(std::string_view key, uint64_t bytes, uint64_t offset, uint64_t wanted, std::string_view store) {
  return absl::OutOfRangeError(
      absl::StrFormat("'%s' in %s has %d bytes; %d bytes from %d on were asked for: it was "
                      "truncated, or is another file",
                      key, store, bytes, wanted, offset));
}

Status too_many_listed(std::string_view prefix, std::string_view store) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("more than %d objects begin with '%s' in %s; give a longer prefix", kMaxListed, prefix, store));
}

Status interrupted(std::string_view store) {
  return absl::CancelledError(absl::StrFormat("the request to %s was cancelled", store));
}

std::string time_text(int64_t ns_since_epoch) {
  const time_t seconds = ns_since_epoch / 1'000'000'000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

}  // namespace keepstep::checkpoint
