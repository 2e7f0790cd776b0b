// OpenSSL's door to a non-blocking stream socket: reads from it, and writes into memory.
//
// What OpenSSL writes is kept until TlsStream sends it, so that no call of OpenSSL ever ends half way through a record:
// one that does must be repeated with the same arguments, and a change of keys that does holds up reading. And
// OpenSSL's own socket BIO writes with write(2): a peer that is gone would raise SIGPIPE in a process that is not ours
// alone.
#pragma once

#include <openssl/bio.h>

#include <string>

namespace keepstep::net {

struct BioSocket {
  int fd = -1;
  int error = 0;    // errno of the read that failed for good
  std::string out;  // to be sent; as large as the caller lets it grow
};

// For one SSL, which frees it. `socket` must outlive it. Null: no memory.
BIO* new_socket_bio(BioSocket* socket);

}  // namespace keepstep::net
