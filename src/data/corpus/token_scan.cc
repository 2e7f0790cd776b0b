#include "data/corpus/token_scan.h"

#include <algorithm>
#include <cstring>

namespace keepstep::data {
namespace {

template <typename Token>
std::pair<int64_t, int64_t> ends_of(std::span<const std::byte> bytes) {
  Token least = std::numeric_limits<Token>::max();
  Token greatest = std::numeric_limits<Token>::min();
  for (size_t at = 0; at + sizeof(Token) <= bytes.size(); at += sizeof(Token)) {
    Token token;
    std::memcpy(&token, bytes.data() + at, sizeof(Token));
    least = std::min(least, token);
    greatest = std::max(greatest, token);
  }
  return {static_cast<int64_t>(least), static_cast<int64_t>(greatest)};
}

std::pair<int64_t, int64_t> ends_of(TokenType type, std::span<const std::byte> bytes) {
  switch (type) {
    case TokenType::kUint8:
      return ends_of<uint8_t>(bytes);
    case TokenType::kInt8:
      return ends_of<int8_t>(bytes);
    case TokenType::kInt16:
      return ends_of<int16_t>(bytes);
    case TokenType::kUint16:
      return ends_of<uint16_t>(bytes);
    case TokenType::kInt32:
      return ends_of<int32_t>(bytes);
    case TokenType::kInt64:
      break;
  }
  return ends_of<int64_t>(bytes);
}

}  // namespace

StatusOr<bool> TokenScan::step(uint64_t bytes) {
  const uint64_t size = size_of(corpus_.index().type());
  const uint64_t left = corpus_.bytes() - position_;
  const uint64_t here = std::min(left, std::max(bytes / size, uint64_t{1}) * size);  // a whole number of tokens
  KEEPSTEP_RETURN_IF_ERROR(corpus_.with_file_bytes(position_, here, [&](std::span<const std::byte> slice) {
    checksum_.add(slice);
    if (slice.size() >= size) {  // false if the file ends inside a token
      const auto [least, greatest] = ends_of(corpus_.index().type(), slice);
      least_ = std::min(least_, least);
      greatest_ = std::max(greatest_, greatest);
    }
    return absl::OkStatus();
  }));
  position_ += here;
  return position_ < corpus_.bytes();
}

}  // namespace keepstep::data
