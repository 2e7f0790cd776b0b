// include/keepstep/communicator.h, and its communicators over a link to the node's agent.

#include "rank/trainer/public_communicator.h"

#include "rank/link/node_start.h"

namespace keepstep {
namespace {

using comm::kWorld;

static_assert(Communicator::kAnyRank == comm::kAnySource);

}  // namespace

Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&& other) noexcept {
  std::swap(state_, other.state_);  // the other's destructor waits for ours
  return *this;
}
Work::~Work() {
  if (state_ != nullptr) {
    (void)wait();
  }
}

bool Work::done() const { return state_->waited || state_->comm->test(state_->op).outcome != comm::Outcome::kPending; }

absl::Status Work::wait() {
  if (state_->waited) {
    return state_->status;
  }
  const comm::Completion completion = state_->comm->wait(state_->op);
  state_->comm->forget(state_->op);
  state_->waited = true;
  state_->source = completion.source;
  const Communicator::Impl::Owner& owner = *state_->owner;
  if (completion.outcome == comm::Outcome::kInterrupted) {
    state_->status = absl::AbortedError(owner.why_interrupted());
  } else if (completion.outcome != comm::Outcome::kDone) {
    state_->status = completion.missing.empty() ? absl::InvalidArgumentError(completion.error)
                                                : absl::DeadlineExceededError(completion.error);
    if (owner.on_failure) {
      owner.on_failure(state_->status);
    }
  }
  state_->comm.reset();  // the communicator may end before the Work does
  state_->owner.reset();
  state_->outstanding->fetch_sub(1);
  return state_->status;
}

uint32_t Work::source() const { return state_->source; }

std::unique_ptr<Work::State> Communicator::Impl::start(const Queue& queue, bool all_reduce) const {
  auto state = std::make_unique<Work::State>();
  absl::Status gate = owner->gate ? owner->gate(Moment::kStart) : absl::OkStatus();
  if (!gate.ok() || comm == nullptr) {
    state->waited = true;
    state->status = gate.ok() ? absl::AbortedError(owner->why_interrupted()) : std::move(gate);
    return state;
  }
  outstanding->fetch_add(1);
  state->comm = comm;
  state->owner = owner;
  state->outstanding = outstanding;
  state->op = queue(*comm, timeout_ns);
  if (all_reduce && owner->gate) {
    state->status = owner->gate(Moment::kAllReduceUnderWay);
  }
  return state;
}

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::join(const Options& options) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<rank::NodeLink> link, rank::connect_or_start(options.job, options.command));
  KEEPSTEP_RETURN_IF_ERROR(link->join("world", options.rank, options.world, options.join_timeout_ms));
  auto impl = std::make_unique<Impl>();
  impl->rank = options.rank;
  impl->world = options.world;
  impl->timeout_ns = options.timeout_ms < 0 ? -1 : options.timeout_ms * 1'000'000;
  impl->comm = link->communicator();
  const std::shared_ptr<rank::NodeLink> shared = std::move(link);
  impl->owner = std::make_shared<Impl::Owner>(
      Impl::Owner{.why_interrupted = [shared] { return shared->why_interrupted(); },
                  .abort = [shared](const std::string& because) { shared->abort(because); }});
  return std::unique_ptr<Communicator>(new Communicator(std::move(impl)));
}

Communicator::~Communicator() {
  if (impl_->outstanding->load() > 0) {
    impl_->owner->abort("the communicator was destroyed before its operations were waited for");
  }
}

uint32_t Communicator::rank() const { return impl_->rank; }
uint32_t Communicator::world() const { return impl_->world; }
void Communicator::abort(const std::string& because) { impl_->owner->abort(because); }

Work Communicator::all_reduce(void* data, size_t count, DataType type, ReduceOp reduction) {
  return Work(impl_->start(
      [&](comm::Communicator& comm, int64_t timeout_ns) {
        return comm.all_reduce(kWorld, data, count, type, reduction, timeout_ns);
      },
      true));
}

Work Communicator::reduce(void* data, size_t count, DataType type, ReduceOp reduction, uint32_t root) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.reduce(kWorld, data, count, type, reduction, root, timeout_ns);
  }));
}

Work Communicator::broadcast(void* data, size_t bytes, uint32_t root) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.broadcast(kWorld, data, bytes, root, timeout_ns);
  }));
}

Work Communicator::all_gather(const void* input, const std::vector<void*>& outputs, size_t bytes) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.all_gather(kWorld, input, outputs, bytes, timeout_ns);
  }));
}

Work Communicator::reduce_scatter(const std::vector<const void*>& inputs, void* output, size_t count, DataType type,
                                  ReduceOp reduction) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.reduce_scatter(kWorld, inputs, output, count, type, reduction, timeout_ns);
  }));
}

Work Communicator::gather(const void* input, const std::vector<void*>& outputs, size_t bytes, uint32_t root) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.gather(kWorld, input, outputs, bytes, root, timeout_ns);
  }));
}

Work Communicator::scatter(const std::vector<const void*>& inputs, void* output, size_t bytes, uint32_t root) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.scatter(kWorld, inputs, output, bytes, root, timeout_ns);
  }));
}

Work Communicator::all_to_all(const std::vector<const void*>& inputs, const std::vector<size_t>& input_bytes,
                              const std::vector<void*>& outputs, const std::vector<size_t>& output_bytes) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.all_to_all(kWorld, inputs, input_bytes, outputs, output_bytes, timeout_ns);
  }));
}

Work Communicator::barrier() {
  return Work(
      impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) { return comm.barrier(kWorld, timeout_ns); }));
}

Work Communicator::send(const void* data, size_t bytes, uint32_t to, uint32_t tag) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.send(kWorld, data, bytes, to, tag, timeout_ns);
  }));
}

Work Communicator::receive(void* data, size_t bytes, uint32_t from, uint32_t tag) {
  return Work(impl_->start([&](comm::Communicator& comm, int64_t timeout_ns) {
    return comm.receive(kWorld, data, bytes, from, tag, timeout_ns);
  }));
}

}  // namespace keepstep
