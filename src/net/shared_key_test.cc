#include "net/shared_key.h"

#include <gtest/gtest.h>

#include <vector>

#include "net/net_testing.h"

namespace keepstep::net {
namespace {

std::string hex(const SharedKey& key) {
  return to_hex(std::string_view(reinterpret_cast<const char*>(key.bytes().data()), key.bytes().size()));
}

// Made with Python's hmac: HKDF of RFC 5869 without salt, of a token of 0123456789abcdef twice.
TEST(SharedKeyTest, the_control_key_is_hkdf_of_the_token_and_the_rendezvous_id) {
  const SharedKey key = key_of("0123456789abcdef", "job-7");
  EXPECT_EQ(hex(key), "f2f978d7886470da2390c2d04992cdf164801e61063ecde0d406f9fdcf06265a");
  EXPECT_EQ(key.identity(), "keepstep control 1");
}

TEST(SharedKeyTest, another_token_or_another_rendezvous_id_gives_another_key) {
  EXPECT_EQ(hex(key_of()), hex(key_of()));
  EXPECT_NE(hex(key_of("0123456789abcdef", "job-7")), hex(key_of("0123456789abcdef", "job-8")));
  EXPECT_NE(hex(key_of("0123456789abcdef", "")), hex(key_of("0123456789abcdef", "job-8")));
  EXPECT_NE(hex(key_of("0123456789abcdef")), hex(key_of("0123456789abcdeF")));
}

TEST(SharedKeyTest, a_data_key_is_random_and_travels_as_its_bytes) {
  const SharedKey key = SharedKey::random_data();
  EXPECT_NE(hex(key), hex(SharedKey::random_data()));
  const StatusOr<SharedKey> same = SharedKey::data(key.bytes());
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(hex(*same), hex(key));
  EXPECT_EQ(same->identity(), "keepstep data 1");
  EXPECT_EQ(SharedKey::data(std::vector<unsigned char>(31)).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace keepstep::net
