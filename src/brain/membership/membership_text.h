// Texts for the membership brain's reasons. Internal to src/brain/.
#pragma once

#include <string>
#include <vector>

#include "brain/membership/membership_messages.h"
#include "brain/text.h"

namespace keepstep::brain {

// "was ended by SIGKILL", "exited with code 3", "is gone"
std::string how_text(const WorkerDied& event);
// "rank 0 yes on 118, clean at 117; ..."
std::string words_text(const std::vector<SealedWord>& words);

}  // namespace keepstep::brain
