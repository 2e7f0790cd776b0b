#include "brain/copies/copy_placement.h"

#include <algorithm>
#include <numeric>

#include "brain/require.h"

namespace keepstep::brain {
namespace {

// Domains, split by whether they can keep their share. Both lists are ordered by lowest rank.
struct Split {
  std::vector<const DomainSeats*> large;  // these keep a copy of each rank outside
  std::vector<const DomainSeats*> others;
  uint32_t copies_of_others = 0;  // of every rank's copies, how many are in `others`; its own may be one of them
};

Split split_domains(const std::vector<DomainSeats>& domains, uint32_t copies) {
  std::vector<size_t> by_size(domains.size());
  std::iota(by_size.begin(), by_size.end(), size_t{0});
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return domains[a].ranks.size() > domains[b].ranks.size(); });
  uint64_t ranks = 0;
  for (const DomainSeats& domain : domains) {
    ranks += domain.ranks.size();
  }
  std::vector<bool> is_large(domains.size(), false);
  uint32_t left = copies;
  for (const size_t index : by_size) {
    const uint64_t size = domains[index].ranks.size();
    if (size * left <= ranks) {
      break;  // it fits, and so do all smaller domains
    }
    is_large[index] = true;
    ranks -= size;
    --left;
  }
  Split split;
  split.copies_of_others = left;
  for (size_t index = 0; index < domains.size(); ++index) {
    (is_large[index] ? split.large : split.others).push_back(&domains[index]);
  }
  return split;
}

std::vector<Rank> in_a_row(const std::vector<const DomainSeats*>& domains) {
  std::vector<Rank> row;
  for (const DomainSeats* domain : domains) {
    row.insert(row.end(), domain->ranks.begin(), domain->ranks.end());
  }
  return row;
}

void place_in_circle(const Split& split, const std::vector<Rank>& circle, CopyPlacement& placement) {
  size_t shift = 0;
  for (const DomainSeats* domain : split.others) {
    shift = std::max(shift, domain->ranks.size());
  }
  for (size_t at = 0; at < circle.size(); ++at) {
    for (size_t copy = 1; copy < split.copies_of_others; ++copy) {
      placement.keepers[circle[at]].push_back(circle[(at + copy * shift) % circle.size()]);
    }
  }
}

// One copy of every rank outside a large domain, assigned to the domain's ranks in turn.
void fill_large(const Split& split, const std::vector<Rank>& everyone, const std::vector<Seat>& seats,
                CopyPlacement& placement) {
  for (const DomainSeats* domain : split.large) {
    size_t turn = 0;
    for (const Rank rank : everyone) {
      if (seats[rank].domain != domain->domain) {
        placement.keepers[rank].push_back(domain->ranks[turn++ % domain->ranks.size()]);
      }
    }
  }
}

// Spreads over the circle the copies that the ranks of large domains have yet to place. It walks the places once; each
// takes its even share of copies, which belong to the ranks in turn. A domain takes at most as many consecutive copies
// as there are such ranks (because its size times copies_of_others is at most the circle's size), so never two of one
// rank.
void spread_over_circle(const Split& split, const std::vector<Rank>& circle, CopyPlacement& placement) {
  const std::vector<Rank> from = in_a_row(split.large);
  const uint64_t copies = uint64_t{from.size()} * split.copies_of_others;
  for (uint64_t copy = 0; copy < copies; ++copy) {
    placement.keepers[from[copy % from.size()]].push_back(circle[copy * circle.size() / copies]);
  }
}

}  // namespace

std::optional<CopyPlacement> place_copies(const std::vector<Seat>& seats, uint32_t copies, std::string* why) {
  const auto refuse = [why](const std::string& reason) {
    if (why != nullptr) {
      *why = reason;
    }
    return std::nullopt;
  };
  if (copies == 0) {
    return refuse("copies=0 protects nothing: use 1 for a copy on the rank's own node, 2 for one more on another node");
  }
  const std::optional<std::vector<DomainSeats>> domains = seats_by_domain(seats, why);
  if (!domains.has_value()) {
    return std::nullopt;
  }
  if (domains->size() < copies) {
    return refuse("copies=" + std::to_string(copies) + " needs " + std::to_string(copies) +
                  " nodes that do not fail together; the job has " + describe_seats(seats) +
                  ": copies=" + std::to_string(domains->size()) + " is possible");
  }
  CopyPlacement placement;
  placement.keepers.resize(seats.size());
  const Split split = split_domains(*domains, copies);
  const std::vector<Rank> circle = in_a_row(split.others);
  require(!circle.empty() && split.copies_of_others > 0,
          "there are as many domains as copies: they cannot all be large");
  place_in_circle(split, circle, placement);
  if (!split.large.empty()) {
    std::vector<Rank> everyone = in_a_row(split.large);
    everyone.insert(everyone.end(), circle.begin(), circle.end());
    fill_large(split, everyone, seats, placement);
    spread_over_circle(split, circle, placement);
  }
  return placement;
}

}  // namespace keepstep::brain
