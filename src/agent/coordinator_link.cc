#include "agent/coordinator_link.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "proto/control.grpc.pb.h"
#include "proto/convert.h"
#include "proto/grpc_setup.h"
#include "proto/handshake.h"
#include "proto/held_tables.h"

namespace keepstep::agent {
namespace {

constexpr std::chrono::seconds kGoodbye{1};  // for the coordinator to read what was queued before close()

}  // namespace

// gRPC calls the On... functions on its own threads, those for reads one after the other: effects are delivered there.
class CoordinatorLink::Impl final : public grpc::ClientBidiReactor<control::FromAgent, control::FromCoordinator> {
 public:
  Impl(std::string address, brain::NodeId node, const std::string& node_name, const JobToken& token, OnEffect on_effect,
       OnLost on_lost, OnRouted on_routed)
      : address_(std::move(address)),
        token_(token),
        on_effect_(std::move(on_effect)),
        on_lost_(std::move(on_lost)),
        on_routed_(std::move(on_routed)),
        node_(node) {
    handshake_.node = node;
    handshake_.node_name = node_name.substr(0, proto::kMaxNodeNameBytes);
    handshake_.agent_nonce = random_nonce();
  }
  ~Impl() override { close(); }

  Status attend(std::chrono::milliseconds timeout);
  void send(const brain::Event& event);
  Status route(brain::NodeId to, std::string message);
  void close();
  void abandon();
  uint32_t term() const { return handshake_.term; }
  brain::NodeId node() const { return node_; }
  uint64_t received_bytes() const { return received_bytes_.load(); }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  enum class Phase { kHello, kProof, kAttending, kOver };

  // With the mutex held, as the four below. What came and is to be delivered, if anything.
  StatusOr<std::optional<brain::Effect>> handle();
  Status check_challenge(const control::Challenge& challenge);
  StatusOr<std::optional<brain::Effect>> effect();
  void enqueue(control::FromAgent message);
  void pump();
  std::string who() const;
  Status why_not(Phase reached, bool timed_out, std::chrono::milliseconds timeout);
  std::string why_lost() const;

  const std::string address_;
  const JobToken token_;
  const OnEffect on_effect_;
  const OnLost on_lost_;
  const OnRouted on_routed_;
  proto::Handshake handshake_;  // changed until the welcome only
  brain::NodeId node_;          // the same

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<control::Control::Stub> stub_;
  grpc::ClientContext context_;
  control::FromCoordinator in_;  // owned by the read under way
  control::FromAgent out_;       // owned by the write under way

  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kHello;
  bool started_ = false;
  bool attended_ = false;
  bool writing_ = false;
  bool writes_ended_ = false;
  bool said_goodbye_ = false;
  bool closing_ = false;
  bool done_ = false;  // OnDone came: gRPC is through with us
  uint32_t generation_ = 0;
  proto::HeldTables tables_;
  std::deque<control::FromAgent> queue_;
  grpc::Status status_;  // of the stream, once done_
  Status own_error_;     // why we ended it ourselves
  std::atomic<uint64_t> received_bytes_ = 0;
};

Status CoordinatorLink::Impl::attend(std::chrono::milliseconds timeout) {
  proto::setup_grpc();
  channel_ = grpc::CreateCustomChannel(proto::target(address_), grpc::InsecureChannelCredentials(),
                                       proto::channel_arguments(address_));
  stub_ = control::Control::NewStub(channel_);
  context_.set_wait_for_ready(true);
  stub_->async()->Attend(&context_, this);
  control::FromAgent hello;
  hello.set_node(handshake_.node);
  hello.mutable_hello()->set_node_name(handshake_.node_name);
  hello.mutable_hello()->set_agent_nonce(handshake_.agent_nonce);

  std::unique_lock lock(mutex_);
  started_ = true;
  AddHold();  // writes start outside of reactions, until the last read
  enqueue(std::move(hello));
  StartRead(&in_);
  StartCall();
  const bool settled = changed_.wait_for(lock, timeout, [this] { return done_ || attended_; });
  if (attended_) {
    return absl::OkStatus();
  }
  const Phase reached = phase_;
  closing_ = true;
  if (!done_) {
    context_.TryCancel();
    changed_.wait(lock, [this] { return done_; });
  }
  return why_not(reached, !settled, timeout);
}

std::string CoordinatorLink::Impl::who() const {
  return node_ == proto::kAnyNode ? absl::StrFormat("this node (%s)", handshake_.node_name)
                                  : absl::StrFormat("node %d (%s)", node_, handshake_.node_name);
}

Status CoordinatorLink::Impl::why_not(Phase reached, bool timed_out, std::chrono::milliseconds timeout) {
  if (!own_error_.ok()) {
    return own_error_;
  }
  if (timed_out) {
    const bool connected = channel_->GetState(false) == GRPC_CHANNEL_READY;
    return absl::DeadlineExceededError(
        absl::StrFormat("no welcome from the coordinator at %s within %d ms: %s", address_, timeout.count(),
                        reached == Phase::kProof ? "it did not answer our proof"
                        : connected ? "something answers there, but not with a challenge; is it a keepstep coordinator?"
                                    : "nothing accepts connections there; is the address right, and does it run?"));
  }
  const std::string message = status_.error_message();
  if (status_.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return absl::UnauthenticatedError(
        absl::StrFormat("the coordinator at %s refused the job token of %s: %s; "
                        "give all parts of a job the same --token-file",
                        address_, who(), message));
  }
  if (status_.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(
        absl::StrFormat("the job at %s ends just now, or its node 0 is gone; %s came too late to have a part "
                        "in it: %s",
                        address_, who(), message));
  }
  return Status(static_cast<absl::StatusCode>(status_.error_code()),
                absl::StrFormat("the coordinator at %s refused %s: %s", address_, who(),
                                message.empty() ? "the stream ended" : message));
}

void CoordinatorLink::Impl::OnReadDone(bool ok) {
  std::unique_lock lock(mutex_);
  if (!ok) {
    phase_ = Phase::kOver;
    queue_.clear();
    lock.unlock();
    RemoveHold();
    return;
  }
  received_bytes_ += in_.ByteSizeLong();
  if (in_.has_routed() && phase_ == Phase::kAttending) {
    if (on_routed_ != nullptr && !closing_) {
      lock.unlock();
      on_routed_(in_.routed().peer(), std::move(*in_.mutable_routed()->mutable_payload()));
      lock.lock();
    }
    StartRead(&in_);
    return;
  }
  StatusOr<std::optional<brain::Effect>> came = handle();
  if (!came.ok()) {
    own_error_ = came.status();
    context_.TryCancel();
  } else if (came->has_value() && !closing_) {
    lock.unlock();
    on_effect_(**std::move(came));
    lock.lock();
  }
  StartRead(&in_);
}

StatusOr<std::optional<brain::Effect>> CoordinatorLink::Impl::handle() {
  switch (phase_) {
    case Phase::kHello: {
      if (!in_.has_challenge()) {
        return absl::UnauthenticatedError(
            absl::StrFormat("what answers at %s speaks before it proved the job token", address_));
      }
      handshake_.term = in_.term();
      KEEPSTEP_RETURN_IF_ERROR(check_challenge(in_.challenge()));
      return std::nullopt;
    }
    case Phase::kProof:
      if (!in_.has_welcome() || in_.term() != handshake_.term) {
        return absl::InternalError(absl::StrFormat("the coordinator at %s sent no welcome after our proof", address_));
      }
      node_ = in_.node();
      if (node_ == proto::kAnyNode || (handshake_.node != proto::kAnyNode && node_ != handshake_.node)) {
        return absl::InternalError(absl::StrFormat("the coordinator at %s welcomed another node", address_));
      }
      phase_ = Phase::kAttending;
      attended_ = true;
      changed_.notify_all();
      return std::nullopt;
    case Phase::kAttending:
      if (in_.term() < handshake_.term) {
        return std::nullopt;
      }
      return effect();
    case Phase::kOver:
      break;
  }
  return std::nullopt;
}

StatusOr<std::optional<brain::Effect>> CoordinatorLink::Impl::effect() {
  StatusOr<brain::Effect> came = proto::effect_from_wire(in_, tables_);
  if (absl::IsFailedPrecondition(came.status())) {
    control::FromAgent lost;
    lost.set_node(handshake_.node);
    lost.set_term(handshake_.term);
    lost.mutable_table_lost();
    enqueue(std::move(lost));
    return std::nullopt;  // the coordinator repeats its order, with the whole table
  }
  if (!came.ok()) {
    return Status(came.status().code(),
                  absl::StrFormat("the coordinator at %s sent %s", address_, came.status().message()));
  }
  generation_ = std::max(generation_, in_.generation());
  return *std::move(came);
}

Status CoordinatorLink::Impl::check_challenge(const control::Challenge& challenge) {
  handshake_.coordinator_nonce = challenge.coordinator_nonce();
  if (challenge.coordinator_nonce().size() != kNonceBytes || !handshake_.is_coordinator(token_, challenge.proof())) {
    return absl::UnauthenticatedError(
        absl::StrFormat("the coordinator at %s does not know the job token of %s; is it another job's? "
                        "Give all parts of a job the same --token-file",
                        address_, who()));
  }
  control::FromAgent proof;
  proof.set_node(handshake_.node);
  proof.set_term(handshake_.term);
  proof.mutable_proof()->set_proof(handshake_.agent_proof(token_));
  phase_ = Phase::kProof;
  enqueue(std::move(proof));
  return absl::OkStatus();
}

void CoordinatorLink::Impl::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) {
    queue_.clear();  // the stream is gone; the read under way will say so
  }
  pump();
}

void CoordinatorLink::Impl::OnDone(const grpc::Status& status) {
  std::unique_lock lock(mutex_);
  status_ = status;
  if (attended_ && !closing_) {
    const std::string why = why_lost();
    lock.unlock();
    on_lost_(why);
    lock.lock();
  }
  done_ = true;  // from here on close() may return and the link be gone
  changed_.notify_all();
}

std::string CoordinatorLink::Impl::why_lost() const {
  if (!own_error_.ok()) {
    return std::string(own_error_.message());
  }
  const std::string message = status_.error_message();
  return message.empty() ? absl::StrFormat("the coordinator at %s ended the stream", address_)
                         : absl::StrFormat("the stream to the coordinator at %s broke: %s", address_, message);
}

void CoordinatorLink::Impl::send(const brain::Event& event) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kAttending || closing_) {
    return;
  }
  control::FromAgent message = proto::to_wire(event, handshake_.node, {handshake_.term, generation_});
  message.set_table(tables_.newest());
  if (queue_.empty() || !proto::merge(message, queue_.back())) {
    enqueue(std::move(message));
  }
}

Status CoordinatorLink::Impl::route(brain::NodeId to, std::string message) {
  if (message.size() > proto::kMaxRoutedBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat("a message of %d bytes for node %d; at most %d are handed on",
                                                        message.size(), to, proto::kMaxRoutedBytes));
  }
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kAttending && !closing_) {
    control::FromAgent routed;
    routed.set_node(handshake_.node);
    routed.set_term(handshake_.term);
    routed.mutable_routed()->set_peer(to);
    routed.mutable_routed()->set_payload(std::move(message));
    enqueue(std::move(routed));
  }
  return absl::OkStatus();
}

void CoordinatorLink::Impl::enqueue(control::FromAgent message) {
  queue_.push_back(std::move(message));
  pump();
}

void CoordinatorLink::Impl::pump() {
  if (phase_ == Phase::kOver || writing_ || writes_ended_) {
    return;
  }
  if (closing_ && queue_.empty() && phase_ == Phase::kAttending && !std::exchange(said_goodbye_, true)) {
    control::FromAgent goodbye;
    goodbye.set_node(handshake_.node);
    goodbye.set_term(handshake_.term);
    goodbye.mutable_leave();
    queue_.push_back(std::move(goodbye));
  }
  if (!queue_.empty()) {
    out_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    StartWrite(&out_);
  } else if (closing_) {
    writes_ended_ = true;
    StartWritesDone();
  }
}

void CoordinatorLink::Impl::close() {
  std::unique_lock lock(mutex_);
  if (!started_ || closing_) {
    return;
  }
  closing_ = true;
  pump();
  const auto done = [this] { return done_; };
  if (!changed_.wait_for(lock, kGoodbye, done)) {
    context_.TryCancel();
    changed_.wait(lock, done);
  }
}

void CoordinatorLink::Impl::abandon() {
  std::unique_lock lock(mutex_);
  if (!started_ || closing_) {
    return;
  }
  closing_ = true;
  context_.TryCancel();
  changed_.wait(lock, [this] { return done_; });
}

StatusOr<std::unique_ptr<CoordinatorLink>> CoordinatorLink::connect(std::string address, brain::NodeId node,
                                                                    const std::string& node_name, const JobToken& token,
                                                                    OnEffect on_effect, OnLost on_lost,
                                                                    std::chrono::milliseconds timeout,
                                                                    OnRouted on_routed) {
  auto impl = std::make_unique<Impl>(std::move(address), node, node_name, token, std::move(on_effect),
                                     std::move(on_lost), std::move(on_routed));
  KEEPSTEP_RETURN_IF_ERROR(impl->attend(timeout));
  return std::unique_ptr<CoordinatorLink>(new CoordinatorLink(std::move(impl)));
}

CoordinatorLink::CoordinatorLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorLink::~CoordinatorLink() = default;
void CoordinatorLink::send(const brain::Event& event) { impl_->send(event); }
Status CoordinatorLink::route(brain::NodeId to, std::string message) { return impl_->route(to, std::move(message)); }
brain::NodeId CoordinatorLink::node() const { return impl_->node(); }
uint32_t CoordinatorLink::term() const { return impl_->term(); }
uint64_t CoordinatorLink::received_bytes() const { return impl_->received_bytes(); }
void CoordinatorLink::close() { impl_->close(); }
void CoordinatorLink::abandon() { impl_->abandon(); }

}  // namespace keepstep::agent
