#include "agent/job_endpoint.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_join.h"
#include "agent/endpoint.h"
#include "base/fd.h"
#include "proto/control.grpc.pb.h"
#include "proto/convert.h"
#include "proto/grpc_setup.h"
#include "proto/handshake.h"

namespace keepstep::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kConnect = std::chrono::seconds(5);

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

// Whether somebody accepts a connection at `address`, by `until`.
Status try_to_connect(const SocketAddress& address, Clock::time_point until) {
  KEEPSTEP_ASSIGN_OR_RETURN(const Fd fd, start_connect(address));
  pollfd writable{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
  if (poll(&writable, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) <= 0) {
    return absl::DeadlineExceededError("no answer");
  }
  const int error = socket_error(fd.get());
  return error == 0 ? absl::OkStatus() : absl::UnavailableError(strerror(error));
}

// The first address of the endpoint that accepts. gRPC would say of any that does not only that it is not reached.
StatusOr<SocketAddress> reach(const JobEndpoint& endpoint) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, resolve(endpoint.host, endpoint.port));
  const auto until = Clock::now() + kConnect;
  std::vector<std::string> tried;
  for (const SocketAddress& address : addresses) {
    const Status status = try_to_connect(address, until);
    if (status.ok()) {
      return address;
    }
    tried.push_back(absl::StrFormat("%s (%s)", address.text(), status.message()));
  }
  return absl::UnavailableError(absl::StrFormat(
      "nobody accepts connections at %s: %s. Give the job's --rdzv-endpoint, where node 0 listens; is it "
      "right, does the job run, and is it reached from here?",
      endpoint.text(), absl::StrJoin(tried, ", ")));
}

// One conversation. gRPC's blocking calls end at the context's deadline, if not before.
class Conversation {
 public:
  Conversation(const SocketAddress& address, std::string where, const JobToken& token, std::chrono::milliseconds limit)
      : where_(std::move(where)), token_(token), limit_(limit) {
    proto::setup_grpc();
    const std::string text = address.text();
    // One attempt, which may take as long as the answer: a launcher may have much to do.
    stub_ = control::Control::NewStub(
        grpc::CreateCustomChannel(proto::target(text), grpc::InsecureChannelCredentials(),
                                  proto::channel_arguments(text, static_cast<int>((limit + kConnect).count()))));
    context_.set_deadline(std::chrono::system_clock::now() + limit);
    stream_ = stub_->Attend(&context_);
  }
  ~Conversation() {
    context_.TryCancel();
    if (!finished_) {
      stream_->Finish();
    }
  }

  StatusOr<std::string> ask(const std::string& request) {
    KEEPSTEP_RETURN_IF_ERROR(prove());
    control::FromAgent question = from_us();
    question.mutable_ask()->set_request(request);
    stream_->Write(question);  // a stream that broke says so where it is read
    return read_answer();
  }

 private:
  control::FromAgent from_us() const {
    control::FromAgent message;
    message.set_node(proto::kCommand);
    message.set_term(handshake_.term);
    return message;
  }

  Status prove() {
    handshake_.node = proto::kCommand;
    handshake_.node_name = host_name();
    handshake_.agent_nonce = random_nonce();
    control::FromAgent hello = from_us();
    hello.mutable_hello()->set_node_name(handshake_.node_name);
    hello.mutable_hello()->set_agent_nonce(handshake_.agent_nonce);
    stream_->Write(hello);
    control::FromCoordinator said;
    if (!stream_->Read(&said)) {
      return why_ended();
    }
    heard_ = true;
    handshake_.term = said.term();
    handshake_.coordinator_nonce = said.challenge().coordinator_nonce();
    if (!said.has_challenge() || handshake_.coordinator_nonce.size() != kNonceBytes ||
        !handshake_.is_coordinator(token_, said.challenge().proof())) {
      return absl::UnauthenticatedError(absl::StrFormat(
          "the job at %s does not know the job token given here; is it another job's? Give the token that "
          "its launchers got (--token-file FILE, or KEEPSTEP_TOKEN)",
          where_));
    }
    control::FromAgent proof = from_us();
    proof.mutable_proof()->set_proof(handshake_.agent_proof(token_));
    stream_->Write(proof);
    if (!stream_->Read(&said)) {
      return why_ended();
    }
    return said.has_welcome() && said.node() == proto::kCommand
               ? absl::OkStatus()
               : absl::UnavailableError(absl::StrFormat(
                     "the job at %s does not take commands from here; is it of another version?", where_));
  }

  StatusOr<std::string> read_answer() {
    std::string answer;
    control::FromCoordinator said;
    while (stream_->Read(&said)) {
      const uint64_t bytes = said.answer().bytes();
      if (!said.has_answer() || bytes > proto::kMaxAnswerBytes || said.answer().part().empty() ||
          answer.size() + said.answer().part().size() > bytes) {
        return absl::InvalidArgumentError(
            absl::StrFormat("the job at %s gives an answer that this version does not understand", where_));
      }
      answer += said.answer().part();
      if (answer.size() == bytes) {
        return answer;
      }
    }
    return why_ended();
  }

  Status why_ended() {
    finished_ = true;
    const grpc::Status status = stream_->Finish();
    const std::string& message = status.error_message();
    switch (status.error_code()) {
      case grpc::StatusCode::UNAUTHENTICATED:
        return absl::UnauthenticatedError(
            absl::StrFormat("the job at %s refused the job token given here: %s", where_, message));
      case grpc::StatusCode::RESOURCE_EXHAUSTED:
        return absl::ResourceExhaustedError(absl::StrFormat("the job at %s: %s", where_, message));
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return heard_ ? absl::DeadlineExceededError(absl::StrFormat(
                            "the job at %s did not answer within %g s; is the launcher of node 0 stopped?", where_,
                            std::chrono::duration<double>(limit_).count()))
                      : no_job(absl::StatusCode::kDeadlineExceeded, "it said nothing");
      default:
        break;
    }
    if (!heard_) {
      return no_job(absl::StatusCode::kUnavailable, message.empty() ? "it hung up" : message);
    }
    return absl::UnavailableError(
        absl::StrFormat("the job at %s: %s", where_, message.empty() ? "it ended before it answered" : message));
  }

  Status no_job(absl::StatusCode code, const std::string& what) const {
    return Status(code,
                  absl::StrFormat("what accepts connections at %s does not answer as a keepstep job does (%s). Give "
                                  "the job's --rdzv-endpoint; if that is it, is the launcher of node 0 stopped? A "
                                  "job on one node has none: its commands are given on its machine",
                                  where_, what));
  }

  const std::string where_;
  const JobToken& token_;
  const std::chrono::milliseconds limit_;
  proto::Handshake handshake_;
  bool heard_ = false;     // a challenge, so it speaks our protocol
  bool finished_ = false;  // the stream
  std::unique_ptr<control::Control::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<control::FromAgent, control::FromCoordinator>> stream_;
};

}  // namespace

std::string JobEndpoint::text() const {
  return absl::StrFormat("%s:%d", host.find(':') == std::string::npos ? host : "[" + host + "]", port);
}

StatusOr<std::string> ask_endpoint(const JobEndpoint& endpoint, const JobToken& token, const std::string& request,
                                   std::chrono::milliseconds limit) {
  KEEPSTEP_ASSIGN_OR_RETURN(const SocketAddress address, reach(endpoint));
  return Conversation(address, endpoint.text(), token, limit).ask(request);
}

}  // namespace keepstep::agent
