#include "rank/link/agent_line.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"
#include "base/overloaded.h"

namespace keepstep::rank {

using brain::Identity;

namespace {

constexpr int kExitAgentLost = 75;
constexpr size_t kMaxInjections = 1000;  // not yet taken

}  // namespace

AgentLine::AgentLine(PacketSocket socket, SharedMemory memory, messages::Texts fingerprint)
    : socket_(std::move(socket)),
      memory_(std::move(memory)),
      fingerprint_(std::move(fingerprint)),
      worker_(page().worker),
      pid_(getpid()) {}

Status AgentLine::open() {
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return welcomed_ || ended_.has_value(); });
  return welcomed_ ? absl::OkStatus() : absl::CancelledError(*ended_);
}

bool AgentLine::leave_to_parent() {
  if (getpid() == pid_) {
    return false;
  }
  if (thread_.joinable()) {
    thread_.detach();
  }
  return true;
}

void AgentLine::close() {
  if (!thread_.joinable() || leave_to_parent()) {
    return;
  }
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  shutdown(socket_.fd(), SHUT_RDWR);
  thread_.join();
}

void AgentLine::run() {
  // This thread lives as long as the worker: the kernel passes the mutex to the agent the moment it dies.
  KEEPSTEP_CHECK(page().alive.lock() != RobustMutex::LockResult::kFailed, "cannot lock the worker's own life mutex");
  (void)send(messages::Attach{fingerprint_});
  while (true) {
    StatusOr<Packet> packet = socket_.receive();
    if (absl::IsInvalidArgument(packet.status())) {
      complain("dropped a message from its agent", packet.status());
      continue;
    }
    if (!packet.ok()) {
      break;
    }
    const StatusOr<messages::Envelope> envelope = messages::decode(*packet);
    const StatusOr<messages::ToRank> message =
        envelope.ok() ? messages::read<messages::ToRank>(envelope->text) : envelope.status();
    if (!message.ok()) {
      complain("dropped a message from its agent", message.status());
      continue;
    }
    if (packet->fds_lost) {
      complain(absl::StrFormat("got a message '%s' from its agent", std::string(messages::name_of(envelope->text))),
               absl::ResourceExhaustedError(Packet::kFdsLost));
    }
    handle(*envelope, *message, std::move(packet->fds));
  }
  std::lock_guard lock(mutex_);
  const bool done = ended_.has_value() || leaving_;
  if (!done && !released()) {
    std::fprintf(stderr, "keepstep: worker %u (pid %d) ends: its agent is gone, and with it the job on this node\n",
                 worker_, getpid());
    std::fflush(stderr);
    _exit(kExitAgentLost);
  }
  if (!done) {
    ended_ = "its agent is gone";  // a call that waits for a rank, in another function, would wait in vain
    changed_.notify_all();
  }
  page().alive.unlock();
}

Status AgentLine::send_text(std::string text, std::span<const int> fds) {
  Status status =
      messages::send_encoded(socket_, messages::encode({node_.load(), identity_.load(), std::move(text)}), fds, true);
  if (status.ok() || absl::IsUnavailable(status)) {
    return absl::OkStatus();  // run() detects a lost agent
  }
  complain("cannot tell its agent", status);
  return status;
}

void AgentLine::complain(const std::string& what, const Status& why) const {
  std::fprintf(stderr, "keepstep: worker %u (pid %d) %s: %s\n", worker_, getpid(), what.c_str(),
               std::string(why.message()).c_str());
}

// ---- messages from the agent --------------------------------------------------------------------------------------

void AgentLine::handle(const messages::Envelope& envelope, const messages::ToRank& message, std::vector<Fd> fds) {
  const std::lock_guard lock(mutex_);
  std::visit(Overloaded{
                 [&](const messages::Welcome& welcome) {
                   node_ = envelope.node;
                   welcome_ = welcome;
                   layout_ = std::make_unique<WorkerLayout>(welcome.comm);
                   welcomed_ = true;
                 },
                 [&](const messages::Inherit&) { inherited_ = fds.empty() ? Fd() : std::move(fds.front()); },
                 [&](const messages::Prepare& prepare) { take(envelope.identity, prepare, std::move(fds)); },
                 [&](const messages::Activate& activate) {
                   activation_ = activate;
                   activation_of_ = envelope.identity;
                 },
                 [&](const messages::Interrupt&) {
                   interrupted_identity_ = std::max(interrupted_identity_, envelope.identity);
                   for (auto& [id, reply] : replies_) {
                     reply.interrupted = true;
                   }
                 },
                 [&](const messages::Release&) { released_of_ = std::max(released_of_.load(), envelope.identity); },
                 [&](const messages::End& end) { ended_ = end.message; },
                 [&](const messages::StoreAnswer& answer) { take(answer, std::move(fds)); },
                 [&](const messages::VaultAnswer& answer) { take(answer, std::move(fds)); },
                 [&](const messages::Notice& notice) {
                   notice_ = notice.because;
                   notice_came_ = true;
                 },
                 [&](const messages::Pause& pause) {
                   stay_ = pause.stay;
                   pause_of_ = envelope.identity;
                 },
                 [&](const messages::Inject& inject) {
                   if (injections_.size() < kMaxInjections) {
                     injections_.push_back(inject.fault);
                     injections_came_ = true;
                   }
                 },
             },
             message);
  changed_.notify_all();
}

void AgentLine::take(Identity identity, const messages::Prepare& message, std::vector<Fd> fds) {
  if (const Status status = prepare(identity, message, std::move(fds)); !status.ok()) {
    complain(absl::StrFormat("cannot enter generation %d", identity.generation), status);
  }
}

void AgentLine::take(const messages::StoreAnswer& message, std::vector<Fd> fds) {
  if (const auto it = replies_.find(message.id); it != replies_.end()) {
    it->second = store_reply(message, std::move(fds));
  }
}

void AgentLine::take(const messages::VaultAnswer& message, std::vector<Fd> fds) {
  if (const auto it = vault_replies_.find(message.id); it != vault_replies_.end()) {
    const bool lost = fds.empty() && message.error.empty();
    it->second = {true, lost ? Packet::kFdsLost : message.error, fds.empty() ? Fd() : std::move(fds.front())};
  }
}

Status AgentLine::prepare(Identity identity, const messages::Prepare& message, std::vector<Fd> fds) {
  if (identity <= newest_) {
    return absl::OkStatus();  // a repetition, or older than the current generation
  }
  KEEPSTEP_ASSIGN_OR_RETURN(Prepared prepared, prepared_from(identity, message, std::move(fds), welcome_.comm));
  for (size_t i = 0; i < prepared.workers.size(); ++i) {
    const uint32_t peer = prepared.workers[i];
    if (peer != worker_ && !peers_.contains(peer)) {
      KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory mapped,
                                SharedMemory::attach(std::move(prepared.memory[i]), layout_->bytes));
      peers_.emplace(peer, std::move(mapped));
    }
  }
  prepared.memory.clear();
  // Inherited with this Prepare or, if the previous one was never entered, with that one.
  prepared.inherited =
      inherited_.valid() || !prepared_.has_value() ? std::move(inherited_) : std::move(prepared_->inherited);
  newest_ = identity;
  prepared_ = std::move(prepared);
  return absl::OkStatus();
}

// ---- the generation -----------------------------------------------------------------------------------------------

bool AgentLine::collectives_cut_short() const {
  const std::atomic<uint32_t>* interrupted = interrupted_.load();
  return interrupted != nullptr && interrupted->load(std::memory_order_relaxed) != 0;
}

bool AgentLine::superseded() const {
  return interrupted_identity_ >= identity_.load() || prepared_.has_value() || collectives_cut_short();
}

template <typename Done>
Status AgentLine::wait_in_generation(std::unique_lock<std::mutex>& lock, Done done) {
  while (!done()) {
    if (ended_.has_value()) {
      return absl::CancelledError(*ended_);
    }
    if (superseded()) {
      return absl::AbortedError("the generation was interrupted");
    }
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  return absl::OkStatus();
}

Status AgentLine::await_prepared() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return prepared_.has_value() || ended_.has_value(); });
  return ended_.has_value() ? absl::CancelledError(*ended_) : absl::OkStatus();
}

Prepared AgentLine::take_prepared(std::vector<std::byte*>* members) {
  const std::lock_guard lock(mutex_);
  Prepared prepared = std::move(*prepared_);  // the one waited for, or a newer one
  prepared_.reset();
  members->clear();
  for (const uint32_t worker : prepared.workers) {
    members->push_back(worker == worker_ ? memory_.data() : peers_.at(worker).data());
  }
  // Release the memory of workers that are gone.
  std::erase_if(peers_, [&](const auto& entry) {
    return std::find(prepared.workers.begin(), prepared.workers.end(), entry.first) == prepared.workers.end();
  });
  return prepared;
}

void AgentLine::enter(Identity identity, const std::atomic<uint32_t>* interrupted) {
  const std::lock_guard lock(mutex_);
  identity_ = identity;
  interrupted_ = interrupted;
}

StatusOr<Activation> AgentLine::await_activation() {
  std::unique_lock lock(mutex_);
  KEEPSTEP_RETURN_IF_ERROR(
      wait_in_generation(lock, [&] { return activation_.has_value() && activation_of_ == identity_.load(); }));
  return *activation_;
}

Status AgentLine::await_interruption() {
  std::unique_lock lock(mutex_);
  const Status status = wait_in_generation(lock, [] { return false; });
  return absl::IsAborted(status) ? absl::OkStatus() : status;
}

Status AgentLine::await_release() {
  std::unique_lock lock(mutex_);
  while (!released()) {
    if (ended_.has_value()) {
      return absl::CancelledError(*ended_);
    }
    if (interrupted_identity_ >= identity_.load() || prepared_.has_value()) {
      return absl::AbortedError("the generation was interrupted");
    }
    changed_.wait_for(lock, std::chrono::milliseconds(100));
  }
  return absl::OkStatus();
}

StatusOr<std::vector<uint32_t>> AgentLine::await_pause() {
  std::unique_lock lock(mutex_);
  KEEPSTEP_RETURN_IF_ERROR(wait_in_generation(lock, [this] { return pause_asked(); }));
  return stay_;
}

// ---- what the agent has announced ---------------------------------------------------------------------------------

std::string AgentLine::notice() const {
  const std::lock_guard lock(mutex_);
  return notice_;
}

std::vector<messages::Fault> AgentLine::take_injections() {
  std::vector<messages::Fault> taken;
  if (injections_came_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    taken.swap(injections_);
    injections_came_ = false;
  }
  return taken;
}

// ---- questions ----------------------------------------------------------------------------------------------------

StatusOr<Fd> AgentLine::ask_vault(messages::VaultQuestion question) {
  const uint64_t id = next_request_.fetch_add(1);
  {
    const std::lock_guard lock(mutex_);
    vault_replies_[id] = VaultReply{};
  }
  question.id = id;
  const Status sent = send(question);
  std::unique_lock lock(mutex_);
  const Status waited =
      sent.ok() ? wait_in_generation(lock, [&] { return vault_replies_[id].answered || leaving_; }) : sent;
  VaultReply reply = std::move(vault_replies_[id]);
  vault_replies_.erase(id);
  KEEPSTEP_RETURN_IF_ERROR(waited);
  if (!reply.answered) {
    return absl::CancelledError("this process leaves the job");
  }
  if (!reply.memory.valid()) {
    return absl::ResourceExhaustedError(reply.error);
  }
  return std::move(reply.memory);
}

StatusOr<StoreReply> AgentLine::ask_store(const std::string& op, const std::string& key, const std::string& value,
                                          int64_t timeout_ms, bool ends_with_generation) {
  const uint64_t id = next_request_.fetch_add(1);
  KEEPSTEP_ASSIGN_OR_RETURN(const auto question, messages::store_question(id, op, key, value));
  {
    const std::lock_guard lock(mutex_);
    replies_[id] = StoreReply{};
  }
  Status sent = send(question.message, question.fds());
  std::unique_lock lock(mutex_);
  if (!sent.ok()) {
    replies_.erase(id);
    return sent;
  }
  const auto done = [&] {
    StoreReply& reply = replies_[id];
    // Also for questions asked after the seal: a peer that is gone will never set the key.
    reply.interrupted = reply.interrupted || (interrupted_.load() != nullptr && superseded());
    return reply.answered || (reply.interrupted && ends_with_generation) || ended_.has_value();
  };
  if (timeout_ms < 0) {
    changed_.wait(lock, done);
  } else {
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), done);
  }
  StoreReply reply = std::move(replies_[id]);
  replies_.erase(id);
  if (!reply.error.empty()) {
    return absl::ResourceExhaustedError(reply.error);
  }
  reply.interrupted = reply.interrupted || ended_.has_value();
  return reply;
}

}  // namespace keepstep::rank
