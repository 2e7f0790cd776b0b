// Connects OpenSSL to a non-blocking stream socket: reads from the socket, but writes into memory.
//
// What OpenSSL writes stays in memory until TlsStream sends it, so no OpenSSL call ever stops in the middle of a
// record. A write that did would have to be repeated with the same arguments, and a key change that did would block
// reading. Also, OpenSSL's own socket BIO uses write(2): a peer that is gone would raise SIGPIPE in a process that is
// not ours alone.
#pragma once

#include <openssl/bio.h>

#include <string>

namespace keepstep::net {

struct BioSocket {
  int fd = -1;
  int error = 0;    // errno of the read that failed for good
  std::string out;  // bytes to send; the caller limits its size
};

// For one SSL, which frees it. `socket` must outlive it. Null if there is no memory.
BIO* new_socket_bio(BioSocket* socket);

}  // namespace keepstep::net
