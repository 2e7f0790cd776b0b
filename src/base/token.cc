#include "base/token.h"

#include <openssl/rand.h>

#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/check.h"

namespace keepstep {
namespace {

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  KEEPSTEP_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1,
                 "the system returned no random bytes");
  return bytes;
}

}  // namespace

std::string random_nonce() { return random_bytes(16); }
uint64_t random_number() {
  uint64_t number = 0;
  std::memcpy(&number, random_bytes(sizeof(number)).data(), sizeof(number));
  return number;
}
std::string to_hex(std::string_view bytes) { return absl::BytesToHexString(std::string(bytes)); }

JobToken JobToken::random() { return JobToken(to_hex(random_bytes(32))); }

StatusOr<JobToken> JobToken::parse(std::string_view text) {
  std::string trimmed(text);
  absl::StripAsciiWhitespace(&trimmed);
  if (trimmed.size() < kLeastTokenBytes || trimmed.size() > 4096) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a job token has %d to 4096 characters, this one has %d; make one with: openssl rand -hex 32",
                        kLeastTokenBytes, trimmed.size()));
  }
  return JobToken(std::move(trimmed));
}

}  // namespace keepstep
