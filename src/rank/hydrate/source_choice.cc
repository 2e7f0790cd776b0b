#include "rank/hydrate/source_choice.h"

#include <algorithm>

namespace keepstep::rank {

std::vector<uint32_t> sources_for(uint32_t target, const std::vector<uint32_t>& sources,
                                  const std::vector<uint32_t>& nodes) {
  if (nodes.empty()) {
    return sources;
  }
  const auto is_near = [&](uint32_t source) {
    return source < nodes.size() && target < nodes.size() && nodes[source] == nodes[target];
  };
  const auto far = static_cast<size_t>(
      std::count_if(sources.begin(), sources.end(), [&](uint32_t source) { return !is_near(source); }));
  const size_t begin = far == 0 ? 0 : target * kMaxSourcesElsewhere % far;
  std::vector<uint32_t> chosen;
  size_t number = 0;  // of the remote sources
  for (const uint32_t source : sources) {
    if (is_near(source) || (number++ + far - begin) % far < kMaxSourcesElsewhere) {
      chosen.push_back(source);
    }
  }
  return chosen;
}

}  // namespace keepstep::rank
