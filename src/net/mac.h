// Proves that the holder of the key sent these bytes, unchanged, each message once and in order. Does not hide them.
//
// AES-128-GMAC (NIST SP 800-38D); the nonce of a message is its number, so only the tag is sent with it.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace keepstep::net {

// For one direction of one connection; its key must not be used for any other. Both ends have a Mac for the same
// messages. One thread at a time.
class Mac {
 public:
  static constexpr size_t kKeyBytes = 16;
  static constexpr size_t kTagBytes = 16;
  using Tag = std::array<std::byte, kTagBytes>;

  explicit Mac(std::span<const unsigned char, kKeyBytes> key);

  // The next bytes of the message.
  void add(std::span<const std::byte> bytes);
  // Ends the message and returns its tag. The next message begins.
  Tag finish();
  // For the receiving end: ends the message and returns whether `tag` is right. Compares in constant time.
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
