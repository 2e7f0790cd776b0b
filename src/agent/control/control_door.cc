#include "agent/control/control_door.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "base/socket/local_socket.h"
#include "base/token.h"

namespace keepstep::agent {
namespace {

constexpr std::string_view kPrefix = "job-";
constexpr size_t kMaxJobBytes = 48;
constexpr size_t kRandomDigits = 8;
constexpr size_t kInlineBytes = 60 * 1024;  // larger answers go by descriptor: a socket's buffer is limited

bool fit_for_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

}  // namespace

std::string job_in_names(std::string_view job) {
  std::string name(job.substr(0, kMaxJobBytes));
  std::replace_if(name.begin(), name.end(), [](char c) { return !fit_for_name(c); }, '-');
  return name;
}

std::vector<DoorName> find_doors() {
  std::vector<DoorName> doors;
  for (const std::string& path : names_held(kPrefix)) {
    const std::string name = path.substr(path.rfind('/') + 1 + kPrefix.size());
    if (const size_t end = name.rfind('-'); end != std::string::npos) {
      doors.push_back({name.substr(0, end), path});
    }
  }
  return doors;
}

nlohmann::json error_answer(const std::string& message) { return {{"ok", false}, {"error", message}}; }

nlohmann::json lacking_answer(const std::exception& error) {
  return error_answer(absl::StrFormat("a request without what it needs: %s", error.what()));
}

std::string answer_text(const nlohmann::json& body) {
  std::string text = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxAnswerBytes) {
    text = error_answer(absl::StrFormat("an answer of %d bytes, %d are the most", text.size(), kMaxAnswerBytes)).dump();
  }
  return text;
}

StatusOr<std::unique_ptr<ControlDoor>> ControlDoor::open(EventLoop& loop, const std::string& job, Handler handler,
                                                         Refused refused) {
  std::unique_ptr<ControlDoor> door(new ControlDoor(loop, job, std::move(handler), std::move(refused)));
  KEEPSTEP_RETURN_IF_ERROR(door->listen());
  return door;
}

Status ControlDoor::listen() {
  const std::string random = to_hex(random_nonce()).substr(0, kRandomDigits);
  KEEPSTEP_ASSIGN_OR_RETURN(HeldName name, HeldName::take(absl::StrFormat("%s%s-%s", kPrefix, job_, random)));
  KEEPSTEP_ASSIGN_OR_RETURN(Fd listener, listen_local(name.path()));
  if (listener_.valid()) {
    loop_.unwatch(listener_.get());
  }
  name_ = std::move(name);
  listener_ = std::move(listener);
  return loop_.watch(listener_.get(), [this] { on_connection(); });
}

Status ControlDoor::keep_open() { return name_.found() ? absl::OkStatus() : listen(); }

ControlDoor::~ControlDoor() {
  if (listener_.valid()) {
    loop_.unwatch(listener_.get());
  }
  for (const auto& [id, client] : clients_) {
    loop_.unwatch(client.socket.fd());
  }
}

void ControlDoor::refuse(const std::string& because) {
  if (std::has_single_bit(++refusals_)) {
    refused_(because, refusals_);
  }
}

void ControlDoor::let_go(uint64_t id) {
  if (const auto it = clients_.find(id); it != clients_.end()) {
    loop_.unwatch(it->second.socket.fd());
    clients_.erase(it);
  }
}

// Disconnects the oldest idle client, or the oldest one if none is idle.
void ControlDoor::make_room() {
  if (clients_.size() < kMaxClients) {
    return;
  }
  auto goes =
      std::find_if(clients_.begin(), clients_.end(), [](const auto& each) { return each.second.unanswered == 0; });
  goes = goes == clients_.end() ? clients_.begin() : goes;
  refuse(absl::StrFormat("process %d was let go: %d connections at once are the most, and others came",
                         goes->second.pid, kMaxClients));
  let_go(goes->first);
}

void ControlDoor::on_connection() {
  StatusOr<Accepted> accepted = accept_local(listener_);
  if (!accepted.ok()) {
    refuse(std::string(accepted.status().message()));
    return;
  }
  make_room();
  const uint64_t id = next_client_++;
  Client& client = clients_[id];
  client.id = id;
  client.socket = std::move(accepted->socket);
  client.pid = accepted->peer.pid;
  if (!loop_.watch(client.socket.fd(), [this, id] { on_packet(id); }).ok()) {
    clients_.erase(id);
  }
}

void ControlDoor::on_packet(uint64_t id) {
  Client& client = clients_.at(id);
  // The descriptor may have belonged to a connection that ended in this turn of the loop: then nothing can be read yet.
  pollfd readable{.fd = client.socket.fd(), .events = POLLIN};
  if (poll(&readable, 1, 0) <= 0) {
    return;
  }
  StatusOr<Packet> packet = client.socket.receive();
  if (absl::IsUnavailable(packet.status())) {
    let_go(id);
    return;
  }
  std::string bad;
  nlohmann::json request;
  if (!packet.ok()) {
    bad = std::string(packet.status().message());
  } else if (packet->bytes.size() > kMaxRequestBytes || !packet->fds.empty()) {
    bad = absl::StrFormat("a request of %d bytes and %d descriptors (at most %d bytes, and none)", packet->bytes.size(),
                          packet->fds.size(), kMaxRequestBytes);
  } else if (request = nlohmann::json::parse(packet->bytes, nullptr, false); !request.is_object()) {
    bad = "a request that is no JSON object";
  } else if (client.unanswered >= kMaxRequestsPerClient) {
    bad = absl::StrFormat("more than %d requests at once", kMaxRequestsPerClient);
  }
  if (!bad.empty()) {
    refuse(absl::StrFormat("process %d sent %s", client.pid, bad));
    let_go(id);  // ends only this connection
    return;
  }
  ++client.unanswered;
  const nlohmann::json request_id = request.contains("id") ? request["id"] : nlohmann::json();
  const Answer reply = [this, id, request_id, alive = std::weak_ptr<bool>(alive_),
                        done = std::make_shared<bool>(false)](nlohmann::json body) {
    if (alive.lock() != nullptr && !std::exchange(*done, true)) {
      answer(id, request_id, std::move(body));
    }
  };
  try {
    handler_(request, reply);
  } catch (const nlohmann::json::exception& error) {
    reply(lacking_answer(error));
  }
}

void ControlDoor::answer(uint64_t id, const nlohmann::json& request_id, nlohmann::json body) {
  const auto it = clients_.find(id);
  if (it == clients_.end()) {
    return;
  }
  Client& client = it->second;
  --client.unanswered;
  if (!request_id.is_null()) {
    body["id"] = request_id;
  }
  const std::string text = answer_text(body);
  Status sent = absl::OkStatus();
  if (text.size() <= kInlineBytes) {
    sent = client.socket.try_send(text);
  } else if (StatusOr<SharedMemory> memory = SharedMemory::create("keepstep-answer", text.size()); memory.ok()) {
    std::memcpy(memory->data(), text.data(), text.size());
    const int fds[] = {memory->fd()};
    sent = client.socket.try_send(nlohmann::json{{"bytes", text.size()}}.dump(), fds);
  } else {
    sent = client.socket.try_send(error_answer(std::string(memory.status().message())).dump());
  }
  if (!sent.ok()) {
    refuse(absl::StrFormat("process %d does not read its answers: %s", client.pid, std::string(sent.message())));
    let_go(id);
  }
}

}  // namespace keepstep::agent
