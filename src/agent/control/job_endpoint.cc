#include "agent/control/job_endpoint.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "agent/control/endpoint.h"
#include "base/fd.h"
#include "net/connection.h"
#include "proto/control.pb.h"
#include "proto/convert.h"
#include "proto/peers.h"

namespace keepstep::agent {
namespace {

constexpr std::chrono::seconds kConnect{2};           // to one address
constexpr std::chrono::milliseconds kFirstPause{50};  // after the job dropped us as a stranger to make room
constexpr std::chrono::seconds kTryAgain{3};          // how long to try

// A connection to the first address of the endpoint that accepts one.
StatusOr<Fd> reach(const JobEndpoint& endpoint) {
  KEEPSTEP_ASSIGN_OR_RETURN(const std::vector<SocketAddress> addresses, resolve(endpoint.host, endpoint.port));
  std::vector<std::string> tried;
  for (const SocketAddress& address : addresses) {
    StatusOr<Fd> fd = net::connect_to(address, net::Deadline::after(kConnect));
    if (fd.ok()) {
      return fd;
    }
    tried.emplace_back(fd.status().message());
  }
  return absl::UnavailableError(absl::StrFormat(
      "nobody accepts connections at %s: %s. Give the job's --rdzv-endpoint, where node 0 listens; is it "
      "right, does the job run, and is it reached from here?",
      endpoint.text(), absl::StrJoin(tried, ", ")));
}

// One conversation, until its deadline.
class Conversation {
 public:
  Conversation(const JobEndpoint& endpoint, std::chrono::milliseconds limit, net::Deadline deadline)
      : where_(endpoint.text()), limit_(limit), deadline_(deadline) {}

  bool greeted() const { return term_ != 0; }  // the job has identified itself

  StatusOr<std::string> ask(Fd fd, const net::SharedKey& key, const std::string& request) {
    KEEPSTEP_RETURN_IF_ERROR(begin(std::move(fd), key));
    control::FromAgent question = from_us();
    question.mutable_ask()->set_request(request);
    (void)connection_->send(question.SerializeAsString(), deadline_);  // if it broke, reading reports it
    return read_answer();
  }

 private:
  control::FromAgent from_us() const {
    control::FromAgent message;
    message.set_node(proto::kCommand);
    message.set_term(term_);
    return message;
  }

  Status begin(Fd fd, const net::SharedKey& key) {
    KEEPSTEP_ASSIGN_OR_RETURN(const auto context, net::TlsContext::create(key));
    StatusOr<net::TlsStream> stream = net::prove_key(std::move(fd), where_, context, deadline_);
    if (absl::IsUnauthenticated(stream.status())) {
      return absl::UnauthenticatedError(absl::StrFormat(
          "the job at %s does not know the job token given here, or has another --rdzv-id (%s); is it another job's? "
          "Give the token that its launchers got (--token-file FILE, or KEEPSTEP_TOKEN), and their --rdzv-id",
          where_, stream.status().message()));
    }
    if (!stream.ok()) {
      return no_job(stream.status());
    }
    connection_.emplace(*std::move(stream), net::ConnectionOptions{.max_message_bytes = proto::kMaxMessageBytes});
    control::FromAgent hello = from_us();
    hello.mutable_hello()->set_node_name(host_name());
    (void)connection_->send(proto::greeting_of(proto::kCommand).encode().value(), deadline_);
    (void)connection_->send(hello.SerializeAsString(), deadline_);
    KEEPSTEP_ASSIGN_OR_RETURN(const std::string bytes, next());
    const StatusOr<net::Greeting> greeting = net::Greeting::decode(bytes);
    if (!greeting.ok()) {
      const Status said = understand(bytes).status();  // it may be the job's last message
      return said.ok() || absl::IsInvalidArgument(said) ? no_job(greeting.status()) : said;
    }
    KEEPSTEP_RETURN_IF_ERROR(proto::check_answer(proto::kCommand, *greeting, where_));
    term_ = greeting->term;
    KEEPSTEP_ASSIGN_OR_RETURN(const std::string welcome, next());
    KEEPSTEP_ASSIGN_OR_RETURN(const control::FromCoordinator said, understand(welcome));
    return said.has_welcome() && said.node() == proto::kCommand
               ? absl::OkStatus()
               : absl::UnavailableError(absl::StrFormat(
                     "the job at %s does not take commands from here; is it of another version?", where_));
  }

  // The next message. Answers keep-alives: a client that waits for long must prove that it is alive, too.
  StatusOr<std::string> next() {
    while (true) {
      StatusOr<std::string> bytes = connection_->receive(deadline_);
      if (!bytes.ok()) {
        return why_ended(bytes.status());
      }
      if (!bytes->empty()) {
        return bytes;
      }
      (void)connection_->send("", deadline_);
    }
  }

  // The job's last message is an error.
  StatusOr<control::FromCoordinator> understand(const std::string& bytes) const {
    control::FromCoordinator said;
    if (!said.ParseFromString(bytes) || (said.has_end() && said.end().code() == 0)) {
      return not_understood();
    }
    if (said.has_end()) {
      return Status(static_cast<absl::StatusCode>(said.end().code()),
                    absl::StrFormat("the job at %s: %s", where_, said.end().why()));
    }
    return said;
  }

  StatusOr<std::string> read_answer() {
    std::string answer;
    while (true) {
      KEEPSTEP_ASSIGN_OR_RETURN(const std::string part, next());
      KEEPSTEP_ASSIGN_OR_RETURN(const control::FromCoordinator said, understand(part));
      const uint64_t bytes = said.answer().bytes();
      if (!said.has_answer() || bytes > proto::kMaxAnswerBytes || said.answer().part().empty() ||
          answer.size() + said.answer().part().size() > bytes) {
        return not_understood();
      }
      answer += said.answer().part();
      if (answer.size() == bytes) {
        (void)connection_->end_sends(deadline_);
        return answer;
      }
    }
  }

  Status not_understood() const {
    return absl::InvalidArgumentError(
        absl::StrFormat("the job at %s gives an answer that this version does not understand", where_));
  }

  Status why_ended(const Status& why) const {
    if (absl::IsDeadlineExceeded(why)) {
      return absl::DeadlineExceededError(
          absl::StrFormat("the job at %s did not answer within %g s; is the launcher of node 0 stopped?", where_,
                          std::chrono::duration<double>(limit_).count()));
    }
    return absl::UnavailableError(absl::StrFormat("the job at %s ended before it answered: %s", where_, why.message()));
  }

  Status no_job(const Status& why) const {
    return Status(absl::IsDeadlineExceeded(why) ? why.code() : absl::StatusCode::kUnavailable,
                  absl::StrFormat("what accepts connections at %s does not answer as a keepstep job does (%s). Give "
                                  "the job's --rdzv-endpoint; if that is it, is the launcher of node 0 stopped? A "
                                  "job on one node has none: its commands are given on its machine",
                                  where_, why.message()));
  }

  const std::string where_;
  const std::chrono::milliseconds limit_;
  const net::Deadline deadline_;
  uint32_t term_ = 0;
  std::optional<net::Connection> connection_;
};

}  // namespace

std::string JobEndpoint::text() const {
  return absl::StrFormat("%s:%d", host.find(':') == std::string::npos ? host : "[" + host + "]", port);
}

StatusOr<std::string> ask_endpoint(const JobEndpoint& endpoint, const net::SharedKey& key, const std::string& request,
                                   std::chrono::milliseconds limit) {
  const net::Deadline deadline = net::Deadline::after(limit);
  const net::Deadline patience = std::min(deadline, net::Deadline::after(kTryAgain));
  for (auto pause = kFirstPause;; pause *= 2) {
    KEEPSTEP_ASSIGN_OR_RETURN(Fd fd, reach(endpoint));
    Conversation conversation(endpoint, limit, deadline);
    StatusOr<std::string> answer = conversation.ask(std::move(fd), key, request);
    // It broke off before it sent anything: if there are many strangers, the job drops some that have proved nothing.
    const bool broken_off = absl::IsUnavailable(answer.status()) && !conversation.greeted();
    if (!broken_off || net::Deadline::after(pause) > patience) {
      return answer;
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace keepstep::agent
