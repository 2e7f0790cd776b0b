#include "cli/commands/asked_job.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/control/control_door.h"
#include "cli/commands/job_doors.h"
#include "cli/commands/print.h"
#include "cli/options/given_token.h"
#include "cli/options/run_values.h"

namespace keepstep::cli {
namespace {

bool is_endpoint(const std::string& word) {
  std::error_code error;
  return word.find(':') != std::string::npos && !std::filesystem::exists(word, error);
}

}  // namespace

bool KeyOptions::take(const std::vector<std::string>& args, size_t& i) {
  const size_t equals = args[i].find('=');
  const std::string option = args[i].substr(0, equals);
  if (!is_one(option) || (equals == std::string::npos && i + 1 == args.size())) {
    return false;
  }
  std::string value = equals == std::string::npos ? args[++i] : args[i].substr(equals + 1);
  if (option == "--token-file") {
    token_file = std::move(value);
  } else {
    rdzv_id = std::move(value);
  }
  return true;
}

AskedJob asked_job(const std::string& word, const KeyOptions& key, const Environ& environ) {
  AskedJob job{.word = word, .rdzv_id = key.rdzv_id};
  if (!is_endpoint(word)) {
    return job;
  }
  const auto address = host_and_port(word);
  if (address && !address->first.empty() && address->second != 0) {
    job.endpoint = agent::JobEndpoint{address->first, address->second};
  } else {
    job.mistakes.push_back(absl::StrFormat(
        "'%s' is no folder and no HOST:PORT with a port from 1 to 65535, as in node-a:29400 or [fd00::7]:29400", word));
  }
  GivenToken given =
      given_token(key.token_file ? std::optional(GivenValue{*key.token_file, "--token-file"}) : std::nullopt, environ);
  job.token = std::move(given.token);
  job.mistakes.insert(job.mistakes.end(), given.mistakes.begin(), given.mistakes.end());
  if (!job.token && given.mistakes.empty()) {
    job.mistakes.emplace_back(
        "no job token: a job at HOST:PORT accepts commands only with its token. Pass the token that its launchers "
        "got, "
        "by --token-file FILE or KEEPSTEP_TOKEN");
  }
  return job;
}

StatusOr<nlohmann::json> ask_job(const AskedJob& job, const nlohmann::json& request, std::chrono::milliseconds limit,
                                 Launcher launcher) {
  if (job.endpoint) {
    KEEPSTEP_ASSIGN_OR_RETURN(
        const std::string text,
        agent::ask_endpoint(*job.endpoint, net::SharedKey::control(*job.token, job.rdzv_id), request.dump(), limit));
    return accepted(nlohmann::json::parse(text, nullptr, false),
                    absl::StrFormat("the job at %s", job.endpoint->text()));
  }
  const Jobs jobs = find_jobs();
  StatusOr<RunningJob> chosen = choose_job(jobs, job.word);
  if (!chosen.ok() && launcher == Launcher::kDeciding) {
    if (auto deciding = choose_job(without_other_nodes(jobs), job.word); deciding.ok()) {
      chosen = std::move(deciding);
    }
  }
  KEEPSTEP_RETURN_IF_ERROR(chosen.status());
  KEEPSTEP_ASSIGN_OR_RETURN(const DoorClient client, DoorClient::open(*chosen));
  return client.ask(request, limit);
}

bool say_lines(const std::string& what, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    print_line(stderr, absl::StrCat("keepstep ", what, ": ", line));
  }
  return !lines.empty();
}

}  // namespace keepstep::cli
