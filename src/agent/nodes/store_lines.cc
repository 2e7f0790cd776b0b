#include "agent/nodes/store_lines.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_join.h"
#include "messages/store_value.h"
#include "net/connection.h"
#include "net/greeting.h"

namespace keepstep::agent {
namespace {

using brain::NodeId;

constexpr std::chrono::seconds kDialLimit{3};
constexpr size_t kDialAtOnce = 32;
constexpr std::chrono::milliseconds kAgain{250};
constexpr std::chrono::seconds kAskAfter{5};
// A key and a value, in hexadecimal, and what is around them.
constexpr size_t kMaxMessage = 2 * (messages::kMaxStoreKeyBytes + messages::kMaxStoreValueBytes) + 4096;

bool is_loopback(const SocketAddress& address) { return address.ip.starts_with("127.") || address.ip == "::1"; }

std::string greeted_name(NodeId node) { return absl::StrFormat("node %d", node); }

}  // namespace

// One connection; shared with its last call, and with what it posted.
struct StoreLines::Line : net::Receiver, std::enable_shared_from_this<Line> {
  Line(StoreLines& given, std::optional<NodeId> node) : owner(given), dialled(node) {}
  void received(std::string message) override;
  void closed(const Status& why) override;
  Status greet(const std::string& message);

  StoreLines& owner;
  const std::optional<NodeId> dialled;  // std::nullopt: the other side connected
  std::shared_ptr<net::Link> link;

  bool refused = false;  // by us; the hub's thread

  // The hub's thread until `greeted`, then constant.
  bool greeted = false;
  NodeId node = 0;
};

StatusOr<std::unique_ptr<StoreLines>> StoreLines::create(EventLoop& loop, const StoreNodes& nodes,
                                                         const std::string& job, Handlers handlers) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const net::TlsContext> context,
                            net::TlsContext::create(net::SharedKey::store(nodes.token, job)));
  return std::unique_ptr<StoreLines>(new StoreLines(loop, nodes, std::move(context), std::move(handlers)));
}

StoreLines::~StoreLines() {
  thread_ = {};
  listener_.reset();
  hub_.reset();
}

Status StoreLines::start() {
  KEEPSTEP_ASSIGN_OR_RETURN(hub_, net::Hub::start("store"));
  thread_ = std::jthread([this](const std::stop_token& stop) {
    pthread_setname_np(pthread_self(), "store lines");
    run(stop);
  });
  return absl::OkStatus();
}

void StoreLines::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (listener_ == nullptr) {
      listen();
    }
    for (NodeId first = 0; first < self_ && !stop.stop_requested(); first += kDialAtOnce) {
      std::vector<std::jthread> dials;
      for (NodeId node = first; node < self_ && node < first + kDialAtOnce; ++node) {
        if (!is_dialled(node)) {
          dials.emplace_back([this, node] { dial(node); });
        }
      }
    }
    std::unique_lock lock(mutex_);
    changes_.wait_for(lock, stop, kAgain, [] { return false; });
  }
}

// An agent of an earlier start of the job may still have the port, for a moment.
void StoreLines::listen() {
  SocketAddress own = addresses_[self_];
  if (!std::all_of(addresses_.begin(), addresses_.end(), is_loopback)) {
    own.ip = own.ip.find(':') == std::string::npos ? "0.0.0.0" : "::";
  }
  StatusOr<std::unique_ptr<net::Listener>> listener = net::Listener::start(
      own, context_, {}, [this](net::TlsStream stream) { add(std::move(stream), std::nullopt); },
      [this](const Status& why) { note_refused(why); });
  note(self_, listener.status());
  if (listener.ok()) {
    listener_ = *std::move(listener);
  }
}

bool StoreLines::is_dialled(NodeId node) {
  const std::lock_guard lock(mutex_);
  return std::any_of(lines_.begin(), lines_.end(), [&](const auto& line) { return line.first->dialled == node; });
}

void StoreLines::dial(NodeId node) {
  StatusOr<net::TlsStream> stream = net::connect_tls(addresses_[node], context_, net::Deadline::after(kDialLimit));
  if (stream.ok()) {
    add(*std::move(stream), node);
  } else {
    note(node, stream.status());
  }
}

void StoreLines::note(NodeId node, const Status& why) {
  const std::lock_guard lock(mutex_);
  failures_[node] = std::string(why.message());
}

void StoreLines::note_refused(const Status& why) {
  const std::lock_guard lock(mutex_);
  refused_ = std::string(why.message());
}

void StoreLines::add(net::TlsStream stream, std::optional<NodeId> dialled) {
  const auto line = std::make_shared<Line>(*this, dialled);
  line->link = hub_->add(std::move(stream), {.max_message_bytes = kMaxMessage, .ask_after = kAskAfter});
  {
    const std::lock_guard lock(mutex_);
    lines_[line.get()] = line;
  }
  if (dialled) {
    const net::Greeting greeting{.role = net::Role::kConnects,
                                 .from = greeted_name(self_),
                                 .to = greeted_name(*dialled),
                                 .stream = addresses_.size()};
    line->link->send(*greeting.encode());
  }
  hub_->start(line->link, line.get());
}

Status StoreLines::Line::greet(const std::string& message) {
  KEEPSTEP_ASSIGN_OR_RETURN(const net::Greeting got, net::Greeting::decode(message));
  net::Greeting expected{.role = dialled ? net::Role::kAccepts : net::Role::kConnects,
                         .from = dialled ? greeted_name(*dialled) : got.from,
                         .to = greeted_name(owner.self_),
                         .stream = owner.addresses_.size()};
  KEEPSTEP_RETURN_IF_ERROR(net::check_greeting(expected, got, link->peer()));
  node = dialled.value_or(owner.self_ + 1);
  while (node < owner.addresses_.size() && greeted_name(node) != got.from) {
    ++node;
  }
  if (node >= owner.addresses_.size()) {
    return absl::FailedPreconditionError(absl::StrFormat("'%s' does not connect to this node", got.from));
  }
  if (!dialled) {
    KEEPSTEP_ASSIGN_OR_RETURN(std::string answer, expected.answer().encode());
    link->send(std::move(answer));
  }
  return absl::OkStatus();
}

void StoreLines::Line::received(std::string message) {
  if (greeted) {
    owner.post(shared_from_this(),
               [this, text = std::move(message)]() mutable { owner.handlers_.received(node, std::move(text)); });
    return;
  }
  if (const Status status = greet(message); !status.ok()) {
    if (dialled) {
      owner.note(*dialled, status);
    } else {
      owner.note_refused(status);
    }
    refused = true;
    link->abort();
    return;
  }
  greeted = true;
  owner.note(node, absl::OkStatus());
  owner.loop_.post([self = shared_from_this()] { self->owner.on_greeted(self); });
}

void StoreLines::Line::closed(const Status& why) {
  const std::shared_ptr<Line> self = shared_from_this();
  {
    const std::lock_guard lock(owner.mutex_);
    owner.lines_.erase(this);
  }
  if (greeted) {
    owner.note(node, why);
    owner.post(self, [self, why] { self->owner.on_closed(self, why); });
  } else if (dialled && !refused) {
    owner.note(*dialled,
               absl::UnavailableError("it ended the connection instead of a greeting; has it the same list?"));
  }
}

// Only for the line that is the node's current one by then.
void StoreLines::post(const std::shared_ptr<Line>& line, std::function<void()> task) {
  loop_.post([line, task = std::move(task)] {
    const auto current = line->owner.connected_.find(line->node);
    if (current != line->owner.connected_.end() && current->second == line) {
      task();
    }
  });
}

void StoreLines::on_greeted(const std::shared_ptr<Line>& line) {
  if (const auto before = connected_.find(line->node); before != connected_.end()) {
    before->second->link->abort();
    on_closed(before->second, absl::UnavailableError("the node connected again"));
  }
  connected_[line->node] = line;
  handlers_.connected(line->node);
}

void StoreLines::on_closed(const std::shared_ptr<Line>& line, const Status& why) {
  const NodeId node = line->node;
  connected_.erase(node);
  handlers_.disconnected(node, why);
}

void StoreLines::send(NodeId node, std::string message) {
  if (const auto line = connected_.find(node); line != connected_.end()) {
    line->second->link->send(std::move(message));
  }
}

std::string StoreLines::absent() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> missing;
  for (NodeId node = 0; node < addresses_.size(); ++node) {
    if (node != self_ && !connected_.contains(node)) {
      const std::string& why = failures_[node];
      missing.push_back(absl::StrFormat("%s: %s", node_with_address(node, addresses_[node]),
                                        why.empty() ? "it has not connected yet" : why));
    }
  }
  if (!failures_[self_].empty()) {
    missing.push_back(absl::StrFormat("this node does not listen: %s", failures_[self_]));
  }
  if (!missing.empty() && !refused_.empty()) {
    missing.push_back(absl::StrFormat("this node refused %s", refused_));
  }
  return absl::StrJoin(missing, "; ");
}

}  // namespace keepstep::agent
