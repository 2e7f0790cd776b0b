#include "agent/nodes/other_nodes.h"

#include <utility>
#include <variant>

#include "base/overloaded.h"

namespace keepstep::agent {

void OtherNodes::on_routed(brain::NodeId from, const std::string& text) {
  Status bad;
  if (is_part(text)) {
    const auto whole = joiner_.add(from, text);
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
                        {{"count", ++core_.refused}});
    parts_.joining.on_unreadable(from);
  }
}

Status OtherNodes::on_said_to_first(brain::NodeId from, const std::string& text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto message, messages::read<messages::ToFirst>(text));
  Status bad;
  std::visit(Overloaded{
                 [&](const messages::Facts& facts) {
                   if (parts_.joining.clock_fits(from, facts)) {
                     parts_.programs.tell(from);
                     if (parts_.joining.on_facts(from, facts)) {
                       parts_.elastic.tell_grace(from);
                     }
                   }
                 },
                 [&](const messages::Fingerprint& theirs) {
                   parts_.joining.on_fingerprint(from, theirs.fingerprint);
                   if (core_.config.spec.no_python) {
                     parts_.programs.on_attach();
                   }
                 },
                 [&](const messages::ClockQuestion& question) { parts_.clocks.answer(from, question); },
                 [&](const messages::ClockReport& report) { parts_.clocks.on_report(from, report); },
                 [&](const messages::Paces& report) { bad = parts_.pace.on_report(from, report); },
                 [&](const messages::MemoryAnswer& answer) { parts_.memory.on_answer(from, answer); },
             },
             message);
  return bad;
}

Status OtherNodes::on_said_by_first(const std::string& text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto message, messages::read<messages::ByFirst>(text));
  std::visit(Overloaded{
                 [&](const messages::Fits&) { parts_.joining.join(); },
                 [&](const messages::DoesNotFit& refusal) { parts_.joining.on_refused(refusal.because); },
                 [&](const messages::ClockAnswer& answer) { parts_.joining.on_clock_answer(answer); },
                 [&](const messages::Grace& grace) { parts_.elastic.on_grace(grace.grace); },
                 [&](const messages::ProgramsAttach&) {
                   if (core_.config.spec.no_python) {
                     parts_.programs.on_attach();
                   }
                 },
                 [&](const messages::MemoryQuestion& question) { parts_.memory.on_question(question); },
             },
             message);
  return absl::OkStatus();
}

Status OtherNodes::on_said(brain::NodeId from, const std::string& text) {
  KEEPSTEP_ASSIGN_OR_RETURN(const auto message, messages::read<messages::ByAny>(text));
  Status bad;
  std::visit(Overloaded{
                 [&](const messages::NoticeCame& notice) { parts_.notice.take(notice.because); },
                 [&](const messages::WaitingRanks& report) { bad = parts_.hangs.on_report(from, report); },
                 [&](const messages::WriterNews& news) {
                   if (parts_.background_writer != nullptr) {
                     parts_.background_writer->hand(from, news.text);
                   }
                 },
                 [&](const auto& about_the_store) { parts_.store.on_message(from, about_the_store); },
             },
             message);
  return bad;
}

}  // namespace keepstep::agent
