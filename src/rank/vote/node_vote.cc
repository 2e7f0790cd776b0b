#include "rank/vote/node_vote.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace keepstep::rank {

using brain::Rank;
using brain::Step;

namespace {

// Upward: this, then sum and micro-batches of each rank of the sender's subtree, in rank order.
struct Up {
  uint32_t subject;
  uint32_t flags;
  uint64_t step;
  uint64_t losses;   // how many follow
  uint32_t digests;  // DigestSum::Kind, for the ranks of the subtree
  uint32_t reserved;
  uint64_t gradients;  // if they are the same
  uint64_t state;
};
struct Down {
  uint32_t subject;
  uint32_t flags;
  uint64_t step;
  double mean;
};
static_assert(sizeof(Up) == 48 && sizeof(Down) == 24);

}  // namespace

NodeVote::NodeVote(comm::Communicator& communicator, NodeTree tree, const std::vector<const WorkerPage*>& members,
                   Broken broken, Differ differ)
    : communicator_(communicator),
      tree_(std::move(tree)),
      members_(members),
      broken_(std::move(broken)),
      differ_(std::move(differ)),
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
  std::optional<Said> said = hear_below(subject, step);
  if (!said.has_value()) {
    return std::nullopt;
  }
  said->flags |= flags;
  if (subject == Subject::kVoted) {
    said->digests.add(digests_of(members_, step));
  }
  if (tree_.root && said->digests.kind == DigestSum::Kind::kDiffer) {
    differ_(step);
    return std::nullopt;
  }
  const std::optional<Decision> decision = tree_.root ? Decision{said->flags, mean()} : ask_above(subject, step, *said);
  if (tree_.root && !record(*decision)) {
    return std::nullopt;
  }
  if (decision.has_value()) {
    tell_below(subject, step, *decision);
  }
  return decision;
}

std::optional<NodeVote::Said> NodeVote::hear_below(Subject subject, Step step) {
  std::vector<std::vector<std::byte>> messages;
  std::vector<comm::OpId> receiving;
  for (const NodeTree::Branch& branch : tree_.below) {
    messages.emplace_back(sizeof(Up) + branch.ranks.size() * sizeof(Loss));
    receiving.push_back(
        communicator_.receive(comm::kWorld, messages.back().data(), messages.back().size(), branch.leader, kVoteTagUp));
  }
  // Wait for all of them, even if one failed: they own their memory until then.
  bool heard = true;
  for (const comm::OpId op : receiving) {
    heard = finish(op, step) && heard;
  }
  Said said;
  for (size_t i = 0; heard && i < messages.size(); ++i) {
    const NodeTree::Branch& branch = tree_.below[i];
    Up up;
    std::memcpy(&up, messages[i].data(), sizeof(up));
    if (up.subject != static_cast<uint32_t>(subject) || up.step != step || up.losses != branch.ranks.size()) {
      fail(step, absl::StrFormat("rank %d speaks for %d ranks of step %d, expected were %d", branch.leader, up.losses,
                                 up.step, branch.ranks.size()));
      return std::nullopt;
    }
    if (up.digests > static_cast<uint32_t>(DigestSum::Kind::kDiffer)) {
      fail(step, absl::StrFormat("rank %d says %d of its ranks' digests", branch.leader, up.digests));
      return std::nullopt;
    }
    said.flags |= up.flags;
    said.digests.add({static_cast<DigestSum::Kind>(up.digests), {up.gradients, up.state}});
    for (size_t entry = 0; entry < branch.ranks.size(); ++entry) {
      std::memcpy(&losses_[branch.ranks[entry]], messages[i].data() + sizeof(Up) + entry * sizeof(Loss), sizeof(Loss));
    }
  }
  return heard ? std::optional(said) : std::nullopt;
}

std::optional<NodeVote::Decision> NodeVote::ask_above(Subject subject, Step step, const Said& said) {
  const Up up{.subject = static_cast<uint32_t>(subject),
              .flags = said.flags,
              .step = step,
              .losses = tree_.ranks.size(),
              .digests = static_cast<uint32_t>(said.digests.kind),
              .reserved = 0,
              .gradients = said.digests.digest.gradients,
              .state = said.digests.digest.state};
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
    // Not waited for: our node may continue at once.
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

}  // namespace keepstep::rank
