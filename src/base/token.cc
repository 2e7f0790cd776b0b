#include "base/token.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/check.h"

namespace keepstep {
namespace {

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  KEEPSTEP_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1,
                 "the system gives no random bytes");
  return bytes;
}

// Length before content, so that no two lists of parts give the same bytes.
void append_part(std::string& to, std::string_view part) {
  to += std::to_string(part.size());
  to += ':';
  to += part;
}

}  // namespace

std::string random_nonce() { return random_bytes(kNonceBytes); }
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

std::string JobToken::prove(std::string_view role, std::string_view own_nonce, std::string_view peer_nonce,
                            std::string_view identity) const {
  std::string message;
  for (std::string_view part : {role, own_nonce, peer_nonce, identity}) {
    append_part(message, part);
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
       reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest, &size);
  return std::string(reinterpret_cast<const char*>(digest), size);
}

bool JobToken::verify(std::string_view proof, std::string_view role, std::string_view own_nonce,
                      std::string_view peer_nonce, std::string_view identity) const {
  const std::string expected = prove(role, own_nonce, peer_nonce, identity);
  return proof.size() == expected.size() && CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

}  // namespace keepstep
