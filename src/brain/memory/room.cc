#include "brain/memory/room.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace keepstep::brain {
namespace {

Time age_of(const ServedVersion& version) { return std::max(version.age, Time{}); }

// Of each destination: the newest complete version, and the one completed last.
std::set<size_t> always_kept(const std::vector<ServedVersion>& versions) {
  std::map<std::string, size_t> newest;
  std::map<std::string, size_t> last;
  for (size_t i = 0; i < versions.size(); ++i) {
    const ServedVersion& version = versions[i];
    if (!version.complete) {
      continue;
    }
    const auto [by_step, first_step] = newest.emplace(version.destination, i);
    if (!first_step && version.step > versions[by_step->second].step) {
      by_step->second = i;
    }
    const auto [by_age, first_age] = last.emplace(version.destination, i);
    const ServedVersion& known = versions[by_age->second];
    if (!first_age &&
        std::tuple(age_of(version), known.step) < std::tuple(age_of(known), version.step)) {  // of equals, the higher
      by_age->second = i;
    }
  }
  std::set<size_t> kept;
  for (const auto& each : {newest, last}) {
    for (const auto& [destination, index] : each) {
      kept.insert(index);
    }
  }
  return kept;
}

}  // namespace

std::vector<size_t> to_make_room(const std::vector<ServedVersion>& versions) {
  const std::set<size_t> kept = always_kept(versions);
  std::vector<size_t> order;
  for (size_t i = 0; i < versions.size(); ++i) {
    const ServedVersion& version = versions[i];
    const bool dead = !version.complete && age_of(version) > kSaveLimit;
    if ((version.complete || dead) && !version.pinned && !version.in_use && !kept.contains(i)) {
      order.push_back(i);
    }
  }
  const auto rank = [&](size_t i) {
    const ServedVersion& version = versions[i];
    return std::tuple(version.complete, version.complete ? version.drained : Drained::kDone, -age_of(version),
                      version.step, version.destination);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  return order;
}

std::optional<size_t> to_drain(const std::vector<ServedVersion>& versions, uint64_t keep) {
  std::vector<size_t> complete;
  for (size_t i = 0; i < versions.size(); ++i) {
    if (versions[i].complete) {
      complete.push_back(i);
    }
  }
  std::sort(complete.begin(), complete.end(), [&](size_t a, size_t b) { return versions[a].step > versions[b].step; });
  for (size_t newer = 0; newer < complete.size() && (keep == 0 || newer < keep); ++newer) {
    if (versions[complete[newer]].drained == Drained::kWaiting) {
      return complete[newer];
    }
  }
  return std::nullopt;
}

}  // namespace keepstep::brain
