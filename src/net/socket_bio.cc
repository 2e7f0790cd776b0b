#include "net/socket_bio.h"

#include <sys/socket.h>

#include <cerrno>

namespace keepstep::net {
namespace {

int write_all(BIO* bio, const char* bytes, int size) {
  static_cast<BioSocket*>(BIO_get_data(bio))->out.append(bytes, static_cast<size_t>(size));
  return size;
}

int read_some(BIO* bio, char* bytes, int size) {
  auto* from = static_cast<BioSocket*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t count = recv(from->fd, bytes, static_cast<size_t>(size), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    BIO_set_retry_read(bio);
  } else if (count < 0) {
    from->error = errno;
  }
  return static_cast<int>(count);
}

long control(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;  // OpenSSL requires this to succeed
}

BIO_METHOD* new_method() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "keepstep socket");
  if (method != nullptr) {
    BIO_meth_set_write(method, write_all);
    BIO_meth_set_read(method, read_some);
    BIO_meth_set_ctrl(method, control);
  }
  return method;
}

}  // namespace

BIO* new_socket_bio(BioSocket* socket) {
  static BIO_METHOD* const method = new_method();  // lives as long as the process
  BIO* bio = method == nullptr ? nullptr : BIO_new(method);
  if (bio != nullptr) {
    BIO_set_data(bio, socket);
    BIO_set_init(bio, 1);
  }
  return bio;
}

}  // namespace keepstep::net
