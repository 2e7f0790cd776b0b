#include "brain/copies/shard_copies.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

namespace keepstep::brain {
namespace {

// How far back processes, and copies of every version, can be.
constexpr Version kVersionsBack = 2;
// If only some versions are copied: how many are kept. The older one is whole until the newer one is.
constexpr size_t kVersionsKept = 2;

// Whether this process is at `version`, or will be once it has been told that the job continues from there. A process
// that did not enter the generation was told the previous verdict, and this one does not go below that.
bool comes_to(const SealedWord& rank, Identity identity, Version version, const Verdict& verdict) {
  return version_once_told(rank, rank.word.identity == identity ? version : verdict.version) == version;
}

// It holds nothing that it could lose, and starts as a fresh process would.
bool builds_anew(const StateWord& state) {
  return state.kind == StateKind::kEmpty || state.kind == StateKind::kHydrating;
}

// The versions that may be whole, newest first.
std::set<Version, std::greater<>> candidates(Version newest, const Sharding& sharding,
                                             const std::set<ShardCopy>& copies) {
  std::set<Version, std::greater<>> kept;
  for (const ShardCopy& copy : copies) {
    if (copy.sharding == sharding.number && copy.version <= newest) {
      kept.insert(copy.version);
    }
  }
  while (kept.size() > kVersionsKept) {
    kept.erase(std::prev(kept.end()));
  }
  for (Version back = 0; back <= kVersionsBack && back <= newest; ++back) {
    kept.insert(newest - back);
  }
  return kept;
}

// The blocks of one version from which lost shards could be rebuilt. Where they are does not matter here.
struct Blocks {
  Blocks(const std::set<ShardCopy>& copies, const std::set<ParityCopy>& parity, Version version) {
    for (const ShardCopy& copy : copies) {
      if (copy.version == version) {
        shards.emplace(copy.rank, copy.rank);
      }
    }
    for (const ParityCopy& copy : parity) {
      if (copy.version == version) {
        rows.emplace(copy.block, copy.block.members.front());
      }
    }
  }
  std::map<Rank, Rank> shards;
  std::map<ParityBlock, Rank> rows;
};

}  // namespace

std::optional<Verdict> newest_whole(const Verdict& verdict, Identity identity, Version origin, const Sharding& sharding,
                                    const std::vector<SealedWord>& living, const std::set<ShardCopy>& copies,
                                    const std::set<ParityCopy>& parity, std::string* missing) {
  std::map<Rank, const SealedWord*> processes;
  for (const SealedWord& word : living) {
    processes.emplace(word.rank, &word);
  }
  std::string lacking;
  for (const Version version : candidates(verdict.version, sharding, copies)) {
    std::optional<Blocks> blocks;  // rarely needed
    const auto rebuilt = [&](Rank rank) {
      if (!blocks.has_value()) {
        blocks.emplace(copies, parity, version);
      }
      return plan_rebuild(rank, blocks->shards, blocks->rows).has_value();
    };
    Rank rank = 0;
    for (; rank < sharding.world; ++rank) {
      const auto process = processes.find(rank);
      const bool lives = process != processes.end();
      if (!copies.contains({rank, version, sharding.number}) &&
          !(lives && comes_to(*process->second, identity, version, verdict)) &&
          !(version == origin && (!lives || builds_anew(process->second->state))) && !rebuilt(rank)) {
        break;
      }
    }
    if (rank == sharding.world) {
      if (version == verdict.version) {
        return verdict;
      }
      return Verdict{version, false, lacking + "; version " + std::to_string(version) + " is whole"};
    }
    if (lacking.empty()) {
      lacking = "no copy of the shard of rank " + std::to_string(rank) + " at version " + std::to_string(version) +
                " is left" + (parity.empty() ? "" : ", nor enough of its parity group");
    }
  }
  if (missing != nullptr) {
    *missing = lacking;
  }
  return std::nullopt;
}

}  // namespace keepstep::brain
