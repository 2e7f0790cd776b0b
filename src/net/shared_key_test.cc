#include "net/shared_key.h"

#include <gtest/gtest.h>

#include "net/net_testing.h"

namespace keepstep::net {
namespace {

// Computed with Python's hmac: HKDF of RFC 5869 without salt; the token is 0123456789abcdef twice.
TEST(SharedKeyTest, the_control_key_is_hkdf_of_the_token_and_the_rendezvous_id) {
  const SharedKey key = key_of("0123456789abcdef", "job-7");
  EXPECT_EQ(key.hex(), "f2f978d7886470da2390c2d04992cdf164801e61063ecde0d406f9fdcf06265a");
  EXPECT_EQ(key.identity(), "keepstep control 1");
}

TEST(SharedKeyTest, another_token_or_another_rendezvous_id_gives_another_key) {
  EXPECT_EQ(key_of().hex(), key_of().hex());
  EXPECT_NE(key_of("0123456789abcdef", "job-7").hex(), key_of("0123456789abcdef", "job-8").hex());
  EXPECT_NE(key_of("0123456789abcdef", "").hex(), key_of("0123456789abcdef", "job-8").hex());
  EXPECT_NE(key_of("0123456789abcdef").hex(), key_of("0123456789abcdeF").hex());
}

// Computed with Python's hmac: HKDF of RFC 5869 without salt; the secret is 32 bytes "s".
TEST(SharedKeyTest, a_data_key_is_hkdf_of_the_secret_and_the_generation) {
  const StatusOr<SharedKey> key = SharedKey::data_of(std::string(32, 's'), 3, 14);
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_EQ(key->identity(), "keepstep data 1:3/14");
  EXPECT_EQ(key->hex(), "ea01c629376d30a0948b3884944dc8487aa1d3baaec2bf15e8fdb057b5a10bdb");
  EXPECT_NE(key->hex(), SharedKey::data_of(std::string(32, 's'), 3, 15)->hex());
  EXPECT_NE(key->hex(), SharedKey::data_of(std::string(32, 's'), 31, 4)->hex());
  EXPECT_NE(key->hex(), SharedKey::data_of(SharedKey::random_data_secret(), 3, 14)->hex());
  EXPECT_EQ(SharedKey::data_of(std::string(31, 's'), 3, 14).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SharedKeyTest, a_data_key_travels_as_hex) {
  const SharedKey key = *SharedKey::data_of(SharedKey::random_data_secret(), 1, 2);
  const StatusOr<SharedKey> same = SharedKey::data(key.hex(), 1, 2);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->hex(), key.hex());
  EXPECT_EQ(same->identity(), key.identity());
  for (const std::string& wrong : {std::string(), key.hex().substr(2), key.hex() + "00", "zz" + key.hex().substr(2)}) {
    EXPECT_EQ(SharedKey::data(wrong, 1, 2).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace keepstep::net
