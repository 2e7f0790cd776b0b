#include "agent/workers/outbox.h"

#include <fcntl.h>

#include <utility>

#include "messages/envelope.h"

namespace keepstep::agent {

Status Outbox::send(const PacketSocket& socket, std::string encoded, std::span<const int> fds) {
  if (waiting_.empty()) {
    if (Status status = messages::send_encoded(socket, encoded, fds, false); !absl::IsResourceExhausted(status)) {
      return status;
    }
  } else if (encoded.size() > messages::kMaxTextBytes || fds.size() > messages::kMaxMessageFds) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a message of %d bytes with %d descriptors; %d and %d are the most", encoded.size(), fds.size(),
                        messages::kMaxTextBytes, messages::kMaxMessageFds));
  } else if (waiting_.size() >= kMaxKeptMessages || bytes_ + encoded.size() > kMaxKeptBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d messages of %d bytes together wait for it to read; is it stopped?", waiting_.size(), bytes_));
  }
  Message message{std::move(encoded), {}};
  for (const int fd : fds) {
    message.fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!message.fds.back().valid()) {
      return absl::ResourceExhaustedError(
          "it does not read, and no descriptor is left to keep its message with; raise the limit on open files with "
          "`ulimit -n`");
    }
  }
  bytes_ += message.encoded.size();
  waiting_.push_back(std::move(message));
  return absl::OkStatus();
}

void Outbox::flush(const PacketSocket& socket) {
  while (!waiting_.empty()) {
    const Message& next = waiting_.front();
    std::vector<int> fds;
    for (const Fd& fd : next.fds) {
      fds.push_back(fd.get());
    }
    if (absl::IsResourceExhausted(messages::send_encoded(socket, next.encoded, fds, false))) {
      return;
    }
    bytes_ -= next.encoded.size();
    waiting_.pop_front();  // sent, or the worker is gone
  }
}

}  // namespace keepstep::agent
