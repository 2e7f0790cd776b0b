// Splits messages between agents that are longer than the coordinator passes on (3 MiB). Pure.
//
// A part is "M", its number from 0, "/", the number of parts, ":", then its bytes. Messages between agents arrive in
// order, so the parts of one sender follow each other; part 0 starts over.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "brain/types.h"

namespace keepstep::agent {

inline constexpr size_t kPartBytes = size_t{2} << 20;
inline constexpr size_t kMaxPartedBytes = size_t{20} << 20;  // of a whole message; above a Store's largest value

// Whether it is a part: no message's name begins with 'M'.
inline bool is_part(const std::string& text) { return text.starts_with('M'); }

// Returns the message itself if it is short enough. RESOURCE_EXHAUSTED: longer than kMaxPartedBytes.
StatusOr<std::vector<std::string>> in_parts(std::string message);

class PartJoiner {
 public:
  // Returns the whole message after its last part, and std::nullopt before that. INVALID_ARGUMENT: not the expected
  // part; the parts before it are dropped.
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
