#include "cli/commands/jobs_command.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/job_doors.h"
#include "cli/commands/print.h"

namespace keepstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: keepstep jobs [--json]

Lists your jobs on this machine: each launcher's name, pid, node, last committed step, ranks on this node, and what the
job is doing; for an elastic job also its current replicas and their limits, MIN..MAX. `keepstep stacks`, `inject` and
`scale` accept the name, the pid, or the journal's folder.

  --json   print one JSON object per launcher and line

exit codes: 0 success; 2 wrong options.
)";

std::string ranks_of(const nlohmann::json& description) {
  std::vector<int64_t> ranks;
  for (const auto& each : description.at("ranks")) {
    ranks.push_back(each.at("rank"));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks.empty() ? "-" : absl::StrJoin(ranks, ",");
}

// For an elastic job: "4/2..8 replicas"; only node 0 knows the current bounds.
std::string size_of(const nlohmann::json& description) {
  const auto size = description.find("size");
  if (size == description.end() || !size->is_object()) {
    return "";
  }
  return absl::StrFormat("%d/%d..%d replicas", size->value("replicas", 0), size->value("min", 0),
                         size->value("max", 0));
}

}  // namespace

int jobs_main(const std::vector<std::string>& args) {
  const bool as_json = args.size() == 1 && args[0] == "--json";
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!args.empty() && !as_json) {
    std::fprintf(stderr, "keepstep jobs: '%s' is no option\n%s", args[0].c_str(), kHelp);
    return 2;
  }
  const Jobs jobs = find_jobs();
  if (jobs.empty() && !as_json) {
    std::puts("No job of yours runs on this machine.");
    return 0;
  }
  if (!as_json) {
    std::printf("%-28s %8s %6s %8s %-12s %s\n", "JOB", "PID", "NODE", "STEP", "RANKS HERE", "");
  }
  for (const RunningJob& job : jobs) {
    if (as_json) {
      const nlohmann::json line =
          job.problem.empty()
              ? job.description
              : nlohmann::json{{"ok", false}, {"job", job.door.job}, {"pid", job.pid}, {"error", job.problem}};
      print_json(line);
    } else if (!job.problem.empty()) {
      print_line(stdout, absl::StrFormat("%-28s %8d %s", job.door.job, job.pid, job.problem));
    } else {
      const nlohmann::json& it = job.description;
      std::vector<std::string> words = {size_of(it), it.value("note", "")};
      std::erase(words, "");
      print_line(stdout, absl::StrFormat("%-28s %8d %6s %8d %-12s %s", job.door.job, job.pid,
                                         absl::StrFormat("%d/%d", it.value("node", 0), it.value("nodes", 1)),
                                         it.value("step", int64_t{0}), ranks_of(it), absl::StrJoin(words, "; ")));
    }
  }
  return 0;
}

}  // namespace keepstep::cli
