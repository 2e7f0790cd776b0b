#include "messages/schema.h"

#include <algorithm>
#include <chrono>
#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "messages/agent_messages.h"
#include "messages/publication_messages.h"
#include "messages/rank_messages.h"
#include "messages/ring_messages.h"

namespace keepstep::messages {
namespace {

using nlohmann::json;

constexpr size_t kMaxNameBytes = 40;  // of a name shown in an error
constexpr int kMaxDepth = 64;         // the library copies values recursively

std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// ---- the fields of a struct -----------------------------------------------------------------------------------------

template <typename T>
struct Fields {
  static constexpr std::string_view kNames = T::kFields;
  template <typename Self, typename Visit>
  static auto with(Self& self, const Visit& visit) {
    return self.with_fields(visit);
  }
};

// For values of other modules.
template <>
struct Fields<brain::Identity> {
  static constexpr std::string_view kNames = "term, generation";
  static auto with(auto& self, const auto& visit) { return visit(self.term, self.generation); }
};
template <>
struct Fields<brain::Sharding> {
  static constexpr std::string_view kNames = "number, world";
  static auto with(auto& self, const auto& visit) { return visit(self.number, self.world); }
};
template <>
struct Fields<brain::ParityBlock> {
  static constexpr std::string_view kNames = "members, row";
  static auto with(auto& self, const auto& visit) { return visit(self.members, self.row); }
};
template <>
struct Fields<brain::RankPace> {
  static constexpr std::string_view kNames = "rank, computed, quick, step";
  static auto with(auto& self, const auto& visit) { return visit(self.rank, self.computed, self.quick, self.step); }
};
// What an agent sends to others about a waiting rank; without what only it can judge (processes, its machine's clocks).
template <>
struct Fields<brain::RankProgress> {
  static constexpr std::string_view kNames =
      "rank, worker, step, micro_batch, phase, entered, left, entered_world, messages, waits, what, world, members, "
      "still_for";
  static auto with(auto& self, const auto& visit) {
    return visit(self.rank, self.worker, self.step, self.micro_batch, self.phase, self.entered, self.left,
                 self.entered_world, self.messages, self.waits, self.what, self.world, self.members, self.still_for);
  }
};
template <>
struct Fields<comm::CommConfig> {
  static constexpr std::string_view kNames = "max_world, max_local, groups, slot_bytes, group_slot_bytes, ring_bytes";
  static auto with(auto& self, const auto& visit) {
    return visit(self.max_world, self.max_local, self.groups, self.slot_bytes, self.group_slot_bytes, self.ring_bytes);
  }
};

// Splits the names of a struct's fields.
class Names {
 public:
  explicit Names(std::string_view all) : rest_(all) {}
  std::string next() {
    constexpr std::string_view kBetween = ", ";
    const size_t end = std::min(rest_.find(kBetween), rest_.size());
    std::string name(rest_.substr(0, end));
    rest_.remove_prefix(std::min(end + kBetween.size(), rest_.size()));
    return name;
  }

 private:
  std::string_view rest_;
};

// ---- writing --------------------------------------------------------------------------------------------------------

json json_of(const Bytes& value) { return absl::BytesToHexString(value.bytes); }
json json_of(const Json& value) { return json::parse(value.text); }
json json_of(std::chrono::nanoseconds value) { return value.count(); }
json json_of(const std::string& value) { return value; }
template <typename T>
json json_of(const std::optional<T>& value);
template <typename T>
json json_of(const std::vector<T>& values);
template <typename T>
json json_of(const std::map<std::string, T>& values);

template <typename T>
json json_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return value;
  } else {
    json object = json::object();
    if constexpr (!std::is_empty_v<T>) {
      Names names(Fields<T>::kNames);
      Fields<T>::with(value, [&](const auto&... field) { (object.emplace(names.next(), json_of(field)), ...); });
    }
    return object;
  }
}

template <typename T>
json json_of(const std::optional<T>& value) {
  return value.has_value() ? json_of(*value) : json();
}

template <typename T>
json json_of(const std::vector<T>& values) {
  json array = json::array();
  for (const T& value : values) {
    array.push_back(json_of(value));
  }
  return array;
}

template <typename T>
json json_of(const std::map<std::string, T>& values) {
  json object = json::object();
  for (const auto& [name, value] : values) {
    object.emplace(name, json_of(value));
  }
  return object;
}

// ---- reading --------------------------------------------------------------------------------------------------------

// Consumes the fields of one object, each once.
class FieldReader {
 public:
  explicit FieldReader(const json& fields) : fields_(fields) {}

  // Reads all fields of `to`, and accepts no others.
  template <typename T>
  bool read_all(T& to) {
    if constexpr (!std::is_empty_v<T>) {
      Names names(Fields<T>::kNames);
      const bool sound = Fields<T>::with(to, [&](auto&... field) { return (read(names.next(), field) && ...); });
      if (!sound) {
        return false;
      }
    }
    if (read_ != fields_.size()) {
      wrong_ = "it has a field that nobody knows";
    }
    return wrong_.empty();
  }
  const std::string& wrong() const { return wrong_; }

 private:
  template <typename T>
  bool read(const std::string& name, T& value);

  const json& fields_;
  size_t read_ = 0;
  std::string wrong_;
};

bool read_value(const json& from, bool& to) {
  to = from.is_boolean() && from.get<bool>();
  return from.is_boolean();
}

bool read_value(const json& from, double& to) {
  to = from.is_number() ? from.get<double>() : 0;
  return from.is_number();
}

bool read_value(const json& from, std::string& to) {
  if (from.is_string()) {
    to = from.get_ref<const std::string&>();
  }
  return from.is_string();
}

bool read_value(const json& from, Bytes& to) {
  std::string text;
  if (!read_value(from, text) || text.size() % 2 != 0 || !std::ranges::all_of(text, absl::ascii_isxdigit)) {
    return false;
  }
  to.bytes = absl::HexStringToBytes(text);
  return true;
}

bool read_value(const json& from, Json& to) {
  to.text = text_of(from);
  return from.is_object();
}

template <std::unsigned_integral T>
bool read_value(const json& from, T& to) {
  const bool fits = from.is_number_unsigned() && from.get<uint64_t>() <= std::numeric_limits<T>::max();
  to = fits ? from.get<T>() : T{};
  return fits;
}

template <std::signed_integral T>
bool read_value(const json& from, T& to) {
  // The library stores non-negative numbers as unsigned.
  const bool large = from.is_number_unsigned() && from.get<uint64_t>() > uint64_t{INT64_MAX};
  const bool fits = from.is_number_integer() && !large && std::in_range<T>(from.get<int64_t>());
  to = fits ? from.get<T>() : T{};
  return fits;
}

bool read_value(const json& from, std::chrono::nanoseconds& to) {
  int64_t count = 0;
  const bool fits = read_value(from, count);
  to = std::chrono::nanoseconds(count);
  return fits;
}

template <typename T>
bool read_value(const json& from, std::optional<T>& to);
template <typename T>
bool read_value(const json& from, std::vector<T>& to);
template <typename T>
bool read_value(const json& from, std::map<std::string, T>& to);

template <typename T>
bool read_value(const json& from, T& to) {
  if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> number{};
    const bool fits = read_value(from, number);
    to = static_cast<T>(number);  // the reader of the value checks that such an enumerator exists
    return fits;
  } else {
    return from.is_object() && FieldReader(from).read_all(to);
  }
}

template <typename T>
bool read_value(const json& from, std::optional<T>& to) {
  to.reset();
  return from.is_null() || read_value(from, to.emplace());
}

template <typename T>
bool read_value(const json& from, std::vector<T>& to) {
  to.clear();
  for (const json& each : from) {
    if (!read_value(each, to.emplace_back())) {
      return false;
    }
  }
  return from.is_array();
}

template <typename T>
bool read_value(const json& from, std::map<std::string, T>& to) {
  to.clear();
  for (const auto& [name, each] : from.items()) {
    if (!read_value(each, to[name])) {
      return false;
    }
  }
  return from.is_object();
}

template <typename T>
bool FieldReader::read(const std::string& name, T& value) {
  const auto found = fields_.find(name);
  if (found == fields_.end()) {
    wrong_ = absl::StrFormat("the field '%s' is missing", name);
  } else if (!read_value(*found, value)) {
    wrong_ = absl::StrFormat("the field '%s' has the wrong type or value", name);
  }
  ++read_;
  return wrong_.empty();
}

StatusOr<json> read_fields(std::string_view text) {
  const std::string_view name = name_of(text);
  bool too_deep = false;
  const auto look = [&](int depth, json::parse_event_t, const json&) {
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;
  };
  json fields = json::parse(text.substr(std::min(name.size() + 1, text.size())), look, false);
  if (too_deep) {
    return bad_message(name, "its fields are nested too deeply");
  }
  if (!fields.is_object()) {
    return bad_message(name, "its fields are no JSON object");
  }
  return fields;
}

template <typename Message>
StatusOr<Message> message_of(const json& fields) {
  Message message;
  FieldReader reader(fields);
  return reader.read_all(message) ? StatusOr<Message>(std::move(message)) : bad_message(Message::kName, reader.wrong());
}

template <typename Messages>
struct OneOf;
template <typename... Message>
struct OneOf<std::variant<Message...>> {
  static bool has(std::string_view name) { return ((name == Message::kName) || ...); }
  static StatusOr<std::variant<Message...>> read(std::string_view name, const json& fields) {
    StatusOr<std::variant<Message...>> found = bad_message(name, "nobody expects it here");
    (void)((name == Message::kName && (found = message_of<Message>(fields), true)) || ...);
    return found;
  }
};

}  // namespace

std::string_view name_of(std::string_view text) { return text.substr(0, text.find(' ')); }

Status bad_message(std::string_view name, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrFormat("the message '%s': %s", std::string(name.substr(0, kMaxNameBytes)), std::string(why)));
}

template <typename Message>
std::string write(const Message& message) {
  return absl::StrCat(absl::string_view(Message::kName.data(), Message::kName.size()), " ", text_of(json_of(message)));
}

template <typename Messages>
StatusOr<Messages> read(std::string_view text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const json fields, read_fields(text));
  return OneOf<Messages>::read(name_of(text), fields);
}

template <typename Messages>
bool is_one_of(std::string_view text) {
  return OneOf<Messages>::has(name_of(text));
}

// ---- instantiations for all messages
// ----------------------------------------------------------------------------------

// Instantiates the templates above for all of `Messages`.
template <typename Messages>
struct Compiled;
template <typename... Message>
struct Compiled<std::variant<Message...>> {
  std::tuple<decltype(&write<Message>)...> writers{&write<Message>...};
  decltype(&read<std::variant<Message...>>) reader = &read<std::variant<Message...>>;
  decltype(&is_one_of<std::variant<Message...>>) finder = &is_one_of<std::variant<Message...>>;
};

extern const std::tuple<Compiled<FromRank>, Compiled<ToService>, Compiled<ToRank>, Compiled<FromService>,
                        Compiled<ToFirst>, Compiled<ByFirst>, Compiled<ByAny>, Compiled<StoreMessage>,
                        Compiled<ToRootlessStore>, Compiled<FromReader>, Compiled<ToReader>,
                        Compiled<std::variant<LoaderRuns>>, Compiled<FromSubscriber>, Compiled<ToSubscriber>>
    kCompiled;
const decltype(kCompiled) kCompiled;

}  // namespace keepstep::messages
