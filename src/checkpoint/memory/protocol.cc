#include "checkpoint/memory/protocol.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "base/runtime_folder.h"

namespace keepstep::checkpoint::memory {
namespace {

constexpr int kMaxCode = static_cast<int>(absl::StatusCode::kUnauthenticated);

}  // namespace

std::string server_name() { return "memory-" + this_machine(); }

bool is_destination_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && absl::ascii_isalpha(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_'; });
}

Json error_answer(const Status& status) {
  return {{"error", static_cast<int>(status.code())}, {"message", std::string(status.message())}};
}

Status status_of(const Json& answer) {
  const auto error = answer.find("error");
  if (error == answer.end()) {
    return absl::OkStatus();
  }
  const auto message = answer.find("message");
  const int code = error->is_number_integer() ? error->get<int>() : 0;
  return {
      code >= 1 && code <= kMaxCode ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
      message != answer.end() && message->is_string() ? message->get<std::string>() : std::string("no reason given")};
}

StatusOr<std::string> text_field(const Json& message, const char* name) {
  const auto field = message.find(name);
  if (field == message.end() || !field->is_string()) {
    return absl::InvalidArgumentError(absl::StrFormat("a message without the text '%s'", name));
  }
  return field->get<std::string>();
}

StatusOr<uint64_t> number_field(const Json& message, const char* name) {
  const auto field = message.find(name);
  if (field == message.end() || !field->is_number_unsigned()) {
    return absl::InvalidArgumentError(absl::StrFormat("a message without the number '%s'", name));
  }
  return field->get<uint64_t>();
}

StatusOr<Json> parse_message(const std::string& bytes) {
  Json message = Json::parse(bytes, nullptr, false);
  if (!message.is_object()) {
    return absl::InvalidArgumentError("a message that is no JSON object");
  }
  return message;
}

}  // namespace keepstep::checkpoint::memory
