// Numbers for nodes that were started without --node-rank, assigned in order of arrival.
//
// A number is taken while its holder's key has it (until free()), or while a node with it attends. Node 0 has the
// coordinator, so it is never assigned. Not thread-safe; no I/O.
#pragma once

#include <map>
#include <string>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::coordinator {

class Seats {
 public:
  // `nodes`: the number of nodes of the job, including spares.
  explicit Seats(uint32_t nodes) : nodes_(nodes) {}

  // Returns the lowest free number from 1 up; `name` is for people. RESOURCE_EXHAUSTED if none is free: the message
  // names the holders.
  StatusOr<brain::NodeId> take(const void* key, const std::string& name,
                               const std::map<brain::NodeId, std::string>& attending);
  void free(const void* key);  // does nothing if `key` holds none

 private:
  struct Seat {
    brain::NodeId node;
    std::string name;
  };
  uint32_t nodes_;
  std::map<const void*, Seat> seats_;
};

}  // namespace keepstep::coordinator
