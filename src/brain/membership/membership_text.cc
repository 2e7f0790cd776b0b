#include "brain/membership/membership_text.h"

#include "brain/text.h"

namespace keepstep::brain {
namespace {

// Linux's signal numbers; <csignal> has only the six of the C standard.
std::string signal_text(int signal) {
  switch (signal) {
    case 1:
      return "SIGHUP";
    case 2:
      return "SIGINT";
    case 3:
      return "SIGQUIT";
    case 4:
      return "SIGILL";
    case 6:
      return "SIGABRT";
    case 7:
      return "SIGBUS";
    case 8:
      return "SIGFPE";
    case 9:
      return "SIGKILL";
    case 11:
      return "SIGSEGV";
    case 15:
      return "SIGTERM";
    default:
      return "signal " + std::to_string(signal);
  }
}

}  // namespace

std::string how_text(const WorkerDied& event) {
  if (!event.unfit.empty()) {
    return "failed its health check: " + event.unfit;
  }
  if (event.signal > 0) {
    return "was ended by " + signal_text(event.signal);
  }
  return event.signal == 0 ? "exited with code " + std::to_string(event.exit_code) : "is gone";
}

std::string words_text(const std::vector<SealedWord>& words) {
  std::string text;
  for (const SealedWord& word : words) {
    text += text.empty() ? "" : "; ";
    text += rank_text(word.rank) + " " + name(word.word.vote) + " on " + std::to_string(word.word.step) + ", " +
            name(word.state.kind) + " at " + std::to_string(word.state.version);
  }
  return text;
}

}  // namespace keepstep::brain
