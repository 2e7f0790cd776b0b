// How a message is written: its name, a space, and its fields as one JSON object.
//
//   struct Settled {
//     static constexpr std::string_view kName = "settled";
//     uint32_t sharding = 0;
//     KEEPSTEP_FIELDS(sharding)
//   };
//
// Both ends have the same version, so a reader accepts exactly these fields, each within its type. It refuses a missing
// or an additional field, and a fraction or a negative number for a count. Text from user code may contain any bytes;
// invalid UTF-8 becomes U+FFFD. Use Bytes for bytes that must arrive unchanged.
//
// A field is a number (finite), an enumerator, a bool, a text, Bytes, nanoseconds, another such struct, an optional, a
// vector or a map by text of these, or Json. A message without fields is an empty struct. Pure.
//
// The templates below are compiled only in schema.cc, for the messages of this folder, so including this header does
// not include the JSON library.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"

// Lists the fields of a struct; used inside it.
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

// A JSON object with a schema of its own, as text.
struct Json {
  std::string text;
};

template <typename Message>
std::string write(const Message& message);

// Messages: a std::variant of the possible ones. INVALID_ARGUMENT: `text` is none of them, and why.
template <typename Messages>
StatusOr<Messages> read(std::string_view text);

// For text made by write(): the message's name; whether it is one of Messages.
std::string_view name_of(std::string_view text);
template <typename Messages>
bool is_one_of(std::string_view text);

// INVALID_ARGUMENT, with the name of the message.
Status bad_message(std::string_view name, std::string_view why);

}  // namespace keepstep::messages
