#include "net/greeting.h"

#include <concepts>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"

namespace keepstep::net {
namespace {

constexpr std::string_view kMagic = "KSG1";

template <std::unsigned_integral T>
void append(std::string& to, T value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    to += static_cast<char>(value >> (8 * i));
  }
}

// Takes `count` bytes from the front of `bytes`; std::nullopt if there are fewer.
std::optional<std::string_view> take_bytes(std::string_view& bytes, size_t count) {
  if (bytes.size() < count) {
    return std::nullopt;
  }
  const std::string_view taken = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return taken;
}

template <std::unsigned_integral T>
bool take(std::string_view& bytes, T& value) {
  const std::optional<std::string_view> taken = take_bytes(bytes, sizeof value);
  value = 0;
  for (size_t i = 0; taken.has_value() && i < sizeof value; ++i) {
    value |= static_cast<T>(T{static_cast<uint8_t>((*taken)[i])} << (8 * i));
  }
  return taken.has_value();
}

bool take(std::string_view& bytes, std::string& name) {
  uint8_t length = 0;
  if (!take(bytes, length)) {
    return false;
  }
  const std::optional<std::string_view> taken = take_bytes(bytes, length);
  name = taken.value_or("");
  return taken.has_value();
}

const char* text_of(Role role) { return role == Role::kConnects ? "connects" : "accepts"; }

}  // namespace

StatusOr<std::string> Greeting::encode() const {
  std::string bytes(kMagic);
  append(bytes, static_cast<uint8_t>(role));
  append(bytes, uint8_t{0});
  append(bytes, term);
  append(bytes, generation);
  append(bytes, stream);
  for (const std::string& name : {from, to}) {
    if (name.size() > kMaxNameBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "an end of a connection has a name of %d bytes; at most %d are allowed", name.size(), kMaxNameBytes));
    }
    append(bytes, static_cast<uint8_t>(name.size()));
    bytes += name;
  }
  return bytes;
}

StatusOr<Greeting> Greeting::decode(std::string_view bytes) {
  const size_t size = bytes.size();
  Greeting greeting;
  uint8_t role = 0;
  uint8_t zero = 0;
  const bool whole = take_bytes(bytes, kMagic.size()) == kMagic && take(bytes, role) && take(bytes, zero) &&
                     take(bytes, greeting.term) && take(bytes, greeting.generation) && take(bytes, greeting.stream) &&
                     take(bytes, greeting.from) && take(bytes, greeting.to) && bytes.empty();
  greeting.role = static_cast<Role>(role);
  if (!whole || zero != 0 || (greeting.role != Role::kConnects && greeting.role != Role::kAccepts)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a message of %d bytes is not a greeting; does the peer run another version of keepstep?", size));
  }
  return greeting;
}

Greeting Greeting::answer() const {
  Greeting other = *this;
  other.role = role == Role::kConnects ? Role::kAccepts : Role::kConnects;
  std::swap(other.from, other.to);
  return other;
}

Status check_greeting(const Greeting& expected, const Greeting& got, std::string_view peer) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* field, const std::string& is, const std::string& should_be) {
    if (is != should_be) {
      differences.push_back(
          absl::StrFormat("%s is '%s', not '%s'", field, absl::CHexEscape(is), absl::CHexEscape(should_be)));
    }
  };
  compare("role", text_of(got.role), text_of(expected.role));
  compare("from", got.from, expected.from);
  compare("to", got.to, expected.to);
  compare("term", std::to_string(got.term), std::to_string(expected.term));
  compare("generation", std::to_string(got.generation), std::to_string(expected.generation));
  compare("stream", std::to_string(got.stream), std::to_string(expected.stream));
  if (differences.empty()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "the peer at %s belongs to this job but means another connection: %s", peer, absl::StrJoin(differences, "; ")));
}

}  // namespace keepstep::net
