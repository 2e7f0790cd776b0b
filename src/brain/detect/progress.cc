#include "brain/detect/progress.h"

namespace keepstep::brain {

const char* name(StepPhase phase) {
  switch (phase) {
    case StepPhase::kOutside:
      return "outside the loop over steps";
    case StepPhase::kBetween:
      return "between steps";
    case StepPhase::kMicroBatch:
      return "in a micro-batch";
    case StepPhase::kUpdate:
      return "in the update";
  }
  return "?";
}

std::string place_text(const RankProgress& rank) {
  const std::string last = rank.entered == 0
                               ? ""
                               : std::string(rank.step == 0 ? " (" : ", ") + "collective " +
                                     std::to_string(rank.entered) + " entered last" + (rank.step == 0 ? ")" : "");
  switch (rank.phase) {
    case StepPhase::kOutside:
      return name(rank.phase) + last;
    case StepPhase::kBetween:
      return "before the first micro-batch of step " + std::to_string(rank.step) + last;
    case StepPhase::kMicroBatch:
      return "in micro-batch " + std::to_string(rank.micro_batch) + " of step " + std::to_string(rank.step) + last;
    case StepPhase::kUpdate:
      return "in the update of step " + std::to_string(rank.step) + last;
  }
  return "?";
}

std::string wait_text(const RankProgress& rank) {
  switch (rank.waits) {
    case WaitsIn::kNothing:
      return "nothing";
    case WaitsIn::kCollective:
      return (rank.what.empty() ? "collective" : rank.what) + " " + std::to_string(rank.entered);
    case WaitsIn::kMessage:
      return "a message";
    case WaitsIn::kVote:
      return "the vote on step " + std::to_string(rank.step);
    case WaitsIn::kStore:
      return "the Store";
    case WaitsIn::kJoin:
      return "a generation to form";
    case WaitsIn::kEnd:
      return "the end of the other ranks";
    case WaitsIn::kPause:
      return "the pause of all ranks, because the world changes";
  }
  return "?";
}

}  // namespace keepstep::brain
