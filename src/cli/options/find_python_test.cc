#include "cli/options/find_python.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace keepstep::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class FindPython : public ::testing::Test {
 protected:
  FindPython() {
    std::string name = (fs::temp_directory_path() / "keepstep-python-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~FindPython() override { fs::remove_all(dir_); }
  std::string program(const std::string& path) {
    fs::create_directories((dir_ / path).parent_path());
    std::ofstream(dir_ / path) << "#!/bin/sh\n";
    chmod((dir_ / path).c_str(), 0755);
    return dir_ / path;
  }
  fs::path dir_;
};

TEST_F(FindPython, the_variable_wins_and_may_be_a_name_in_path) {
  const std::string python = program("bin/python9");
  program("venv/bin/python");
  EXPECT_EQ(*find_python({.keepstep_python = python, .executable = dir_ / "venv/bin/keepstep"}), python);
  EXPECT_EQ(*find_python({.keepstep_python = "python9", .path = dir_ / "bin"}), python);
  EXPECT_EQ(*find_python({.python_exec = python}), python);
}

TEST_F(FindPython, a_variable_that_names_no_program_is_an_error_and_not_skipped) {
  const std::string python3 = program("bin/python3");
  const auto found = find_python({.keepstep_python = dir_ / "nothing", .path = dir_ / "bin"});
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("KEEPSTEP_PYTHON is '" + (dir_ / "nothing").string()));
}

TEST_F(FindPython, the_python_beside_the_symlink_comes_before_the_one_beside_the_file) {
  const std::string real = program("build/keepstep");
  const std::string beside_file = program("build/python");
  const std::string beside_link = program("venv/bin/python");
  fs::create_symlink(real, dir_ / "venv/bin/keepstep");
  EXPECT_EQ(*find_python({.called_as = dir_ / "venv/bin/keepstep", .executable = real}), beside_link);
  EXPECT_EQ(*find_python({.path = dir_ / "venv/bin", .called_as = "keepstep", .executable = real}), beside_link);
  EXPECT_EQ(*find_python({.called_as = "elsewhere", .executable = real}), beside_file);
}

TEST_F(FindPython, a_symlink_elsewhere_leads_to_the_environment_that_it_points_into) {
  const std::string real = program("checkout/build/keepstep");
  const std::string python = program("venv/bin/python");
  std::ofstream(dir_ / "venv/pyvenv.cfg") << "home = /usr/bin\n";
  program("home/bin/python");  // unrelated
  fs::create_symlink(real, dir_ / "venv/bin/keepstep");
  fs::create_symlink("../../venv/bin/keepstep", dir_ / "home/bin/keepstep");
  EXPECT_EQ(*find_python({.called_as = dir_ / "home/bin/keepstep", .executable = real}), python);
  EXPECT_EQ(*find_python({.path = dir_ / "home/bin", .called_as = "keepstep", .executable = real}), python);
}

TEST_F(FindPython, a_symlink_to_the_build_folder_leads_to_the_environment_of_the_checkout) {
  const std::string real = program("checkout/build/keepstep");
  const std::string python = program("checkout/.venv/bin/python");
  program("home/bin/python");
  const std::string python3 = program("bin/python3");
  fs::create_symlink(real, dir_ / "home/bin/keepstep");
  EXPECT_EQ(*find_python({.path = dir_ / "bin", .called_as = dir_ / "home/bin/keepstep", .executable = real}), python);
  EXPECT_EQ(*find_python({.path = dir_ / "bin", .called_as = real, .executable = real}), python);
}

TEST_F(FindPython, a_users_install_is_run_by_the_interpreter_that_it_was_made_for) {
  const std::string real = program("home/bin/keepstep");
  program("home/bin/python");  // unrelated
  program("bin/python3");      // newer, and without the package
  const std::string python = program("bin/python3.12");
  fs::create_directories(dir_ / "home/lib/python3.12/site-packages/keepstep");
  EXPECT_EQ(*find_python({.path = dir_ / "bin", .called_as = real, .executable = real}), python);
}

TEST_F(FindPython, a_circle_of_symlinks_ends) {
  const std::string python3 = program("bin/python3");
  fs::create_symlink("b", dir_ / "a");
  fs::create_symlink("a", dir_ / "b");
  EXPECT_EQ(*find_python({.path = dir_ / "bin", .called_as = dir_ / "a", .executable = dir_ / "keepstep"}), python3);
}

TEST_F(FindPython, a_virtual_environments_python_stays_a_symlink) {
  const std::string python = program("usr/bin/python3");
  fs::create_directories(dir_ / "venv/bin");
  fs::create_symlink(python, dir_ / "venv/bin/python");
  EXPECT_EQ(*find_python({.executable = dir_ / "venv/bin/keepstep"}), dir_ / "venv/bin/python");
}

TEST_F(FindPython, otherwise_python3_in_path_and_else_an_error_that_says_where_it_looked) {
  const std::string python3 = program("bin/python3");
  EXPECT_EQ(
      *find_python({.path = (dir_ / "no").string() + ":" + (dir_ / "bin").string(), .executable = dir_ / "keepstep"}),
      python3);
  const auto found = find_python({.path = dir_ / "no", .executable = dir_ / "keepstep"});
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()), HasSubstr((dir_ / "python").string()));
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("KEEPSTEP_PYTHON"));
}

TEST_F(FindPython, this_process_knows_how_it_was_called) {
  const PythonSearch here = python_search();
  EXPECT_THAT(here.called_as, HasSubstr("_test"));
  EXPECT_TRUE(fs::exists(here.executable));
}

TEST_F(FindPython, what_cannot_be_executed_is_no_program) {
  const std::string file = program("bin/data");
  chmod(file.c_str(), 0644);
  EXPECT_EQ(find_program(file, ""), "");
  EXPECT_EQ(find_program((dir_ / "bin").string(), ""), "");
  EXPECT_EQ(find_program("", "/bin"), "");
}

}  // namespace
}  // namespace keepstep::cli
