#include "agent/control/seat.h"

#include "agent/control/endpoint.h"
#include "base/clock.h"
#include "proto/peers.h"

namespace keepstep::agent {

StatusOr<std::unique_ptr<CoordinatorLink>> ask_for_place(
    bool any, double timeout_s, const std::function<StatusOr<std::unique_ptr<CoordinatorLink>>()>& connect,
    const std::function<bool()>& pause, const std::function<void(const std::string&)>& say) {
  const int64_t end_ns = monotonic_ns() + static_cast<int64_t>(timeout_s * 1e9);
  for (bool said = false; !said || !pause(); said = true) {
    StatusOr<std::unique_ptr<CoordinatorLink>> link = connect();
    const bool taken = any ? absl::IsResourceExhausted(link.status()) : absl::IsAlreadyExists(link.status());
    const bool over = monotonic_ns() >= end_ns;
    const auto why = link.status().message();
    if (!taken && (over || !absl::IsDeadlineExceeded(link.status()))) {
      return link;
    }
    if (over) {
      return any ? absl::ResourceExhaustedError(
                       absl::StrFormat("%s; no place became free within %g s (--join-timeout)", why, timeout_s))
                 : absl::AlreadyExistsError(absl::StrFormat(
                       "%s; it stayed connected for %g s (--join-timeout): give each launcher another --node-rank", why,
                       timeout_s));
    }
    if (!said) {
      const std::string lost = absl::StrFormat(": if %s was just lost, its place is free in about 15 s",
                                               any ? "one of them" : "the other one");
      say(absl::StrFormat("%s%s This node tries again for up to %g s (--join-timeout)%s", why, taken && any ? "." : "",
                          timeout_s, taken ? lost : ""));
    }
  }
  return absl::CancelledError("a signal came");
}

StatusOr<std::unique_ptr<CoordinatorLink>> take_seat(const std::string& coordinator, const std::string& node_name,
                                                     const net::SharedKey& key, std::chrono::milliseconds timeout,
                                                     const sigset_t& signals, int& got,
                                                     const std::function<void(const std::string&)>& say) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto tls, net::TlsContext::create(key));
  const auto connect = [&] {
    return CoordinatorLink::connect(
        coordinator, proto::kAnyNode, node_name, tls, [](const brain::Effect&) {}, [](const std::string&) {}, kOneTry);
  };
  const auto pause = [&] { return (got = signal_within(signals, std::chrono::seconds(1))) != 0; };
  return ask_for_place(true, static_cast<double>(timeout.count()) / 1000, connect, pause, say);
}

}  // namespace keepstep::agent
