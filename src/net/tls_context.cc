#include "net/tls_context.h"

#include <openssl/err.h>

#include <optional>
#include <string_view>

namespace keepstep::net {
namespace {

constexpr char kSuite[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSuiteId[] = {0x13, 0x01};
constexpr char kGroup[] = "P-256";
constexpr unsigned char kPskWithDiffieHellman = 1;  // psk_dhe_ke

std::optional<std::string_view> extension(SSL* ssl, unsigned int type) {
  const unsigned char* bytes = nullptr;
  size_t size = 0;
  if (SSL_client_hello_get0_ext(ssl, type, &bytes, &size) != 1) {
    return std::nullopt;
  }
  return std::string_view(reinterpret_cast<const char*>(bytes), size);
}

// RFC 8446, 4.2.9: one length byte, then one byte per mode.
bool offers_diffie_hellman(std::string_view modes) {
  return !modes.empty() && modes.find(static_cast<char>(kPskWithDiffieHellman), 1) != std::string_view::npos;
}

// RFC 8446, 4.2.11: two bytes for the list's length; two for an identity's length, the identity, four for its age.
// Members of a job offer exactly one identity, so only the first is checked.
bool offers_first(std::string_view offered, std::string_view identity) {
  if (offered.size() < 4 + identity.size()) {
    return false;
  }
  const size_t size = static_cast<uint8_t>(offered[2]) << 8 | static_cast<uint8_t>(offered[3]);
  return size == identity.size() && offered.substr(4, size) == identity;
}

}  // namespace

StatusOr<std::shared_ptr<const TlsContext>> TlsContext::create(const SharedKey& key) {
  std::shared_ptr<TlsContext> context(new TlsContext(key));
  KEEPSTEP_RETURN_IF_ERROR(context->set_up());
  return context;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

Status TlsContext::set_up() {
  ERR_clear_error();
  context_ = SSL_CTX_new(TLS_method());
  if (context_ == nullptr || SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(context_, kSuite) != 1 ||
      SSL_CTX_set1_groups_list(context_, kGroup) != 1 || SSL_CTX_set_num_tickets(context_, 0) != 1) {
    return absl::InternalError(
        absl::StrFormat("OpenSSL cannot do TLS 1.3 with %s and %s: %s", kSuite, kGroup, take_openssl_error().text));
  }
  SSL_CTX_set_options(context_, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  // A system-wide openssl.cnf may set these.
  SSL_CTX_clear_options(context_, SSL_OP_ALLOW_NO_DHE_KEX | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(context_, 0);
  SSL_CTX_set_recv_max_early_data(context_, 0);
  // One read of the socket gets a whole record, not just its header first.
  SSL_CTX_set_read_ahead(context_, 1);
  SSL_CTX_set_client_hello_cb(context_, look_at_hello, this);
  SSL_CTX_set_psk_find_session_callback(context_, find_session);
  SSL_CTX_set_psk_use_session_callback(context_, use_session);
  SSL_CTX_set_app_data(context_, this);
  return absl::OkStatus();
}

StatusOr<SslPointer> TlsContext::start(Role role, Complaint* complaint) const {
  ERR_clear_error();
  SslPointer ssl(SSL_new(context_));
  if (ssl == nullptr || SSL_set_app_data(ssl.get(), complaint) != 1) {
    return absl::InternalError("OpenSSL cannot create the state of a connection: " + take_openssl_error().text);
  }
  if (role == Role::kConnects) {
    SSL_set_connect_state(ssl.get());
    // There is no trust store: a peer that presents any certificate fails.
    SSL_set_verify(ssl.get(), SSL_VERIFY_PEER, nullptr);
  } else {
    SSL_set_accept_state(ssl.get());
  }
  return ssl;
}

// Without the key OpenSSL would continue: it would ask for another group, or look for a certificate, which we lack.
int TlsContext::look_at_hello(SSL* ssl, int* alert, void* self) {
  const std::string_view ours = static_cast<const TlsContext*>(self)->identity_;
  const auto offered = extension(ssl, TLSEXT_TYPE_psk);
  const auto modes = extension(ssl, TLSEXT_TYPE_psk_kex_modes);
  Complaint complaint;
  if (!offered.has_value()) {
    complaint.text = "it offered no shared key: it is not a keepstep process";
    *alert = SSL_AD_HANDSHAKE_FAILURE;
  } else if (!offers_first(*offered, ours)) {
    complaint = {"it offered a key for another purpose or generation, or runs another version of keepstep", true};
    *alert = SSL_AD_UNKNOWN_PSK_IDENTITY;
  } else if (!modes.has_value() || !offers_diffie_hellman(*modes)) {
    complaint.text = "it offered our key without Diffie-Hellman: it is not a keepstep process";
    *alert = SSL_AD_HANDSHAKE_FAILURE;
  }
  if (complaint.text == nullptr) {
    return SSL_CLIENT_HELLO_SUCCESS;
  }
  *static_cast<Complaint*>(SSL_get_app_data(ssl)) = complaint;
  return SSL_CLIENT_HELLO_ERROR;
}

SSL_SESSION* TlsContext::new_session(SSL* ssl) const {
  SSL_SESSION* session = SSL_SESSION_new();
  if (session == nullptr || SSL_SESSION_set1_master_key(session, key_.bytes().data(), key_.bytes().size()) != 1 ||
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kSuiteId)) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int TlsContext::find_session(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  const auto* self = static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  const bool ours = self->identity_ == std::string_view(reinterpret_cast<const char*>(identity), bytes);
  *session = ours ? self->new_session(ssl) : nullptr;
  return *session != nullptr ? 1 : 0;
}

int TlsContext::use_session(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, size_t* bytes,
                            SSL_SESSION** session) {
  const auto* self = static_cast<const TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  *session = nullptr;
  if (digest != nullptr && EVP_MD_is_a(digest, "SHA256") != 1) {
    return 0;
  }
  *session = self->new_session(ssl);
  *identity = reinterpret_cast<const unsigned char*>(self->identity_.data());
  *bytes = self->identity_.size();
  return *session != nullptr ? 1 : 0;
}

OpensslError take_openssl_error() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  OpensslError result{.reason = ERR_GET_REASON(error)};
  result.is_alert = ERR_GET_LIB(error) == ERR_LIB_SSL && result.reason > SSL_AD_REASON_OFFSET &&
                    result.reason <= SSL_AD_REASON_OFFSET + 255;
  if (result.is_alert) {
    result.text = std::string("alert: ") + SSL_alert_desc_string_long(result.reason - SSL_AD_REASON_OFFSET);
  } else {
    const char* text = error == 0 ? "it failed before" : ERR_reason_error_string(error);
    result.text = text != nullptr ? text : absl::StrFormat("OpenSSL's error %d", error);
  }
  return result;
}

}  // namespace keepstep::net
