// Proves that bytes were sent by who has the key, unchanged, each message once and in order. It does not hide them.
//
// AES-128-GMAC (NIST SP 800-38D); the nonce of a message is its number, so nothing but its tag travels with it.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace keepstep::net {

// One direction of one connection: a key must serve for no other. Both ends have one, for the same messages. One thread
// at a time.
class Mac {
 public:
  static constexpr size_t kKeyBytes = 16;
  static constexpr size_t kTagBytes = 16;
  using Tag = std::array<std::byte, kTagBytes>;

  explicit Mac(std::span<const unsigned char, kKeyBytes> key);

  // The next bytes of the message.
  void add(std::span<const std::byte> bytes);
  // The message is whole: its tag. The next one begins.
  Tag finish();
  // The same at the other end: whether `tag` is right. Compared in constant time.
  bool finish_with(std::span<const std::byte, kTagBytes> tag);

 private:
  void begin();

  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
  };
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  uint64_t number_ = 0;
};

}  // namespace keepstep::net
