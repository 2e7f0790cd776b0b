// The agent's third part: what the agents of several nodes say to one another, through the coordinator
// (messages/agent_messages.h).

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/agent.h"
#include "agent/control/seat.h"
#include "agent/workers/drain_process.h"
#include "messages/store_value.h"

namespace keepstep::agent {

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

void Agent::on_routed(brain::NodeId from, const std::string& text) {
  Status bad;
  if (is_part(text)) {
    const auto whole = message_parts_.add(from, text);
    bad = whole.status();
    if (whole.ok() && whole->has_value()) {
      return on_routed(from, **whole);
    }
  } else if (core_.config.node == 0 && messages::is_one_of<messages::ToFirst>(text)) {
    bad = on_said_to_first(from, text);
  } else if (from == 0 && messages::is_one_of<messages::ByFirst>(text)) {
    bad = on_said_by_first(text);
  } else {
    bad = on_said(from, text);
  }
  if (!bad.ok()) {
    core_.journal.write("refused", {}, absl::StrFormat("a message of node %d: %s", from, bad.message()),
                        {{"count", ++refused_}});
    joining_.on_unreadable(from);
  }
}

Status Agent::on_said_to_first(brain::NodeId from, const std::string& text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto message, messages::read<messages::ToFirst>(text));
  Status bad;
  std::visit(messages::Overloaded{
                 [&](const messages::Facts& facts) {
                   if (joining_.clock_fits(from, facts)) {
                     tell_that_programs_attach(from);
                     if (joining_.on_facts(from, facts)) {
                       elastic_.tell_grace(from);
                     }
                   }
                 },
                 [&](const messages::Fingerprint& theirs) {
                   joining_.on_fingerprint(from, theirs.fingerprint);
                   if (core_.config.spec.no_python) {
                     on_programs_attach();
                   }
                 },
                 [&](const messages::ClockQuestion& question) { clocks_.answer(from, question); },
                 [&](const messages::ClockReport& report) { clocks_.on_report(from, report); },
                 [&](const messages::Paces& report) { bad = pace_.on_report(from, report); },
                 [&](const messages::MemoryAnswer& answer) { memory_questions_->on_answer(from, answer); },
             },
             message);
  return bad;
}

Status Agent::on_said_by_first(const std::string& text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto message, messages::read<messages::ByFirst>(text));
  std::visit(messages::Overloaded{
                 [&](const messages::Fits&) { joining_.join(); },
                 [&](const messages::DoesNotFit& refusal) { joining_.on_refused(refusal.because); },
                 [&](const messages::ClockAnswer& answer) { joining_.on_clock_answer(answer); },
                 [&](const messages::Grace& grace) { elastic_.on_grace(grace.grace); },
                 [&](const messages::ProgramsAttach&) {
                   if (core_.config.spec.no_python) {
                     on_programs_attach();
                   }
                 },
                 [&](const messages::MemoryQuestion& question) { memory_questions_->on_question(question); },
             },
             message);
  return absl::OkStatus();
}

Status Agent::on_said(brain::NodeId from, const std::string& text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto message, messages::read<messages::ByAny>(text));
  Status bad;
  std::visit(messages::Overloaded{
                 [&](const messages::NoticeCame& notice) { notice_.take(notice.because); },
                 [&](const messages::WaitingRanks& report) { bad = hangs_.on_report(from, report); },
                 [&](const messages::DrainNews& news) {
                   if (drain_ != nullptr) {
                     drain_->hand(from, news.text);
                   }
                 },
                 [&](const auto& about_the_store) { carry_out(store_.on_message(from, about_the_store)); },
             },
             message);
  return bad;
}

void Agent::carry_out(const SharedStore::Outcome& outcome) {
  const brain::Identity identity = core_.brain.identity();
  for (const StoreAnswer& answer : outcome.answers) {
    if (const auto it = core_.workers.find(answer.worker); it != core_.workers.end()) {
      const auto reply = messages::store_answer(answer.id, answer.ok, answer.value);
      core_.tell(*it->second, identity, reply.message, reply.fds());
    }
  }
  for (const auto& [node, message] : outcome.messages) {
    std::visit([&, to = node](const auto& each) { core_.route(to, each); }, message);
  }
}

// By node 0.
void Agent::tell_that_programs_attach(brain::NodeId to) {
  if (programs_attach_ && to != core_.config.node) {
    core_.route(to, messages::ProgramsAttach{});
  }
}

}  // namespace keepstep::agent
