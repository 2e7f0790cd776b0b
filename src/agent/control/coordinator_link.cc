#include "agent/control/coordinator_link.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "net/connection.h"
#include "net/hub.h"
#include "proto/convert.h"
#include "proto/held_tables.h"
#include "proto/peers.h"

namespace keepstep::agent {
namespace {

constexpr std::chrono::seconds kGoodbye{1};           // for the coordinator to read what was queued before close()
constexpr std::chrono::milliseconds kFirstPause{10};  // after nobody accepted; doubled each time
constexpr std::chrono::milliseconds kLongestPause{1000};
constexpr std::chrono::seconds kOneTry{2};     // if a packet is lost; the system would wait longer each time
constexpr std::chrono::seconds kOneProof{10};  // the same, once connected; also the other side's limit
constexpr int kRefusalsBelieved = 3;           // "wrong key": anybody on the path can forge one

}  // namespace

// The hub's thread calls received() and closed(): effects are delivered there.
class CoordinatorLink::Impl final : public net::Receiver {
 public:
  Impl(std::string address, brain::NodeId node, const std::string& node_name, OnEffect on_effect, OnLost on_lost,
       OnRouted on_routed)
      : address_(std::move(address)),
        asked_node_(node),
        node_name_(node_name.substr(0, proto::kMaxNodeNameBytes)),
        on_effect_(std::move(on_effect)),
        on_lost_(std::move(on_lost)),
        on_routed_(std::move(on_routed)),
        node_(node) {}
  ~Impl() override { close(); }

  // ABORTED: the coordinator had no room, or no time, for a connection that has not proved the key yet. Try again with
  // another Impl.
  Status attend(const std::shared_ptr<const net::TlsContext>& tls, net::Deadline deadline,
                std::chrono::milliseconds timeout);
  void send(const brain::Event& event);
  Status route(brain::NodeId to, std::string message);
  void close();
  void abandon();
  uint32_t term() const { return term_; }
  const std::string& data_secret() const { return data_secret_; }
  bool plain_data() const { return plain_data_; }
  brain::NodeId node() const { return node_; }
  uint64_t received_bytes() const { return received_bytes_.load(); }

  void received(std::string message) override;
  void closed(const Status& why) override;

 private:
  enum class Phase { kGreeting, kHello, kAttending, kOver };

  StatusOr<net::TlsStream> connect(const net::Address& address, const std::shared_ptr<const net::TlsContext>& tls,
                                   net::Deadline deadline);
  // With the mutex held, like the five below. Returns the effect to deliver, if any.
  StatusOr<std::optional<brain::Effect>> handle(const control::FromCoordinator& message);
  Status on_greeting(const std::string& bytes);
  Status on_welcome(const control::FromCoordinator& message);
  StatusOr<std::optional<brain::Effect>> effect(const control::FromCoordinator& message);
  void enqueue(const control::FromAgent& message);
  void give_up(const Status& why);
  control::FromAgent from_us() const;
  std::string who() const;
  Status why_not(bool timed_out, std::chrono::milliseconds timeout) const;
  std::string why_lost() const;

  const std::string address_;
  const brain::NodeId asked_node_;
  const std::string node_name_;
  const OnEffect on_effect_;
  const OnLost on_lost_;
  const OnRouted on_routed_;
  // Not changed after the welcome.
  brain::NodeId node_;
  uint32_t term_ = 0;
  std::string data_secret_;
  bool plain_data_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  Phase phase_ = Phase::kGreeting;
  bool greeted_ = false;
  bool attended_ = false;
  bool closing_ = false;
  bool closed_ = true;  // until there is a connection, and after the hub is done with us
  uint32_t generation_ = 0;
  proto::HeldTables tables_;
  Status end_;        // the coordinator's last message
  Status own_error_;  // why we ended the connection ourselves
  Status broken_;     // how the connection broke
  std::atomic<uint64_t> received_bytes_ = 0;

  std::shared_ptr<net::Link> link_;
  std::unique_ptr<net::Hub> hub_;  // last, because its thread uses the above
};

StatusOr<net::TlsStream> CoordinatorLink::Impl::connect(const net::Address& address,
                                                        const std::shared_ptr<const net::TlsContext>& tls,
                                                        net::Deadline deadline) {
  int refusals = 0;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    StatusOr<Fd> fd = net::connect_to(address, std::min(deadline, net::Deadline::after(kOneTry)));
    StatusOr<net::TlsStream> stream =
        fd.ok() ? net::prove_key(*std::move(fd), address_, tls, std::min(deadline, net::Deadline::after(kOneProof)))
                : StatusOr<net::TlsStream>(fd.status());
    const bool no_answer = absl::IsUnavailable(stream.status()) || absl::IsDeadlineExceeded(stream.status());
    if (stream.ok() || (!no_answer && ++refusals == kRefusalsBelieved)) {
      return stream;
    }
    if (net::Deadline::after(pause) > deadline) {
      return no_answer ? absl::DeadlineExceededError(stream.status().message()) : stream.status();
    }
    std::this_thread::sleep_for(pause);
  }
}

Status CoordinatorLink::Impl::attend(const std::shared_ptr<const net::TlsContext>& tls, net::Deadline deadline,
                                     std::chrono::milliseconds timeout) {
  KEEPSTEP_ASSIGN_OR_RETURN(const net::Address address, net::parse_address(address_));
  StatusOr<net::TlsStream> stream = connect(address, tls, deadline);
  if (absl::IsDeadlineExceeded(stream.status())) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "no connection to the coordinator at %s within %d ms: %s; is the address right, and does it run?", address_,
        timeout.count(), stream.status().message()));
  }
  if (absl::IsUnauthenticated(stream.status())) {
    return absl::UnauthenticatedError(absl::StrFormat(
        "the coordinator at %s does not know the job token of %s, or has another --rdzv-id (%s); is it another job's? "
        "Give all parts of a job the same --token-file and --rdzv-id",
        address_, who(), stream.status().message()));
  }
  KEEPSTEP_RETURN_IF_ERROR(stream.status());
  KEEPSTEP_ASSIGN_OR_RETURN(hub_, net::Hub::start("ks-link"));
  link_ = hub_->add(*std::move(stream), proto::link_options(address));

  control::FromAgent hello = from_us();
  hello.mutable_hello()->set_node_name(node_name_);
  std::unique_lock lock(mutex_);
  closed_ = false;
  link_->send(proto::greeting_of(asked_node_).encode().value());
  enqueue(hello);
  hub_->start(link_, this);
  const bool settled = changed_.wait_for(lock, std::chrono::milliseconds(std::max(0, deadline.poll_ms())),
                                         [this] { return closed_ || attended_; });
  if (attended_) {
    return absl::OkStatus();
  }
  closing_ = true;
  link_->abort();
  changed_.wait(lock, [this] { return closed_; });
  return why_not(!settled, timeout);
}

control::FromAgent CoordinatorLink::Impl::from_us() const {
  control::FromAgent message;
  message.set_node(node_);
  message.set_term(term_);
  return message;
}

std::string CoordinatorLink::Impl::who() const {
  return asked_node_ == proto::kAnyNode ? absl::StrFormat("this node (%s)", node_name_)
                                        : absl::StrFormat("node %d (%s)", asked_node_, node_name_);
}

Status CoordinatorLink::Impl::why_not(bool timed_out, std::chrono::milliseconds timeout) const {
  if (!own_error_.ok()) {
    return own_error_;
  }
  if (timed_out) {
    return absl::DeadlineExceededError(
        absl::StrFormat("no welcome from the coordinator at %s within %d ms; is the launcher of node 0 stopped?",
                        address_, timeout.count()));
  }
  // Our side of the handshake ends first; the coordinator may still drop us as a stranger.
  if (!greeted_ && end_.ok() && absl::IsUnavailable(broken_)) {
    return absl::AbortedError(broken_.message());
  }
  const Status& why = end_.ok() ? broken_ : end_;
  if (absl::IsUnavailable(why)) {
    return absl::UnavailableError(
        absl::StrFormat("the job at %s ends just now, or its node 0 is gone; %s came too late to have a part "
                        "in it: %s",
                        address_, who(), why.message()));
  }
  return Status(why.code(), absl::StrFormat("the coordinator at %s refused %s: %s", address_, who(), why.message()));
}

void CoordinatorLink::Impl::received(std::string bytes) {
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kOver) {
    return;
  }
  received_bytes_ += bytes.size();
  control::FromCoordinator message;
  const bool understood = message.ParseFromString(bytes);
  if (understood && message.has_end()) {
    end_ = Status(static_cast<absl::StatusCode>(message.end().code()), message.end().why());
    return;
  }
  if (phase_ == Phase::kGreeting) {
    if (const Status status = on_greeting(bytes); !status.ok()) {
      give_up(status);
    }
    return;
  }
  if (!understood) {
    return give_up(absl::InternalError(absl::StrFormat("the coordinator at %s sent a malformed message", address_)));
  }
  if (message.has_routed() && phase_ == Phase::kAttending) {
    if (on_routed_ != nullptr && !closing_) {
      lock.unlock();
      on_routed_(message.routed().peer(), std::move(*message.mutable_routed()->mutable_payload()));
    }
    return;
  }
  StatusOr<std::optional<brain::Effect>> came = handle(message);
  if (!came.ok()) {
    give_up(came.status());
  } else if (came->has_value() && !closing_) {
    lock.unlock();
    on_effect_(**std::move(came));
  }
}

void CoordinatorLink::Impl::give_up(const Status& why) {
  own_error_ = why;
  phase_ = Phase::kOver;
  link_->abort();
}

// The greeting says who answers; a relay may have connected us to somebody else.
Status CoordinatorLink::Impl::on_greeting(const std::string& bytes) {
  KEEPSTEP_ASSIGN_OR_RETURN(const net::Greeting greeting, net::Greeting::decode(bytes));
  KEEPSTEP_RETURN_IF_ERROR(proto::check_answer(asked_node_, greeting, address_));
  greeted_ = true;
  term_ = greeting.term;
  phase_ = Phase::kHello;
  return absl::OkStatus();
}

StatusOr<std::optional<brain::Effect>> CoordinatorLink::Impl::handle(const control::FromCoordinator& message) {
  if (phase_ == Phase::kHello) {
    KEEPSTEP_RETURN_IF_ERROR(on_welcome(message));
    return std::nullopt;
  }
  if (message.term() < term_) {
    return std::nullopt;
  }
  return effect(message);
}

Status CoordinatorLink::Impl::on_welcome(const control::FromCoordinator& message) {
  if (!message.has_welcome() || message.term() != term_ ||
      message.welcome().data_secret().size() != net::SharedKey::kBytes) {
    return absl::InternalError(absl::StrFormat("the coordinator at %s sent no welcome after our hello", address_));
  }
  node_ = message.node();
  if (node_ == proto::kAnyNode || (asked_node_ != proto::kAnyNode && node_ != asked_node_)) {
    return absl::InternalError(absl::StrFormat("the coordinator at %s welcomed another node", address_));
  }
  data_secret_ = message.welcome().data_secret();
  plain_data_ = message.welcome().plain_data();
  phase_ = Phase::kAttending;
  attended_ = true;
  changed_.notify_all();
  return absl::OkStatus();
}

StatusOr<std::optional<brain::Effect>> CoordinatorLink::Impl::effect(const control::FromCoordinator& message) {
  StatusOr<brain::Effect> came = proto::effect_from_wire(message, tables_);
  if (absl::IsFailedPrecondition(came.status())) {
    control::FromAgent lost = from_us();
    lost.mutable_table_lost();
    enqueue(lost);
    return std::nullopt;  // the coordinator repeats its order, with the whole table
  }
  if (!came.ok()) {
    return Status(came.status().code(),
                  absl::StrFormat("the coordinator at %s sent %s", address_, came.status().message()));
  }
  generation_ = std::max(generation_, message.generation());
  return *std::move(came);
}

void CoordinatorLink::Impl::closed(const Status& why) {
  std::unique_lock lock(mutex_);
  phase_ = Phase::kOver;
  broken_ = why;
  if (attended_ && !closing_) {
    const std::string lost = why_lost();
    lock.unlock();
    on_lost_(lost);
    lock.lock();
  }
  closed_ = true;  // from now on close() may return and the link may be gone
  changed_.notify_all();
}

std::string CoordinatorLink::Impl::why_lost() const {
  if (!own_error_.ok()) {
    return std::string(own_error_.message());
  }
  if (!end_.ok()) {
    return absl::StrFormat("the coordinator at %s ended the connection: %s", address_, end_.message());
  }
  return absl::StrFormat("the connection to the coordinator was lost: %s", broken_.message());
}

void CoordinatorLink::Impl::send(const brain::Event& event) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kAttending || closing_) {
    return;
  }
  control::FromAgent message = proto::to_wire(event, node_, {term_, generation_});
  message.set_table(tables_.newest());
  enqueue(message);
}

Status CoordinatorLink::Impl::route(brain::NodeId to, std::string message) {
  if (message.size() > proto::kMaxRoutedBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat("a message of %d bytes for node %d; at most %d are handed on",
                                                        message.size(), to, proto::kMaxRoutedBytes));
  }
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kAttending && !closing_) {
    control::FromAgent routed = from_us();
    routed.mutable_routed()->set_peer(to);
    routed.mutable_routed()->set_payload(std::move(message));
    enqueue(routed);
  }
  return absl::OkStatus();
}

void CoordinatorLink::Impl::enqueue(const control::FromAgent& message) { link_->send(message.SerializeAsString()); }

void CoordinatorLink::Impl::close() {
  std::unique_lock lock(mutex_);
  if (closing_ || link_ == nullptr) {
    return;
  }
  closing_ = true;
  if (phase_ == Phase::kAttending) {
    control::FromAgent goodbye = from_us();
    goodbye.mutable_leave();
    enqueue(goodbye);
  }
  link_->end();
  const auto closed = [this] { return closed_; };
  if (!changed_.wait_for(lock, kGoodbye, closed)) {
    link_->abort();
    changed_.wait(lock, closed);
  }
}

void CoordinatorLink::Impl::abandon() {
  std::unique_lock lock(mutex_);
  if (closing_ || link_ == nullptr) {
    return;
  }
  closing_ = true;
  link_->abort();
  changed_.wait(lock, [this] { return closed_; });
}

StatusOr<std::unique_ptr<CoordinatorLink>> CoordinatorLink::connect(const std::string& address, brain::NodeId node,
                                                                    const std::string& node_name,
                                                                    const std::shared_ptr<const net::TlsContext>& tls,
                                                                    const OnEffect& on_effect, const OnLost& on_lost,
                                                                    std::chrono::milliseconds timeout,
                                                                    const OnRouted& on_routed) {
  const net::Deadline deadline = net::Deadline::after(timeout);
  while (true) {
    auto impl = std::make_unique<Impl>(address, node, node_name, on_effect, on_lost, on_routed);
    Status status = impl->attend(tls, deadline, timeout);
    if (status.ok()) {
      return std::unique_ptr<CoordinatorLink>(new CoordinatorLink(std::move(impl)));
    }
    if (!absl::IsAborted(status)) {
      return status;
    }
    if (deadline.passed()) {
      return absl::DeadlineExceededError(status.message());
    }
    std::this_thread::sleep_for(kFirstPause);
  }
}

CoordinatorLink::CoordinatorLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorLink::~CoordinatorLink() = default;
void CoordinatorLink::send(const brain::Event& event) { impl_->send(event); }
Status CoordinatorLink::route(brain::NodeId to, std::string message) { return impl_->route(to, std::move(message)); }
brain::NodeId CoordinatorLink::node() const { return impl_->node(); }
uint32_t CoordinatorLink::term() const { return impl_->term(); }
const std::string& CoordinatorLink::data_secret() const { return impl_->data_secret(); }
bool CoordinatorLink::plain_data() const { return impl_->plain_data(); }
uint64_t CoordinatorLink::received_bytes() const { return impl_->received_bytes(); }
void CoordinatorLink::close() { impl_->close(); }
void CoordinatorLink::abandon() { impl_->abandon(); }

}  // namespace keepstep::agent
