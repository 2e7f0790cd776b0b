#include "net/mac.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace keepstep::net {
namespace {

constexpr size_t kNonceBytes = 12;
constexpr size_t kMaxAtOnce = size_t{1} << 30;  // OpenSSL takes an int

void expect(int result) { KEEPSTEP_CHECK(result == 1, "OpenSSL cannot compute AES-128-GMAC"); }

}  // namespace

Mac::Mac(std::span<const unsigned char, kKeyBytes> key) : context_(EVP_CIPHER_CTX_new()) {
  KEEPSTEP_CHECK(context_ != nullptr, "no memory for a message authentication code");
  expect(EVP_EncryptInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, key.data(), nullptr));
  begin();
}

void Mac::begin() {
  unsigned char nonce[kNonceBytes] = {};
  std::memcpy(nonce, &number_, sizeof number_);
  number_ += 1;
  expect(EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce));
}

void Mac::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kMaxAtOnce);
    int written = 0;
    expect(EVP_EncryptUpdate(context_.get(), nullptr, &written, reinterpret_cast<const unsigned char*>(bytes.data()),
                             static_cast<int>(count)));
    bytes = bytes.subspan(count);
  }
}

Mac::Tag Mac::finish() {
  Tag tag;
  unsigned char nothing[kTagBytes];
  int written = 0;
  expect(EVP_EncryptFinal_ex(context_.get(), nothing, &written));
  expect(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()));
  begin();
  return tag;
}

bool Mac::finish_with(std::span<const std::byte, kTagBytes> tag) {
  const Tag ours = finish();
  return CRYPTO_memcmp(ours.data(), tag.data(), kTagBytes) == 0;
}

}  // namespace keepstep::net
