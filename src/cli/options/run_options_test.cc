#include "cli/options/run_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "cli/options/run_option_table.h"

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
  // `args`, followed by the script.
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
      mistakes({"--nproc-per-node=0", "--spares=-1", "--nnodes=4:2", "--node-rank=1", "--max-restarts=x",
                "--start-method=thread", "--redirects=7", "--tee=0:1,0:2", "--local-ranks-filter=a",
                "--master-port=70000", "--rdzv-endpoint=h:p", "--interrupt-timeout=0", "--hang-timeout=never",
                "--seed=-1", "--inject=kill:rank=0", "--rdzv-id=a/b", "--rdzv-backend=etcd", "--colour", "--tee"},
               false);
  const std::vector<std::string> expected = {
      "--nproc-per-node is '0'",   "--spares is '-1'",         "--nnodes is '4:2'",
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
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
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
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
  EXPECT_EQ(spec({"--nnodes=2", "--spare-nodes=1", "--node-rank=2", "--rdzv-endpoint=a"}).node_rank, 2);
  EXPECT_THAT(mistakes({"--nnodes=2", "--spare-nodes=1", "--node-rank=3", "--rdzv-endpoint=a"}),
              ElementsAre(HasSubstr("--node-rank is '3'; give a number from 0 to 2")));
}

TEST_F(RunOptions, the_endpoint_of_several_nodes_is_torchruns_master_where_none_is_given) {
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
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
  environment_ = {{"KEEPSTEP_TOKEN", std::string(33, 't')},
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
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
  EXPECT_TRUE(spec({"--nnodes=2", "--rdzv-endpoint=a"}).any_node_rank);
  EXPECT_TRUE(spec({"--spare-nodes=1", "--rdzv-endpoint=a"}).any_node_rank);
  EXPECT_FALSE(spec({"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=a"}).any_node_rank);
  EXPECT_FALSE(spec({}).any_node_rank);
}

// A job of several nodes, without its number of nodes and its elastic options.
class ElasticRunOptions : public RunOptions {
 protected:
  ElasticRunOptions() { environment_["KEEPSTEP_TOKEN"] = std::string(33, 't'); }
  std::vector<std::string> job(std::vector<std::string> args) {
    args.insert(args.begin(), {"--rdzv-endpoint=a", "--nproc-per-node=4"});
    return args;
  }
  agent::JobSpec elastic(std::vector<std::string> args) {
    const agent::JobSpec spec = this->spec(job(std::move(args)));
    EXPECT_TRUE(spec.elastic.has_value());
    return spec;
  }
  std::vector<std::string> wrong(std::vector<std::string> args) { return mistakes(job(std::move(args))); }
  std::string file_with(const std::string& text) {
    std::ofstream(dir_ / "policy.yaml") << text;
    return dir_ / "policy.yaml";
  }
};

TEST_F(ElasticRunOptions, a_range_of_nodes_is_an_elastic_job_whose_replicas_are_nodes) {
  const agent::JobSpec spec = elastic({"--nnodes=2:8"});
  EXPECT_EQ(spec.nnodes, 2u);
  EXPECT_EQ(spec.node_limit(), 8u);
  EXPECT_EQ(spec.rank_limit(), 32u);
  EXPECT_EQ(spec.ranks_per_replica, 4u);
  EXPECT_EQ(spec.elastic->min_replicas, 2u);
  EXPECT_EQ(spec.elastic->max_replicas, 8u);
  EXPECT_TRUE(spec.several_nodes());
  EXPECT_TRUE(spec.any_node_rank);
  EXPECT_TRUE(elastic({"--nnodes=1:2"}).several_nodes());
  environment_["PET_NNODES"] = "3:5";
  EXPECT_EQ(elastic({}).elastic->max_replicas, 5u);
}

TEST_F(ElasticRunOptions, two_equal_numbers_are_a_job_of_that_size) {
  const agent::JobSpec spec = this->spec(job({"--nnodes=3:3"}));
  EXPECT_FALSE(spec.elastic.has_value());
  EXPECT_EQ(spec.nnodes, 3u);
  EXPECT_EQ(spec.node_limit(), 3u);
  EXPECT_EQ(elastic({"--nnodes=3:3", "--min-replicas=1"}).elastic->max_replicas, 3u);
}

TEST_F(ElasticRunOptions, one_node_is_elastic_where_replicas_are_asked_for) {
  const agent::JobSpec spec =
      this->spec({"--nproc-per-node=4", "--ranks-per-replica=1", "--min-replicas=1", "--node-rank=0"});
  ASSERT_TRUE(spec.elastic.has_value());
  EXPECT_FALSE(spec.several_nodes());
  EXPECT_EQ(spec.elastic->min_replicas, 1u);
  EXPECT_EQ(spec.elastic->max_replicas, 4u);
  EXPECT_EQ(this->spec({"--nproc-per-node=4", "--ranks-per-replica=2", "--max-replicas=1"}).elastic->min_replicas, 1u);
}

TEST_F(ElasticRunOptions, replicas_are_parts_of_nodes_or_several_nodes) {
  EXPECT_EQ(elastic({"--nnodes=1:3", "--ranks-per-replica=2"}).elastic->max_replicas, 6u);
  const agent::JobSpec large = elastic({"--nnodes=2:7", "--ranks-per-replica=8"});
  EXPECT_EQ(large.elastic->min_replicas, 1u);
  EXPECT_EQ(large.elastic->max_replicas, 3u) << "the seventh node waits for an eighth, which there is not";
  EXPECT_THAT(wrong({"--nnodes=1:3", "--ranks-per-replica=3"}),
              ElementsAre(AllOf(HasSubstr("--ranks-per-replica is '3'"), HasSubstr("divides --nproc-per-node (4)"))));
  EXPECT_THAT(wrong({"--nnodes=1:3", "--ranks-per-replica=16"}), ElementsAre(HasSubstr("a number from 1 to 12")));
  EXPECT_THAT(
      wrong({"--nnodes=1:3", "--ranks-per-replica=8"}),
      ElementsAre(HasSubstr("start with 1 node, which hold 0 replicas of 8 ranks, and 1 is the smallest size")));
}

TEST_F(ElasticRunOptions, every_option_reaches_the_policy) {
  const brain::ElasticConfig policy =
      *elastic({"--nnodes=2:8", "--min-replicas=1", "--max-replicas=7", "--replica-increment-step=3",
                "--scaling-timeout=1.5", "--graceful-shutdown-timeout=20", "--faulty-scale-down-timeout=0",
                "--scale_up_snooze_time=40", "--min-change-interval=50", "--elastic-backoff=1.25",
                "--elastic-max-backoff=60"})
           .elastic;
  EXPECT_EQ(policy.min_replicas, 1u);
  EXPECT_EQ(policy.max_replicas, 7u);
  EXPECT_EQ(policy.increment_step, 3u);
  EXPECT_EQ(policy.scaling_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(policy.graceful_shutdown_timeout, std::chrono::seconds(20));
  EXPECT_EQ(policy.faulty_scale_down_timeout, std::chrono::seconds(0));
  EXPECT_EQ(policy.scale_up_snooze, std::chrono::seconds(40));
  EXPECT_EQ(policy.min_between_changes, std::chrono::seconds(50));
  EXPECT_EQ(policy.backoff_factor, 1.25);
  EXPECT_EQ(policy.max_backoff, std::chrono::seconds(60));
}

TEST_F(ElasticRunOptions, discrete_sizes_give_the_bounds_that_nobody_gave) {
  const agent::JobSpec spec = elastic({"--nnodes=2:8", "--replica-discrete-values=4,1,2"});
  EXPECT_EQ(spec.elastic->min_replicas, 1u);
  EXPECT_EQ(spec.elastic->max_replicas, 4u);
  EXPECT_THAT(spec.elastic->discrete_values, ElementsAre(1u, 2u, 4u));
}

TEST_F(ElasticRunOptions, a_file_may_hold_the_policy_and_options_beside_it_win) {
  const std::string file = file_with(
      "elasticPolicy:\n  minReplicas: 2\n  maxReplicas: 6\n  replicaIncrementStep: 2\n  scalingTimeoutInSeconds: 5\n");
  const brain::ElasticConfig of_file = *elastic({"--nnodes=2:8", "--elastic-policy", file}).elastic;
  EXPECT_EQ(of_file.max_replicas, 6u);
  EXPECT_EQ(of_file.increment_step, 2u);
  EXPECT_EQ(of_file.scaling_timeout, std::chrono::seconds(5));
  const brain::ElasticConfig beside =
      *elastic({"--nnodes=2:8", "--elastic-policy", file, "--replica-discrete-values=2,3", "--scaling-timeout=7"})
           .elastic;
  EXPECT_EQ(beside.increment_step, 1u) << "said in another way";
  EXPECT_THAT(beside.discrete_values, ElementsAre(2u, 3u));
  EXPECT_EQ(beside.max_replicas, 6u);
  EXPECT_EQ(beside.scaling_timeout, std::chrono::seconds(7));
}

TEST_F(ElasticRunOptions, all_mistakes_of_a_policy_are_listed_and_name_who_said_it) {
  EXPECT_THAT(wrong({"--nnodes=2:8", "--min-replicas=0", "--scaling-timeout=soon", "--elastic-backoff=0.5",
                     "--ranks-per-replica=x", "--replica-discrete-values=1;2", "--elastic-policy=/no/such/file"}),
              UnorderedElementsAre(HasSubstr("--min-replicas is '0'"), HasSubstr("--scaling-timeout is 'soon'"),
                                   HasSubstr("--elastic-backoff is '0.5'"), HasSubstr("--ranks-per-replica is 'x'"),
                                   HasSubstr("--replica-discrete-values is '1;2'"),
                                   HasSubstr("--elastic-policy is '/no/such/file'")));
  EXPECT_THAT(wrong({"--nnodes=2:8", "--max-replicas=9", "--elastic-backoff=0", "--spare-nodes=1"}),
              UnorderedElementsAre(HasSubstr("--max-replicas 9 is more than"), HasSubstr("--elastic-backoff is '0'"),
                                   HasSubstr("--spare-nodes is '1'")));
  EXPECT_THAT(wrong({"--nnodes=2:8", "--min-replicas=7", "--max-replicas=3", "--elastic-max-backoff=1"}),
              UnorderedElementsAre(HasSubstr("--min-replicas 7 is more than --max-replicas 3"),
                                   AllOf(HasSubstr("--elastic-max-backoff"), HasSubstr("--min-change-interval"))));
  EXPECT_THAT(wrong({"--nnodes=2:8", "--replica-increment-step=4"}),
              ElementsAre(AllOf(HasSubstr("--max-replicas 8 is never reached"), HasSubstr("leads to 6 and to 10"))));
  EXPECT_THAT(wrong({"--nnodes=2:8", "--min-replicas=2", "--replica-discrete-values=1,2,4"}),
              ElementsAre(HasSubstr("--replica-discrete-values has 1, outside of --min-replicas 2")));
  EXPECT_THAT(wrong({"--nnodes=2:8", "--max-replicas=9"}),
              ElementsAre(AllOf(HasSubstr("--max-replicas 9 is more than 8 nodes"), HasSubstr("give at most 8"))));
  EXPECT_THAT(wrong({"--nnodes=2:8", "--min-replicas=3"}),
              ElementsAre(AllOf(HasSubstr("start with 2 nodes, which hold 2 replicas of 4 ranks"),
                                HasSubstr("3 is the smallest size"))));
  const std::string file = file_with("minReplicas: 5\n");
  EXPECT_THAT(wrong({"--nnodes=2:8", "--elastic-policy", file, "--max-replicas=4"}),
              ElementsAre(file + ": minReplicas 5 is more than --max-replicas 4: no size is between them"));
  EXPECT_THAT(wrong({"--nnodes=2:8", "--elastic-policy", file_with("minReplicas: 1\nmaxReplicas: 1\nfoo: 1\n")}),
              ElementsAre(HasSubstr(":3: there is no 'foo'")));
}

TEST_F(ElasticRunOptions, nodes_that_wait_are_no_spare_nodes) {
  EXPECT_THAT(wrong({"--nnodes=2:8", "--spare-nodes=1"}),
              ElementsAre(AllOf(HasSubstr("--spare-nodes is '1'"), HasSubstr("wait anyway"))));
}

TEST_F(ElasticRunOptions, ranks_and_nodes_are_judged_by_the_largest_world) {
  EXPECT_EQ(elastic({"--nnodes=2:8", "--node-rank=7"}).node_rank, 7u);
  EXPECT_THAT(wrong({"--nnodes=2:8", "--node-rank=8"}), ElementsAre(HasSubstr("a number from 0 to 7")));
  EXPECT_EQ(elastic({"--nnodes=2:8", "--inject=kill:rank=31,step=1,phase=backward"}).inject.size(), 1u);
  EXPECT_THAT(wrong({"--nnodes=2:8", "--inject=kill:rank=32,step=1,phase=backward"}),
              ElementsAre(HasSubstr("ranks are 0 to 31")));
  EXPECT_THAT(wrong({"--nnodes=0:8"}), testing::Contains(HasSubstr("--nnodes is '0:8'")));
}

TEST_F(ElasticRunOptions, a_program_that_attaches_may_be_elastic) {
  std::vector<std::string> args = job({"--nnodes=1:2", "--no-python", "sh"});
  const auto request = parse(args);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->spec.elastic.has_value());
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
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
  EXPECT_EQ(spec({}).token, std::string(33, 't'));
  EXPECT_EQ(spec({}).token_file, "");
}

TEST_F(RunOptionsUnderSrun, the_nodes_of_the_step_may_be_an_elastic_job_and_a_range_that_is_given_counts) {
  const auto node = spec({"--min-replicas=1"});
  EXPECT_EQ(node.nnodes, 3u);
  EXPECT_EQ(node.elastic->min_replicas, 1u);
  EXPECT_EQ(node.elastic->max_replicas, 3u);
  EXPECT_EQ(node.endpoint_host, "n1");
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
  EXPECT_EQ(spec({"--nnodes=1:5", "--rdzv-endpoint=m"}).node_limit(), 5u);
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
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
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
  environment_["KEEPSTEP_TOKEN"] = std::string(33, 't');
  EXPECT_EQ(spec({}).token, std::string(33, 't'));
  const std::string file = dir_ / "token";
  std::ofstream(file) << "  " << std::string(40, 'a') << "\n";
  for (const mode_t others : {0640, 0604}) {
    chmod(file.c_str(), others);
    EXPECT_THAT(mistakes({"--token-file", file}), ElementsAre(AllOf(HasSubstr(file), HasSubstr("chmod 600"))));
  }
  chmod(file.c_str(), 0600);
  EXPECT_EQ(spec({"--token-file", file}).token, std::string(40, 'a'));
  std::ofstream(file) << "short";
  EXPECT_THAT(mistakes({"--token-file", file}), ElementsAre(AllOf(HasSubstr(file), HasSubstr("32 to 4096"))));
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

TEST_F(RunOptions, the_data_plane_is_encrypted_unless_asked_otherwise) {
  EXPECT_EQ(spec({}).data_plane, "tls");
  EXPECT_EQ(spec({"--data-plane", "plain"}).data_plane, "plain");
  EXPECT_THAT(mistakes({"--data-plane", "none"}), UnorderedElementsAre(HasSubstr("give tls or plain")));
}

TEST_F(RunOptions, flags_and_numbers_reach_the_job) {
  const auto spec =
      this->spec({"--check", "--digests=on", "--digest-every=7", "--no-preload", "--seed=18446744073709551615",
                  "--start-method=exec", "--max-restarts=0", "--interrupt-timeout=2.5", "--journal", dir_ / "j",
                  "--rdzv-id=x", "--node-faults=7", "--fault-window=90.5", "--node-timeout=45"});
  EXPECT_TRUE(spec.check_all_steps);
  EXPECT_EQ(spec.digests, "on");
  EXPECT_EQ(spec.digest_every, 7u);
  EXPECT_FALSE(spec.preload);
  EXPECT_EQ(spec.seed, 18446744073709551615u);
  EXPECT_TRUE(spec.start_by_exec);
  EXPECT_EQ(spec.max_restarts, 0);
  EXPECT_EQ(spec.interrupt_timeout_s, 2.5);
  EXPECT_EQ(spec.node_timeout_s, 45);
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
