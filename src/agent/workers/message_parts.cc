#include "agent/workers/message_parts.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace keepstep::agent {
namespace {

constexpr size_t kMaxParts = kMaxPartedBytes / kPartBytes;
constexpr size_t kMaxHeadBytes = 16;

}  // namespace

StatusOr<std::vector<std::string>> in_parts(std::string message) {
  if (message.size() > kMaxPartedBytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("a message of %d bytes for another node; %d is the most", message.size(), kMaxPartedBytes));
  }
  std::vector<std::string> parts;
  if (message.size() <= kPartBytes) {
    parts.push_back(std::move(message));
    return parts;
  }
  const size_t count = (message.size() + kPartBytes - 1) / kPartBytes;
  for (size_t i = 0; i < count; ++i) {
    parts.push_back(absl::StrCat("M", i, "/", count, ":", message.substr(i * kPartBytes, kPartBytes)));
  }
  return parts;
}

StatusOr<std::optional<std::string>> PartJoiner::add(brain::NodeId from, const std::string& part) {
  const std::string head = part.substr(0, std::min(part.find(':'), kMaxHeadBytes));
  const size_t slash = head.find('/');
  size_t number = 0;
  size_t count = 0;
  const bool sound = head.starts_with('M') && slash != std::string::npos &&
                     absl::SimpleAtoi(head.substr(1, slash - 1), &number) &&
                     absl::SimpleAtoi(head.substr(slash + 1), &count) && count >= 2 && count <= kMaxParts &&
                     number < count && part.size() > head.size() && part.size() - head.size() - 1 <= kPartBytes;
  Open& open = open_[from];
  if (sound && number == 0) {
    open = {0, count, {}};
  }
  if (!sound || number != open.next || count != open.count) {
    open_.erase(from);
    return absl::InvalidArgumentError(absl::StrFormat("a part that was not due, '%s'", head));
  }
  open.bytes.append(part, head.size() + 1);
  if (++open.next < count) {
    return std::nullopt;
  }
  std::string whole = std::move(open.bytes);
  open_.erase(from);
  return whole;
}

}  // namespace keepstep::agent
