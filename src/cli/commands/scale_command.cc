#include "cli/commands/scale_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "brain/elastic/elastic_policy.h"
#include "cli/commands/asked_job.h"
#include "cli/commands/print.h"
#include "cli/options/elastic_options.h"
#include "cli/options/run_values.h"
#include "cli/options/suggest.h"

namespace keepstep::cli {
namespace {

constexpr std::chrono::seconds kLimit{10};
constexpr size_t kSizesShown = 12;

std::string policy_lines() {
  std::string text;
  for (const agent::PolicyName& known : agent::policy_names()) {
    text += absl::StrFormat("  %-34s --%s\n", known.name, known.option);
  }
  return text;
}

std::string help() {
  return R"(usage: keepstep scale [JOB] [--to N|auto] [--set NAME=VALUE ...] [--policy FILE] [--token-file FILE]
                      [--rdzv-id ID] [--json]

Shows or changes the size of a running elastic job (`keepstep run --nnodes MIN:MAX`). Without options it shows the size,
its limits, the nodes, and the policy's last decision: why the job has this size, and what it waits for.

  JOB               on the machine of node 0, which decides: the job's name (`keepstep jobs`), its journal's folder, or
                    the pid of node 0's launcher; optional if only one job runs. Or, from any machine, HOST:PORT, the
                    job's --rdzv-endpoint
  --to N            change to N replicas now, or to as many as the nodes hold, and keep that size. The job still
                    shrinks when nodes are lost or leave, and then grows back to N
  --to auto         let the policy decide again
  --set NAME=VALUE  change the policy; may be given several times
  --policy FILE     change the policy to the values in this YAML file; --set overrides them
  --token-file FILE the job token, for HOST:PORT; default: KEEPSTEP_TOKEN
  --rdzv-id ID      the job's --rdzv-id, for HOST:PORT, if it has one
  --json            print the launcher's answer as JSON

the policy's names, and the matching options of `keepstep run`:
)" + policy_lines() +
         R"(
examples:
  keepstep scale train-4f2a
  keepstep scale train-4f2a --to 6
  keepstep scale node-a:29400 --token-file job.token --to 6
  keepstep scale --set minReplicas=2 --set scalingTimeoutInSeconds=10

exit codes: 0 the job accepted it and changes its size between two steps; 1 no such job, or it refused; 2 wrong options.
)";
}

// Parses "NAME=VALUE" into the request.
void take_setting(const std::string& word, agent::PolicyValues& set, std::vector<std::string>& mistakes) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  std::vector<std::string> names;
  for (const agent::PolicyName& known : agent::policy_names()) {
    names.emplace_back(known.name);
  }
  if (equals == std::string::npos) {
    mistakes.push_back(absl::StrFormat("--set is '%s'; give NAME=VALUE, as in minReplicas=2", word));
  } else if (std::find(names.begin(), names.end(), name) == names.end()) {
    const std::string meant = nearest(name, names);
    mistakes.push_back(absl::StrFormat(
        "--set is '%s'; there is no '%s'%s", word, name,
        meant.empty() ? ": the names are " + absl::StrJoin(names, ", ") : ", did you mean " + meant + "?"));
  } else if (!set.emplace(name, word.substr(equals + 1)).second) {
    mistakes.push_back(absl::StrFormat("--set %s is given twice", name));
  }
}

void take_size(const std::string& word, ScaleRequest& request) {
  const auto number = integer_in<uint32_t>(word, 1, brain::ElasticConfig::kMaxReplicas);
  request.to = true;
  request.replicas = number;
  if (!number && word != "auto") {
    request.mistakes.push_back(absl::StrFormat("--to is '%s'; give a number of replicas from 1 to %d, or auto", word,
                                               brain::ElasticConfig::kMaxReplicas));
  }
}

std::string counted(int64_t count, const char* what) {
  return absl::StrFormat("%d %s%s", count, what, count == 1 ? "" : "s");
}

std::string sizes_text(const nlohmann::json& sizes) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes.size() > kSizesShown && i == kSizesShown - 2) {
      shown.emplace_back("...");
      i = sizes.size() - 1;
    }
    shown.push_back(std::to_string(sizes[i].get<uint32_t>()));
  }
  return absl::StrJoin(shown, ", ");
}

}  // namespace

ScaleRequest parse_scale(const std::vector<std::string>& args) {
  ScaleRequest request;
  agent::PolicyValues set;
  std::vector<std::string>& mistakes = request.mistakes;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    const size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string option = word.substr(0, equals);
    if (option == "--help" || option == "-h") {
      request.help = true;
    } else if (word == "--json") {
      request.as_json = true;
    } else if (option == "--to" || option == "--set" || option == "--policy" || KeyOptions::is_one(option)) {
      if (equals == std::string::npos && (i + 1 == args.size() || args[i + 1].starts_with("--"))) {
        mistakes.push_back(option + " needs a value");
        continue;
      }
      if (request.key.take(args, i)) {
        continue;
      }
      const std::string value = equals == std::string::npos ? args[++i] : word.substr(equals + 1);
      if (option == "--to") {
        take_size(value, request);
      } else if (option == "--set") {
        take_setting(value, set, mistakes);
      } else {
        request.policy = read_policy_file(value, "--policy", mistakes);
      }
    } else if (word.starts_with("-")) {
      mistakes.push_back(absl::StrFormat("'%s' is no option", word));
    } else if (!request.job.empty()) {
      mistakes.push_back(absl::StrFormat("'%s' is one job too many", word));
    } else {
      request.job = word;
    }
  }
  for (const std::string& mistake : agent::policy_value_mistakes(set)) {
    mistakes.push_back("--set " + mistake);
  }
  // Steps and discrete values set the same limit: the kind given with --set replaces the file's.
  const bool steps = set.contains("replicaIncrementStep");
  const bool discrete = set.contains("replicaDiscreteValues");
  if (steps != discrete) {
    request.policy.erase(steps ? "replicaDiscreteValues" : "replicaIncrementStep");
  }
  set.merge(request.policy);
  request.policy = std::move(set);
  if (request.to && !request.policy.empty()) {
    mistakes.emplace_back(
        "--to with --set or --policy: one after the other, so that each is done or refused by itself");
  }
  return request;
}

std::string size_as_text(const nlohmann::json& answer) {
  const int64_t per_replica = answer.at("ranks_per_replica");
  const nlohmann::json& asked = answer.at("asked_for");
  std::string text = absl::StrFormat(
      "%s: %s of %s, %s; %s\n", answer.at("job").get<std::string>(), counted(answer.at("replicas"), "replica"),
      counted(per_replica, "rank"),
      asked.is_null() ? "as many as the policy finds"
                      : absl::StrFormat("%d asked for (--to auto ends that)", asked.get<int64_t>()),
      answer.at("step").get<int64_t>() == 0 ? "no step yet"
                                            : absl::StrFormat("step %d", answer.at("step").get<int64_t>()));
  text += absl::StrFormat("  %-9s%d to %d: %s\n", "sizes", answer.at("min").get<int64_t>(),
                          answer.at("max").get<int64_t>(), sizes_text(answer.at("sizes")));
  text += absl::StrFormat("  %-9s%d of at most %d\n", "nodes", answer.at("nodes").size(),
                          answer.at("max_nodes").get<int64_t>());
  for (const nlohmann::json& node : answer.at("nodes")) {
    const int64_t ranks = node.at("ranks");
    text += absl::StrFormat("    %d (%s): %s\n", node.at("node").get<int64_t>(), node.at("name").get<std::string>(),
                            ranks == 0 ? "waits, without ranks" : counted(ranks, "rank"));
  }
  text += "  policy\n";
  for (const agent::PolicyName& known : agent::policy_names()) {
    if (const auto value = answer.at("policy").find(known.name); value != answer.at("policy").end()) {
      text += absl::StrFormat("    %-34s %s\n", known.name, value->get<std::string>());
    }
  }
  const nlohmann::json& last = answer.at("last");
  if (const std::string event = last.at("event"); !event.empty()) {
    text += absl::StrFormat("  last, %.0f s ago: %s: %s\n", last.at("seconds_ago").get<double>(), event,
                            last.at("because").get<std::string>());
  }
  return text;
}

int scale_main(const std::vector<std::string>& args) {
  const ScaleRequest request = parse_scale(args);
  if (request.help) {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  const AskedJob job = asked_job(request.job, request.key, environment());
  std::vector<std::string> mistakes = request.mistakes;
  mistakes.insert(mistakes.end(), job.mistakes.begin(), job.mistakes.end());
  if (say_lines("scale", mistakes)) {
    return 2;
  }
  const auto fail = [](const std::string& message) {
    print_line(stderr, "keepstep scale: " + message);
    return 1;
  };
  nlohmann::json question = {{"op", "scale"}};
  if (request.to) {
    question["replicas"] = request.replicas ? nlohmann::json(*request.replicas) : nlohmann::json();
  } else if (!request.policy.empty()) {
    question["policy"] = request.policy;
  }
  const StatusOr<nlohmann::json> answer = ask_job(job, question, kLimit, Launcher::kDeciding);
  if (!answer.ok()) {
    return fail(std::string(answer.status().message()));
  }
  try {
    if (request.as_json) {
      print_json(*answer);
    } else if (question.size() > 1) {
      print_line(stdout, answer->at("done").get<std::string>());
    } else {
      print_text(stdout, size_as_text(*answer));
    }
  } catch (const nlohmann::json::exception& error) {
    return fail(
        absl::StrFormat("the launcher gives an answer that this version does not understand: %s", error.what()));
  }
  return 0;
}

}  // namespace keepstep::cli
