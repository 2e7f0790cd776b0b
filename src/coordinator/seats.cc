#include "coordinator/seats.h"

#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace keepstep::coordinator {

namespace {

constexpr size_t kMaxNamed = 20;

}  // namespace

StatusOr<brain::NodeId> Seats::take(const void* key, const std::string& name,
                                    const std::map<brain::NodeId, std::string>& attending) {
  std::map<brain::NodeId, std::string> taken = attending;
  for (const auto& [holder, seat] : seats_) {
    taken.emplace(seat.node, seat.name);
  }
  for (brain::NodeId node = 1; node < nodes_; ++node) {
    if (!taken.contains(node)) {
      seats_[key] = {node, name};
      return node;
    }
  }
  std::vector<std::string> who;
  for (const auto& [node, its_name] : taken) {
    if (who.size() == kMaxNamed) {
      who.emplace_back("...");
      break;
    }
    who.push_back(absl::StrFormat("node %d is '%s'", node, its_name));
  }
  return absl::ResourceExhaustedError(
      absl::StrFormat("all %d nodes of the job are there: %s; for nodes that wait start all with --spare-nodes", nodes_,
                      absl::StrJoin(who, ", ")));
}

void Seats::free(const void* key) { seats_.erase(key); }

}  // namespace keepstep::coordinator
