#include "cli/inject_command.h"

#include <cstdio>

#include "agent/inject_spec.h"
#include "cli/job_doors.h"

namespace keepstep::cli {
namespace {

std::string help() {
  return absl::StrFormat(R"(usage: keepstep inject [JOB] FAULT

A fault into a running job, to see how it answers. The journal has it before it happens.

  JOB     the job's name (`keepstep jobs`), its journal's folder, or its launcher's pid; may be left out if only one runs
  FAULT   KIND[:KEY=VALUE,...] as for `keepstep run --inject` (docs/reference/inject.md), but rank, step and phase may
          be left out: the first rank to get there, now or at its next step

kinds:  %s
phases: %s

examples:
  keepstep inject kill:rank=2                    SIGKILL, now
  keepstep inject train-4f2a stop:seconds=20     some rank stops for 20 s
  keepstep inject out/run exception:step=500     the first rank to get to step 500 raises
  keepstep inject slow:rank=1,factor=3,times=50  rank 1 computes 3 times as long, for 50 steps

exit codes: 0 the job took it; 1 no such job, or it refused; 2 wrong options or no such fault.
)",
                         agent::inject_kinds(), agent::inject_phases());
}

}  // namespace

int inject_main(const std::vector<std::string>& args) {
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") {
      std::fputs(help().c_str(), stdout);
      return 0;
    }
  }
  if (args.empty() || args.size() > 2 || args.back().starts_with("-")) {
    std::fprintf(stderr, "keepstep inject: it takes [JOB] FAULT\n%s", help().c_str());
    return 2;
  }
  const auto fail = [](const Status& status, int code) {
    std::fprintf(stderr, "keepstep inject: %s\n", std::string(status.message()).c_str());
    return code;
  };
  if (const auto spec = agent::parse_inject(args.back(), agent::InjectFor::kNow); !spec.ok()) {
    return fail(spec.status(), 2);
  }
  const StatusOr<RunningJob> job = choose_job(find_jobs(), args.size() == 2 ? args[0] : "");
  if (!job.ok()) {
    return fail(job.status(), 1);
  }
  const StatusOr<DoorClient> client = DoorClient::open(*job);
  if (!client.ok()) {
    return fail(client.status(), 1);
  }
  const StatusOr<nlohmann::json> answer =
      client->ask({{"op", "inject"}, {"fault", args.back()}}, std::chrono::seconds(10));
  if (!answer.ok()) {
    return fail(answer.status(), 1);
  }
  std::puts(answer->value("done", "").c_str());
  return 0;
}

}  // namespace keepstep::cli
