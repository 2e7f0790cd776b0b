#include "cli/run_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "cli/run_option_table.h"

namespace keepstep::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class RunOptions : public ::testing::Test {
 protected:
  RunOptions() {
    std::string name = (std::filesystem::temp_directory_path() / "keepstep-options-XXXXXX").string();
    dir_ = mkdtemp(name.data());
    script_ = dir_ / "train.py";
    std::ofstream(script_) << "print('hello')\n";
    around_.environ = [this](const std::string& variable) -> std::optional<std::string> {
      const auto found = environment_.find(variable);
      return found == environment_.end() ? std::nullopt : std::optional(found->second);
    };
    around_.cpus = 6;
    around_.path = "/usr/bin:/bin";
    around_.python = "/opt/python";
  }
  ~RunOptions() override { std::filesystem::remove_all(dir_); }

  StatusOr<RunRequest> parse(std::vector<std::string> args) { return parse_run_options(args, around_); }
  // `args`, then the script.
  agent::JobSpec spec(std::vector<std::string> args) {
    args.push_back(script_);
    const auto request = parse(args);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.ok() ? request->spec : agent::JobSpec{};
  }
  std::vector<std::string> mistakes(std::vector<std::string> args, bool with_script = true) {
    if (with_script) {
      args.push_back(script_);
    }
    const auto request = parse(args);
    std::vector<std::string> lines;
    if (!request.ok()) {
      EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
      std::istringstream text{std::string(request.status().message())};
      for (std::string line; std::getline(text, line);) {
        lines.push_back(line);
      }
    }
    return lines;
  }

  std::filesystem::path dir_;
  std::string script_;
  std::map<std::string, std::string> environment_;
  Surroundings around_;
};

TEST_F(RunOptions, a_script_alone_is_enough_and_gets_the_defaults) {
  const agent::JobSpec spec = this->spec({});
  EXPECT_EQ(spec.script, script_);
  EXPECT_EQ(spec.nproc_per_node, 1u);
  EXPECT_EQ(spec.python, "/opt/python");
  EXPECT_EQ(spec.master_addr, "127.0.0.1");
  EXPECT_EQ(spec.master_port, 0);
  EXPECT_EQ(spec.run_id, "none");
  EXPECT_EQ(spec.log_dir, "");
  EXPECT_TRUE(spec.preload);
}

TEST_F(RunOptions, every_option_is_known_in_both_spellings_and_with_an_equals_sign) {
  EXPECT_EQ(spec({"--nproc-per-node", "4"}).nproc_per_node, 4u);
  EXPECT_EQ(spec({"--nproc_per_node", "4"}).nproc_per_node, 4u);
  EXPECT_EQ(spec({"--nproc-per-node=4"}).nproc_per_node, 4u);
  EXPECT_EQ(spec({"--nproc_per_node=4"}).nproc_per_node, 4u);
  for (const RunOption& option : run_options_table()) {
    for (const std::string& spelling : {option.spelled(), option.underscored()}) {
      for (const std::string& line : mistakes({spelling})) {
        EXPECT_THAT(line, Not(HasSubstr("no such option"))) << spelling;
      }
    }
  }
}

TEST_F(RunOptions, the_last_of_several_values_counts) {
  EXPECT_EQ(spec({"--nproc-per-node", "2", "--nproc_per_node", "3"}).nproc_per_node, 3u);
}

TEST_F(RunOptions, everything_behind_the_script_belongs_to_the_script) {
  const auto request =
      parse({"--spares", "1", script_, "--nproc-per-node", "9", "-m", "--unknown", "--", "--log-dir=", "--help", "x"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->spec.nproc_per_node, 1u);
  EXPECT_THAT(request->spec.script_args,
              ElementsAre("--nproc-per-node", "9", "-m", "--unknown", "--", "--log-dir=", "--help", "x"));
}

TEST_F(RunOptions, two_hyphens_may_stand_before_the_script) {
  const auto request = parse({"--spares", "1", "--", script_, "-x"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->spec.script, script_);
  EXPECT_THAT(request->spec.script_args, ElementsAre("-x"));
}

TEST_F(RunOptions, nproc_auto_is_gpus_where_there_are_any_else_cpus) {
  EXPECT_EQ(spec({"--nproc-per-node=auto"}).nproc_per_node, 6u);
  EXPECT_EQ(spec({"--nproc-per-node=cpu"}).nproc_per_node, 6u);
  EXPECT_THAT(mistakes({"--nproc-per-node=gpu"}), ElementsAre(HasSubstr("no NVIDIA GPU")));
  around_.gpus = 2;
  EXPECT_EQ(spec({"--nproc-per-node=auto"}).nproc_per_node, 2u);
  EXPECT_EQ(spec({"--nproc-per-node=gpu"}).nproc_per_node, 2u);
  EXPECT_EQ(spec({"--nproc-per-node=cpu"}).nproc_per_node, 6u);
  around_.cpus = 128;
  EXPECT_THAT(mistakes({"--nproc-per-node=cpu"}), ElementsAre(HasSubstr("128 ranks")));
}

TEST_F(RunOptions, torchruns_environment_variables_count_where_the_option_is_not_given) {
  environment_ = {{"PET_NPROC_PER_NODE", "3"}, {"PET_ROLE", "trainer"}, {"PET_STANDALONE", "0"}, {"PET_RDZV_ID", ""}};
  EXPECT_EQ(spec({}).nproc_per_node, 3u);
  EXPECT_EQ(spec({}).role, "trainer");
  EXPECT_EQ(spec({}).run_id, "none");
  EXPECT_EQ(spec({"--nproc-per-node", "2"}).nproc_per_node, 2u);
  environment_ = {{"PET_NPROC_PER_NODE", "many"}, {"PET_MODULE", "yes"}, {"PET_SPARES", "7"}};
  EXPECT_THAT(mistakes({}), UnorderedElementsAre(HasSubstr("PET_NPROC_PER_NODE is 'many'"),
                                                 HasSubstr("PET_MODULE is 'yes'; 1 turns --module on")));
}

TEST_F(RunOptions, all_mistakes_are_listed_at_once_each_with_its_option_and_value) {
  const auto lines =
      mistakes({"--nproc-per-node=0", "--spares=-1", "--nnodes=2:4", "--node-rank=1", "--max-restarts=x",
                "--start-method=thread", "--redirects=7", "--tee=0:1,0:2", "--local-ranks-filter=a",
                "--master-port=70000", "--rdzv-endpoint=h:p", "--interrupt-timeout=0", "--hang-timeout=never",
                "--seed=-1", "--inject=kill:rank=0", "--rdzv-id=a/b", "--rdzv-backend=etcd", "--colour", "--tee"},
               false);
  const std::vector<std::string> expected = {
      "--nproc-per-node is '0'",   "--spares is '-1'",         "--nnodes is '2:4'",
      "--node-rank is '1'",        "--max-restarts is 'x'",    "--start-method is 'thread'",
      "--redirects is '7'",        "--tee is '0:1,0:2'",       "--local-ranks-filter is 'a'",
      "--master-port is '70000'",  "--rdzv-endpoint is 'h:p'", "--interrupt-timeout is '0'",
      "--hang-timeout is 'never'", "--seed is '-1'",           "--inject is 'kill:rank=0'",
      "--rdzv-id is 'a/b'",        "--rdzv-backend is 'etcd'", "--colour: no such option",
      "--tee needs a value"};
  for (const std::string& part : expected) {
    EXPECT_THAT(lines, ::testing::Contains(HasSubstr(part)));
  }
  EXPECT_EQ(lines.size(), expected.size());
}

TEST_F(RunOptions, an_unknown_option_suggests_the_nearest_one) {
  EXPECT_THAT(mistakes({"--npoc_per_node=2"}), ElementsAre(HasSubstr("did you mean --nproc-per-node?")));
  EXPECT_THAT(mistakes({"--nproc=2"}), ElementsAre(HasSubstr("did you mean --nproc-per-node?")));
  EXPECT_THAT(mistakes({"--spare", "2"}), ElementsAre(HasSubstr("did you mean --spares?")));
  EXPECT_THAT(mistakes({"--zzzzzzzzz"}), ElementsAre(HasSubstr("--help")));
}

TEST_F(RunOptions, the_value_of_an_unknown_option_is_not_taken_for_the_script) {
  EXPECT_THAT(mistakes({"--spars", "2", "--nproc-per-node=zero", "--other", "x"}),
              ElementsAre(HasSubstr("--spars: no such option"), HasSubstr("--other: no such option"),
                          HasSubstr("--nproc-per-node is 'zero'")));
  EXPECT_THAT(mistakes({"--unknown-flag", script_, "--nproc-per-node=zero"}, false),
              ElementsAre(HasSubstr("--unknown-flag: no such option")));
}

TEST_F(RunOptions, an_option_without_its_value_is_said_and_the_others_still_count) {
  EXPECT_THAT(mistakes({"--spares=x", "--log-dir", "--standalone"}),
              UnorderedElementsAre(HasSubstr("--spares is 'x'"),
                                   HasSubstr("--log-dir needs a value (DIR), and --standalone follows")));
  EXPECT_THAT(mistakes({"--log-dir="}), ElementsAre(HasSubstr("--log-dir needs a value (DIR)")));
  EXPECT_THAT(mistakes({"--spares=x", "--tee"}, false),
              UnorderedElementsAre(HasSubstr("--spares is 'x'"), HasSubstr("--tee needs a value and nothing follows"),
                                   HasSubstr("no script")));
  EXPECT_THAT(mistakes({"--standalone=no"}), ElementsAre(HasSubstr("takes no value")));
}

TEST_F(RunOptions, a_missing_script_is_said_with_its_full_path) {
  EXPECT_THAT(mistakes({"no_such.py"}, false),
              ElementsAre(HasSubstr((std::filesystem::current_path() / "no_such.py").string())));
  EXPECT_THAT(mistakes({dir_}, false), ElementsAre(HasSubstr("directory without a __main__.py")));
  EXPECT_THAT(mistakes({}, false), ElementsAre(HasSubstr("no script")));
}

TEST_F(RunOptions, a_module_is_not_looked_for_as_a_file) {
  const auto request = parse({"-m", "pkg.train", "a"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->spec.module);
  EXPECT_EQ(request->spec.script, "pkg.train");
}

TEST_F(RunOptions, a_program_without_python_is_found_in_path_and_may_have_spares) {
  const auto request = parse({"--no-python", "--spares=1", "sh", "-c", "true"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->spec.script, HasSubstr("/sh"));
  EXPECT_EQ(request->spec.spares, 1);
  EXPECT_THAT(mistakes({"--no-python", "-m", "no-such-program"}, false),
              ElementsAre(HasSubstr("--no-python and --module")));
  EXPECT_THAT(mistakes({"--no-python", "no-such-program"}, false), ElementsAre(HasSubstr("'no-such-program'")));
  EXPECT_THAT(mistakes({"--no-python", "--inject=gil:rank=0,step=1,phase=forward", "sh"}, false),
              ElementsAre(HasSubstr("with --no-python only kill, segv, exception, exit and flip can be injected")));
}

TEST_F(RunOptions, redirects_tee_and_filter_are_read_as_torchrun_does) {
  const auto spec =
      this->spec({"--nproc-per-node=4", "-r", "3", "-t", "0:1,3:2", "--local-ranks-filter=3,0,3", "--log-dir", dir_});
  EXPECT_EQ(spec.redirects.of(2), 3);
  EXPECT_EQ(spec.tee.of(0), 1);
  EXPECT_EQ(spec.tee.of(1), 0);
  EXPECT_EQ(spec.tee.of(3), 2);
  EXPECT_THAT(*spec.local_ranks_filter, ElementsAre(0u, 3u));
  EXPECT_EQ(this->spec({"-r3"}).redirects.all, 3);
  EXPECT_THAT(mistakes({"--nproc-per-node=2", "--tee=2:1"}), ElementsAre(HasSubstr("ranks from 0 to 1")));
}

TEST_F(RunOptions, files_that_are_asked_for_without_a_directory_get_one_and_it_is_said) {
  const auto request = parse({"--tee=1", script_});
  ASSERT_TRUE(request.ok());
  EXPECT_EQ(request->spec.log_dir, kDefaultLogDir);
  EXPECT_THAT(request->warnings, ElementsAre(HasSubstr(kDefaultLogDir)));
}

TEST_F(RunOptions, faults_are_checked_against_the_world) {
  EXPECT_THAT(spec({"--nproc-per-node=2", "--inject=kill:rank=1,step=3,phase=update",
                    "--inject=exception:rank=any,step=9,phase=forward"})
                  .inject,
              ElementsAre("kill:rank=1,step=3,phase=update", "exception:rank=any,step=9,phase=forward"));
  EXPECT_THAT(mistakes({"--nproc-per-node=2", "--inject=kill:rank=2,step=3,phase=update",
                        "--inject=kill:rank=0,step=3,phase=build,on=spare", "--inject=boom"}),
              ElementsAre(HasSubstr("there is no rank 2; ranks are 0 to 1"), HasSubstr("no spare"),
                          HasSubstr("'boom' is no kind of fault")));
}

TEST_F(RunOptions, the_masters_address_comes_from_the_most_special_option) {
  EXPECT_EQ(spec({"--rdzv-endpoint=localhost:29400"}).master_addr, "localhost");
  EXPECT_EQ(spec({"--rdzv-endpoint=localhost:29400"}).master_port, 29400);
  EXPECT_EQ(spec({"--rdzv-endpoint=[::1]:29400"}).master_addr, "::1");
  EXPECT_EQ(spec({"--rdzv-endpoint=localhost:29400", "--master-port=5"}).master_port, 5);
  EXPECT_EQ(spec({"--local-addr=10.0.0.1"}).master_addr, "10.0.0.1");
  EXPECT_EQ(spec({"--local-addr=10.0.0.1", "--master-addr=10.0.0.2"}).master_addr, "10.0.0.2");
  EXPECT_EQ(spec({"--standalone", "--rdzv-endpoint=localhost:29400", "--master-port=5"}).master_port, 0);
}

TEST_F(RunOptions, several_nodes_have_an_endpoint_a_number_each_and_a_token) {
  environment_["KEEPSTEP_TOKEN"] = "0123456789abcdef0";
  const auto node = spec({"--nnodes=3:3", "--node-rank=2", "--nproc-per-node=4", "--rdzv-endpoint=node-a:4711",
                          "--local-addr=10.0.0.3", "--join-timeout=20"});
  EXPECT_TRUE(node.several_nodes());
  EXPECT_EQ(node.nnodes, 3);
  EXPECT_EQ(node.node_rank, 2);
  EXPECT_EQ(node.world_size(), 12);
  EXPECT_EQ(node.endpoint_host, "node-a");
  EXPECT_EQ(node.endpoint_port, 4711);
  EXPECT_EQ(node.local_addr, "10.0.0.3");
  EXPECT_EQ(node.join_timeout_s, 20);
  EXPECT_EQ(node.master_addr, "") << "the node of rank 0, which the rank table names";
  EXPECT_EQ(node.master_port, 0);
}

TEST_F(RunOptions, a_spare_node_has_a_number_behind_the_others) {
  environment_["KEEPSTEP_TOKEN"] = "0123456789abcdef0";
  EXPECT_EQ(spec({"--nnodes=2", "--spare-nodes=1", "--node-rank=2", "--rdzv-endpoint=a"}).node_rank, 2);
  EXPECT_THAT(mistakes({"--nnodes=2", "--spare-nodes=1", "--node-rank=3", "--rdzv-endpoint=a"}),
              ElementsAre(HasSubstr("--node-rank is '3'; give a number from 0 to 2")));
}

TEST_F(RunOptions, the_endpoint_of_several_nodes_is_torchruns_master_where_none_is_given) {
  environment_["KEEPSTEP_TOKEN"] = "0123456789abcdef0";
  const auto with = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"--nnodes=2", "--node-rank=0"});
    return spec(args);
  };
  EXPECT_EQ(with({"--rdzv-endpoint=a"}).endpoint_port, 29400);
  EXPECT_EQ(with({"--master-addr=a"}).endpoint_host, "a");
  EXPECT_EQ(with({"--master-addr=a"}).endpoint_port, 29500);
  EXPECT_EQ(with({"--master-addr=a", "--master-port=5"}).endpoint_port, 5);
  EXPECT_EQ(with({"--master-addr=a", "--master-port=5"}).master_port, 0) << "node 0 listens there already";
  const auto both = with({"--rdzv-endpoint=a:5", "--master-addr=b", "--master-port=6"});
  EXPECT_EQ(both.endpoint_host, "a");
  EXPECT_EQ(both.master_addr, "b");
  EXPECT_EQ(both.master_port, 6);
}

TEST_F(RunOptions, several_nodes_are_read_from_torchruns_environment) {
  environment_ = {{"KEEPSTEP_TOKEN", "0123456789abcdef0"},
                  {"PET_NNODES", "2"},
                  {"PET_NODE_RANK", "1"},
                  {"PET_RDZV_ENDPOINT", "node-a:4711"}};
  EXPECT_EQ(spec({}).nnodes, 2);
  EXPECT_EQ(spec({}).node_rank, 1);
  EXPECT_EQ(spec({}).endpoint_host, "node-a");
}

TEST_F(RunOptions, what_several_nodes_lack_is_listed_at_once) {
  EXPECT_THAT(mistakes({"--nnodes=2"}),
              UnorderedElementsAre(HasSubstr("no --rdzv-endpoint"),
                                   AllOf(HasSubstr("no job token"), HasSubstr("openssl rand -hex 32"))));
  EXPECT_THAT(mistakes({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=a:0", "--standalone", "--nproc-per-node=63"}),
              UnorderedElementsAre(HasSubstr("--standalone"), HasSubstr("at most 62"), HasSubstr("no job token")));
  EXPECT_THAT(mistakes({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=a:0"}),
              UnorderedElementsAre(HasSubstr("all nodes must know the port"), HasSubstr("no job token")));
  EXPECT_THAT(mistakes({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=:29400"}),
              UnorderedElementsAre(HasSubstr("no --rdzv-endpoint"), HasSubstr("no job token")));
}

TEST_F(RunOptions, nodes_without_a_number_get_one_as_they_come) {
  environment_["KEEPSTEP_TOKEN"] = "0123456789abcdef0";
  EXPECT_TRUE(spec({"--nnodes=2", "--rdzv-endpoint=a"}).any_node_rank);
  EXPECT_TRUE(spec({"--spare-nodes=1", "--rdzv-endpoint=a"}).any_node_rank);
  EXPECT_FALSE(spec({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=a"}).any_node_rank);
  EXPECT_FALSE(spec({}).any_node_rank);
}

class RunOptionsUnderSrun : public RunOptions {
 protected:
  RunOptionsUnderSrun() {
    environment_ = {{"SLURM_JOB_ID", "42"},        {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NODELIST", "n[1-3]"},
                    {"SLURM_STEP_NUM_NODES", "3"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_NODEID", "2"},
                    {"SLURM_RESTART_COUNT", "1"},  {"HOME", "/home/ada"}};
  }
};

TEST_F(RunOptionsUnderSrun, nodes_endpoint_and_number_are_those_of_the_step) {
  const auto node = spec({});
  EXPECT_EQ(node.nnodes, 3);
  EXPECT_EQ(node.node_rank, 2);
  EXPECT_FALSE(node.any_node_rank);
  EXPECT_EQ(node.endpoint_host, "n1");
  EXPECT_GE(node.endpoint_port, 20000);
  EXPECT_EQ(node.slurm_job, "42");
  EXPECT_EQ(node.token, "");
  EXPECT_EQ(node.token_file, "/home/ada/.keepstep/token.42.0.1");
}

TEST_F(RunOptionsUnderSrun, nodes_that_wait_are_taken_from_those_of_the_step) {
  const auto node = spec({"--spare-nodes=1"});
  EXPECT_EQ(node.nnodes, 2);
  EXPECT_EQ(node.spare_nodes, 1);
  EXPECT_THAT(mistakes({"--spare-nodes=3"}), ElementsAre(HasSubstr("none would train")));
}

TEST_F(RunOptionsUnderSrun, what_is_given_counts_before_what_slurm_says) {
  EXPECT_EQ(spec({"--rdzv-endpoint=m:5"}).endpoint_host, "m");
  EXPECT_EQ(spec({"--rdzv-endpoint=m:5"}).nnodes, 3);
  EXPECT_EQ(spec({"--nnodes=1"}).nnodes, 1);
  EXPECT_EQ(spec({"--standalone"}).nnodes, 1);
  EXPECT_EQ(spec({"--token-dir=/shared/tokens"}).token_file, "/shared/tokens/token.42.0.1");
  environment_["KEEPSTEP_TOKEN"] = "0123456789abcdef0";
  EXPECT_EQ(spec({}).token, "0123456789abcdef0");
  EXPECT_EQ(spec({}).token_file, "");
}

TEST_F(RunOptionsUnderSrun, one_node_needs_no_endpoint_and_no_file) {
  environment_["SLURM_STEP_NUM_NODES"] = environment_["SLURM_STEP_NUM_TASKS"] = "1";
  environment_["SLURM_NODEID"] = "0";
  EXPECT_FALSE(spec({}).several_nodes());
  EXPECT_EQ(spec({}).token_file, "");
  EXPECT_EQ(spec({}).slurm_job, "42");
}

TEST_F(RunOptionsUnderSrun, several_tasks_on_a_node_are_refused) {
  environment_["SLURM_STEP_NUM_TASKS"] = "12";
  EXPECT_THAT(mistakes({}), ElementsAre(AllOf(HasSubstr("12 tasks on 3 node(s)"), HasSubstr("--ntasks-per-node=1"))));
  EXPECT_EQ(spec({"--standalone"}).nnodes, 1) << "each a job of its own";
}

TEST_F(RunOptionsUnderSrun, variables_that_make_no_sense_are_named) {
  environment_["SLURM_NODEID"] = "two";
  EXPECT_THAT(mistakes({}), ElementsAre(HasSubstr("SLURM_NODEID is 'two'")));
}

TEST_F(RunOptionsUnderSrun, a_token_needs_a_shared_folder) {
  environment_.erase("HOME");
  EXPECT_THAT(mistakes({}), ElementsAre(AllOf(HasSubstr("--token-dir"), HasSubstr("KEEPSTEP_TOKEN=$(openssl"))));
}

TEST_F(RunOptionsUnderSrun, a_job_can_be_requeued_on_notice_and_only_there) {
  EXPECT_TRUE(spec({"--on-notice=requeue"}).requeue_on_notice);
  EXPECT_FALSE(spec({"--on-notice=stop"}).requeue_on_notice);
  EXPECT_THAT(mistakes({"--on-notice=no"}), ElementsAre(HasSubstr("give stop or requeue")));
  environment_.clear();
  EXPECT_THAT(mistakes({"--on-notice=requeue"}), ElementsAre(HasSubstr("no job of Slurm")));
}

TEST_F(RunOptions, a_fault_may_hit_any_rank_of_all_nodes) {
  environment_["KEEPSTEP_TOKEN"] = "0123456789abcdef0";
  const std::vector<std::string> job = {"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=a", "--nproc-per-node=2"};
  auto args = job;
  args.push_back("--inject=kill:rank=3,step=1,phase=backward");
  EXPECT_EQ(spec(args).inject.size(), 1);
  args.back() = "--inject=kill:rank=4,step=1,phase=backward";
  EXPECT_THAT(mistakes(args), ElementsAre(HasSubstr("there is no rank 4; ranks are 0 to 3")));
}

TEST_F(RunOptions, options_of_torchrun_without_effect_are_taken_with_a_word) {
  const auto request = parse({"--rdzv-conf", "timeout=3", "--event-log-handler=null", script_});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->warnings, UnorderedElementsAre(HasSubstr("--rdzv-conf"), HasSubstr("--event-log-handler")));
}

TEST_F(RunOptions, options_of_torchrun_whose_effect_would_be_missed_are_refused_with_the_way_out) {
  EXPECT_THAT(mistakes({"--virtual-local-rank"}), ElementsAre(HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST_F(RunOptions, the_token_comes_from_a_file_or_the_environment) {
  EXPECT_EQ(spec({}).token, "");
  environment_["KEEPSTEP_TOKEN"] = "0123456789abcdef0";
  EXPECT_EQ(spec({}).token, "0123456789abcdef0");
  const std::string file = dir_ / "token";
  std::ofstream(file) << "  aaaaaaaaaaaaaaaaaaaaaaa\n";
  chmod(file.c_str(), 0600);
  EXPECT_EQ(spec({"--token-file", file}).token, "aaaaaaaaaaaaaaaaaaaaaaa");
  chmod(file.c_str(), 0644);
  EXPECT_THAT(parse({"--token-file", file, script_})->warnings, ElementsAre(HasSubstr("chmod 600")));
  std::ofstream(file) << "short";
  EXPECT_THAT(mistakes({"--token-file", file}), ElementsAre(AllOf(HasSubstr(file), HasSubstr("16 to 4096"))));
  EXPECT_THAT(mistakes({"--token-file", dir_ / "no"}), ElementsAre(HasSubstr("cannot be read")));
}

TEST_F(RunOptions, a_mistake_never_shows_a_token) {
  environment_["KEEPSTEP_TOKEN"] = "s3cret";
  EXPECT_THAT(mistakes({}), ElementsAre(Not(HasSubstr("s3cret"))));
}

TEST_F(RunOptions, no_interpreter_is_a_mistake_like_any_other) {
  around_.python = absl::NotFoundError("no Python interpreter found");
  EXPECT_THAT(mistakes({"--spares=x"}), ElementsAre(HasSubstr("--spares"), HasSubstr("no Python interpreter")));
}

TEST_F(RunOptions, the_limit_on_hangs_is_learned_given_or_off) {
  EXPECT_EQ(spec({}).hang.mode, brain::HangMode::kAuto);
  EXPECT_EQ(spec({"--hang-timeout=auto"}).hang.mode, brain::HangMode::kAuto);
  EXPECT_EQ(spec({"--hang-timeout=off"}).hang.mode, brain::HangMode::kOff);
  const auto fixed = spec({"--hang-timeout=2.5"}).hang;
  EXPECT_EQ(fixed.mode, brain::HangMode::kFixed);
  EXPECT_EQ(fixed.fixed, std::chrono::milliseconds(2500));
}

TEST_F(RunOptions, the_limit_on_clocks_is_given_or_off_and_what_follows_is_a_warning_or_a_refusal) {
  EXPECT_EQ(spec({}).clock_limit_s, 1);
  EXPECT_FALSE(spec({}).refuse_clocks_apart);
  EXPECT_EQ(spec({"--clock-limit", "0.25"}).clock_limit_s, 0.25);
  EXPECT_EQ(spec({"--clock-limit", "off"}).clock_limit_s, 0);
  EXPECT_TRUE(spec({"--clocks-apart", "refuse"}).refuse_clocks_apart);
  EXPECT_THAT(mistakes({"--clock-limit", "-1", "--clocks-apart", "kill"}),
              UnorderedElementsAre(HasSubstr("give off, or seconds"), HasSubstr("give warn or refuse")));
}

TEST_F(RunOptions, flags_and_numbers_reach_the_job) {
  const auto spec =
      this->spec({"--check", "--digests=on", "--digest-every=7", "--no-preload", "--seed=18446744073709551615",
                  "--start-method=exec", "--max-restarts=0", "--interrupt-timeout=2.5", "--journal", dir_ / "j",
                  "--rdzv-id=x", "--node-faults=7", "--fault-window=90.5"});
  EXPECT_TRUE(spec.check_all_steps);
  EXPECT_EQ(spec.digests, "on");
  EXPECT_EQ(spec.digest_every, 7u);
  EXPECT_FALSE(spec.preload);
  EXPECT_EQ(spec.seed, 18446744073709551615u);
  EXPECT_TRUE(spec.start_by_exec);
  EXPECT_EQ(spec.max_restarts, 0);
  EXPECT_EQ(spec.interrupt_timeout_s, 2.5);
  EXPECT_EQ(spec.node_faults, 7);
  EXPECT_EQ(spec.fault_window_s, 90.5);
  EXPECT_EQ(spec.journal_dir, dir_ / "j");
  EXPECT_EQ(spec.run_id, "x");
}

TEST_F(RunOptions, help_is_given_whatever_else_is_wrong) {
  EXPECT_EQ(parse({"--spares=x", "--help"})->action, RunRequest::Action::kHelp);
  EXPECT_EQ(parse({"-h"})->action, RunRequest::Action::kHelp);
  EXPECT_EQ(parse({"--help-markdown"})->action, RunRequest::Action::kHelpMarkdown);
}

TEST(RunHelp, names_every_option_in_lines_of_a_hundred_columns_and_the_page_does_too) {
  const std::string help = run_help();
  const std::string page = run_help_markdown();
  for (const RunOption& option : run_options_table()) {
    EXPECT_THAT(help, HasSubstr(option.spelled()));
    EXPECT_THAT(page, HasSubstr(option.spelled()));
    EXPECT_TRUE(option.support != RunOption::Support::kFull || !option.meaning.empty()) << option.name;
    EXPECT_TRUE(option.support == RunOption::Support::kFull || !option.bounds.empty()) << option.name;
  }
  std::istringstream lines(help.substr(0, help.find("examples:")));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST_F(RunOptions, this_machine_has_cpus_and_an_environment) {
  setenv("PET_ROLE", "here", 1);
  const Surroundings here = current_surroundings();
  unsetenv("PET_ROLE");
  EXPECT_GE(here.cpus, 1u);
  EXPECT_FALSE(here.path.empty());
  EXPECT_FALSE(here.environ("KEEPSTEP_NO_SUCH_VARIABLE").has_value());
}

}  // namespace
}  // namespace keepstep::cli
