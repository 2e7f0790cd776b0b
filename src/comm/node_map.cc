#include "comm/node_map.h"

#include <algorithm>

namespace keepstep::comm {

NodeMap::NodeMap(std::span<const Rank> group, std::span<const uint32_t> nodes, size_t self) {
  std::vector<uint32_t> ids;
  size_t last = 0;
  for (size_t member = 0; member < group.size(); ++member) {
    const uint32_t id = nodes.empty() ? 0 : nodes[group[member]];
    const auto at = static_cast<size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin());
    if (at == ids.size()) {
      ids.push_back(id);
      members.emplace_back();
    } else if (at != last) {
      contiguous = false;
    }
    last = at;
    if (member == self) {
      node = at;
      local = members[at].size();
    }
    members[at].push_back(member);
  }
}

size_t NodeMap::drivers() const {
  size_t least = members[0].size();
  for (const auto& node_members : members) {
    least = std::min(least, node_members.size());
  }
  return least;
}

size_t NodeMap::node_of(size_t member) const {
  for (size_t i = 0; i < members.size(); ++i) {
    if (std::binary_search(members[i].begin(), members[i].end(), member)) {
      return i;
    }
  }
  return members.size();
}

}  // namespace keepstep::comm
