// The numbers of nodes that were started without --node-rank: given in the order in which they come.
//
// A number is taken by its holder's key until that is freed, or by a node that attends. Node 0 has the coordinator, so
// it is never given. Not thread-safe; no I/O.
#pragma once

#include <map>
#include <string>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::coordinator {

class Seats {
 public:
  // `nodes`: of the job, spare ones among them.
  explicit Seats(uint32_t nodes) : nodes_(nodes) {}

  // The lowest number from 1 that nobody has; `name` is for people. RESOURCE_EXHAUSTED when there is none: who has
  // them.
  StatusOr<brain::NodeId> take(const void* key, const std::string& name,
                               const std::map<brain::NodeId, std::string>& attending);
  void free(const void* key);  // of one that has none: nothing

 private:
  struct Seat {
    brain::NodeId node;
    std::string name;
  };
  uint32_t nodes_;
  std::map<const void*, Seat> seats_;
};

}  // namespace keepstep::coordinator
