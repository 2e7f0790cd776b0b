#include "agent/temp_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <utility>

namespace keepstep::agent {
namespace {

namespace fs = std::filesystem;

TEST(TempFolder, a_workers_folder_goes_with_it_and_what_a_link_in_it_names_stays) {
  TempFolder outside = *TempFolder::create();
  std::ofstream(outside.path() / "theirs") << "kept";
  fs::path path;
  {
    TempFolder folder = *TempFolder::create();
    path = folder.path();
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    fs::create_directories(path / "3" / "inside");
    fs::create_directories(path / "4");
    fs::create_directory_symlink(outside.path(), path / "3" / "link");
    folder.remove(3);
    EXPECT_FALSE(fs::exists(path / "3"));
    EXPECT_TRUE(fs::exists(path / "4"));
    folder.remove(5);  // it never made one
    const TempFolder moved = std::move(folder);
    EXPECT_TRUE(fs::exists(path / "4"));
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::exists(outside.path() / "theirs"));
  TempFolder().remove(1);
}

}  // namespace
}  // namespace keepstep::agent
