// The trainer's second half: attaching, joining a generation, leaving it. In the order of
// python/keepstep/torch/recovery/membership.py and runtime/loop.py.

#include <fcntl.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "rank/checks/program_fingerprint.h"
#include "rank/trainer/public_trainer.h"

namespace keepstep {

using messages::Fault;

namespace {

constexpr char kDescriptors[] = "KEEPSTEP_WORKER_FDS";  // src/agent/workers/starter.cc: "SOCKET,MEMORY"

StatusOr<Fd> inherited(std::string_view text) {
  int fd = -1;
  if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &fd) || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "Trainer::attach: descriptor %s, which `keepstep run` opened for this process, is closed; does a script in "
        "between close what it inherits?",
        std::string(text)));
  }
  return Fd(fd);
}

// Slurm signals every process of a job; the agent decides what that means. A handler set by the program stays.
void leave_notices_to_the_agent(const messages::Welcome& welcome) {
  struct sigaction now{};
  if (welcome.term_is_notice && sigaction(SIGTERM, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    signal(SIGTERM, SIG_IGN);
  }
}

using Flip = std::function<StatusOr<std::string>(const Fault& fault, brain::Step step)>;

rank::FaultInjector::Hooks hooks_of(rank::Engine& engine, Flip flip) {
  return {.claim =
              [&engine](const std::string& key) {
                const StatusOr<rank::StoreReply> reply = engine.store("add", "job/" + key, "1", -1, false);
                return reply.ok() && reply->answered && reply->ok && reply->value == "1";
              },
          .announce =
              [&engine](const Fault& fault, const std::string& detail) {
                (void)engine.agent().send(messages::Injected{fault.key, detail, true, monotonic_ns()});
              },
          .carry_out = rank::end_this_process,
          .flip = std::move(flip)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::attach() {
  const char* given = std::getenv(kDescriptors);
  if (given == nullptr) {
    return absl::FailedPreconditionError(
        "Trainer::attach works once, in a process that keepstep started; run: keepstep run --no-python "
        "--nproc-per-node 4 PROGRAM");
  }
  const std::vector<std::string> fds = absl::StrSplit(given, ',');
  unsetenv(kDescriptors);  // they belong to this process, not to its children
  KEEPSTEP_ASSIGN_OR_RETURN(Fd socket, inherited(fds.front()));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd memory, inherited(fds.back()));
  if (char byte = 0; recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
    return absl::FailedPreconditionError(
        "Trainer::attach: an earlier program of this worker attached to the job and left it; a script may run "
        "only one program that trains");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<rank::Engine> engine,
                            rank::Engine::attach(std::move(socket), std::move(memory), rank::program_fingerprint()));
  KEEPSTEP_RETURN_IF_ERROR(engine->agent().send(messages::Recoverable{}));
  leave_notices_to_the_agent(engine->agent().welcome());
  auto binding = std::make_unique<Communicator::Impl>();
  Communicator::Impl* raw = binding.get();
  std::unique_ptr<Communicator> communicator(new Communicator(std::move(binding)));
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(std::move(engine), raw, std::move(communicator))));
}

Trainer::Impl::Impl(std::unique_ptr<rank::Engine> engine_, Communicator::Impl* binding_,
                    std::unique_ptr<Communicator> communicator_)
    : engine(std::move(engine_)),
      binding(binding_),
      communicator(std::move(communicator_)),
      digests(engine->agent().welcome().digests != "off"),
      digest_every(engine->agent().welcome().digest_every),
      check_all(engine->agent().welcome().check_all),
      injector(engine->agent().welcome().inject, engine->agent().welcome().spare,
               hooks_of(*engine, [this](const Fault& fault, brain::Step at) {
                 const uint64_t seed = fault.seed.value_or(this->engine->agent().welcome().seed);
                 return rank::flip_bit(fault.what == "gradient" ? compared : state.memory(), fault.what, seed, at);
               })) {
  using Moment = Communicator::Impl::Moment;
  binding->owner = std::make_shared<Communicator::Impl::Owner>(Communicator::Impl::Owner{
      .why_interrupted = [] { return "the generation ended, because a rank died or failed, or has not begun"; },
      .abort = [this](const std::string& because) { fail(absl::UnknownError(because)); },
      .on_failure = [this](const Status& why) { fail(why); },
      .gate =
          [this](Moment moment) {
            if (engine->steps().updating()) {
              return mistake(
                  "an operation among ranks inside an update: a death in it could leave ranks with different states; "
                  "do it before commit");
            }
            Status status = inject(moment == Moment::kStart ? "backward" : "allreduce");
            if (!status.ok()) {
              fail(status);
            }
            return status;
          }});
}

// Waits for a rank and takes part in forming its generation. ABORTED: interrupted, CANCELLED: the job ended.
Status Trainer::Impl::join() {
  if (!has_rank()) {
    KEEPSTEP_RETURN_IF_ERROR(inject("build"));
    (void)engine->agent().send(messages::Parked{});
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const rank::Assignment assignment, engine->wait_assignment());
  binding->comm = engine->communicator();
  binding->rank = assignment.rank;
  binding->world = assignment.world;
  return form();
}

Status Trainer::Impl::form() {
  KEEPSTEP_ASSIGN_OR_RETURN(const rank::Readiness readiness, engine->ready());
  if (readiness.fill != brain::Fill::kNothing) {
    KEEPSTEP_RETURN_IF_ERROR(hydrate());
  } else if (readiness.gives) {
    KEEPSTEP_RETURN_IF_ERROR(engine->transfer().publish(state.manifest(), state.regions()));
  }
  engine->filled();
  const Status formed = engine->form();
  engine->transfer().stop_publishing();
  KEEPSTEP_RETURN_IF_ERROR(formed);
  if (engine->assignment().identity.generation > 1) {
    checks_left = 0;  // digests of the whole state would lengthen the recovery
  }
  if (checking()) {
    state.remember();
  }
  return absl::OkStatus();
}

Status Trainer::Impl::hydrate() {
  const rank::Activation& activation = engine->activation();
  if (activation.sources.empty()) {
    return mistake("the job goes on from a checkpoint, and Trainer reads none");
  }
  engine->filling();
  KEEPSTEP_ASSIGN_OR_RETURN(const std::string manifest, engine->transfer().pull_manifest(activation));
  const Status same = state.same_as(manifest, absl::StrFormat("rank %d", engine->assignment().rank),
                                    absl::StrFormat("rank %d", activation.sources.front()));
  if (!same.ok()) {
    return mistake(std::string(same.message()));
  }
  KEEPSTEP_RETURN_IF_ERROR(inject("hydrate"));
  return engine->transfer().pull(activation, state.regions()).status();
}

// Reports to the job that this rank failed, and waits for the generation to end. An error: the job ends instead.
Status Trainer::Impl::report(const Status& why) {
  const bool fatal = made_mistake();
  const Status waited = engine->fail({.step = brain().step(), .what = why.ToString(), .traceback = "", .fatal = fatal});
  return waited.ok() && !fatal ? absl::OkStatus() : why;
}

// Called after something in a generation ended with `why`. An error: the loop ends too.
Status Trainer::Impl::leave_after(const Status& why) {
  if (absl::IsCancelled(why)) {
    return why;
  }
  if (!absl::IsAborted(why)) {
    KEEPSTEP_RETURN_IF_ERROR(report(why));
  }
  leave();
  return absl::OkStatus();
}

// Leaves an interrupted generation, and discards what was begun in it.
void Trainer::Impl::leave() {
  binding->comm.reset();
  state.forget();
  if (brain().ever_formed()) {
    (void)inject("recovery");  // an exception here has the same effect as the interruption
  }
  engine->leave();
  const std::lock_guard lock(mutex);
  failed.reset();
}

}  // namespace keepstep
