#include "net/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace keepstep::net {

StatusOr<TlsStream> connect_tls(const Address& address, std::shared_ptr<const TlsContext> context, Deadline deadline) {
  KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, connect_to(address, deadline));
  return prove_key(std::move(fd), text_of(address), std::move(context), deadline);
}

StatusOr<TlsStream> prove_key(Fd fd, std::string peer, std::shared_ptr<const TlsContext> context, Deadline deadline) {
  KEEPSTEP_ASSIGN_OR_RETURN(TlsStream stream,
                            TlsStream::create(std::move(context), Role::kConnects, std::move(fd), std::move(peer)));
  while (true) {
    KEEPSTEP_ASSIGN_OR_RETURN(const TlsStream::Wait wait, stream.handshake());
    if (wait == 0) {
      return stream;
    }
    if (!wait_for(stream.fd(), wait, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrFormat("%s accepted the connection but did not prove the key of this job in time; is it stopped, or "
                          "not a keepstep job?",
                          stream.peer()));
    }
  }
}

StatusOr<std::unique_ptr<Connection>> Connection::connect(const Address& address,
                                                          std::shared_ptr<const TlsContext> context,
                                                          ConnectionOptions options, Deadline deadline) {
  KEEPSTEP_ASSIGN_OR_RETURN(TlsStream stream, connect_tls(address, std::move(context), deadline));
  return std::make_unique<Connection>(std::move(stream), options);
}

Connection::Connection(TlsStream stream, ConnectionOptions options)
    : stream_(std::move(stream)),
      max_message_bytes_(options.max_message_bytes),
      heard_ns_(monotonic_ns()),
      reader_(options.max_message_bytes) {
  stream_.set_records_per_key(options.records_per_key);
}

Status Connection::send(std::string_view message, Deadline deadline) {
  KEEPSTEP_RETURN_IF_ERROR(send_failure_);
  if (message.size() > max_message_bytes_) {
    return absl::InvalidArgumentError(absl::StrFormat("a message of %d bytes for %s; at most %d are allowed",
                                                      message.size(), peer(), max_message_bytes_));
  }
  // The length shares a record with what follows.
  std::string first;
  first.reserve(std::min(kLengthBytes + message.size(), TlsStream::kRecordBytes));
  first += std::string_view(length_of_message(message.size()).data(), kLengthBytes);
  const std::string_view head = message.substr(0, TlsStream::kRecordBytes - first.size());
  first += head;
  Status status = write_all(first, deadline);
  if (status.ok()) {
    status = write_all(message.substr(head.size()), deadline);
  }
  return status.ok() ? status : send_failed(std::move(status));
}

Status Connection::end_sends(Deadline deadline) {
  KEEPSTEP_RETURN_IF_ERROR(send_failure_);
  Status status = [this] {
    const std::lock_guard lock(mutex_);
    return stream_.end_writes();
  }();
  if (status.ok()) {
    status = flush_all(deadline);
  }
  send_failure_ = absl::FailedPreconditionError("nothing can be sent after the end of a connection");
  return status.ok() ? status : send_failed(std::move(status));
}

Status Connection::write_all(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const std::string_view batch = bytes.substr(0, kBatchBytes);
    {
      const std::lock_guard lock(mutex_);
      KEEPSTEP_RETURN_IF_ERROR(stream_.write(batch));
    }
    bytes.remove_prefix(batch.size());
    KEEPSTEP_RETURN_IF_ERROR(flush_all(deadline));
  }
  return absl::OkStatus();
}

Status Connection::flush_all(Deadline deadline) {
  while (true) {
    if (aborted_.load()) {
      return cancelled();
    }
    TlsStream::Wait wait = 0;
    {
      const std::lock_guard lock(mutex_);
      KEEPSTEP_ASSIGN_OR_RETURN(wait, stream_.flush());
    }
    if (wait == 0) {
      return absl::OkStatus();
    }
    if (!wait_for(stream_.fd(), wait, deadline)) {
      shutdown(stream_.fd(), SHUT_RDWR);  // half a message may have left
      return absl::DeadlineExceededError(
          absl::StrFormat("%s did not take a message in time; the connection to it is closed", peer()));
    }
  }
}

Status Connection::send_failed(Status why) {
  send_failure_ = aborted_.load() ? cancelled() : std::move(why);
  return send_failure_;
}

StatusOr<std::string> Connection::receive(Deadline deadline) {
  while (receive_failure_.ok()) {
    StatusOr<size_t> got = 0;
    {
      const std::lock_guard lock(mutex_);
      got = stream_.read(reader_.missing());
    }
    if (!got.ok()) {
      return receive_failed(got.status());
    }
    if (*got > 0) {
      heard_ns_.store(monotonic_ns(), std::memory_order_relaxed);
      const StatusOr<bool> whole = reader_.take_in(*got, peer());
      if (!whole.ok()) {
        Status refused = receive_failed(whole.status());
        shutdown(stream_.fd(), SHUT_RDWR);
        return refused;
      }
      if (*whole) {
        return reader_.take();
      }
    } else if (!wait_for(stream_.fd(), POLLIN, deadline)) {
      return absl::DeadlineExceededError(absl::StrFormat("no message came from %s in time", peer()));
    }
  }
  return receive_failure_;
}

Status Connection::receive_failed(Status why) {
  receive_failure_ = aborted_.load() ? cancelled() : std::move(why);
  return receive_failure_;
}

void Connection::abort() {
  aborted_.store(true);
  shutdown(stream_.fd(), SHUT_RDWR);  // wakes both threads
}

Status Connection::cancelled() const {
  return absl::CancelledError(absl::StrFormat("this side closed the connection to %s", peer()));
}

std::chrono::nanoseconds Connection::silence() const {
  return std::chrono::nanoseconds(monotonic_ns() - heard_ns_.load(std::memory_order_relaxed));
}

}  // namespace keepstep::net
