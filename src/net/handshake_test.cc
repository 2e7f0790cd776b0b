// Which peers are admitted, and what the others receive. The strangers here use OpenSSL with other settings, or send
// data that are not TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <thread>

#include "net/net_testing.h"

namespace keepstep::net {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr unsigned char kAlertRecord = 21;

// The host sends a stranger only one alert, and reports the reason.
void expect_alert_only(const Fd& fd, Host& host, const char* why) {
  const std::string said = read_to_end(fd.get());
  ASSERT_EQ(said.size(), 7u);  // a record's header, level, description
  EXPECT_EQ(static_cast<unsigned char>(said[0]), kAlertRecord);
  EXPECT_EQ(host.inbox.refusal().code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(host.inbox.refusal().message()), HasSubstr(why));
  EXPECT_EQ(host.listener->counters().let_in, 0u);
}

// Makes `ssl` send its hello to the socket, without reading.
void say_hello(const SslPointer& ssl, const Fd& fd) {
  BIO* memory = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl.get(), BIO_new(BIO_s_mem()), memory);
  SSL_connect(ssl.get());
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(memory, &bytes);
  ASSERT_GT(size, 0);
  ASSERT_EQ(send(fd.get(), bytes, static_cast<size_t>(size), MSG_NOSIGNAL), size);
}

TEST(HandshakeTest, members_of_a_job_meet_and_know_each_others_address) {
  Ends ends;
  ASSERT_TRUE(ends.near->send("to the coordinator", soon()).ok());
  EXPECT_EQ(ends.far->receive(soon()).value(), "to the coordinator");
  ASSERT_TRUE(ends.far->send("to the agent", soon()).ok());
  EXPECT_EQ(ends.near->receive(soon()).value(), "to the agent");
  EXPECT_EQ(ends.near->peer(), text_of(ends.host.listener->address()));
  EXPECT_THAT(ends.far->peer(), HasSubstr("127.0.0.1:"));
  EXPECT_NE(ends.far->peer(), ends.near->peer());
}

TEST(HandshakeTest, another_token_or_rendezvous_id_is_refused_by_both_sides) {
  const SharedKey others[] = {key_of("fedcba9876543210", "job-7"), key_of("0123456789abcdef", "job-8")};
  for (const SharedKey& key : others) {
    Host host;
    const auto connection = host.connect(key);
    EXPECT_EQ(connection.status().code(), StatusCode::kUnauthenticated) << connection.status();
    EXPECT_THAT(std::string(connection.status().message()),
                testing::AllOf(HasSubstr(text_of(host.listener->address())), HasSubstr("refused our key")));
    EXPECT_EQ(host.inbox.refusal().code(), StatusCode::kUnauthenticated);
    EXPECT_THAT(std::string(host.inbox.refusal().message()), HasSubstr("another"));
  }
}

TEST(HandshakeTest, a_key_for_another_purpose_or_generation_is_told_apart_from_a_wrong_one) {
  const std::string secret(SharedKey::kBytes, 's');
  const SharedKey older = *SharedKey::data_of(secret, 1, 7);
  for (const SharedKey& ours : {key_of(), *SharedKey::data_of(secret, 1, 8)}) {
    Host host({}, "127.0.0.1:0", ours);
    const auto connection = host.connect(older);
    EXPECT_EQ(connection.status().code(), StatusCode::kFailedPrecondition) << connection.status();
    EXPECT_EQ(host.inbox.refusal().code(), StatusCode::kFailedPrecondition) << host.inbox.refusal();
  }
}

TEST(HandshakeTest, a_client_without_a_key_hears_nothing_but_an_alert) {
  // The second one asks for a group without sending a share for it: OpenSSL on its own would answer with a
  // HelloRetryRequest.
  for (const char* groups : {"P-256", "X25519:P-256"}) {
    Host host;
    const Fd fd = plain_socket(host.port());
    const PlainTls tls(TLS_client_method());
    SSL_CTX_set1_groups_list(tls.context.get(), groups);
    say_hello(SslPointer(SSL_new(tls.context.get())), fd);
    expect_alert_only(fd, host, "no shared key");
  }
}

TEST(HandshakeTest, a_client_of_tls_1_2_hears_nothing_but_an_alert) {
  Host host;
  const Fd fd = plain_socket(host.port());
  const PlainTls tls(TLS_client_method());
  SSL_CTX_set_max_proto_version(tls.context.get(), TLS1_2_VERSION);
  say_hello(SslPointer(SSL_new(tls.context.get())), fd);
  expect_alert_only(fd, host, "no shared key");
}

TEST(HandshakeTest, our_key_with_a_wrong_proof_hears_nothing_but_an_alert) {
  Host host;
  const Fd fd = plain_socket(host.port());
  const auto context = context_of(key_of("fedcba9876543210"));
  TlsContext::Complaint complaint;
  const SslPointer ssl = context->start(Role::kConnects, &complaint).value();
  SSL_set1_groups_list(ssl.get(), "X25519:P-256");
  say_hello(ssl, fd);
  expect_alert_only(fd, host, "another key");
}

// Without it, anyone who learns the key later can read earlier traffic.
TEST(HandshakeTest, the_right_key_without_diffie_hellman_is_refused) {
  for (const char* groups : {"P-256", "X448"}) {
    Host host;
    const Fd fd = plain_socket(host.port());
    TlsContext::Complaint complaint;
    const SslPointer ssl = host.context->start(Role::kConnects, &complaint).value();
    SSL_set_options(ssl.get(), SSL_OP_ALLOW_NO_DHE_KEX);
    SSL_set1_groups_list(ssl.get(), groups);
    SSL_set_fd(ssl.get(), fd.get());
    const bool has_group = std::string_view(groups) == "P-256";
    EXPECT_EQ(SSL_connect(ssl.get()) == 1, has_group) << groups;
    if (has_group) {
      EXPECT_NE(SSL_get_negotiated_group(ssl.get()), 0);  // both modes were offered, and ours was chosen
    } else {
      EXPECT_EQ(host.inbox.refusal().code(), StatusCode::kUnauthenticated);
    }
  }
}

TEST(HandshakeTest, no_ticket_and_nothing_else_follows_the_handshake) {
  Host host;
  const Fd fd = plain_socket(host.port());
  TlsContext::Complaint complaint;
  const SslPointer ssl = host.context->start(Role::kConnects, &complaint).value();
  SSL_set_fd(ssl.get(), fd.get());
  ASSERT_EQ(SSL_connect(ssl.get()), 1);
  EXPECT_STREQ(SSL_get_cipher(ssl.get()), "TLS_AES_128_GCM_SHA256");
  const std::unique_ptr<Connection> far = host.inbox.connection();
  int handshake_messages = 0;
  SSL_set_msg_callback_arg(ssl.get(), &handshake_messages);
  SSL_set_msg_callback(
      ssl.get(), [](int /*write*/, int /*version*/, int type, const void* /*bytes*/, size_t /*size*/, SSL* /*ssl*/,
                    void* count) { *static_cast<int*>(count) += type == SSL3_RT_HANDSHAKE; });
  ASSERT_TRUE(far->send("x", soon()).ok());
  char bytes[5];
  ASSERT_EQ(SSL_read(ssl.get(), bytes, sizeof bytes), 5);
  EXPECT_EQ(handshake_messages, 0);
}

TEST(HandshakeTest, garbage_is_refused) {
  for (const std::string& garbage : {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(100'000, '\0'),
                                     std::string("\x16\x03\x01\x40\x00", 5) + std::string(0x4000, '\xff')}) {
    Host host;
    const Fd fd = plain_socket(host.port());
    (void)send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    EXPECT_LE(read_to_end(fd.get()).size(), 7u);
    EXPECT_FALSE(host.inbox.refusal().ok());
  }
}

TEST(HandshakeTest, a_stranger_that_leaves_is_told_of) {
  Host host;
  plain_socket(host.port()).reset();
  EXPECT_EQ(host.inbox.refusal().code(), StatusCode::kUnavailable);
}

// The test's own server: calls `serve` with the first connection.
struct Server {
  explicit Server(const std::function<void(const Fd&)>& serve)
      : listener(listen_tcp({"127.0.0.1", 0}).value()), thread([this, serve] {
          wait_for(listener.get(), POLLIN, soon());
          Fd fd(accept(listener.get(), nullptr, nullptr));
          serve(fd);
        }) {}
  ~Server() { thread.join(); }
  StatusOr<std::unique_ptr<Connection>> connect(Deadline deadline = soon()) const {
    return Connection::connect(local_address(listener.get()).value(), context_of(), {}, deadline);
  }
  Fd listener;
  std::thread thread;
};

// Like a TLS-terminating proxy: it has no key, but a self-made certificate.
TEST(HandshakeTest, a_server_with_a_certificate_instead_of_the_key_is_refused) {
  bool accepted = true;
  StatusCode code = StatusCode::kOk;
  std::string message;
  {
    const Server server([&](const Fd& fd) {
      const PlainTls tls(TLS_server_method());
      const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
      const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
      X509_set_pubkey(certificate.get(), key.get());
      X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>("coordinator"), -1, -1, 0);
      X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get()));
      X509_sign(certificate.get(), key.get(), EVP_sha256());
      ASSERT_EQ(SSL_CTX_use_certificate(tls.context.get(), certificate.get()), 1);
      ASSERT_EQ(SSL_CTX_use_PrivateKey(tls.context.get(), key.get()), 1);
      accepted = SSL_accept(tls.over(fd).get()) == 1;
    });
    const auto connection = server.connect();
    code = connection.status().code();
    message = std::string(connection.status().message());
  }
  EXPECT_EQ(code, StatusCode::kUnauthenticated) << message;
  EXPECT_THAT(message, HasSubstr("did not prove the key"));
  EXPECT_FALSE(accepted);
}

TEST(HandshakeTest, a_server_that_is_something_else_is_an_error_with_its_address) {
  const Server server([](const Fd& fd) {
    const std::string text = "SSH-2.0-OpenSSH_9.2\r\n";
    (void)send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    read_to_end(fd.get());
  });
  const auto connection = server.connect();
  EXPECT_EQ(connection.status().code(), StatusCode::kUnavailable) << connection.status();
  EXPECT_THAT(std::string(connection.status().message()),
              testing::AllOf(HasSubstr("127.0.0.1:"), HasSubstr("does not speak TLS")));
}

TEST(HandshakeTest, a_server_that_says_nothing_is_given_up_at_the_deadline) {
  const Server server([](const Fd& fd) { read_to_end(fd.get()); });
  EXPECT_EQ(server.connect(Deadline::after(std::chrono::milliseconds(50))).status().code(),
            StatusCode::kDeadlineExceeded);
}

TEST(HandshakeTest, a_server_that_hangs_up_or_is_not_there_is_unavailable) {
  const Server server([](const Fd& /*fd*/) {});
  EXPECT_EQ(server.connect().status().code(), StatusCode::kUnavailable);
  const Fd bound = listen_tcp({"127.0.0.1", 0}).value();
  const SocketAddress address = local_address(bound.get()).value();
  shutdown(bound.get(), SHUT_RDWR);  // the port stays ours, and refuses connections
  EXPECT_EQ(Connection::connect(address, context_of(), {}, soon()).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace keepstep::net
