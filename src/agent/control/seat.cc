#include "agent/control/seat.h"

#include <algorithm>
#include <utility>

#include "proto/peers.h"

namespace keepstep::agent {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kOneTry{10};
constexpr timespec kPause{.tv_sec = 1, .tv_nsec = 0};

}  // namespace

StatusOr<std::unique_ptr<CoordinatorLink>> take_seat(const std::string& coordinator, const std::string& node_name,
                                                     const net::SharedKey& key, std::chrono::milliseconds timeout,
                                                     const sigset_t& signals, int& got,
                                                     const std::function<void(const std::string&)>& say) {
  const auto until = Clock::now() + timeout;
  KEEPSTEP_ASSIGN_OR_RETURN(const auto tls, net::TlsContext::create(key));
  bool said = false;
  while (true) {
    StatusOr<std::unique_ptr<CoordinatorLink>> link = CoordinatorLink::connect(
        coordinator, proto::kAnyNode, node_name, tls, [](const brain::Effect&) {}, [](const std::string&) {}, kOneTry);
    const bool taken = absl::IsResourceExhausted(link.status());
    if (!taken && !absl::IsDeadlineExceeded(link.status())) {
      return link;
    }
    const double timeout_s = static_cast<double>(timeout.count()) / 1000;
    if (Clock::now() >= until) {
      return !taken ? std::move(link)
                    : absl::ResourceExhaustedError(absl::StrFormat(
                          "%s; no place became free within %g s (--join-timeout)", link.status().message(), timeout_s));
    }
    if (!std::exchange(said, true)) {
      say(absl::StrFormat("%s%s This node tries again for up to %g s (--join-timeout)%s", link.status().message(),
                          taken ? "." : "", timeout_s,
                          taken ? ": if one of them was just lost, its place is free in about 15 s" : ""));
    }
    got = std::max(0, sigtimedwait(&signals, nullptr, &kPause));
    if (got != 0) {
      return absl::CancelledError("a signal came");
    }
  }
}

}  // namespace keepstep::agent
