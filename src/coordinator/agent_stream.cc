#include "coordinator/agent_stream.h"

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/server_context.h>

#include <utility>

#include "proto/convert.h"

namespace keepstep::coordinator {
namespace {

// More unread messages than this: the agent has stopped reading.
constexpr size_t kMaxQueuedMessages = 100'000;
constexpr size_t kMaxQueuedBytes = size_t{256} << 20;

// gRPC does not tell a message over its limit from a stream that broke.
constexpr char kUnproven[] = "the stream ended, or a message of more than 4 MiB came, before it proved the job token";

constexpr char kBroken[] = "the connection broke, the agent died, or it sent a message of more than 4 MiB";

grpc::ByteBuffer to_bytes(const control::FromCoordinator& message) {
  grpc::ByteBuffer bytes;
  bool owned = false;
  grpc::SerializationTraits<control::FromCoordinator>::Serialize(message, &bytes, &owned);
  return bytes;
}

std::string body_name(const control::FromAgent& message) {
  switch (message.body_case()) {
    case control::FromAgent::kHello:
      return "a hello";
    case control::FromAgent::kProof:
      return "a proof";
    case control::FromAgent::kEvents:
      return "an event";
    case control::FromAgent::kTableLost:
      return "word of a lost table";
    case control::FromAgent::kRouted:
      return "a message for another agent";
    case control::FromAgent::kAsk:
      return "a command's question";
    case control::FromAgent::kLeave:
      return "a goodbye";
    case control::FromAgent::BODY_NOT_SET:
      break;
  }
  return "a message without content";
}

}  // namespace

AgentStream::AgentStream(grpc::CallbackServerContext* context, Owner* owner, const JobToken& token, uint32_t term,
                         Clock::time_point handshake_deadline)
    : context_(context), owner_(owner), token_(token), peer_(context->peer()), handshake_deadline_(handshake_deadline) {
  handshake_.term = term;
  StartRead(&in_);
}

AgentStream::Phase AgentStream::phase() const {
  const std::lock_guard lock(mutex_);
  return phase_;
}

void AgentStream::send(grpc::ByteBuffer message) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kOver) {
    return;
  }
  if (queue_.size() >= kMaxQueuedMessages || queued_bytes_ + message.Length() > kMaxQueuedBytes) {
    context_->TryCancel();
    return;
  }
  queued_bytes_ += message.Length();
  queue_.push_back(std::move(message));
  pump();
}

void AgentStream::send(const control::FromCoordinator& message) { send(to_bytes(message)); }

void AgentStream::answer(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kOver) {
    return;
  }
  control::FromCoordinator message;
  message.set_node(handshake_.node);
  message.set_term(handshake_.term);
  message.mutable_answer()->set_bytes(text.size());
  for (size_t at = 0; at < text.size(); at += proto::kMaxAnswerPartBytes) {
    message.mutable_answer()->set_part(text.substr(at, proto::kMaxAnswerPartBytes));
    queue_.push_back(to_bytes(message));
    queued_bytes_ += queue_.back().Length();
  }
  phase_ = Phase::kOver;
  finish_ = grpc::Status::OK;
  pump();
}

void AgentStream::finish(grpc::Status status) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kOver) {
    return;
  }
  phase_ = Phase::kOver;
  finish_ = std::move(status);
  pump();
}

void AgentStream::expire(Clock::time_point now) {
  if (now < handshake_deadline_) {
    return;
  }
  const Phase phase = this->phase();
  if (phase == Phase::kHello || phase == Phase::kProof) {
    refuse(grpc::StatusCode::DEADLINE_EXCEEDED,
           phase == Phase::kHello ? "it did not say hello in time" : "it did not prove the job token in time");
  }
  bool says_nothing = false;
  {
    const std::lock_guard lock(mutex_);
    says_nothing = phase_ == Phase::kCommand && !asked_;
  }
  if (says_nothing) {
    refuse(grpc::StatusCode::DEADLINE_EXCEEDED, "it asked nothing in time");
  }
  const std::lock_guard lock(mutex_);
  // A peer that does not read would hold up the end of its own refusal for ever.
  if (refused_ && !finished_ && !done_) {
    context_->TryCancel();
  }
}

void AgentStream::OnReadDone(bool ok) {
  if (!ok) {
    read_ended();
    return;
  }
  const size_t bytes = in_.Length();
  control::FromAgent message;
  if (!grpc::SerializationTraits<control::FromAgent>::Deserialize(&in_, &message).ok()) {
    refuse(grpc::StatusCode::INVALID_ARGUMENT, absl::StrFormat("a malformed message of %d bytes", bytes));
  } else {
    handle(message);
  }
  const std::lock_guard lock(mutex_);
  if (!finished_ && !refused_) {
    in_.Clear();
    StartRead(&in_);
  }
}

void AgentStream::handle(const control::FromAgent& message) {
  switch (phase()) {
    case Phase::kHello:
      return on_hello(message);
    case Phase::kProof:
      return on_proof(message);
    case Phase::kSeated:
      if (!message.has_leave()) {
        refuse(grpc::StatusCode::INVALID_ARGUMENT, "it sent " + body_name(message) + " after it got its number");
      }
      return;
    case Phase::kCommand:
      return on_command(message);
    case Phase::kAttending:
      return on_attending(message);
    case Phase::kOver:
      return;
  }
}

void AgentStream::on_hello(const control::FromAgent& message) {
  if (!message.has_hello()) {
    return refuse(grpc::StatusCode::UNAUTHENTICATED, "it began with " + body_name(message) + " instead of a hello");
  }
  const control::Hello& hello = message.hello();
  if (hello.agent_nonce().size() != kNonceBytes || hello.node_name().size() > proto::kMaxNodeNameBytes) {
    return refuse(
        grpc::StatusCode::INVALID_ARGUMENT,
        absl::StrFormat("a hello with a nonce of %d bytes (not %d) and a name of %d (at most %d)",
                        hello.agent_nonce().size(), kNonceBytes, hello.node_name().size(), proto::kMaxNodeNameBytes));
  }
  handshake_.node = message.node();
  handshake_.node_name = hello.node_name();
  handshake_.agent_nonce = hello.agent_nonce();
  handshake_.coordinator_nonce = random_nonce();
  control::FromCoordinator answer;
  answer.set_node(handshake_.node);
  answer.set_term(handshake_.term);
  answer.mutable_challenge()->set_coordinator_nonce(handshake_.coordinator_nonce);
  answer.mutable_challenge()->set_proof(handshake_.coordinator_proof(token_));
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kHello) {
      phase_ = Phase::kProof;
    }
  }
  send(answer);
}

void AgentStream::on_proof(const control::FromAgent& message) {
  if (!message.has_proof()) {
    return refuse(grpc::StatusCode::UNAUTHENTICATED,
                  "it sent " + body_name(message) + " before it proved the job token");
  }
  if (message.node() != handshake_.node || !handshake_.is_agent(token_, message.proof().proof())) {
    return refuse(grpc::StatusCode::UNAUTHENTICATED, "wrong token");
  }
  if (handshake_.node == proto::kAnyNode) {
    return take_seat();
  }
  if (handshake_.node == proto::kCommand) {
    return let_command_in();
  }
  // Admission and welcome are one act: no effect may overtake the welcome.
  control::FromCoordinator welcome;
  welcome.set_node(handshake_.node);
  welcome.set_term(handshake_.term);
  welcome.mutable_welcome();
  std::string taken;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kProof) {
      return;
    }
    taken = owner_->admit(this);
    if (taken.empty()) {
      admitted_ = true;
      phase_ = Phase::kAttending;
      queue_.push_back(to_bytes(welcome));
      queued_bytes_ += queue_.back().Length();
      pump();
    }
  }
  if (taken.empty()) {
    owner_->attends(this);
  } else {
    refuse(grpc::StatusCode::ALREADY_EXISTS, taken);
  }
}

// The number comes with the welcome. The stream stays, so that the number is free again if its peer is gone.
void AgentStream::take_seat() {
  control::FromCoordinator welcome;
  welcome.set_term(handshake_.term);
  welcome.mutable_welcome();
  StatusOr<brain::NodeId> seat = absl::CancelledError("");
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kProof) {
      return;
    }
    seat = owner_->seat(this);
    if (seat.ok()) {
      seated_ = true;
      phase_ = Phase::kSeated;
      welcome.set_node(*seat);
      queue_.push_back(to_bytes(welcome));
      queued_bytes_ += queue_.back().Length();
      pump();
    }
  }
  if (!seat.ok()) {
    refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, std::string(seat.status().message()));
  }
}

void AgentStream::let_command_in() {
  control::FromCoordinator welcome;
  welcome.set_node(handshake_.node);
  welcome.set_term(handshake_.term);
  welcome.mutable_welcome();
  Status room;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kProof) {
      return;
    }
    room = owner_->let_in(this);
    if (room.ok()) {
      command_ = true;
      phase_ = Phase::kCommand;
      queue_.push_back(to_bytes(welcome));
      queued_bytes_ += queue_.back().Length();
      pump();
    }
  }
  if (!room.ok()) {
    refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, std::string(room.message()));
  }
}

void AgentStream::on_command(const control::FromAgent& message) {
  if (!message.has_ask()) {
    return refuse(grpc::StatusCode::INVALID_ARGUMENT, "it sent " + body_name(message) + " instead of its question");
  }
  if (message.ask().request().size() > proto::kMaxAskBytes) {
    return refuse(grpc::StatusCode::INVALID_ARGUMENT,
                  absl::StrFormat("a question of %d bytes; %d are the most", message.ask().request().size(),
                                  proto::kMaxAskBytes));
  }
  bool again = false;
  {
    const std::lock_guard lock(mutex_);
    again = std::exchange(asked_, true);
  }
  if (again) {
    return refuse(grpc::StatusCode::INVALID_ARGUMENT, "it asked twice");
  }
  if (const Status status = owner_->asked(this, message.ask().request()); !status.ok()) {
    finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, std::string(status.message())));
  }
}

void AgentStream::on_attending(const control::FromAgent& message) {
  if (message.node() != handshake_.node) {
    return refuse(grpc::StatusCode::INVALID_ARGUMENT,
                  absl::StrFormat("node %d speaks for node %d", handshake_.node, message.node()));
  }
  if (message.has_leave()) {
    const std::lock_guard lock(mutex_);
    said_goodbye_ = true;
    return;
  }
  if (message.has_routed()) {
    if (message.routed().payload().size() > proto::kMaxRoutedBytes) {
      return refuse(
          grpc::StatusCode::INVALID_ARGUMENT,
          absl::StrFormat("a message of %d bytes for node %d; at most %d are handed on",
                          message.routed().payload().size(), message.routed().peer(), proto::kMaxRoutedBytes));
    }
    return owner_->routed(*this, message.routed());
  }
  if (!message.has_events() && !message.has_table_lost()) {
    return refuse(grpc::StatusCode::INVALID_ARGUMENT, "it sent " + body_name(message) + " after the handshake");
  }
  if (message.term() != handshake_.term) {
    return owner_->dropped_stale(*this, {message.term(), message.generation()});
  }
  StatusOr<std::vector<brain::Event>> events = proto::events_from_wire(message);
  if (!events.ok()) {
    return refuse(grpc::StatusCode::INVALID_ARGUMENT, std::string(events.status().message()));
  }
  if (message.table() != table_) {
    table_ = message.table();
    owner_->holds_table(*this, table_);
  }
  if (!events->empty()) {
    owner_->received(*std::move(events));
  }
}

void AgentStream::refuse(grpc::StatusCode code, const std::string& why) {
  bool admitted = false;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kOver) {
      return;
    }
    phase_ = Phase::kOver;
    refused_ = true;
    admitted = admitted_;
  }
  owner_->unseat(this);
  owner_->refused(*this, why);
  if (admitted) {
    owner_->left(this, why);
  }
  const std::lock_guard lock(mutex_);
  queue_.clear();
  queued_bytes_ = 0;
  finish_ = grpc::Status(code, why);
  pump();
}

void AgentStream::read_ended() {
  bool admitted = false;
  bool let_in = false;
  bool lost = false;
  {
    const std::lock_guard lock(mutex_);
    admitted = admitted_ && !refused_;
    lost = !said_goodbye_;
    let_in = admitted || seated_ || command_;
  }
  owner_->unseat(this);
  if (admitted) {
    owner_->left(this, lost ? kBroken : "");
  }
  finish(let_in ? grpc::Status::OK : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, kUnproven));
}

void AgentStream::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (!ok) {
    queue_.clear();  // the connection is gone; the read under way will say so
    queued_bytes_ = 0;
  }
  pump();
}

void AgentStream::pump() {
  if (writing_ || finished_) {
    return;
  }
  if (!queue_.empty()) {
    out_.Swap(&queue_.front());
    queue_.pop_front();
    queued_bytes_ -= out_.Length();
    writing_ = true;
    StartWrite(&out_);
  } else if (finish_.has_value()) {
    finished_ = true;
    Finish(*finish_);
  }
}

void AgentStream::OnDone() {
  bool unproven = false;
  std::string why;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
    unproven = !refused_ && !admitted_ && !seated_ && !command_;
    if (!refused_ && admitted_) {
      why = said_goodbye_ ? "the agent left" : kBroken;
    }
  }
  if (unproven) {
    owner_->refused(*this, kUnproven);
  }
  owner_->ended(this, why);
}

}  // namespace keepstep::coordinator
