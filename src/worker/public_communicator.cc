// include/keepstep/communicator.h over a link to the node's agent.

#include <atomic>

#include "keepstep/communicator.h"
#include "worker/node_start.h"

namespace keepstep {
namespace {

using comm::kWorld;

comm::DType engine(DataType type) { return static_cast<comm::DType>(type); }
comm::ReduceOp engine(Reduction reduction) { return static_cast<comm::ReduceOp>(reduction); }
static_assert(static_cast<int>(DataType::kBool) == static_cast<int>(comm::DType::kBool));
static_assert(static_cast<int>(Reduction::kBitXor) == static_cast<int>(comm::ReduceOp::kBxor));
static_assert(Communicator::kAnyRank == comm::kAnySource);

}  // namespace

struct Work::State {
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<worker::NodeLink> link;
  std::shared_ptr<std::atomic<int>> outstanding;  // of the communicator: Works nobody waited for
  comm::OpId op = 0;
  bool waited = false;
  absl::Status status;
  uint32_t source = 0;
};

Work::Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;
Work& Work::operator=(Work&& other) noexcept {
  std::swap(state_, other.state_);  // ours waits with the other's destructor
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
  state_->outstanding->fetch_sub(1);
  state_->source = completion.source;
  if (completion.outcome == comm::Outcome::kInterrupted) {
    state_->status = absl::AbortedError(state_->link->why_interrupted());
  } else if (completion.outcome != comm::Outcome::kDone) {
    state_->status = completion.missing.empty() ? absl::InvalidArgumentError(completion.error)
                                                : absl::DeadlineExceededError(completion.error);
  }
  state_->comm.reset();  // the communicator may go before the Work does
  state_->link.reset();
  return state_->status;
}

uint32_t Work::source() const { return state_->source; }

struct Communicator::Impl {
  Options options;
  int64_t timeout_ns = -1;
  std::shared_ptr<worker::NodeLink> link;
  std::shared_ptr<comm::Communicator> comm;

  std::shared_ptr<std::atomic<int>> outstanding = std::make_shared<std::atomic<int>>(0);

  std::unique_ptr<Work::State> work(comm::OpId op) const {
    outstanding->fetch_add(1);
    return std::make_unique<Work::State>(
        Work::State{.comm = comm, .link = link, .outstanding = outstanding, .op = op, .status = {}});
  }
};

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::join(const Options& options) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<worker::NodeLink> link,
                            worker::connect_or_start(options.job, options.command));
  KEEPSTEP_RETURN_IF_ERROR(link->join("world", options.rank, options.world, options.join_timeout_ms));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->timeout_ns = options.timeout_ms < 0 ? -1 : options.timeout_ms * 1'000'000;
  impl->comm = link->communicator();
  impl->link = std::move(link);
  return std::unique_ptr<Communicator>(new Communicator(std::move(impl)));
}

Communicator::~Communicator() {
  if (impl_->outstanding->load() > 0) {
    impl_->link->abort("the communicator was destroyed before its operations were waited for");
  }
}

uint32_t Communicator::rank() const { return impl_->options.rank; }
uint32_t Communicator::world() const { return impl_->options.world; }
void Communicator::abort(const std::string& because) { impl_->link->abort(because); }

Work Communicator::all_reduce(void* data, size_t count, DataType type, Reduction reduction) {
  return Work(
      impl_->work(impl_->comm->all_reduce(kWorld, data, count, engine(type), engine(reduction), impl_->timeout_ns)));
}

Work Communicator::reduce(void* data, size_t count, DataType type, Reduction reduction, uint32_t root) {
  return Work(
      impl_->work(impl_->comm->reduce(kWorld, data, count, engine(type), engine(reduction), root, impl_->timeout_ns)));
}

Work Communicator::broadcast(void* data, size_t bytes, uint32_t root) {
  return Work(impl_->work(impl_->comm->broadcast(kWorld, data, bytes, root, impl_->timeout_ns)));
}

Work Communicator::all_gather(const void* input, const std::vector<void*>& outputs, size_t bytes) {
  return Work(impl_->work(impl_->comm->all_gather(kWorld, input, outputs, bytes, impl_->timeout_ns)));
}

Work Communicator::reduce_scatter(const std::vector<const void*>& inputs, void* output, size_t count, DataType type,
                                  Reduction reduction) {
  return Work(impl_->work(
      impl_->comm->reduce_scatter(kWorld, inputs, output, count, engine(type), engine(reduction), impl_->timeout_ns)));
}

Work Communicator::gather(const void* input, const std::vector<void*>& outputs, size_t bytes, uint32_t root) {
  return Work(impl_->work(impl_->comm->gather(kWorld, input, outputs, bytes, root, impl_->timeout_ns)));
}

Work Communicator::scatter(const std::vector<const void*>& inputs, void* output, size_t bytes, uint32_t root) {
  return Work(impl_->work(impl_->comm->scatter(kWorld, inputs, output, bytes, root, impl_->timeout_ns)));
}

Work Communicator::all_to_all(const std::vector<const void*>& inputs, const std::vector<size_t>& input_bytes,
                              const std::vector<void*>& outputs, const std::vector<size_t>& output_bytes) {
  return Work(
      impl_->work(impl_->comm->all_to_all(kWorld, inputs, input_bytes, outputs, output_bytes, impl_->timeout_ns)));
}

Work Communicator::barrier() { return Work(impl_->work(impl_->comm->barrier(kWorld, impl_->timeout_ns))); }

Work Communicator::send(const void* data, size_t bytes, uint32_t to, uint32_t tag) {
  return Work(impl_->work(impl_->comm->send(kWorld, data, bytes, to, tag, impl_->timeout_ns)));
}

Work Communicator::receive(void* data, size_t bytes, uint32_t from, uint32_t tag) {
  return Work(impl_->work(impl_->comm->receive(kWorld, data, bytes, from, tag, impl_->timeout_ns)));
}

}  // namespace keepstep
