// Messages between agents that are longer than what the coordinator hands on (3 MiB), in parts. Pure.
//
// A part is "M", its number from 0 on, "/", how many there are, ":", then its bytes. What agents send each other
// arrives in order, so the parts of one sender follow each other; part 0 begins anew.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::agent {

inline constexpr size_t kPartBytes = size_t{2} << 20;
inline constexpr size_t kMaxPartedBytes = size_t{20}
                                          << 20;  // of a whole message: more than the largest value in a Store

// Whether it is a part: no message's name begins like that.
inline bool is_part(const std::string& text) { return text.starts_with('M'); }

// The message itself where it is short enough. RESOURCE_EXHAUSTED: longer than kMaxPartedBytes.
StatusOr<std::vector<std::string>> in_parts(std::string message);

class PartJoiner {
 public:
  // The whole message after its last part, nothing before. INVALID_ARGUMENT: not the part that was due; what came
  // before it is dropped.
  StatusOr<std::optional<std::string>> add(brain::NodeId from, const std::string& part);

 private:
  struct Open {
    size_t next = 0;
    size_t count = 0;
    std::string bytes;
  };
  std::map<brain::NodeId, Open> open_;
};

}  // namespace keepstep::agent
