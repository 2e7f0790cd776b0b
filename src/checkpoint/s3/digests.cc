#include "checkpoint/s3/digests.h"

#include <isa-l/crc.h>
#include <openssl/evp.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/check.h"

namespace keepstep::checkpoint {
namespace {

std::string digest(const EVP_MD* kind, std::span<const std::byte> bytes) {
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  KEEPSTEP_CHECK(EVP_Digest(bytes.data(), bytes.size(), out, &size, kind, nullptr) == 1, "a digest of OpenSSL");
  return {reinterpret_cast<const char*>(out), size};
}

bool is_md5(std::string_view etag) {
  return etag.size() == 32 &&
         std::all_of(etag.begin(), etag.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

std::string crc32c_base64(std::span<const std::byte> bytes) {
  constexpr size_t kMaxAtOnce = size_t{1} << 30;  // its length is an int
  uint32_t crc = 0xffffffff;
  while (!bytes.empty()) {
    const std::span<const std::byte> next = bytes.first(std::min(bytes.size(), kMaxAtOnce));
    // It only reads, whatever its parameter type suggests.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(next.data()));
    crc = crc32_iscsi(data, static_cast<int>(next.size()), crc);
    bytes = bytes.subspan(next.size());
  }
  crc = ~crc;
  const char big_endian[4] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16), static_cast<char>(crc >> 8),
                              static_cast<char>(crc)};
  return absl::Base64Escape(absl::string_view(big_endian, sizeof(big_endian)));
}

std::string sha256_hex(std::span<const std::byte> bytes) { return absl::BytesToHexString(digest(EVP_sha256(), bytes)); }

std::string md5_hex(std::span<const std::byte> bytes) { return absl::BytesToHexString(digest(EVP_md5(), bytes)); }

std::string etag_of_parts(std::span<const std::string> etags) {
  std::string all;
  for (const std::string& etag : etags) {
    if (!is_md5(etag)) {
      return "";
    }
    all += absl::HexStringToBytes(etag);
  }
  return absl::StrFormat("%s-%d", md5_hex(std::as_bytes(std::span(all.data(), all.size()))), etags.size());
}

std::string unquoted(std::string_view etag) {
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return std::string(etag);
}

}  // namespace keepstep::checkpoint
