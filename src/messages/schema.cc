#include "messages/schema.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace keepstep::messages {
namespace {

constexpr size_t kMaxNameBytes = 40;  // of one that is shown
constexpr int kMaxDepth = 64;         // the library copies values recursively

}  // namespace

void to_json(nlohmann::json& fields, const Bytes& value) { fields = absl::BytesToHexString(value.bytes); }

bool FieldReader::read_value(const nlohmann::json& from, bool& to) {
  to = from.is_boolean() && from.get<bool>();
  return from.is_boolean();
}

bool FieldReader::read_value(const nlohmann::json& from, double& to) {
  to = from.is_number() ? from.get<double>() : 0;
  return from.is_number();
}

bool FieldReader::read_value(const nlohmann::json& from, std::string& to) {
  if (from.is_string()) {
    to = from.get_ref<const std::string&>();
  }
  return from.is_string();
}

bool FieldReader::read_value(const nlohmann::json& from, Bytes& to) {
  std::string text;
  if (!read_value(from, text) || text.size() % 2 != 0 || !std::ranges::all_of(text, absl::ascii_isxdigit)) {
    return false;
  }
  to.bytes = absl::HexStringToBytes(text);
  return true;
}

bool FieldReader::read_value(const nlohmann::json& from, nlohmann::json& to) {
  to = from;
  return from.is_object();
}

bool FieldReader::read_value(const nlohmann::json& from, std::chrono::nanoseconds& to) {
  int64_t count = 0;
  const bool fits = read_value(from, count);
  to = std::chrono::nanoseconds(count);
  return fits;
}

std::string write(std::string_view name, const nlohmann::json& fields) {
  return absl::StrCat(absl::string_view(name.data(), name.size()), " ",
                      fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string_view name_of(std::string_view text) { return text.substr(0, text.find(' ')); }

Status bad_message(std::string_view name, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrFormat("the message '%s': %s", std::string(name.substr(0, kMaxNameBytes)), std::string(why)));
}

StatusOr<nlohmann::json> read_fields(std::string_view text) {
  const std::string_view name = name_of(text);
  bool too_deep = false;
  const auto look = [&](int depth, nlohmann::json::parse_event_t, const nlohmann::json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  nlohmann::json fields = nlohmann::json::parse(text.substr(std::min(name.size() + 1, text.size())), look, false);
  if (too_deep) {
    return bad_message(name, "its fields are nested too deeply");
  }
  if (!fields.is_object()) {
    return bad_message(name, "its fields are no JSON object");
  }
  return fields;
}

}  // namespace keepstep::messages
