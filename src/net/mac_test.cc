#include "net/mac.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/token.h"

namespace keepstep::net {
namespace {

constexpr std::array<unsigned char, Mac::kKeyBytes> kKey = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
std::string hex(const Mac::Tag& tag) { return to_hex({reinterpret_cast<const char*>(tag.data()), tag.size()}); }

// The tags were computed in Python with the formulas of SP 800-38D, which were checked with its test case 1. The nonces
// are 0 and 1, little endian.
TEST(MacTest, a_tag_is_that_of_aes_128_gmac) {
  Mac mac(kKey);
  mac.add(bytes_of("keepstep"));
  EXPECT_EQ(hex(mac.finish()), "010af8a4d75da61bbcabcba5646b9d1e");
  mac.add(bytes_of("keepstep"));
  EXPECT_EQ(hex(mac.finish()), "0daa0ccb299aed1cf8710281d6564376") << "the second message";
}

TEST(MacTest, how_a_message_is_cut_does_not_matter) {
  Mac whole(kKey);
  Mac cut(kKey);
  const std::string message(100'001, 'm');
  whole.add(bytes_of(message));
  for (size_t at = 0, next = 1; at < message.size(); at += next, next = next * 3 + 1) {
    cut.add(bytes_of(message).subspan(at, std::min(next, message.size() - at)));
  }
  EXPECT_TRUE(cut.finish_with(whole.finish()));
}

TEST(MacTest, a_message_that_was_changed_repeated_or_left_out_has_another_tag) {
  const auto tag_of = [](Mac& mac, std::string_view text) {
    mac.add(bytes_of(text));
    return mac.finish();
  };
  Mac sender(kKey);
  const Mac::Tag first = tag_of(sender, "one");
  const Mac::Tag second = tag_of(sender, "two");
  const auto accepts = [](Mac& mac, std::string_view text, const Mac::Tag& tag) {
    mac.add(bytes_of(text));
    return mac.finish_with(tag);
  };
  Mac changed(kKey);
  EXPECT_FALSE(accepts(changed, "ona", first));
  Mac repeated(kKey);
  EXPECT_TRUE(accepts(repeated, "one", first));
  EXPECT_FALSE(accepts(repeated, "one", first));
  Mac left_out(kKey);
  EXPECT_FALSE(accepts(left_out, "two", second));
  std::array<unsigned char, Mac::kKeyBytes> other = kKey;
  other[0] = 1;
  Mac stranger(other);
  EXPECT_FALSE(accepts(stranger, "one", first));
}

}  // namespace
}  // namespace keepstep::net
