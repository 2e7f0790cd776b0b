// What the nodes of a generation agree on, through one leader per node: that all ranks have joined, and that all have
// voted.
//
// A leader whose own node is complete tells the leader above, once the leaders below it have told it the same; the
// root's decision travels down again (node_tree.h). The messages use the world group of the communicator, with reserved
// tags, so an interruption ends them like any other. On the way up they carry each rank's loss separately, because a
// sum is bit-identical everywhere only if one place adds all losses in rank order. Formats: docs/design/step_commit.md.
//
// Nothing is repaired here. If the exchange fails without an interruption (a link broke, a peer sent an invalid
// message), `broken` is called once, and the callers wait for the interruption that must follow. They also wait if the
// root finds that the ranks voted for different things (digest_vote.h), which it reports through `differ`.
//
// By the leader's main thread only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "rank/link/page.h"
#include "rank/vote/digest_vote.h"
#include "rank/vote/node_tree.h"

namespace keepstep::rank {

// Tags in the world group reserved for votes between nodes.
inline constexpr uint32_t kVoteTagUp = 0xffff'0000;
inline constexpr uint32_t kVoteTagDown = 0xffff'0001;

class NodeVote {
 public:
  // Reports what went wrong, at which step (0: while forming).
  using Broken = std::function<void(brain::Step, const std::string& what)>;

  // Reports that all ranks voted on the step, but for different things; called on the root only.
  using Differ = std::function<void(brain::Step)>;

  struct Decision {
    uint32_t flags = 0;  // of all ranks
    double mean = 0;     // of all micro-batches of all ranks, added in rank order; NaN: nobody recorded one
  };

  // `tree.leads` must hold. `members`: the pages of the ranks on this node, by rank; null for all others. The
  // communicator must end before this object does: it still sends from here.
  NodeVote(comm::Communicator& communicator, NodeTree tree, const std::vector<const WorkerPage*>& members,
           Broken broken, Differ differ = nullptr);

  // Call it once all ranks of this node are clean. True once those of all nodes are; false: interrupted, or broken.
  bool form();
  // Call it once all ranks of this node have voted on `step`; `flags` is the union of theirs. Returns what all nodes
  // decided; std::nullopt: interrupted, or broken. `record`: called on the root, once all have voted and before anyone
  // else can learn of it; false if the decision could not be recorded, and then there is none.
  std::optional<Decision> vote(brain::Step step, uint32_t flags, const std::function<bool(const Decision&)>& record);

  bool root() const { return tree_.root; }

 private:
  enum class Subject : uint32_t { kFormed = 1, kVoted = 2 };

  std::optional<Decision> exchange(Subject subject, brain::Step step, uint32_t flags,
                                   const std::function<bool(const Decision&)>& record);
  // What nodes send upward in addition to their losses.
  struct Said {
    uint32_t flags = 0;  // in union
    DigestSum digests;
  };
  // Hears from all leaders below, and takes their losses; std::nullopt if that failed.
  std::optional<Said> hear_below(Subject subject, brain::Step step);
  std::optional<Decision> ask_above(Subject subject, brain::Step step, const Said& said);
  void tell_below(Subject subject, brain::Step step, const Decision& decision);
  // Waits for an operation; false if it failed.
  bool finish(comm::OpId op, brain::Step step);
  void fail(brain::Step step, const std::string& what);
  void read_own_losses(brain::Step step);
  double mean() const;

  comm::Communicator& communicator_;
  const NodeTree tree_;
  const std::vector<const WorkerPage*> members_;
  const Broken broken_;
  const Differ differ_;
  bool failed_ = false;

  struct Loss {
    double sum;
    uint64_t micro_batches;
  };
  std::vector<Loss> losses_;         // by rank, of the step being voted on
  std::vector<std::byte> down_;      // sent downward; stays until those sends are over
  std::vector<comm::OpId> sending_;  // sends downward from the previous exchange
};

}  // namespace keepstep::rank
