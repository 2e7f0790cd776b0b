// The agent's third part: what the agents of several nodes say to one another, through the coordinator.
//
// A message is one letter for its subject, then JSON: S the store (shared_store.h), F what a node was started with
// (node_facts.h), M a part of a longer message (message_parts.h), P the fingerprint of a node's workers, H ranks that
// wait for other nodes (hang_watch.h), W how long ranks compute (brain/detect/stragglers.h), T what time it is
// (clock_probe.h), Q that the job has to stop soon (parts/notice.h), N that the job's programs attach (--no-python),
// E how long a node that is told to leave has for it (parts/elastic_size.h), V what is in its agent's memory
// (parts/memory_questions.h), D what processes that write checkpoints tell each other (drain_process.h), any text of
// theirs; A and X are node 0's answers (parts/joining.h), fits and does not fit.

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/agent.h"
#include "agent/control/seat.h"
#include "agent/workers/drain_process.h"
#include "rank/link/store_messages.h"

namespace keepstep::agent {

using rank::MessageType;

namespace {

constexpr int kTryAgainMs = 1000;  // where the place is taken, or there was no answer

}  // namespace

StatusOr<std::unique_ptr<CoordinatorLink>> Agent::attend() {
  const AgentConfig& config = core_.config;
  KEEPSTEP_ASSIGN_OR_RETURN(const auto tls,
                            net::TlsContext::create(net::SharedKey::control(config.token, config.spec.run_id)));
  const auto pause = [this] {
    pollfd stop{signal_fd_.get(), POLLIN, 0};
    if (poll(&stop, 1, kTryAgainMs) <= 0) {
      return false;
    }
    signalfd_siginfo info{};
    (void)!read(signal_fd_.get(), &info, sizeof info);
    signals_ = 1;
    const int number = static_cast<int>(info.ssi_signo);
    const bool notice = is_notice(core_.config.spec, number);
    core_.end = JobEnd{notice ? kNoticeExitCode : 128 + number, absl::StrFormat("stopped by %s", strsignal(number)), "",
                       notice};
    return true;
  };
  const auto connect = [&] {
    return CoordinatorLink::connect(
        config.coordinator, config.node, config.node_name, tls,
        [this](brain::Effect effect) { core_.loop->post([this, effect = std::move(effect)] { carry_out(effect); }); },
        [this](std::string why) {
          core_.loop->post([this, why = std::move(why)] {
            core_.end_job({1,
                           absl::StrFormat("the coordinator%s is gone, and in this version the job ends with it: %s",
                                           core_.config.node == 0 ? "" : " (node 0)", why),
                           ""});
          });
        },
        kOneTry,
        [this](brain::NodeId from, std::string message) {
          core_.loop->post([this, from, message = std::move(message)] { on_routed(from, message); });
        });
  };
  return ask_for_place(false, config.spec.join_timeout_s, connect, pause,
                       [this](const std::string& what) { core_.pump.say("keepstep: " + what); });
}

void Agent::on_routed(brain::NodeId from, const std::string& message) {
  Status bad;
  if (message.starts_with('M')) {
    const auto whole = message_parts_.add(from, message);
    bad = whole.status();
    if (whole.ok() && whole->has_value()) {
      return on_routed(from, **whole);
    }
  } else if (message.starts_with('S')) {
    auto outcome = store_.on_message(from, message.substr(1));
    bad = outcome.status();
    if (outcome.ok()) {
      carry_out(*outcome);
    }
  } else if (message.starts_with('D')) {
    if (drain_ != nullptr) {
      drain_->hand(from, message.substr(1));
    }
  } else {
    try {
      const nlohmann::json body = nlohmann::json::parse(message.empty() ? message : message.substr(1));
      if (message.starts_with('F') && core_.config.node == 0) {
        if (joining_.clock_fits(from, body)) {
          const nlohmann::json& facts = body.at("facts");
          tell_that_programs_attach(from);
          if (joining_.on_facts(from, body.at("name"), facts)) {
            elastic_.tell_grace(from);
          }
        }
      } else if (message.starts_with('P') && core_.config.node == 0) {
        joining_.on_fingerprint(from, body);
        if (core_.config.spec.no_python) {
          on_programs_attach();
        }
      } else if (message.starts_with('A') && from == 0) {
        joining_.join();
      } else if (message.starts_with('X') && from == 0) {
        joining_.on_refused(body.at("because"));
      } else if (message.starts_with('H')) {
        bad = hangs_.on_report(from, body);
      } else if (message.starts_with('T')) {
        joining_.on_clock_message(from, body);
      } else if (message.starts_with('W') && core_.config.node == 0) {
        bad = pace_.on_report(from, body);
      } else if (message.starts_with('Q')) {
        notice_.take(body.at("because"));
      } else if (message.starts_with('V')) {
        memory_questions_->on_message(from, body);
      } else if (message.starts_with('E') && from == 0) {
        elastic_.on_grace(body);
      } else if (message.starts_with('N') && from == 0 && core_.config.spec.no_python) {
        on_programs_attach();
      } else {
        bad = absl::InvalidArgumentError("of an unknown subject");
      }
    } catch (const nlohmann::json::exception& error) {
      bad = absl::InvalidArgumentError(error.what());
    }
  }
  if (!bad.ok()) {
    core_.journal.write("refused", {}, absl::StrFormat("a message of node %d: %s", from, bad.message()),
                        {{"count", ++refused_}});
  }
}

void Agent::carry_out(const SharedStore::Outcome& outcome) {
  const brain::Identity identity = core_.brain.identity();
  for (const StoreAnswer& answer : outcome.answers) {
    if (const auto it = core_.workers.find(answer.worker); it != core_.workers.end()) {
      const rank::StoreMessage reply = rank::store_answer(answer.id, answer.ok, answer.value);
      core_.tell(*it->second, MessageType::kStoreReply, identity, reply.body, reply.fds());
    }
  }
  for (const auto& [node, message] : outcome.messages) {
    core_.route(node, 'S', message);
  }
}

// By node 0.
void Agent::tell_that_programs_attach(brain::NodeId to) {
  if (programs_attach_ && to != core_.config.node) {
    core_.route(to, 'N', nlohmann::json::object());
  }
}

}  // namespace keepstep::agent
