#include "cli/commands/ask_command.h"

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "agent/control/control_door.h"
#include "cli/commands/asked_job.h"
#include "cli/commands/print.h"

namespace keepstep::cli {
namespace {

constexpr const char* kHelp = R"(usage: keepstep ask JOB [--token-file FILE] [--rdzv-id ID]

For programs: requests to a running job, as docs/design/control_door.md has them. Each line of standard input is a JSON
object {"limit_s": SECONDS, "request": {...}}; each is answered by one line, the answer's object, with "absent": true if
there is no such job or it does not answer. Where a job has several launchers on this machine node 0's is asked. JOB as
for `keepstep stacks`; empty: the only one of this machine.

exit codes: 0 at the end of input, whatever the answers are; 2 wrong options.
)";

constexpr double kMaxSeconds = 3600;

nlohmann::json answer_to(const AskedJob& job, const std::string& line) {
  const nlohmann::json said = nlohmann::json::parse(line, nullptr, false);
  if (!said.is_object() || !said.contains("request") || !said.contains("limit_s") || !said["limit_s"].is_number() ||
      !(said["limit_s"] > 0 && said["limit_s"] <= kMaxSeconds)) {
    return agent::error_answer("a line that is no object of 'limit_s', up to 3600, and 'request'");
  }
  const std::chrono::milliseconds limit(static_cast<int64_t>(said["limit_s"].get<double>() * 1000));
  StatusOr<nlohmann::json> answer = ask_job(job, said["request"], limit, Launcher::kDeciding);
  if (answer.ok()) {
    return *std::move(answer);
  }
  nlohmann::json error = agent::error_answer(std::string(answer.status().message()));
  error["absent"] = absl::IsNotFound(answer.status()) || absl::IsUnavailable(answer.status()) ||
                    absl::IsDeadlineExceeded(answer.status());
  return error;
}

}  // namespace

int ask_main(const std::vector<std::string>& args) {
  std::optional<std::string> word;
  KeyOptions key;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (key.take(args, i)) {
      continue;
    }
    if (!word.has_value() && !arg.starts_with("-")) {
      word = arg;
    } else {
      std::fprintf(stderr, "keepstep ask: '%s' is not understood\n%s", arg.c_str(), kHelp);
      return 2;
    }
  }
  const AskedJob job = asked_job(word.value_or(""), key, environment());
  if (say_lines("ask", job.mistakes)) {
    return 2;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const nlohmann::json answer = answer_to(job, line);
    print_json(answer);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace keepstep::cli
