// The digests that S3 requires or returns.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace keepstep::checkpoint {

// CRC-32C of all bytes, as in x-amz-checksum-crc32c: big-endian, Base64.
std::string crc32c_base64(std::span<const std::byte> bytes);
// In lower-case hexadecimal.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string md5_hex(std::span<const std::byte> bytes);

// The ETag of an object made of parts with these ETags (without quotes): the MD5 of their MD5s, "-", their number.
// Empty if one of them is not an MD5: servers that encrypt need not return one.
std::string etag_of_parts(std::span<const std::string> etags);

// Without its quotes, as this module stores them.
std::string unquoted(std::string_view etag);

}  // namespace keepstep::checkpoint
