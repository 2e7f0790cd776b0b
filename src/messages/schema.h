// How a message is written: its name, a space, and its fields as one JSON object.
//
//   struct Settled {
//     static constexpr std::string_view kName = "settled";
//     uint32_t sharding = 0;
//     KEEPSTEP_FIELDS(sharding)
//   };
//
// Both ends are of one version, so a reader takes exactly these fields, each within its type: one that is missing, one
// too many, a fraction or a negative number for a count is refused. Text of user code may hold any bytes; what is not
// UTF-8 becomes U+FFFD. Bytes that must arrive as they are: Bytes.
//
// A field is a number (finite), an enumerator, a bool, a text, Bytes, nanoseconds, another such struct, an optional, a
// vector or a map by text of these, or Json. A message without fields is an empty struct. Pure.
//
// The templates below are compiled in schema.cc alone, for the messages of this folder: whoever includes this header
// does not pay for the JSON library.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"

// Inside of a struct, its fields by name.
#define KEEPSTEP_FIELDS(...)                                \
  static constexpr std::string_view kFields = #__VA_ARGS__; \
  template <typename Visit>                                 \
  auto with_fields(const Visit& visit) {                    \
    return visit(__VA_ARGS__);                              \
  }                                                         \
  template <typename Visit>                                 \
  auto with_fields(const Visit& visit) const {              \
    return visit(__VA_ARGS__);                              \
  }

namespace keepstep::messages {

using Texts = std::map<std::string, std::string>;

// Travels as hexadecimal.
struct Bytes {
  std::string bytes;
};

// A JSON object of a schema of its own, as text.
struct Json {
  std::string text;
};

template <typename Message>
std::string write(const Message& message);

// Messages: a std::variant of those that may come. INVALID_ARGUMENT says what of `text` is none of them.
template <typename Messages>
StatusOr<Messages> read(std::string_view text);

// Of what write() gave: the name; whether it is that of one of Messages.
std::string_view name_of(std::string_view text);
template <typename Messages>
bool is_one_of(std::string_view text);

// INVALID_ARGUMENT, with the name of the message.
Status bad_message(std::string_view name, std::string_view why);

}  // namespace keepstep::messages
