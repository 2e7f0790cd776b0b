// include/keepstep/trainer.h: the loop.

#include "rank/trainer/public_trainer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/digest.h"
#include "comm/numbers/reduce.h"
#include "data/order/sample_order.h"

namespace keepstep {
namespace {

constexpr size_t kMaxLogBytes = 100'000;

// The program's own errors must not be taken for an interruption, or for the end of the job.
Status own_failure(const Status& status) {
  return absl::IsAborted(status) || absl::IsCancelled(status) ? absl::UnknownError(status.message()) : status;
}

Status log_json(rank::Engine& engine, uint64_t step, const std::string& name, nlohmann::json value) {
  nlohmann::json values = nlohmann::json::object();
  values[name] = std::move(value);
  const std::string text = values.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxLogBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("log: '%s' takes %d bytes of text, %d is the most", name, text.size(), kMaxLogBytes));
  }
  return engine.steps().log(step, text);
}

}  // namespace

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Trainer::~Trainer() {
  impl_->binding->comm.reset();
  impl_->engine->close();
}

absl::Status Trainer::protect(const std::string& name, void* data, const std::vector<size_t>& shape, DataType type) {
  if (impl_->has_rank()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("protect: '%s' comes too late: this process trains already. Protect it before join and "
                        "next_step",
                        name));
  }
  return impl_->state.add(name, data, shape, comm::name(type), comm::size_of(type));
}

absl::Status Trainer::compare(const std::string& name, void* data, size_t bytes) {
  if (impl_->has_rank()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "compare: '%s' comes too late: this process trains already. Name it before join and next_step", name));
  }
  if (data == nullptr || bytes == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("compare: '%s' has no memory", name));
  }
  impl_->compared.push_back({name, data, bytes});
  return absl::OkStatus();
}

absl::Status Trainer::join() {
  Impl& impl = *impl_;
  while (impl.status.ok() && !impl.brain().formed()) {
    if (const Status joined = impl.join(); !joined.ok()) {
      impl.status = impl.leave_after(joined);
    }
  }
  return impl.status;
}

uint32_t Trainer::rank() const { return impl_->has_rank() ? impl_->engine->assignment().rank : kNoRank; }

uint32_t Trainer::world() const {
  return impl_->has_rank() ? impl_->engine->assignment().world : impl_->engine->agent().welcome().world;
}

uint32_t Trainer::generation() const { return impl_->has_rank() ? impl_->engine->assignment().identity.generation : 0; }

const std::string& Trainer::because() const {
  static const std::string none;
  return impl_->has_rank() ? impl_->engine->assignment().because : none;
}

bool Trainer::newcomer() const { return impl_->has_rank() && impl_->engine->assignment().newcomer; }
bool Trainer::interrupted() const { return impl_->engine->interrupted(); }
uint64_t Trainer::seed() const { return impl_->engine->agent().welcome().seed; }
Communicator& Trainer::communicator() { return *impl_->communicator; }

bool Trainer::next_step(uint64_t until) {
  if (impl_->status.ok() && !impl_->finished()) {
    impl_->status = impl_->advance(until);
  }
  return impl_->status.ok() && !impl_->finished();
}

const absl::Status& Trainer::status() const { return impl_->status; }
uint64_t Trainer::step() const { return impl_->brain().step(); }
uint64_t Trainer::version() const { return impl_->brain().version(); }

std::vector<uint64_t> Trainer::samples(uint64_t global_batch, uint64_t dataset_size, bool shuffle) const {
  if (step() == 0 || dataset_size == 0) {
    return {};
  }
  const uint64_t each = global_batch / world();
  const uint64_t more = global_batch % world();
  const uint64_t first = each * rank() + std::min<uint64_t>(rank(), more);
  std::vector<uint64_t> ids(each + (rank() < more ? 1 : 0));
  const uint64_t position = (step() - 1) * global_batch + first;
  if (shuffle) {
    data::samples_at(seed(), position, ids.size(), dataset_size, ids.data());
  } else {
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = (position + i) % dataset_size;
    }
  }
  return ids;
}

void Trainer::record_loss(double sum, uint64_t count) {
  impl_->loss_sum = sum;
  impl_->loss_count = count;
}

absl::Status Trainer::commit(const std::function<absl::Status()>& update) { return impl_->commit(update); }
double Trainer::loss() const { return impl_->loss; }
void Trainer::fail(const absl::Status& why) {
  impl_->fail(why.ok() ? absl::UnknownError("the program gave no reason") : own_failure(why));
}

absl::Status Trainer::log(const std::string& name, double value) {
  // JSON has no notation for non-finite numbers.
  return log_json(*impl_->engine, impl_->logged_step(), name,
                  std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(absl::StrFormat("%g", value)));
}

absl::Status Trainer::log(const std::string& name, const std::string& value) {
  return log_json(*impl_->engine, impl_->logged_step(), name, value);
}

absl::Status Trainer::log(const std::string& name, const std::vector<uint64_t>& values) {
  return log_json(*impl_->engine, impl_->logged_step(), name, values);
}

void Trainer::on_notice(std::function<void()> function) { impl_->on_notice = std::move(function); }

// ---- the loop -----------------------------------------------------------------------------------------------------

Status Trainer::Impl::advance(uint64_t until) {
  const bool waited = check_outstanding("next_step").ok();
  if (waited && failure().ok() && brain().step() != 0 && !engine->interrupted()) {
    (void)mistake(absl::StrFormat("step %d ended without commit; every step must be committed", brain().step()));
  }
  while (true) {
    Status attempted = attempt(until);
    if (attempted.ok()) {
      return attempted;
    }
    KEEPSTEP_RETURN_IF_ERROR(leave_after(attempted));
  }
}

// OK: a step has begun, or all ranks have finished.
Status Trainer::Impl::attempt(uint64_t until) {
  KEEPSTEP_RETURN_IF_ERROR(failure());
  if (!brain().formed()) {
    KEEPSTEP_RETURN_IF_ERROR(join());
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const brain::NextStep next, engine->next(until));
  switch (next) {
    case brain::NextStep::kEnd:
      return engine->finish();
    case brain::NextStep::kPause:
      return engine->pause();
    case brain::NextStep::kStop:
      if (on_notice) {
        engine->steps().slow(1);
        on_notice();
        engine->steps().slow(-1);
      }
      return engine->stop();
    case brain::NextStep::kLeave:
    case brain::NextStep::kStep:
      break;
  }
  loss_sum = 0;
  loss_count = 0;
  KEEPSTEP_RETURN_IF_ERROR(inject("between"));
  return inject("forward");
}

Status Trainer::Impl::commit(const std::function<Status()>& update) {
  const uint64_t step = brain().step();
  if (step == 0) {
    return mistake("call commit inside the loop over next_step, once per step");
  }
  if (brain().phase() == brain::RankPhase::kVoted) {
    return mistake(absl::StrFormat("step %d was voted on and its update failed; go on to next_step", step));
  }
  KEEPSTEP_RETURN_IF_ERROR(failure());
  KEEPSTEP_RETURN_IF_ERROR(check_outstanding("commit"));
  if (const Status same = state.unchanged(step); !same.ok()) {
    return mistake(std::string(same.message()));
  }
  engine->steps().record_loss(step, loss_sum, loss_count);
  Status status = inject("before_vote");
  if (status.ok()) {
    record_digests();
    status = vote_and_update(update);
  }
  if (!status.ok() && !absl::IsAborted(status) && !absl::IsCancelled(status)) {
    fail(status);
  }
  return status;
}

void Trainer::Impl::record_digests() {
  if (!digests || engine->assignment().world == 1) {
    return;
  }
  const auto of = [](const std::vector<rank::NamedMemory>& memory) {
    std::vector<Piece> pieces;
    pieces.reserve(memory.size());
    for (const rank::NamedMemory& each : memory) {
      pieces.push_back({each.data, each.bytes});
    }
    return pieces.empty() ? 0 : digest_of(pieces);
  };
  const uint64_t step = brain().step();
  const bool whole = digest_every != 0 && step % digest_every == 0;
  const brain::StepDigest digest{.gradients = of(compared), .state = whole ? of(state.memory()) : 0};
  if (digest != brain::StepDigest{}) {
    engine->steps().record_digest(step, digest);
  }
}

Status Trainer::Impl::vote_and_update(const std::function<Status()>& update) {
  const uint64_t step = brain().step();
  KEEPSTEP_RETURN_IF_ERROR(engine->vote(0).status());
  KEEPSTEP_RETURN_IF_ERROR(inject("after_vote"));
  engine->begin_update();
  Status updated;
  try {
    updated = own_failure(update());
  } catch (...) {
    engine->drop_state();
    throw;
  }
  if (updated.ok()) {
    updated = inject("update");
  }
  if (updated.ok()) {
    updated = failure();  // an operation that the update should not have started
  }
  if (!updated.ok()) {
    engine->drop_state();
    return updated;
  }
  engine->end_update();
  loss = engine->steps().mean_loss(step);
  checks_left = std::max(0, checks_left - 1);
  if (checking()) {
    state.remember();
  } else {
    state.forget();
  }
  return absl::OkStatus();
}

// The communicator belongs to the generation: operations still running would keep it alive longer.
Status Trainer::Impl::check_outstanding(const char* where) {
  const int count = binding->outstanding->load();
  if (count == 0) {
    return absl::OkStatus();
  }
  return mistake(
      absl::StrFormat("%s: %d operation%s among ranks of step %d %s not waited for; call wait() on each Work", where,
                      count, count == 1 ? "" : "s", brain().step(), count == 1 ? "was" : "were"));
}

void Trainer::Impl::fail(const Status& why, bool mistake) {
  const std::lock_guard lock(mutex);
  if (!failed.has_value() || mistake) {
    failed = why;
  }
  mistaken = mistaken || mistake;
}

Status Trainer::Impl::mistake(const std::string& what) {
  Status status = absl::FailedPreconditionError(what);
  fail(status, true);
  return status;
}

Status Trainer::Impl::failure() {
  const std::lock_guard lock(mutex);
  return failed.value_or(absl::OkStatus());
}

bool Trainer::Impl::made_mistake() {
  const std::lock_guard lock(mutex);
  return mistaken;
}

Status Trainer::Impl::inject(std::string_view phase) {
  const std::lock_guard lock(injecting);
  return injector.at(phase, brain().version() + 1,
                     has_rank() ? std::optional<uint32_t>(engine->assignment().rank) : std::nullopt);
}

}  // namespace keepstep
