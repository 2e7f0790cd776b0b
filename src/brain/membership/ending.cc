#include "brain/membership/ending.h"

#include <algorithm>
#include <utility>

namespace keepstep::brain {

bool Ending::all_through(const std::vector<Member>& members) const {
  return finished_.size() + exited_.size() >= members.size() &&
         std::all_of(members.begin(), members.end(), [this](const Member& member) {
           return finished_.contains(member.rank) || exited_.contains(member.rank);
         });
}

void Ending::die_late(const std::vector<Rank>& ranks, LateDeath death) {
  exited_.insert(ranks.begin(), ranks.end());
  died_late_.insert(ranks.begin(), ranks.end());
  late_deaths_.push_back(std::move(death));
}

std::optional<Rank> Ending::not_called_again(const std::vector<Member>& members) const {
  for (const Member& member : members) {
    if (!died_late_.contains(member.rank) && !called_again_.contains(member.rank)) {
      return member.rank;
    }
  }
  return std::nullopt;
}

}  // namespace keepstep::brain
