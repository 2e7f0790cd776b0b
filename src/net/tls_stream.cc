#include "net/tls_stream.h"

#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace keepstep::net {

StatusOr<TlsStream> TlsStream::create(std::shared_ptr<const TlsContext> context, Role role, Fd fd, std::string peer) {
  TlsStream stream(std::move(context), std::move(fd), std::move(peer));
  stream.callbacks_->socket.fd = stream.fd_.get();
  KEEPSTEP_ASSIGN_OR_RETURN(stream.ssl_, stream.context_->start(role, &stream.callbacks_->complaint));
  BIO* bio = new_socket_bio(&stream.callbacks_->socket);
  if (bio == nullptr) {
    return absl::ResourceExhaustedError("no memory for a TLS connection");
  }
  SSL_set_bio(stream.ssl_.get(), bio, bio);
  return stream;
}

StatusOr<TlsStream::Wait> TlsStream::handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  const int error = SSL_get_error(ssl_.get(), result);
  if (result != 1 && error != SSL_ERROR_WANT_READ) {
    Status status = handshake_failed(error);
    (void)flush();  // the alert
    return status;
  }
  // Accepts only the key, in case a certificate is ever trusted by mistake.
  if (result == 1 && (SSL_session_reused(ssl_.get()) != 1 || SSL_version(ssl_.get()) != TLS1_3_VERSION)) {
    return absl::UnauthenticatedError(absl::StrFormat("%s did not prove the key of this job", peer_));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Wait wait, flush());
  return wait != 0 ? wait : result == 1 ? Wait{0} : Wait{POLLIN};
}

Status TlsStream::handshake_failed(int error) const {
  if (error == SSL_ERROR_SYSCALL || error == SSL_ERROR_ZERO_RETURN) {
    const int socket_error = callbacks_->socket.error;
    return absl::UnavailableError(
        absl::StrFormat("%s broke off before it proved the key of this job: %s", peer_,
                        socket_error != 0 ? strerror(socket_error) : "it closed the connection"));
  }
  const OpensslError why = take_openssl_error();
  if (SSL_is_server(ssl_.get()) == 1) {
    const TlsContext::Complaint& complaint = callbacks_->complaint;
    const std::string text = complaint.text != nullptr ? complaint.text
                             : why.reason == SSL_R_BINDER_DOES_NOT_VERIFY
                                 ? "it has another key: another token or another rendezvous id, or it is another job's"
                                 : why.text;
    return Status(complaint.other_key ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnauthenticated,
                  absl::StrFormat("%s did not prove the key of this job: %s", peer_, text));
  }
  if (why.is_alert && why.reason == SSL_AD_REASON_OFFSET + SSL_AD_UNKNOWN_PSK_IDENTITY) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s refused our key (%s): it has one for another purpose or generation, or runs another version of keepstep",
        peer_, why.text));
  }
  if (why.is_alert) {
    return absl::UnauthenticatedError(absl::StrFormat(
        "%s refused our key (%s). Is it another job's, with another token or rendezvous id?", peer_, why.text));
  }
  if (why.reason == SSL_R_WRONG_VERSION_NUMBER || why.reason == SSL_R_HTTP_REQUEST) {
    return absl::UnavailableError(absl::StrFormat("%s does not speak TLS: it is not a keepstep job", peer_));
  }
  return absl::UnauthenticatedError(
      absl::StrFormat("%s did not prove the key of this job (%s). Is the address right? If it is, something on the way "
                      "impersonates the peer",
                      peer_, why.text));
}

StatusOr<size_t> TlsStream::read(std::span<char> to) {
  ERR_clear_error();
  size_t count = 0;
  const int result = SSL_read_ex(ssl_.get(), to.data(), to.size(), &count);
  if (result == 1) {
    return count;
  }
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) {
    return 0;
  }
  Status status = read_failed(error);
  (void)flush();  // the alert, if there is one
  return status;
}

bool TlsStream::has_pending() const { return SSL_has_pending(ssl_.get()) == 1; }

Status TlsStream::read_failed(int error) const {
  if (error == SSL_ERROR_ZERO_RETURN) {
    return absl::OutOfRangeError(absl::StrFormat("%s ended the connection", peer_));
  }
  if (error == SSL_ERROR_SYSCALL) {
    const int socket_error = callbacks_->socket.error;
    return absl::UnavailableError(
        absl::StrFormat("the connection to %s broke: %s", peer_,
                        socket_error != 0 ? strerror(socket_error) : "the peer closed it, or died"));
  }
  const OpensslError why = take_openssl_error();
  if (why.is_alert) {
    return absl::UnavailableError(absl::StrFormat("%s gave up the connection (%s)", peer_, why.text));
  }
  return absl::DataLossError(
      absl::StrFormat("the data received from %s is not what it sent (%s): it was changed, repeated or lost on the way",
                      peer_, why.text));
}

Status TlsStream::write(std::string_view bytes) {
  ERR_clear_error();
  callbacks_->socket.out.erase(0, std::exchange(sent_, 0));
  for (std::string_view rest = bytes; !rest.empty();) {
    if (records_ >= records_per_key_) {
      KEEPSTEP_RETURN_IF_ERROR(change_key());
    }
    const std::string_view record = rest.substr(0, kRecordBytes);
    size_t count = 0;
    if (SSL_write_ex(ssl_.get(), record.data(), record.size(), &count) != 1) {
      return absl::UnavailableError(
          absl::StrFormat("the connection to %s is over (%s)", peer_, take_openssl_error().text));
    }
    KEEPSTEP_CHECK(count == record.size(), "OpenSSL wrote half a record into memory");
    records_ += 1;
    rest.remove_prefix(count);
  }
  return absl::OkStatus();
}

// The message that informs the peer precedes the next record.
Status TlsStream::change_key() {
  // The peer is not asked to change its own key: it counts its own records.
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
    return absl::InternalError(
        absl::StrFormat("the key of the connection to %s cannot be changed: %s", peer_, take_openssl_error().text));
  }
  records_ = 0;
  key_changes_ += 1;
  return absl::OkStatus();
}

Status TlsStream::end_writes() {
  ERR_clear_error();
  if (SSL_shutdown(ssl_.get()) < 0) {
    return absl::UnavailableError(
        absl::StrFormat("the connection to %s is over (%s)", peer_, take_openssl_error().text));
  }
  return absl::OkStatus();
}

StatusOr<TlsStream::Wait> TlsStream::flush() {
  std::string& out = callbacks_->socket.out;
  while (sent_ < out.size()) {
    const ssize_t count = send(fd_.get(), out.data() + sent_, out.size() - sent_, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && errno == EAGAIN) {
      return Wait{POLLOUT};
    }
    if (count < 0) {
      return absl::UnavailableError(absl::StrFormat("the connection to %s broke: %s", peer_, strerror(errno)));
    }
    sent_ += static_cast<size_t>(count);
  }
  out.clear();
  sent_ = 0;
  return Wait{0};
}

void TlsStream::export_key(std::string_view label, std::span<unsigned char> key) const {
  KEEPSTEP_CHECK(
      SSL_export_keying_material(ssl_.get(), key.data(), key.size(), label.data(), label.size(), nullptr, 0, 0) == 1,
      "OpenSSL cannot export a key of a connection whose handshake is done");
}

StatusOr<Fd> TlsStream::take_socket() {
  if (unsent_bytes() > 0 || has_pending()) {
    return absl::FailedPreconditionError(absl::StrFormat("%s said more than it should before TLS ended", peer_));
  }
  ssl_.reset();
  return std::move(fd_);
}

}  // namespace keepstep::net
