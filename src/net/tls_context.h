// How all connections of one key are set up: TLS 1.3 (RFC 8446) with an external pre-shared key and nothing else.
//
//   key exchange  PSK with ephemeral Diffie-Hellman (psk_dhe_ke): who learns the key later cannot read old traffic
//   suite, group  TLS_AES_128_GCM_SHA256 and secp256r1: what every implementation must have (RFC 8446, 9.1), fast on
//                 any CPU of a cluster, allowed in FIPS mode; its hash is that of the key. One of each leaves nothing
//                 to negotiate
//   not there     older versions, certificates, tickets, resumption, early data, renegotiation
//
// The side that accepts looks at the first message before OpenSSL acts on it: one that does not offer our key is
// answered with an alert and nothing else. The side that connects insists that its key was chosen: without that a relay
// could show a certificate of its own instead.
//
// Not changed once made: any thread may use it, and many connections may at once.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "net/greeting.h"
#include "net/shared_key.h"

namespace keepstep::net {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslPointer = std::unique_ptr<SSL, FreeSsl>;

class TlsContext {
 public:
  // INTERNAL: this OpenSSL lacks something, and what.
  static StatusOr<std::shared_ptr<const TlsContext>> create(const SharedKey& key);
  ~TlsContext();

  // Why a peer's first message was refused.
  struct Complaint {
    const char* text = nullptr;  // a literal; null: it was not
    bool other_key = false;      // it offered a key for another purpose or generation
  };
  // The TLS state of one connection, which must not outlive the context; nor may `complaint` go before it.
  StatusOr<SslPointer> start(Role role, Complaint* complaint) const;

 private:
  explicit TlsContext(const SharedKey& key) : key_(key), identity_(key.identity()) {}
  Status set_up();

  static int look_at_hello(SSL* ssl, int* alert, void* self);
  static int find_session(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session);
  static int use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* bytes,
                         SSL_SESSION** session);
  SSL_SESSION* new_session(SSL* ssl) const;

  const SharedKey key_;
  const std::string identity_;
  SSL_CTX* context_ = nullptr;
};

struct OpensslError {
  int reason = 0;         // SSL_R_...
  bool is_alert = false;  // from the peer
  std::string text;
};
// The oldest error that OpenSSL noted on this thread; then forgets them all.
OpensslError take_openssl_error();

}  // namespace keepstep::net
