// Canonical sums across nodes: everyone gets all partial sums and adds for itself, in the tree's order.
//
// Right wherever runs and nodes begin; each link carries the partial sums of all ranks. A node that passed on the
// maximal subtrees of what it and those before it have would send less.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "comm/collectives/canonical_plan.h"
#include "comm/collectives/canonical_sum.h"
#include "comm/collectives/hierarchical.h"
#include "comm/numbers/reduce.h"

namespace keepstep::comm {

void HierarchicalRun::all_reduce_canonical() {
  const LeafRun& run = operation_.run;
  const CanonicalPart own{run.begin, run.end, operation_.weight};
  if (!agree(Stage::kAgreement, reinterpret_cast<const std::byte*>(&own), sizeof own)) {
    return;
  }
  std::vector<CanonicalPart> parts(size());
  for (size_t member = 0; member < size(); ++member) {
    std::memcpy(&parts[member], payload(member), sizeof(CanonicalPart));
  }
  CanonicalPlan plan;
  if (const std::string why = plan.learn(group_, run.leaves, parts); !why.empty()) {
    fail(why);
    return;
  }
  const size_t element = size_of(operation_.type);
  const size_t sum_bytes = size_of(sum_type(operation_.type));
  const size_t count = operation_.bytes / element;
  const size_t step = gather_bytes() / plan.most / kCacheLine * kCacheLine / sum_bytes;
  if (step == 0) {
    fail(
        absl::StrFormat("a rank brings %d partial sums, too many for the group's slots of %d bytes; give the "
                        "communicator larger slots",
                        plan.most, group_.slot_bytes));
    return;
  }
  std::vector<std::byte> packed(plan.most * step * sum_bytes);
  std::vector<std::byte> gathered(size() * packed.size());
  for (size_t round = 0, done = 0; done < count; ++round, done += step) {
    const size_t n = std::min(step, count - done);
    const size_t block_bytes = plan.most * n * sum_bytes;
    for (size_t p = 0; p < operation_.inputs.size(); ++p) {
      std::memcpy(packed.data() + p * n * sum_bytes, operation_.inputs[p] + done * sum_bytes, n * sum_bytes);
    }
    const auto visit = [&](size_t member, const std::byte* block) {
      std::memcpy(gathered.data() + member * packed.size(), block, block_bytes);
    };
    if (!gather_round(round, packed.data(), block_bytes, visit)) {
      return;
    }
    std::vector<PartialSum> sums;
    for (const CanonicalPlan::Source& source : plan.sources) {
      const std::byte* block = gathered.data() + source.member * packed.size();
      sums.push_back({source.leaves, block + source.partial * n * sum_bytes});
    }
    add_in_tree_order(operation_.outputs[0] + done * element, operation_.type, sums, run.leaves, n, plan.weight);
  }
}

}  // namespace keepstep::comm
