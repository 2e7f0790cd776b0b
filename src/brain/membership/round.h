// One generation as a value: who its members are, how far it got, and what its seal found. Pure.
//
// Membership keeps the newest one. News of another generation is late and is rejected: each event names an identity,
// and a rank's news also its worker.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "brain/membership/ending.h"
#include "brain/membership/membership_messages.h"

namespace keepstep::brain {

class Round {
 public:
  // Without members: none was prepared yet, or its members were given up.
  explicit Round(Identity identity) { prepare_.identity = identity; }
  explicit Round(Prepare prepare);

  Identity identity() const { return prepare_.identity; }
  const Prepare& prepare() const { return prepare_; }
  const std::vector<Member>& members() const { return prepare_.members; }  // by rank
  bool is_member(WorkerId worker, Rank rank) const {
    return rank < members().size() && members()[rank].worker == worker;
  }
  bool has_several_nodes() const { return ranks_of_.size() > 1; }
  // Since it was prepared. A node that comes back knows nothing of this generation.
  void lose(NodeId node) { lost_nodes_.insert(node); }
  bool has_lost(NodeId node) const { return lost_nodes_.contains(node); }

  // ---- forming ----
  // What each member answered to Prepare. False if it had already answered.
  bool answer(Rank rank, StateWord state) { return answers_.emplace(rank, state).second; }
  const std::map<Rank, StateWord>& answers() const { return answers_; }
  bool has_answered(Rank rank) const { return answers_.contains(rank); }
  bool all_answered() const { return answers_.size() == members().size(); }
  void activate(Activate activate) { activated_ = std::move(activate); }
  const std::optional<Activate>& activated() const { return activated_; }
  // All members are clean at its version. False if that was known already, or if it was never activated.
  bool form();
  bool formed() const { return formed_; }
  // All members committed a step.
  void step() { stepped_ = true; }
  bool stepped() const { return stepped_; }
  // Members wait at the end of a step, or before the first. False if this one was already waiting.
  bool pause(Rank rank) { return paused_.insert(rank).second; }
  size_t paused() const { return paused_.size(); }

  // ---- its end ----
  Ending& ending() { return ending_; }
  const Ending& ending() const { return ending_; }
  bool all_exited() const { return ending_.exited().size() == members().size(); }
  bool all_through() const { return ending_.all_through(members()); }
  // Some exited, and all others have answered: they wait for those.
  bool all_wait_for_exited() const;

  // ---- its seal ----
  // Either the words of `awaited` arrive, or news of their deaths.
  void seal(std::set<Rank> awaited);
  // A node's answer. True if it is the first one of a node with ranks.
  bool take(const Sealed& answer);
  void await_no_longer(Rank rank) { awaited_.erase(rank); }
  bool awaits_words() const { return !awaited_.empty(); }
  // Each node with ranks has answered or is lost.
  bool all_nodes_answered() const;
  size_t nodes_answered() const { return sealed_nodes_.size(); }
  const std::map<Rank, SealedWord>& words() const { return words_; }
  std::vector<SealedWord> all_words() const;
  struct StepResult {
    double mean_loss = 0;
    uint32_t flags = 0;
  };
  std::optional<StepResult> outcome(Step step) const;  // as known from the nodes

 private:
  Prepare prepare_;
  std::map<NodeId, std::vector<Rank>> ranks_of_;
  std::set<NodeId> lost_nodes_;
  std::map<Rank, StateWord> answers_;
  std::optional<Activate> activated_;
  bool formed_ = false;
  bool stepped_ = false;
  std::set<Rank> paused_;
  Ending ending_;
  std::set<NodeId> sealed_nodes_;
  std::set<Rank> awaited_;
  std::map<Rank, SealedWord> words_;
  std::map<Step, StepResult> results_;
};

}  // namespace keepstep::brain
