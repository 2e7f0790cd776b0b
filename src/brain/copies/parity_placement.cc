#include "brain/copies/parity_placement.h"

#include <algorithm>
#include <limits>

#include "brain/require.h"

namespace keepstep::brain {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

// The groups of one set of domains: their members, and the assignment of each group's parity blocks to domains.
//
// The ranks of the set form a row, domain after domain, and are assigned to the groups in turn. A domain has at most as
// many ranks as there are groups, so no group gets two ranks of one domain.
class DomainSet {
 public:
  DomainSet(std::vector<const DomainSeats*> domains, uint32_t data, uint32_t parity)
      : domains_(std::move(domains)), parity_(parity), loads_(domains_.size(), 0) {
    uint64_t ranks = 0;
    uint64_t groups = 0;
    for (const DomainSeats* domain : domains_) {
      starts_.push_back(ranks);
      ranks += domain->ranks.size();
      groups = std::max<uint64_t>(groups, domain->ranks.size());
    }
    groups_ = static_cast<uint32_t>(std::max(groups, (ranks + data - 1) / data));
    keepers_.resize(groups_);
    deal();
    while (improve()) {
    }
  }

  void append_to(ParityPlacement& placement) const {
    const auto first = static_cast<uint32_t>(placement.groups.size());
    placement.groups.resize(first + groups_);
    uint64_t at = 0;
    for (const DomainSeats* domain : domains_) {
      for (const Rank rank : domain->ranks) {
        const auto group = static_cast<uint32_t>(first + at++ % groups_);
        placement.groups[group].members.push_back(rank);
        placement.group_of[rank] = group;
      }
    }
    std::vector<uint64_t> given(domains_.size(), 0);
    for (uint32_t group = 0; group < groups_; ++group) {
      for (const uint32_t index : keepers_[group]) {  // evenly over the domain's row of ranks, and so over its nodes
        const std::vector<Rank>& ranks = domains_[index]->ranks;
        const uint64_t block = given[index]++;
        placement.groups[first + group].keepers.push_back(ranks[block * ranks.size() / loads_[index]]);
      }
    }
  }

 private:
  uint64_t size(uint32_t index) const { return domains_[index]->ranks.size(); }
  bool has_member(uint32_t group, uint32_t index) const {
    return (group + groups_ - starts_[index] % groups_) % groups_ < size(index);
  }
  bool may_keep(uint32_t group, uint32_t index) const {
    return !has_member(group, index) &&
           std::find(keepers_[group].begin(), keepers_[group].end(), index) == keepers_[group].end();
  }
  // Compares the cost of one more block in domain `a` with that of one block in `b`: a load costs its square per rank.
  bool cheaper(uint32_t a, uint32_t b, uint64_t load_b) const {
    return (2 * loads_[a] + 1) * size(b) < (2 * load_b - 1) * size(a);
  }

  // The initial assignment: to the least loaded domains that may keep a group's parity. The starting point moves on
  // with each group.
  void deal() {
    const auto count = static_cast<uint32_t>(domains_.size());
    for (uint32_t group = 0; group < groups_; ++group) {
      for (uint32_t block = 0; block < parity_; ++block) {
        uint32_t best = kNone;
        for (uint32_t turn = 0; turn < count; ++turn) {
          const uint32_t index = (group + turn) % count;
          if (may_keep(group, index) && (best == kNone || cheaper(index, best, loads_[best] + 1))) {
            best = index;
          }
        }
        require(best != kNone, "a set of domains is too small for its groups");
        keepers_[group].push_back(best);
        ++loads_[best];
      }
    }
  }

  // Moves one block from a domain to a less loaded one, through other domains if necessary. As the cost of each further
  // block increases with a domain's load, an assignment that no such path improves is optimal.
  bool improve() {
    std::vector<std::vector<uint32_t>> kept(domains_.size());  // groups, by domain
    for (uint32_t group = 0; group < groups_; ++group) {
      for (const uint32_t index : keepers_[group]) {
        kept[index].push_back(group);
      }
    }
    std::vector<uint32_t> order(domains_.size());
    for (uint32_t index = 0; index < order.size(); ++index) {
      order[index] = index;
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return loads_[a] * size(b) > loads_[b] * size(a); });
    return std::any_of(order.begin(), order.end(),
                       [&](uint32_t from) { return loads_[from] > 0 && improve_from(from, kept); });
  }

  bool improve_from(uint32_t from, const std::vector<std::vector<uint32_t>>& kept) {
    struct Step {
      uint32_t domain = kNone;  // the block came from there ...
      uint32_t group = kNone;   // ... and belongs to this group
    };
    std::vector<Step> came(domains_.size());
    std::vector<uint32_t> reached = {from};
    std::vector<uint32_t> unreached;
    for (uint32_t index = 0; index < domains_.size(); ++index) {
      if (index != from) {
        unreached.push_back(index);
      }
    }
    uint32_t best = kNone;
    for (size_t next = 0; next < reached.size(); ++next) {
      const uint32_t domain = reached[next];
      for (size_t place = 0; place < kept[domain].size() && !unreached.empty(); ++place) {
        const uint32_t group = kept[domain][place];
        std::erase_if(unreached, [&](uint32_t index) {
          if (!may_keep(group, index)) {
            return false;
          }
          came[index] = {domain, group};
          reached.push_back(index);
          if (cheaper(index, from, loads_[from]) && (best == kNone || cheaper(index, best, loads_[best] + 1))) {
            best = index;
          }
          return true;
        });
      }
    }
    if (best == kNone) {
      return false;
    }
    for (uint32_t index = best; index != from; index = came[index].domain) {
      std::vector<uint32_t>& keepers = keepers_[came[index].group];
      *std::find(keepers.begin(), keepers.end(), came[index].domain) = index;
    }
    --loads_[from];
    ++loads_[best];
    return true;
  }

  const std::vector<const DomainSeats*> domains_;
  const uint32_t parity_;
  std::vector<uint64_t> starts_;  // per domain, in the row of all ranks
  uint32_t groups_ = 0;
  std::vector<std::vector<uint32_t>> keepers_;  // by group: indices of domains
  std::vector<uint64_t> loads_;                 // by domain: parity blocks
};

// Sets of at least `blocks` domains, largest domains first, so that a set's domains have similar sizes. A set ends when
// its rank count is divisible by `data`, or after `data` more domains; a remainder too small for a set of its own joins
// the last one.
std::vector<std::vector<const DomainSeats*>> sets_of(const std::vector<DomainSeats>& domains, uint32_t data,
                                                     uint32_t blocks) {
  std::vector<const DomainSeats*> by_size;
  for (const DomainSeats& domain : domains) {
    by_size.push_back(&domain);
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const DomainSeats* a, const DomainSeats* b) { return a->ranks.size() > b->ranks.size(); });
  std::vector<std::vector<const DomainSeats*>> sets(1);
  uint64_t ranks = 0;
  for (size_t at = 0; at < by_size.size(); ++at) {
    std::vector<const DomainSeats*>& set = sets.back();
    set.push_back(by_size[at]);
    ranks += by_size[at]->ranks.size();
    const bool full = set.size() >= blocks && (ranks % data == 0 || set.size() >= blocks + data);
    if (full && by_size.size() - at - 1 >= blocks) {
      sets.emplace_back();
      ranks = 0;
    }
  }
  return sets;
}

std::string what_is_possible(size_t domains, uint32_t parity) {
  if (domains == 1) {
    return "only copies=1 (none but its own) is possible";
  }
  const std::string copies = "copies=" + std::to_string(std::min<size_t>(domains, parity + 1)) + " is possible";
  return domains <= parity + 1
             ? copies
             : "parity=" + std::to_string(domains - parity) + "+" + std::to_string(parity) + " or " + copies;
}

}  // namespace

std::optional<ParityPlacement> place_parity(const std::vector<Seat>& seats, uint32_t data, uint32_t parity,
                                            std::string* why) {
  const auto refuse = [why](const std::string& reason) {
    if (why != nullptr) {
      *why = reason;
    }
    return std::nullopt;
  };
  const std::string wish = "parity=" + std::to_string(data) + "+" + std::to_string(parity);
  if (data == 0 || parity == 0 || uint64_t{data} + parity > kMaxBlocksOfGroup) {
    return refuse(wish + ": K+M needs at least one block of each kind, and at most " +
                  std::to_string(kMaxBlocksOfGroup) + " in all; 6+2 outlives any two of eight nodes");
  }
  const std::optional<std::vector<DomainSeats>> domains = seats_by_domain(seats, why);
  if (!domains.has_value()) {
    return std::nullopt;
  }
  const uint32_t blocks = data + parity;
  if (domains->size() < blocks) {
    return refuse(wish + " needs " + std::to_string(blocks) + " nodes that do not fail together; the job has " +
                  describe_seats(seats) + ": " + what_is_possible(domains->size(), parity));
  }
  ParityPlacement placement;
  placement.group_of.resize(seats.size());
  for (std::vector<const DomainSeats*>& set : sets_of(*domains, data, blocks)) {
    DomainSet(std::move(set), data, parity).append_to(placement);
  }
  return placement;
}

}  // namespace keepstep::brain
