// What the nodes of a generation agree on, one leader a node: that all ranks are there, and that all have voted.
//
// A leader that knows its own node to be complete tells the leader above, once those below told it the same; what the
// root decides comes down again (node_tree.h). The messages go through the world group of the communicator, with tags
// that nothing else uses, so an interruption ends them like any other. On the way up they carry the losses of the
// ranks one by one, because a sum has the same bits everywhere only if somebody adds all of them in rank order.
// Formats: docs/design/step_commit.md.
//
// Nothing is repaired here: where the exchange fails without an interruption (a link broke, a peer says what it cannot
// say) `broken` is told once, and whoever asked waits for the interruption that must follow. So does everybody where
// the root finds that the ranks voted for different things (digest_vote.h), which it tells by `differ`.
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

// Tags in the world group that votes between nodes own.
inline constexpr uint32_t kVoteTagUp = 0xffff'0000;
inline constexpr uint32_t kVoteTagDown = 0xffff'0001;

class NodeVote {
 public:
  // Tells what went wrong, on which step (0: while forming).
  using Broken = std::function<void(brain::Step, const std::string& what)>;

  // Tells that all voted on the step, but for different things; by the root only.
  using Differ = std::function<void(brain::Step)>;

  struct Decision {
    uint32_t flags = 0;  // of all ranks
    double mean = 0;     // of all micro-batches of all ranks, added in rank order; NaN: nobody recorded one
  };

  // `tree.leads` must hold. `members`: the pages of the ranks on this node, by rank, null for all others. The
  // communicator must end before this does: it still sends from here.
  NodeVote(comm::Communicator& communicator, NodeTree tree, const std::vector<const WorkerPage*>& members,
           Broken broken, Differ differ = nullptr);

  // All ranks of this node are clean: returns true once those of all nodes are; false: interrupted, or broken.
  bool form();
  // All ranks of this node have voted on `step`, with these flags in union: what all nodes decided. Nothing:
  // interrupted, or broken. `record`: on the root, called once all voted and before anybody else may learn of it; false
  // if the decision could not be recorded, and then there is none.
  std::optional<Decision> vote(brain::Step step, uint32_t flags, const std::function<bool(const Decision&)>& record);

  bool root() const { return tree_.root; }

 private:
  enum class Subject : uint32_t { kFormed = 1, kVoted = 2 };

  std::optional<Decision> exchange(Subject subject, brain::Step step, uint32_t flags,
                                   const std::function<bool(const Decision&)>& record);
  // What nodes say upwards beside their losses.
  struct Said {
    uint32_t flags = 0;  // in union
    DigestSum digests;
  };
  // Of all below, and takes their losses; nothing: it failed.
  std::optional<Said> hear_below(Subject subject, brain::Step step);
  std::optional<Decision> ask_above(Subject subject, brain::Step step, const Said& said);
  void tell_below(Subject subject, brain::Step step, const Decision& decision);
  // Waits for an operation; false if it did not come to a good end.
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
  std::vector<Loss> losses_;         // by rank, of the step that is voted on
  std::vector<std::byte> down_;      // what goes down; stays until those sends are over
  std::vector<comm::OpId> sending_;  // downwards, from the exchange before
};

}  // namespace keepstep::rank
