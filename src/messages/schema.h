// How a message is written: its name, a space, and its fields as one JSON object.
//
//   struct Settled {
//     static constexpr std::string_view kName = "settled";
//     uint32_t sharding = 0;
//     KEEPSTEP_FIELDS(Settled, sharding)
//   };
//
// Both ends are of one version, so a reader takes exactly these fields, each within its type: one that is missing, one
// too many, a fraction or a negative number for a count is refused. Text of user code may hold any bytes; what is not
// UTF-8 becomes U+FFFD. Bytes that must arrive as they are: Bytes.
//
// A field is a number (finite), an enumerator, a bool, a text, Bytes, nanoseconds, another such struct, an optional, a
// vector or a map by text of these, or a JSON object of a schema of its own. A message without fields is an empty
// struct. Pure.
#pragma once

#include <chrono>
#include <concepts>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

// Inside of a struct, its fields by name; of a type of another module, in its namespace: KEEPSTEP_FIELDS_OF.
#define KEEPSTEP_FIELDS(Type, ...) KEEPSTEP_FIELDS_AS(friend, Type, __VA_ARGS__)
#define KEEPSTEP_FIELDS_OF(Type, ...) KEEPSTEP_FIELDS_AS(inline, Type, __VA_ARGS__)
#define KEEPSTEP_FIELDS_AS(kind, Type, ...)                                                                            \
  kind void to_json(nlohmann::json& nlohmann_json_j,                                                                   \
                    const Type& nlohmann_json_t){NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(                             \
      NLOHMANN_JSON_TO, __VA_ARGS__))} kind bool read_fields(keepstep::messages::FieldReader& reader, Type& message) { \
    return NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(KEEPSTEP_READ_FIELD, __VA_ARGS__)) reader.no_more();               \
  }
#define KEEPSTEP_READ_FIELD(field) reader.read(#field, message.field)&&

template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& fields, const std::optional<T>& value) {
    fields = value.has_value() ? json(*value) : json();
  }
};

template <>
struct nlohmann::adl_serializer<std::chrono::nanoseconds> {
  static void to_json(json& fields, std::chrono::nanoseconds value) { fields = value.count(); }
};

namespace keepstep::messages {

using Texts = std::map<std::string, std::string>;

// Travels as hexadecimal.
struct Bytes {
  std::string bytes;
};
void to_json(nlohmann::json& fields, const Bytes& value);

template <typename Message>
std::string write(const Message& message);

// Messages: a std::variant of those that may come. INVALID_ARGUMENT says what of `text` is none of them.
template <typename Messages>
StatusOr<Messages> read(std::string_view text);

// Of what write() gave: the name; whether it is that of one of Messages.
std::string_view name_of(std::string_view text);
template <typename Messages>
bool is_one_of(std::string_view text);

// ---- how ----------------------------------------------------------------------------------------------------------

std::string write(std::string_view name, const nlohmann::json& fields);
StatusOr<nlohmann::json> read_fields(std::string_view text);
Status bad_message(std::string_view name, std::string_view why);

template <typename Message>
nlohmann::json fields_of(const Message& message) {
  if constexpr (std::is_empty_v<Message>) {
    return nlohmann::json::object();
  } else {
    return message;
  }
}

template <typename Message>
std::string write(const Message& message) {
  return write(Message::kName, fields_of(message));
}

// Takes the fields of one object, each once.
class FieldReader {
 public:
  explicit FieldReader(const nlohmann::json& fields) : fields_(fields) {}
  template <typename T>
  bool read(const char* name, T& value) {
    const auto found = fields_.find(name);
    if (found == fields_.end()) {
      wrong_ = absl::StrFormat("the field '%s' is missing", name);
    } else if (!read_value(*found, value)) {
      wrong_ = absl::StrFormat("the field '%s' is not what it has to be", name);
    }
    ++read_;
    return wrong_.empty();
  }
  bool no_more() {
    if (read_ != fields_.size()) {
      wrong_ = "it has a field that nobody knows";
    }
    return wrong_.empty();
  }
  const std::string& wrong() const { return wrong_; }

 private:
  template <typename T>
  static bool read_value(const nlohmann::json& from, T& to);
  static bool read_value(const nlohmann::json& from, bool& to);
  static bool read_value(const nlohmann::json& from, double& to);
  static bool read_value(const nlohmann::json& from, std::string& to);
  static bool read_value(const nlohmann::json& from, Bytes& to);
  static bool read_value(const nlohmann::json& from, nlohmann::json& to);
  static bool read_value(const nlohmann::json& from, std::chrono::nanoseconds& to);
  template <typename T>
  static bool read_value(const nlohmann::json& from, std::optional<T>& to) {
    to.reset();
    return from.is_null() || read_value(from, to.emplace());
  }
  template <typename T>
  static bool read_value(const nlohmann::json& from, std::vector<T>& to) {
    to.clear();
    for (const nlohmann::json& each : from) {
      if (!read_value(each, to.emplace_back())) {
        return false;
      }
    }
    return from.is_array();
  }
  template <typename T>
  static bool read_value(const nlohmann::json& from, std::map<std::string, T>& to) {
    to.clear();
    for (const auto& [name, each] : from.items()) {
      if (!read_value(each, to[name])) {
        return false;
      }
    }
    return from.is_object();
  }

  const nlohmann::json& fields_;
  size_t read_ = 0;
  std::string wrong_;
};

template <typename T>
bool FieldReader::read_value(const nlohmann::json& from, T& to) {
  if constexpr (std::is_enum_v<T>) {
    std::underlying_type_t<T> number{};
    const bool fits = read_value(from, number);
    to = static_cast<T>(number);  // whether there is such an enumerator, its reader knows
    return fits;
  } else if constexpr (std::unsigned_integral<T>) {
    const bool fits = from.is_number_unsigned() && from.get<uint64_t>() <= std::numeric_limits<T>::max();
    to = fits ? from.get<T>() : T{};
    return fits;
  } else if constexpr (std::signed_integral<T>) {
    // The library keeps what is not negative as unsigned.
    const bool large = from.is_number_unsigned() && from.get<uint64_t>() > uint64_t{INT64_MAX};
    const bool fits = from.is_number_integer() && !large && std::in_range<T>(from.get<int64_t>());
    to = fits ? from.get<T>() : T{};
    return fits;
  } else {
    FieldReader reader(from);
    return from.is_object() && read_fields(reader, to);
  }
}

template <typename Message>
StatusOr<Message> message_of(const nlohmann::json& fields) {
  Message message;
  FieldReader reader(fields);
  bool sound = false;
  if constexpr (std::is_empty_v<Message>) {
    sound = reader.no_more();
  } else {
    sound = read_fields(reader, message);
  }
  return sound ? StatusOr<Message>(std::move(message)) : bad_message(Message::kName, reader.wrong());
}

template <typename Messages>
struct OneOf;
template <typename... Message>
struct OneOf<std::variant<Message...>> {
  static bool has(std::string_view name) { return ((name == Message::kName) || ...); }
  static StatusOr<std::variant<Message...>> read(std::string_view name, const nlohmann::json& fields) {
    StatusOr<std::variant<Message...>> found = bad_message(name, "nobody expects it here");
    (void)((name == Message::kName && (found = message_of<Message>(fields), true)) || ...);
    return found;
  }
};

template <typename Messages>
StatusOr<Messages> read(std::string_view text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const nlohmann::json fields, read_fields(text));
  return OneOf<Messages>::read(name_of(text), fields);
}

template <typename Messages>
bool is_one_of(std::string_view text) {
  return OneOf<Messages>::has(name_of(text));
}

}  // namespace keepstep::messages
