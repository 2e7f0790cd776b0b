#include "agent/publications/publication_service.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/socket/local_socket.h"
#include "base/token.h"

namespace keepstep::agent {
namespace {

constexpr int kSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

Status check_name(const std::string& name) {
  if (name.empty() || name.size() > messages::kMaxPublicationNameBytes) {
    return absl::InvalidArgumentError(absl::StrFormat("a publication's name has 1 to %d bytes, this one %d",
                                                      messages::kMaxPublicationNameBytes, name.size()));
  }
  return absl::OkStatus();
}

bool readable(int fd) {
  pollfd waiting{.fd = fd, .events = POLLIN};
  return poll(&waiting, 1, 0) > 0;
}

}  // namespace

PublicationService::PublicationService(EventLoop& loop, Fd listener, std::string path, int64_t read_ns)
    : loop_(loop),
      listener_(std::move(listener)),
      path_(std::move(path)),
      read_ns_(read_ns),
      id_(to_hex(random_nonce())) {}

StatusOr<std::unique_ptr<PublicationService>> PublicationService::open(EventLoop& loop, const std::string& path,
                                                                       int64_t read_ns) {
  KEEPSTEP_ASSIGN_OR_RETURN(Fd listener, listen_local(path));
  std::unique_ptr<PublicationService> service(new PublicationService(loop, std::move(listener), path, read_ns));
  KEEPSTEP_RETURN_IF_ERROR(loop.watch(service->listener_.get(), [raw = service.get()] { raw->on_connection(); }));
  return service;
}

PublicationService::~PublicationService() {
  loop_.unwatch(listener_.get());
  for (const auto& [id, subscriber] : subscribers_) {
    loop_.unwatch(subscriber.socket.fd());
  }
}

// ---- what is published ----

Status PublicationService::publish(const messages::Publish& message, Fd memory) {
  const std::string& name = message.name;
  KEEPSTEP_RETURN_IF_ERROR(check_name(name));
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  struct stat info{};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(memory.get(), &info) != 0 || info.st_size <= 0) {
    return absl::InvalidArgumentError("a publication comes in memory that is sealed against writing and resizing");
  }
  auto held = newest_.find(name);
  if (held == newest_.end()) {
    if (newest_.size() >= kMaxPublications) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("%d names are published already, and no more can be", kMaxPublications));
    }
    held = newest_.try_emplace(name).first;
  } else if (held->second.what.version == message.version) {
    return absl::OkStatus();
  }
  if (held->second.readers > 0) {
    replaced_.push_back(std::move(held->second));
  }
  forget_unread();
  held->second =
      Held{{name, message.version, ++serial_, static_cast<uint64_t>(info.st_size), monotonic_ns()}, std::move(memory)};
  std::vector<uint64_t> waiting;
  for (const auto& [id, subscriber] : subscribers_) {
    if (subscriber.waits_for != nullptr && subscriber.waits_for->name == name) {
      waiting.push_back(id);
    }
  }
  for (const uint64_t id : waiting) {
    answer(id);
  }
  return absl::OkStatus();
}

void PublicationService::begin(brain::Version version) {
  std::erase_if(newest_, [&](const auto& each) { return version == 0 || each.second.what.version > version; });
}

std::vector<Publication> PublicationService::newest() const {
  std::vector<Publication> all;
  for (const auto& [name, held] : newest_) {
    all.push_back(held.what);
  }
  return all;
}

void PublicationService::forget_unread() {
  const int64_t oldest = monotonic_ns() - read_ns_;
  std::map<std::string, size_t> held;
  for (auto each = replaced_.rbegin(); each != replaced_.rend(); ++each) {  // the newest first
    if (each->readers <= 0 || each->read_ns < oldest || ++held[each->what.name] > kMaxReplaced) {
      each->memory.reset();
    }
  }
  std::erase_if(replaced_, [](const Held& each) { return !each.memory.valid(); });
}

StatusOr<PublicationService::Piece> PublicationService::read(const std::string& name, uint64_t serial,
                                                             uint64_t offset) {
  forget_unread();
  const auto newest = newest_.find(name);
  if (newest == newest_.end()) {
    return absl::NotFoundError(absl::StrFormat("nothing named '%s' was published on this node yet", name));
  }
  Held* held = &newest->second;
  if (serial != 0 && serial != held->what.serial) {
    const auto replaced = std::find_if(replaced_.begin(), replaced_.end(), [&](const Held& each) {
      return each.what.name == name && each.what.serial == serial;
    });
    if (replaced == replaced_.end()) {
      return absl::NotFoundError(absl::StrFormat("this publication of '%s' is gone; the newest one is of version %d",
                                                 name, held->what.version));
    }
    held = &*replaced;
  }
  if (offset > held->what.bytes) {
    return absl::OutOfRangeError(
        absl::StrFormat("offset %d of '%s', which has %d bytes", offset, name, held->what.bytes));
  }
  Piece piece{held->what, std::string(std::min<uint64_t>(kMaxPieceBytes, held->what.bytes - offset), '\0')};
  for (size_t done = 0; done < piece.bytes.size();) {
    const ssize_t n = pread(held->memory.get(), piece.bytes.data() + done, piece.bytes.size() - done,
                            static_cast<off_t>(offset + done));
    if (n <= 0 && errno != EINTR) {
      return absl::InternalError(absl::StrFormat("the memory of '%s' cannot be read: %s", name, strerror(errno)));
    }
    done += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
  held->readers += (offset == 0 ? 1 : 0) - (offset + piece.bytes.size() == held->what.bytes ? 1 : 0);
  held->read_ns = monotonic_ns();
  return piece;
}

// ---- subscribers ----

void PublicationService::on_connection() {
  StatusOr<Accepted> accepted = accept_local(listener_);
  if (!accepted.ok()) {
    refuse({}, std::string(accepted.status().message()));
    return;
  }
  if (subscribers_.size() >= kMaxSubscribers) {
    refuse(accepted->socket,
           absl::StrFormat("%d processes follow publications on this node, and no more can", kMaxSubscribers));
    return;
  }
  const uint64_t id = next_subscriber_++;
  subscribers_[id].socket = std::move(accepted->socket);
  if (!loop_.watch(subscribers_[id].socket.fd(), [this, id] { on_packet(id); }).ok()) {
    subscribers_.erase(id);
  }
}

void PublicationService::on_packet(uint64_t id) {
  // The descriptor may have belonged to a connection that ended in this turn of the loop.
  if (!subscribers_.contains(id) || !readable(subscribers_.at(id).socket.fd())) {
    return;
  }
  Subscriber& subscriber = subscribers_.at(id);
  StatusOr<Packet> packet = subscriber.socket.receive();
  if (absl::IsUnavailable(packet.status())) {
    let_go(id);
    return;
  }
  std::string bad;
  if (!packet.ok()) {
    bad = std::string(packet.status().message());
  } else if (packet->bytes.size() > messages::kMaxSubscriberMessageBytes || !packet->fds.empty()) {
    bad = absl::StrFormat("a message of %d bytes and %d descriptors", packet->bytes.size(), packet->fds.size());
  } else if (auto request = messages::read<messages::FromSubscriber>(packet->bytes); !request.ok()) {
    bad = std::string(request.status().message());
  } else if (subscriber.waits_for != nullptr) {
    bad = "a second request before the answer to the first";
  } else {
    auto& next = std::get<messages::NextPublication>(*request);
    subscriber.waits_for = std::make_unique<messages::NextPublication>(std::move(next));
    answer(id);
    return;
  }
  refuse(subscriber.socket, bad);
  let_go(id);
}

void PublicationService::refuse(const PacketSocket& socket, const std::string& because) {
  if (std::has_single_bit(++refusals_)) {
    spdlog::warn("refusal {} of a reader of publications: {}", refusals_, because);
  }
  if (socket.valid()) {
    (void)socket.try_send(messages::write(messages::PublicationRefusal{because}));
  }
}

void PublicationService::answer(uint64_t id) {
  Subscriber& subscriber = subscribers_.at(id);
  const auto held = newest_.find(subscriber.waits_for->name);
  if (held == newest_.end() || held->second.what.serial <= subscriber.waits_for->after) {
    if (!subscriber.waits_for->wait) {
      subscriber.waits_for.reset();
      if (!subscriber.socket.try_send(messages::write(messages::NothingNewer{})).ok()) {
        let_go(id);
      }
    }
    return;
  }
  subscriber.waits_for.reset();
  const Publication& what = held->second.what;
  const int fds[] = {held->second.memory.get()};
  const Status sent =
      subscriber.socket.try_send(messages::write(messages::Published{what.version, what.serial, what.bytes}), fds);
  if (!sent.ok()) {
    let_go(id);
  }
}

void PublicationService::let_go(uint64_t id) {
  if (const auto it = subscribers_.find(id); it != subscribers_.end()) {
    loop_.unwatch(it->second.socket.fd());
    subscribers_.erase(it);
  }
}

}  // namespace keepstep::agent
