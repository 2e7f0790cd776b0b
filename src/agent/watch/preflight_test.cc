#include "agent/watch/preflight.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fd.h"

namespace keepstep::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMiB = 1024 * 1024;

JobSpec four_and_a_spare() {
  JobSpec spec;
  spec.nproc_per_node = 4;
  spec.spares = 1;
  spec.python = "/bin/sh";
  spec.script = "/proc/self/exe";
  return spec;
}

Machine roomy() {
  return {.open_files_soft = 4096,
          .open_files_hard = 4096,
          .open_files_used = 20,
          .memory_available_bytes = 1024 * kMiB,
          .has_dev_shm = true,
          .dev_shm_free_bytes = 512 * kMiB};
}

TEST(Preflight, a_roomy_machine_has_nothing_to_say) {
  const auto report = check_machine(four_and_a_spare(), roomy(), 100 * kMiB);
  EXPECT_TRUE(report.ok());
  EXPECT_THAT(report.warnings, IsEmpty());
}

TEST(Preflight, too_few_descriptors_are_said_with_the_number_that_is_needed) {
  Machine machine = roomy();
  machine.open_files_soft = machine.open_files_hard = 64;
  const auto report = check_machine(four_and_a_spare(), machine, 0);
  const uint64_t needed = open_files_needed(four_and_a_spare()) + 20;
  EXPECT_THAT(report.errors,
              ElementsAre(AllOf(HasSubstr("4 ranks and 1 spares"), HasSubstr("the limit is 64"),
                                HasSubstr("ulimit -n " + std::to_string(needed)), HasSubstr("root's to raise"))));
}

TEST(Preflight, more_ranks_need_more_descriptors) {
  JobSpec more = four_and_a_spare();
  more.spares = 9;
  EXPECT_GT(open_files_needed(more), open_files_needed(four_and_a_spare()));
}

TEST(Preflight, shared_memory_that_does_not_fit_is_an_error_and_a_tight_fit_a_warning) {
  EXPECT_THAT(check_machine(four_and_a_spare(), roomy(), 1025 * kMiB).errors,
              ElementsAre(AllOf(HasSubstr("takes 1025.0 MiB"), HasSubstr("1024.0 MiB are free"))));
  const auto tight = check_machine(four_and_a_spare(), roomy(), 600 * kMiB);
  EXPECT_TRUE(tight.ok());
  EXPECT_THAT(tight.warnings, ElementsAre(HasSubstr("600.0 MiB of the 1024.0 MiB")));
}

TEST(Preflight, a_full_dev_shm_is_an_error_a_tiny_or_missing_one_a_warning) {
  Machine machine = roomy();
  machine.dev_shm_free_bytes = kMiB / 2;
  EXPECT_THAT(check_machine(four_and_a_spare(), machine, 0).errors,
              ElementsAre(AllOf(HasSubstr("/dev/shm is full: 0.5 MiB"), HasSubstr("--shm-size"))));
  machine.dev_shm_free_bytes = 32 * kMiB;
  EXPECT_THAT(check_machine(four_and_a_spare(), machine, 0).warnings, ElementsAre(HasSubstr("only 32.0 MiB")));
  machine.has_dev_shm = false;
  EXPECT_THAT(check_machine(four_and_a_spare(), machine, 0).warnings, ElementsAre(HasSubstr("not there")));
}

TEST(Preflight, all_errors_come_at_once) {
  Machine machine;
  machine.memory_available_bytes = 0;
  EXPECT_EQ(check_machine(four_and_a_spare(), machine, kMiB).errors.size(), 3u);
}

TEST(Preflight, the_soft_limit_on_files_is_raised_as_far_as_the_hard_one_allows) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{.rlim_cur = 80, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const Machine machine = read_machine(200);
  EXPECT_EQ(machine.open_files_soft, std::min<rlim_t>(before.rlim_max, 65536));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Preflight, reads_a_machine_that_makes_sense) {
  const Machine machine = read_machine(10);
  EXPECT_GT(machine.open_files_used, 2u);
  EXPECT_LT(machine.open_files_used, machine.open_files_soft);
  EXPECT_GT(machine.memory_available_bytes, kMiB);
  EXPECT_LT(machine.memory_available_bytes, uint64_t{1} << 50);
}

class PreflightOnDisk : public ::testing::Test {
 protected:
  PreflightOnDisk() {
    std::string name = (std::filesystem::temp_directory_path() / "keepstep-preflight-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~PreflightOnDisk() override { std::filesystem::remove_all(dir_); }
  // Only errors about the job's own files and ports: the machine that runs the tests may be full.
  std::vector<std::string> errors() {
    auto all = preflight(spec_, 0).errors;
    std::erase_if(all, [](const std::string& e) { return e.find("/dev/shm") != std::string::npos; });
    return all;
  }
  std::filesystem::path dir_;
  JobSpec spec_ = four_and_a_spare();
};

TEST_F(PreflightOnDisk, directories_are_made_and_a_sound_job_passes) {
  spec_.log_dir = dir_ / "a/logs";
  spec_.journal_dir = dir_ / "b/journal";
  EXPECT_THAT(errors(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_directory(dir_ / "a/logs"));
}

TEST_F(PreflightOnDisk, directories_that_cannot_be_made_are_named_with_their_options) {
  std::ofstream(dir_ / "file") << "x";
  spec_.log_dir = dir_ / "file/logs";
  spec_.journal_dir = dir_ / "file/journal";
  EXPECT_THAT(errors(), ElementsAre(AllOf(HasSubstr("--log-dir"), HasSubstr(spec_.log_dir)),
                                    AllOf(HasSubstr("--journal"), HasSubstr(spec_.journal_dir))));
}

TEST_F(PreflightOnDisk, a_journal_of_an_earlier_run_is_said_before_training_starts) {
  std::ofstream(dir_ / "metrics.jsonl") << "{}\n";
  spec_.journal_dir = dir_;
  EXPECT_THAT(errors(), ElementsAre(AllOf(HasSubstr("metrics.jsonl of an earlier run"), HasSubstr(dir_.string()))));
}

TEST_F(PreflightOnDisk, a_port_in_use_is_said_with_the_way_out) {
  Fd taken(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(taken.get(), 1), 0);
  socklen_t size = sizeof address;
  ASSERT_EQ(getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  spec_.master_port = ntohs(address.sin_port);
  EXPECT_THAT(errors(), ElementsAre(AllOf(HasSubstr("--master-port " + std::to_string(spec_.master_port)),
                                          HasSubstr("in use"), HasSubstr("free one"))));
  taken.reset();
  EXPECT_THAT(errors(), IsEmpty());
}

TEST_F(PreflightOnDisk, an_address_of_another_machine_is_said) {
  spec_.master_port = 29500;
  spec_.master_addr = "203.0.113.7";
  EXPECT_THAT(errors(), ElementsAre(HasSubstr("'203.0.113.7' is no address of this machine")));
}

TEST_F(PreflightOnDisk, an_interpreter_or_script_that_is_not_there_is_said_with_its_full_path) {
  spec_.python = "/no/such/python";
  spec_.script = "no_such_script.py";
  EXPECT_THAT(errors(), ElementsAre(HasSubstr("/no/such/python"),
                                    HasSubstr((std::filesystem::current_path() / "no_such_script.py").string())));
  spec_.no_python = true;
  EXPECT_THAT(errors(), IsEmpty());
}

}  // namespace
}  // namespace keepstep::agent
