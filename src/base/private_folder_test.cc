#include "base/private_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace keepstep {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class PrivateFolder : public ::testing::Test {
 protected:
  PrivateFolder() {
    std::string name = ::testing::TempDir() + "private-XXXXXX";
    above_ = mkdtemp(name.data());
  }
  ~PrivateFolder() override { std::filesystem::remove_all(above_); }

  std::string above_;
};

TEST_F(PrivateFolder, is_made_for_this_user_alone) {
  EXPECT_TRUE(make_private(above_ + "/new", Others::kMayLook).ok());
  struct stat made{};
  ASSERT_EQ(stat((above_ + "/new").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0700U);
  EXPECT_TRUE(make_private(above_ + "/new", Others::kMayLook).ok());  // also if it exists already
}

TEST_F(PrivateFolder, is_none_that_others_can_write_to_or_have_put_there) {
  std::filesystem::create_directory(above_ + "/open");
  ASSERT_EQ(chmod((above_ + "/open").c_str(), 0775), 0);
  EXPECT_THAT(std::string(make_private(above_ + "/open", Others::kMayLook).status().message()),
              HasSubstr("others can write to"));
  std::filesystem::create_directory(above_ + "/mine");
  std::filesystem::create_symlink(above_ + "/mine", above_ + "/link");
  EXPECT_THAT(std::string(make_private(above_ + "/link", Others::kMayLook).status().message()),
              HasSubstr("is no folder"));
  EXPECT_THAT(std::string(make_private(above_ + "/missing/new", Others::kMayLook).status().message()),
              HasSubstr("cannot be made"));
  if (geteuid() == 0) {
    std::filesystem::create_directory(above_ + "/theirs");
    ASSERT_EQ(chown((above_ + "/theirs").c_str(), 65534, 65534), 0);
    EXPECT_THAT(std::string(make_private(above_ + "/theirs", Others::kMayLook).status().message()),
                HasSubstr("belongs to another user (uid 65534)"));
  }
}

TEST_F(PrivateFolder, is_the_first_that_is_private_or_a_new_one) {
  std::filesystem::create_directory(above_ + "/open");
  ASSERT_EQ(chmod((above_ + "/open").c_str(), 0777), 0);
  std::string warning;
  EXPECT_EQ(private_folder({above_ + "/open", above_ + "/next"}, &warning), above_ + "/next");
  EXPECT_THAT(warning, HasSubstr("others can write to"));
  warning.clear();
  const std::string fresh = private_folder({above_ + "/open"}, &warning);
  EXPECT_THAT(fresh, StartsWith(above_ + "/open-"));
  EXPECT_TRUE(make_private(fresh, Others::kMayLook).ok());
  warning.clear();
  EXPECT_EQ(private_folder({above_ + "/next"}, &warning), above_ + "/next");
  EXPECT_EQ(warning, "");
}

}  // namespace
}  // namespace keepstep
