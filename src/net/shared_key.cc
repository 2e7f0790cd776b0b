#include "net/shared_key.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <memory>
#include <string>

#include "base/check.h"

namespace keepstep::net {
namespace {

constexpr std::string_view kControl = "keepstep control 1";
constexpr std::string_view kMemory = "keepstep memory 1";
constexpr std::string_view kStore = "keepstep store 1";
constexpr std::string_view kData = "keepstep data 1";

OSSL_PARAM octets(const char* name, std::string_view value) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
}

void derive(std::string_view secret, const std::string& info, std::span<unsigned char> key) {
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                               octets(OSSL_KDF_PARAM_KEY, secret), octets(OSSL_KDF_PARAM_INFO, info),
                               OSSL_PARAM_construct_end()};
  const std::unique_ptr<EVP_KDF, void (*)(EVP_KDF*)> hkdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(EVP_KDF_CTX_new(hkdf.get()), EVP_KDF_CTX_free);
  KEEPSTEP_CHECK(EVP_KDF_derive(context.get(), key.data(), key.size(), params) == 1,
                 "OpenSSL cannot derive a key with HKDF-SHA-256");
}

}  // namespace

std::string SharedKey::identity() const {
  return purpose_ == kData ? absl::StrFormat("%s:%d/%d", kData, term_, generation_) : std::string(purpose_);
}

SharedKey SharedKey::control(const JobToken& token, std::string_view rdzv_id) {
  SharedKey key(kControl);
  // The colon ends the purpose: "... 1" with the id "0x" differs from "... 10" with the id "x".
  derive(token.secret(), std::string(kControl) + ":" + std::string(rdzv_id), key.bytes_);
  return key;
}

SharedKey SharedKey::memory(const JobToken& token) {
  SharedKey key(kMemory);
  derive(token.secret(), std::string(kMemory), key.bytes_);
  return key;
}

SharedKey SharedKey::store(const JobToken& token, std::string_view job) {
  SharedKey key(kStore);
  derive(token.secret(), std::string(kStore) + ":" + std::string(job), key.bytes_);
  return key;
}

std::string SharedKey::random_data_secret() {
  std::string secret(kBytes, '\0');
  KEEPSTEP_CHECK(RAND_priv_bytes(reinterpret_cast<unsigned char*>(secret.data()), static_cast<int>(kBytes)) == 1,
                 "the system returned no random bytes");
  return secret;
}

StatusOr<SharedKey> SharedKey::data_of(std::string_view secret, uint32_t term, uint32_t generation) {
  if (secret.size() != kBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the secret of the connections between ranks must have %d bytes, not %d", kBytes, secret.size()));
  }
  SharedKey key(kData, term, generation);
  derive(secret, key.identity(), key.bytes_);
  return key;
}

StatusOr<SharedKey> SharedKey::data(std::string_view hex, uint32_t term, uint32_t generation) {
  SharedKey key(kData, term, generation);
  size_t count = 0;
  if (hex.size() != 2 * kBytes ||
      OPENSSL_hexstr2buf_ex(key.bytes_.data(), kBytes, &count, std::string(hex).c_str(), '\0') != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrFormat("a key for connections between ranks is %d bytes in hex", kBytes));
  }
  return key;
}

std::string SharedKey::hex() const {
  return to_hex(std::string_view(reinterpret_cast<const char*>(bytes_.data()), bytes_.size()));
}

SharedKey::~SharedKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

}  // namespace keepstep::net
