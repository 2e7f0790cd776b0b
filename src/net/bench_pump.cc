// keepstep_tls_bench: the highest rate at which OpenSSL moves data between two processes, as a reference for the data
// plane. Blocking sockets, SSL_write of 1 MiB on one side and repeated SSL_read into the same buffer on the other, with
// the data plane's TLS version and cipher. Prints one JSON object.
//
//   keepstep_tls_bench receive ADDRESS | send ADDRESS MEBIBYTES

#include <fcntl.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/bench.h"
#include "net/address.h"
#include "net/tls_context.h"

namespace keepstep::net {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

Fd meet(bool sends, const SocketAddress& address) {
  if (sends) {
    for (const Deadline deadline = Deadline::after(std::chrono::seconds(10)); !deadline.passed();) {
      if (StatusOr<Fd> fd = connect_to(address, deadline); fd.ok()) {
        return *std::move(fd);
      }
    }
    fail("nobody listens at " + address.text());
  }
  const Fd listener = value_or_fail(listen_tcp(address));
  wait_for(listener.get(), POLLIN, Deadline::never());
  return *accept_tcp(listener.get());
}

int main_of(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  if ((what != "send" || argc != 4) && (what != "receive" || argc != 3)) {
    fail("receive ADDRESS | send ADDRESS MEBIBYTES");
  }
  const SocketAddress address = value_or_fail(SocketAddress::parse(argv[2]));
  const bool sends = what == "send";
  const auto context = *TlsContext::create(*SharedKey::data(std::string(2 * SharedKey::kBytes, '0'), 1, 1));
  const Fd fd = meet(sends, address);
  tune_tcp(fd.get(), 0);
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  TlsContext::Complaint complaint;
  const SslPointer ssl = *context->start(sends ? Role::kConnects : Role::kAccepts, &complaint);
  SSL_set_fd(ssl.get(), fd.get());
  if (SSL_do_handshake(ssl.get()) != 1) {
    fail("no handshake");
  }
  std::vector<char> buffer(kBytes);
  size_t count = 0;
  if (sends) {
    for (uint64_t i = number_of(argv[3]); i > 0; --i) {
      if (SSL_write_ex(ssl.get(), buffer.data(), buffer.size(), &count) != 1) {
        fail("the connection broke");
      }
    }
    SSL_shutdown(ssl.get());
    return 0;
  }
  size_t total = 0;
  const int64_t begin_ns = monotonic_ns();
  for (size_t at = 0; SSL_read_ex(ssl.get(), buffer.data() + at, buffer.size() - at, &count) == 1;) {
    total += count;
    at = (at + count) % buffer.size();
  }
  const double seconds = seconds_of(monotonic_ns() - begin_ns);
  std::printf("{\"bytes_per_second\": %.0f}\n", static_cast<double>(total) / seconds);
  return 0;
}

}  // namespace
}  // namespace keepstep::net

int main(int argc, char** argv) { return keepstep::net::main_of(argc, argv); }
