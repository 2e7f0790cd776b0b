#include "rank/vote/node_tree.h"

#include <algorithm>

#include "base/check.h"

namespace keepstep::rank {

using brain::Rank;

NodeTree::NodeTree(const std::vector<uint32_t>& nodes, Rank self) {
  KEEPSTEP_CHECK(self < nodes.size(), "a rank outside the world");
  std::vector<uint32_t> ids;             // of the nodes, in the order of their leaders
  std::vector<std::vector<Rank>> under;  // the ranks of each; later also of the nodes below it
  size_t here = 0;
  for (Rank rank = 0; rank < nodes.size(); ++rank) {
    const auto at = static_cast<size_t>(std::find(ids.begin(), ids.end(), nodes[rank]) - ids.begin());
    if (at == ids.size()) {
      ids.push_back(nodes[rank]);
      under.emplace_back();
    }
    under[at].push_back(rank);
    if (rank == self) {
      here = at;
    }
  }
  std::vector<Rank> leaders;
  for (const std::vector<Rank>& of_node : under) {
    leaders.push_back(of_node.front());
  }
  for (size_t node = under.size() - 1; node > 0; --node) {
    std::vector<Rank>& parent = under[(node - 1) / kFanOut];
    std::sort(under[node].begin(), under[node].end());
    parent.insert(parent.end(), under[node].begin(), under[node].end());
  }
  std::sort(under[0].begin(), under[0].end());
  leads = leaders[here] == self;
  root = here == 0;
  above = root ? 0 : leaders[(here - 1) / kFanOut];
  for (size_t node = here * kFanOut + 1; node <= here * kFanOut + kFanOut && node < under.size(); ++node) {
    below.push_back({leaders[node], under[node]});
  }
  ranks = under[here];
}

}  // namespace keepstep::rank
