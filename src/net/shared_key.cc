#include "net/shared_key.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/check.h"

namespace keepstep::net {
namespace {

constexpr std::string_view kControl = "keepstep control 1";
constexpr std::string_view kData = "keepstep data 1";

OSSL_PARAM octets(const char* name, std::string_view value) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
}

}  // namespace

SharedKey SharedKey::control(const JobToken& token, std::string_view rdzv_id) {
  // The colon ends the purpose: "... 1" with the id "0x" is not "... 10" with the id "x".
  const std::string info = std::string(kControl) + ":" + std::string(rdzv_id);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
                               octets(OSSL_KDF_PARAM_KEY, token.secret()), octets(OSSL_KDF_PARAM_INFO, info),
                               OSSL_PARAM_construct_end()};
  const std::unique_ptr<EVP_KDF, void (*)(EVP_KDF*)> hkdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr), EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, void (*)(EVP_KDF_CTX*)> context(EVP_KDF_CTX_new(hkdf.get()), EVP_KDF_CTX_free);
  SharedKey key(kControl);
  KEEPSTEP_CHECK(EVP_KDF_derive(context.get(), key.bytes_.data(), key.bytes_.size(), params) == 1,
                 "OpenSSL derives no key by HKDF-SHA-256");
  return key;
}

StatusOr<SharedKey> SharedKey::data(std::span<const unsigned char> bytes) {
  if (bytes.size() != kBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a key for connections between ranks has %d bytes, not %d", kBytes, bytes.size()));
  }
  SharedKey key(kData);
  std::ranges::copy(bytes, key.bytes_.begin());
  return key;
}

SharedKey SharedKey::random_data() {
  SharedKey key(kData);
  KEEPSTEP_CHECK(RAND_priv_bytes(key.bytes_.data(), static_cast<int>(kBytes)) == 1, "the system gives no random bytes");
  return key;
}

SharedKey::~SharedKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

}  // namespace keepstep::net
