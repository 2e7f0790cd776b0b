#include "rank/checks/loopback_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keepstep::rank {
namespace {

using ::testing::HasSubstr;

TEST(LoopbackCheck, bytes_arrive_over_shared_memory_and_over_tcp) {
  for (const bool tcp : {false, true}) {
    const Status status = check_loopback({.tcp = tcp});
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(LoopbackCheck, an_address_that_this_machine_has_not_is_named) {
  const Status status = check_loopback({.tcp = true, .address = "192.0.2.1"});  // reserved for documentation
  EXPECT_THAT(status.ToString(), HasSubstr("192.0.2.1"));
}

TEST(LoopbackCheck, what_takes_too_long_is_named) {
  const Status status = check_loopback({.tcp = true, .limit_ns = 1});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.ToString(), HasSubstr("all_reduce"));
}

}  // namespace
}  // namespace keepstep::rank
