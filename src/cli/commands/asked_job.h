// The job that a command is about, as its JOB argument names it: a launcher on this machine (job_doors.h), or, as
// HOST:PORT, the launcher of node 0 at the job's endpoint (agent/control/job_endpoint.h). Requests and answers are the
// same for both.
#pragma once

#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/control/job_endpoint.h"
#include "base/status.h"
#include "base/token.h"
#include "cli/options/run_tokens.h"

namespace keepstep::cli {

// The options with which a command proves to HOST:PORT that it belongs to the job.
struct KeyOptions {
  std::optional<std::string> token_file;  // --token-file
  std::string rdzv_id = "none";           // --rdzv-id

  // Consumes `args[i]`, and advances `i` if its value is the next word. False: it is neither option, or has no value.
  bool take(const std::vector<std::string>& args, size_t& i);
  static bool is_one(const std::string& word) { return word == "--token-file" || word == "--rdzv-id"; }
};

struct AskedJob {
  std::string word;                            // empty: the only job on this machine
  std::optional<agent::JobEndpoint> endpoint;  // JOB is HOST:PORT
  std::optional<JobToken> token;               // if one was given
  std::string rdzv_id;
  std::vector<std::string> mistakes;  // all of them; if there are any, nothing may be asked
};
// `word` is an endpoint if it contains a colon and is not a folder. Only an endpoint needs a token: --token-file, or
// KEEPSTEP_TOKEN.
AskedJob asked_job(const std::string& word, const KeyOptions& key, const Environ& environ);

// Which launcher is meant if several on this machine belong to the job.
enum class Launcher { kNamed, kDeciding };  // kDeciding: node 0's, unless a pid names another one

// The answer's object; errors as for choose_job(), DoorClient::ask() and agent::ask_endpoint().
StatusOr<nlohmann::json> ask_job(const AskedJob& job, const nlohmann::json& request, std::chrono::milliseconds limit,
                                 Launcher launcher = Launcher::kNamed);

// Prints each as "keepstep WHAT: LINE" to standard error; false if there are none.
bool say_lines(const std::string& what, const std::vector<std::string>& lines);

}  // namespace keepstep::cli
