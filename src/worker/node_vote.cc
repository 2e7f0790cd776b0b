#include "worker/node_vote.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace keepstep::worker {

using brain::Rank;
using brain::Step;

namespace {

// Upwards: this, then sum and micro-batches of each rank of the sender's subtree, in rank order.
struct Up {
  uint32_t subject;
  uint32_t flags;
  uint64_t step;
  uint64_t losses;  // how many follow
};
struct Down {
  uint32_t subject;
  uint32_t flags;
  uint64_t step;
  double mean;
};
static_assert(sizeof(Up) == 24 && sizeof(Down) == 24);

}  // namespace

NodeVote::NodeVote(comm::Communicator& communicator, NodeTree tree, const std::vector<const WorkerPage*>& members,
                   Broken broken)
    : communicator_(communicator),
      tree_(std::move(tree)),
      members_(members),
      broken_(std::move(broken)),
      losses_(members.size()),
      down_(sizeof(Down)) {
  KEEPSTEP_CHECK(tree_.leads, "only a node's leader votes for its node");
}

bool NodeVote::form() {
  return exchange(Subject::kFormed, 0, 0, [](const Decision&) { return true; }).has_value();
}

std::optional<NodeVote::Decision> NodeVote::vote(Step step, uint32_t flags,
                                                 const std::function<bool(const Decision&)>& record) {
  return exchange(Subject::kVoted, step, flags, record);
}

std::optional<NodeVote::Decision> NodeVote::exchange(Subject subject, Step step, uint32_t flags,
                                                     const std::function<bool(const Decision&)>& record) {
  bool told = true;
  for (const comm::OpId op : std::exchange(sending_, {})) {
    told = finish(op, step) && told;
  }
  if (!told) {
    return std::nullopt;
  }
  read_own_losses(step);
  const std::optional<uint32_t> below = hear_below(subject, step);
  if (!below.has_value()) {
    return std::nullopt;
  }
  const uint32_t all = flags | *below;
  const std::optional<Decision> decision = tree_.root ? Decision{all, mean()} : ask_above(subject, step, all);
  if (tree_.root && !record(*decision)) {
    return std::nullopt;
  }
  if (decision.has_value()) {
    tell_below(subject, step, *decision);
  }
  return decision;
}

std::optional<uint32_t> NodeVote::hear_below(Subject subject, Step step) {
  std::vector<std::vector<std::byte>> messages;
  std::vector<comm::OpId> receiving;
  for (const NodeTree::Branch& branch : tree_.below) {
    messages.emplace_back(sizeof(Up) + branch.ranks.size() * sizeof(Loss));
    receiving.push_back(
        communicator_.receive(comm::kWorld, messages.back().data(), messages.back().size(), branch.leader, kVoteTagUp));
  }
  // All of them, whatever becomes of one: the memory is theirs until then.
  bool heard = true;
  for (const comm::OpId op : receiving) {
    heard = finish(op, step) && heard;
  }
  uint32_t flags = 0;
  for (size_t i = 0; heard && i < messages.size(); ++i) {
    const NodeTree::Branch& branch = tree_.below[i];
    Up up;
    std::memcpy(&up, messages[i].data(), sizeof(up));
    if (up.subject != static_cast<uint32_t>(subject) || up.step != step || up.losses != branch.ranks.size()) {
      fail(step, absl::StrFormat("rank %d speaks for %d ranks of step %d, expected were %d", branch.leader, up.losses,
                                 up.step, branch.ranks.size()));
      return std::nullopt;
    }
    flags |= up.flags;
    for (size_t entry = 0; entry < branch.ranks.size(); ++entry) {
      std::memcpy(&losses_[branch.ranks[entry]], messages[i].data() + sizeof(Up) + entry * sizeof(Loss), sizeof(Loss));
    }
  }
  return heard ? std::optional(flags) : std::nullopt;
}

std::optional<NodeVote::Decision> NodeVote::ask_above(Subject subject, Step step, uint32_t flags) {
  const Up up{static_cast<uint32_t>(subject), flags, step, tree_.ranks.size()};
  std::vector<std::byte> message(sizeof(Up) + tree_.ranks.size() * sizeof(Loss));
  std::memcpy(message.data(), &up, sizeof(up));
  for (size_t entry = 0; entry < tree_.ranks.size(); ++entry) {
    std::memcpy(message.data() + sizeof(Up) + entry * sizeof(Loss), &losses_[tree_.ranks[entry]], sizeof(Loss));
  }
  Down down{};
  const comm::OpId answer = communicator_.receive(comm::kWorld, &down, sizeof(down), tree_.above, kVoteTagDown);
  const comm::OpId question = communicator_.send(comm::kWorld, message.data(), message.size(), tree_.above, kVoteTagUp);
  const bool asked = finish(question, step);
  const bool answered = finish(answer, step);
  if (!asked || !answered) {
    return std::nullopt;
  }
  if (down.subject != static_cast<uint32_t>(subject) || down.step != step) {
    fail(step, absl::StrFormat("rank %d answered for step %d", tree_.above, down.step));
    return std::nullopt;
  }
  return Decision{down.flags, down.mean};
}

void NodeVote::tell_below(Subject subject, Step step, const Decision& decision) {
  const Down down{static_cast<uint32_t>(subject), decision.flags, step, decision.mean};
  std::memcpy(down_.data(), &down, sizeof(down));
  for (const NodeTree::Branch& branch : tree_.below) {
    // Not waited for: our node may go on at once.
    sending_.push_back(communicator_.send(comm::kWorld, down_.data(), down_.size(), branch.leader, kVoteTagDown));
  }
}

bool NodeVote::finish(comm::OpId op, Step step) {
  const comm::Completion completion = communicator_.wait(op);
  communicator_.forget(op);
  if (completion.outcome == comm::Outcome::kFailed) {
    fail(step, completion.error);
  }
  return completion.outcome == comm::Outcome::kDone;
}

void NodeVote::fail(Step step, const std::string& what) {
  if (!std::exchange(failed_, true) && !communicator_.interrupted()) {
    broken_(step, "the vote between the nodes cannot go on: " + what);
  }
}

void NodeVote::read_own_losses(Step step) {
  for (Rank rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank] != nullptr) {
      const LossSlot& slot = members_[rank]->loss[step % 2];
      const bool recorded = slot.step.load() == step;
      losses_[rank] = recorded ? Loss{slot.sum.load(), slot.micro_batches.load()} : Loss{0, 0};
    }
  }
}

double NodeVote::mean() const {
  double sum = 0;
  uint64_t count = 0;
  for (const Loss& loss : losses_) {
    sum += loss.sum;
    count += loss.micro_batches;
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

}  // namespace keepstep::worker
