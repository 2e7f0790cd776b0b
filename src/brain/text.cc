#include "brain/text.h"

#include <cstdio>

namespace keepstep::brain {

std::string who_text(bool has_rank, Rank rank, WorkerId worker, int64_t pid) {
  const std::string who = has_rank ? rank_text(rank) : "worker " + std::to_string(worker);
  return pid == 0 ? who : who + " (pid " + std::to_string(pid) + ")";
}

std::string seconds_text(Time time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace keepstep::brain
