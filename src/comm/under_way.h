// Records in CollectiveWords (progress.h) which collectives this rank is in: at most one per group.
//
// If there are several, the words name the union of their members, because a rank is missing if any of the collectives
// waits for it; and they name the world if one of them is the world's. Any thread may call anything.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "comm/operation.h"
#include "comm/progress.h"

namespace keepstep::comm {

class UnderWay {
 public:
  // `words` must outlive it.
  explicit UnderWay(CollectiveWords& words) : words_(words) {}

  void enter(const Group& group, Kind kind);
  void leave(const Group& group);

 private:
  struct Collective {
    uint32_t place;
    Kind kind;
    uint64_t members;  // bit r: rank r; 0: ranks above 63
  };
  void say();  // under mutex_

  CollectiveWords& words_;
  std::mutex mutex_;
  std::vector<Collective> collectives_;  // in the order in which they were entered
};

}  // namespace keepstep::comm
