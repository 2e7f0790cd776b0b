#include "coordinator/agent_stream.h"

#include <utility>

#include "net/greeting.h"
#include "proto/convert.h"

namespace keepstep::coordinator {
namespace {

std::string body_name(const control::FromAgent& message) {
  switch (message.body_case()) {
    case control::FromAgent::kHello:
      return "a hello";
    case control::FromAgent::kEvent:
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

AgentStream::AgentStream(std::shared_ptr<net::Link> link, Owner* owner, uint32_t term, control::Welcome welcome,
                         Clock::time_point hello_deadline)
    : link_(std::move(link)),
      owner_(owner),
      term_(term),
      welcome_(std::move(welcome)),
      hello_deadline_(hello_deadline) {}

AgentStream::Phase AgentStream::phase() const {
  const std::lock_guard lock(mutex_);
  return phase_;
}

void AgentStream::send(std::string head, net::SharedBytes tail) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOver) {
    link_->send(std::move(head), std::move(tail));
  }
}

void AgentStream::send(const control::FromCoordinator& message) { send(message.SerializeAsString()); }

std::string AgentStream::welcome(brain::NodeId node) const {
  control::FromCoordinator message;
  message.set_node(node);
  message.set_term(term_);
  *message.mutable_welcome() = welcome_;
  return message.SerializeAsString();
}

void AgentStream::answer(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kOver) {
    return;
  }
  control::FromCoordinator message;
  message.set_node(node_);
  message.set_term(term_);
  message.mutable_answer()->set_bytes(text.size());
  for (size_t at = 0; at < text.size(); at += proto::kMaxAnswerPartBytes) {
    message.mutable_answer()->set_part(text.substr(at, proto::kMaxAnswerPartBytes));
    link_->send(message.SerializeAsString());
  }
  phase_ = Phase::kOver;
  send_last_word(absl::StatusCode::kOk, "");
}

void AgentStream::finish(absl::StatusCode code, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kOver) {
    phase_ = Phase::kOver;
    send_last_word(code, why);
  }
}

void AgentStream::send_last_word(absl::StatusCode code, const std::string& why) {
  owner_->give_back(this);
  control::FromCoordinator message;
  message.set_node(node_);
  message.set_term(term_);
  message.mutable_end()->set_code(static_cast<uint32_t>(code));
  message.mutable_end()->set_why(why);
  link_->send(message.SerializeAsString());
  link_->end();
}

void AgentStream::expire(Clock::time_point now) {
  if (now < hello_deadline_) {
    return;
  }
  bool no_hello = false;
  bool no_question = false;
  {
    const std::lock_guard lock(mutex_);
    no_hello = phase_ == Phase::kGreeting || phase_ == Phase::kHello;
    no_question = phase_ == Phase::kCommand && !asked_;
  }
  if (no_hello || no_question) {
    refuse(absl::StatusCode::kDeadlineExceeded, no_hello ? "it did not say hello in time" : "it asked nothing in time");
  }
}

void AgentStream::received(std::string bytes) {
  const Phase phase = this->phase();
  if (phase == Phase::kGreeting) {
    return on_greeting(bytes);
  }
  control::FromAgent message;
  if (!message.ParseFromString(bytes)) {
    return refuse(absl::StatusCode::kInvalidArgument, absl::StrFormat("a malformed message of %d bytes", bytes.size()));
  }
  switch (phase) {
    case Phase::kHello:
      return on_hello(message);
    case Phase::kSeated:
      if (!message.has_leave()) {
        refuse(absl::StatusCode::kInvalidArgument, "it sent " + body_name(message) + " after it got its number");
      }
      return;
    case Phase::kCommand:
      return on_command(message);
    case Phase::kAttending:
      return on_attending(message);
    case Phase::kGreeting:
    case Phase::kOver:
      return;
  }
}

// The greeting names its addressee: a relay may have brought it here by mistake.
void AgentStream::on_greeting(const std::string& bytes) {
  const StatusOr<net::Greeting> greeting = net::Greeting::decode(bytes);
  if (!greeting.ok()) {
    return refuse(absl::StatusCode::kInvalidArgument, std::string(greeting.status().message()));
  }
  net::Greeting expected{.role = net::Role::kConnects, .from = greeting->from, .to = proto::kCoordinatorName};
  const Status meant = check_greeting(expected, *greeting, peer());
  expected.term = term_;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kGreeting) {
      return;
    }
    phase_ = Phase::kHello;
    link_->send(expected.answer().encode().value());
  }
  if (!meant.ok()) {
    return refuse(meant.code(), std::string(meant.message()));
  }
  greeted_as_ = greeting->from;
}

void AgentStream::on_hello(const control::FromAgent& message) {
  if (!message.has_hello()) {
    return refuse(absl::StatusCode::kInvalidArgument, "it began with " + body_name(message) + " instead of a hello");
  }
  if (proto::peer_name(message.node()) != greeted_as_) {
    return refuse(
        absl::StatusCode::kFailedPrecondition,
        absl::StrFormat("it greets as '%s' and says hello as '%s'", greeted_as_, proto::peer_name(message.node())));
  }
  if (message.hello().node_name().size() > proto::kMaxNodeNameBytes) {
    return refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("a hello with a name of %d bytes (at most %d)", message.hello().node_name().size(),
                                  proto::kMaxNodeNameBytes));
  }
  node_ = message.node();
  node_name_ = message.hello().node_name();
  if (node_ == proto::kAnyNode) {
    take_seat();
  } else if (node_ == proto::kCommand) {
    let_command_in();
  } else {
    admit();
  }
}

// Admission and welcome are atomic, also in the next two functions: no message may overtake the welcome.
void AgentStream::admit() {
  std::string taken;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kHello) {
      return;
    }
    taken = owner_->admit(this);
    if (taken.empty()) {
      admitted_ = true;
      phase_ = Phase::kAttending;
      link_->send(welcome(node_));
    }
  }
  if (taken.empty()) {
    owner_->attends(this);
  } else {
    refuse(absl::StatusCode::kAlreadyExists, taken);
  }
}

// The number is sent with the welcome. The stream stays open, so that the number becomes free if the peer is gone.
void AgentStream::take_seat() {
  StatusOr<brain::NodeId> seat = absl::CancelledError("");
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kHello) {
      return;
    }
    seat = owner_->seat(this);
    if (seat.ok()) {
      phase_ = Phase::kSeated;
      link_->send(welcome(*seat));
    }
  }
  if (!seat.ok()) {
    refuse(seat.status().code(), std::string(seat.status().message()));
  }
}

void AgentStream::let_command_in() {
  Status room;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kHello) {
      return;
    }
    room = owner_->let_in(this);
    if (room.ok()) {
      phase_ = Phase::kCommand;
      link_->send(welcome(node_));
    }
  }
  if (!room.ok()) {
    refuse(room.code(), std::string(room.message()));
  }
}

void AgentStream::on_command(const control::FromAgent& message) {
  if (!message.has_ask()) {
    return refuse(absl::StatusCode::kInvalidArgument, "it sent " + body_name(message) + " instead of its question");
  }
  if (message.ask().request().size() > proto::kMaxAskBytes) {
    return refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("a question of %d bytes; %d are the most", message.ask().request().size(),
                                  proto::kMaxAskBytes));
  }
  bool again = false;
  {
    const std::lock_guard lock(mutex_);
    again = std::exchange(asked_, true);
  }
  if (again) {
    return refuse(absl::StatusCode::kInvalidArgument, "it asked twice");
  }
  if (const Status status = owner_->asked(this, message.ask().request()); !status.ok()) {
    finish(status.code(), std::string(status.message()));
  }
}

void AgentStream::on_attending(const control::FromAgent& message) {
  if (message.node() != node_) {
    return refuse(absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("node %d speaks for node %d", node_, message.node()));
  }
  if (message.has_leave()) {
    const std::lock_guard lock(mutex_);
    said_goodbye_ = true;
    return;
  }
  if (message.has_routed()) {
    if (message.routed().payload().size() > proto::kMaxRoutedBytes) {
      return refuse(
          absl::StatusCode::kInvalidArgument,
          absl::StrFormat("a message of %d bytes for node %d; at most %d are handed on",
                          message.routed().payload().size(), message.routed().peer(), proto::kMaxRoutedBytes));
    }
    return owner_->routed(*this, message.routed());
  }
  if (!message.has_event() && !message.has_table_lost()) {
    return refuse(absl::StatusCode::kInvalidArgument, "it sent " + body_name(message) + " after the handshake");
  }
  if (message.term() != term_) {
    return owner_->dropped_stale(*this, {message.term(), message.generation()});
  }
  StatusOr<brain::Event> event = absl::CancelledError("");
  if (message.has_event()) {
    event = proto::event_from_wire(message);
    if (!event.ok()) {
      return refuse(absl::StatusCode::kInvalidArgument, std::string(event.status().message()));
    }
  }
  if (message.table() != table_) {
    table_ = message.table();
    owner_->holds_table(*this, table_);
  }
  if (event.ok()) {
    owner_->received(*std::move(event));
  }
}

void AgentStream::refuse(absl::StatusCode code, const std::string& why) {
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
  owner_->refused(*this, why);
  if (admitted) {
    owner_->left(this, why);
  }
  send_last_word(code, why);  // sent last: a peer that receives it finds it in the journal
}

void AgentStream::closed(const Status& why) {
  bool attended = false;
  bool lost = false;
  bool silent = false;
  {
    const std::lock_guard lock(mutex_);
    attended = admitted_ && !refused_;
    lost = !said_goodbye_;
    silent = phase_ == Phase::kGreeting || phase_ == Phase::kHello;
    phase_ = Phase::kOver;
  }
  owner_->give_back(this);
  const std::string reason =
      absl::IsOutOfRange(why) ? "the agent ended the connection without a goodbye" : std::string(why.message());
  if (attended) {
    owner_->left(this, lost ? reason : "");
  }
  if (silent) {
    owner_->refused(*this, "it was gone before it said hello: " + std::string(why.message()));
  }
  owner_->ended(this, !attended ? "" : lost ? reason : "the agent left");
}

}  // namespace keepstep::coordinator
