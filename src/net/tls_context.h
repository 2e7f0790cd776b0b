// The TLS settings of all connections with one key: TLS 1.3 (RFC 8446) with an external pre-shared key, nothing else.
//
//   key exchange  PSK with ephemeral Diffie-Hellman (psk_dhe_ke): a key that leaks later does not reveal old traffic
//   suite, group  TLS_AES_128_GCM_SHA256 and secp256r1: mandatory for every implementation (RFC 8446, 9.1), fast on
//                 any CPU of a cluster, allowed in FIPS mode. The suite's hash is that of the key. With one of each
//                 there is nothing to negotiate
//   disabled      older versions, certificates, tickets, resumption, early data, renegotiation
//
// The accepting side inspects the first message before OpenSSL acts on it: one that does not offer our key gets only an
// alert. The connecting side insists that its key was chosen: otherwise a relay could present its own certificate
// instead.
//
// Immutable: any thread may use it, for many connections at once.
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
  // INTERNAL: this OpenSSL lacks a feature; the message names it.
  static StatusOr<std::shared_ptr<const TlsContext>> create(const SharedKey& key);
  ~TlsContext();

  // Why a peer's first message was refused.
  struct Complaint {
    const char* text = nullptr;  // a literal; null if it was not refused
    bool other_key = false;      // it offered a key for another purpose or generation
  };
  // The TLS state of one connection. The context and `complaint` must outlive it.
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
  bool is_alert = false;  // sent by the peer
  std::string text;
};
// Returns the oldest error in OpenSSL's queue for this thread, and clears the queue.
OpensslError take_openssl_error();

}  // namespace keepstep::net
