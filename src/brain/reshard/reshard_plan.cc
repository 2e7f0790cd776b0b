#include "brain/reshard/reshard_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "brain/require.h"
#include "brain/reshard/strided_copy.h"

namespace keepstep::brain {
namespace {

constexpr size_t kMaxNamed = 8;                    // per reason
constexpr size_t kMaxPieces = 4'000'000;           // per plan: nobody would carry out a larger one
constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // per tensor

std::string describe(const ShardEntry& entry) {
  return "'" + entry.name + "' " + entry.dtype + " " + describe_shape(entry.shape);
}

// What is wrong with an entry by itself; empty if nothing is.
std::string defect(const ShardEntry& entry) {
  const std::optional<uint64_t> count = elements(entry.shape);
  if (entry.element_bytes == 0 || !count.has_value() || *count > kMaxBytes / entry.element_bytes) {
    return describe(entry) + " of " + std::to_string(entry.element_bytes) + " bytes an element is no tensor";
  }
  if (!fits(entry.box, entry.shape)) {
    return describe(entry.box) + " is no part of " + describe(entry);
  }
  return "";
}

// A list of reasons, of which only the first ones are shown.
class Reasons {
 public:
  void add(std::string reason) {
    if (reasons_.size() < kMaxNamed) {
      reasons_.push_back(std::move(reason));
    }
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  std::string text(const std::string& separator = "; ") const {
    std::string text;
    for (const std::string& reason : reasons_) {
      text += (text.empty() ? "" : separator) + reason;
    }
    return text + (count_ > reasons_.size() ? " (and " + std::to_string(count_ - reasons_.size()) + " more)" : "");
  }

 private:
  std::vector<std::string> reasons_;
  size_t count_ = 0;
};

// A part of a need.
struct Part {
  uint32_t need = 0;
  Box box;
};

// An entry of a source.
struct Holder {
  uint32_t source = 0;
  uint32_t entry = 0;
  const Box* box = nullptr;
};

// A part that each of these holders has completely.
struct Atom {
  Part part;
  std::vector<Holder> holders;
};

// The entries of all sources of one version, by the names that are needed.
class Holdings {
 public:
  Holdings(const std::vector<ShardEntry>& needs, const std::vector<ShardSource>& sources, Version version,
           const std::set<uint32_t>& lost) {
    for (const ShardEntry& need : needs) {
      by_name_.try_emplace(need.name);
    }
    std::unordered_map<std::string_view, const ShardEntry*> needed;
    for (const ShardEntry& need : needs) {
      if (const std::string wrong = defect(need); !wrong.empty()) {
        wrong_.add(wrong);
      } else if (const auto [at, is_new] = needed.try_emplace(need.name, &need); !is_new) {
        compare(*at->second, need, std::nullopt);
      }
    }
    for (uint32_t source = 0; source < sources.size(); ++source) {
      if (sources[source].version != version || lost.contains(source)) {
        continue;
      }
      any_ = true;
      for (uint32_t entry = 0; entry < sources[source].entries.size(); ++entry) {
        const ShardEntry& has = sources[source].entries[entry];
        const auto need = needed.find(has.name);
        if (need == needed.end()) {
          continue;
        }
        if (const std::string wrong = defect(has); !wrong.empty()) {
          wrong_.add("source " + std::to_string(source) + ": " + wrong);
        } else if (compare(*need->second, has, source) && elements(has.box) > 0) {
          by_name_[need->second->name].push_back({source, entry, &has.box});
        }
      }
    }
    for (auto& [name, holders] : by_name_) {  // neighbors side by side: halves of a list are halves of a tensor
      std::stable_sort(holders.begin(), holders.end(),
                       [](const Holder& a, const Holder& b) { return a.box->offsets < b.box->offsets; });
    }
  }

  const std::vector<Holder>& of(const std::string& name) const { return by_name_.at(name); }
  bool any() const { return any_; }
  const Reasons& wrong() const { return wrong_; }

 private:
  // `source`: the owner of `has`; std::nullopt if that is a need as well.
  bool compare(const ShardEntry& need, const ShardEntry& has, std::optional<uint32_t> source) {
    if (need.dtype == has.dtype && need.element_bytes == has.element_bytes && need.shape == has.shape) {
      return true;
    }
    wrong_.add("'" + need.name + "' is needed as " + need.dtype + " " + describe_shape(need.shape) +
               (source.has_value() ? ", source " + std::to_string(*source) + " has " : ", and as ") + has.dtype + " " +
               describe_shape(has.shape));
    return false;
  }

  std::unordered_map<std::string_view, std::vector<Holder>> by_name_;
  bool any_ = false;
  Reasons wrong_;
};

// Cuts parts at the borders of what holders have, until each holder has all or nothing of each piece.
class Cutter {
 public:
  // Pieces that none of `holders` has go to `uncovered`. False if there are too many pieces.
  bool cut(Part whole_part, std::vector<Holder> all_holders, std::vector<Atom>& atoms, std::vector<Part>& uncovered) {
    std::vector<Atom> work;  // no recursion: nested boxes would make it deep
    work.push_back({std::move(whole_part), std::move(all_holders)});
    while (!work.empty()) {
      Atom piece = std::move(work.back());
      work.pop_back();
      std::erase_if(piece.holders, [&](const Holder& holder) { return !overlap(*holder.box, piece.part.box); });
      if (const Holder* partial = one_with_a_part(piece); partial != nullptr) {
        auto [below, above] = halves(piece.part, *partial->box);
        work.push_back({std::move(above), piece.holders});
        work.push_back({std::move(below), std::move(piece.holders)});
      } else if (++pieces_ > kMaxPieces) {
        return false;
      } else if (piece.holders.empty()) {
        uncovered.push_back(std::move(piece.part));
      } else {
        atoms.push_back(std::move(piece));
      }
    }
    return true;
  }

 private:
  // A holder that has only part of the piece: the middle one, because halving lists needs the fewest cuts.
  static const Holder* one_with_a_part(const Atom& piece) {
    std::vector<const Holder*> some;
    for (const Holder& holder : piece.holders) {
      if (!contains(*holder.box, piece.part.box)) {
        some.push_back(&holder);
      }
    }
    return some.empty() ? nullptr : some[some.size() / 2];
  }

  // Cuts `part` in two where `box` begins or ends inside it.
  static std::pair<Part, Part> halves(const Part& part, const Box& box) {
    for (size_t dimension = 0; dimension < box.dimensions(); ++dimension) {
      for (const uint64_t border : {box.offsets[dimension], box.end(dimension)}) {
        if (part.box.offsets[dimension] < border && border < part.box.end(dimension)) {
          Part below = part;
          Part above = part;
          below.box.lengths[dimension] = border - part.box.offsets[dimension];
          above.box.offsets[dimension] = border;
          above.box.lengths[dimension] = part.box.end(dimension) - border;
          return {std::move(below), std::move(above)};
        }
      }
    }
    require(false, "a box that has not all of a part has no border in it");
    return {};
  }

  size_t pieces_ = 0;
};

// Distributes atoms over their holders, so that all sources end with the same load if possible.
class Dealer {
 public:
  Dealer(const std::vector<ShardEntry>& needs, std::vector<uint64_t> loads, const ReshardOptions& options)
      : needs_(needs), loads_(std::move(loads)), options_(options) {
    require(options_.least_stripe_bytes > 0, "a share needs at least one byte");
  }

  // Atoms that few holders have are distributed first: the others can compensate for them.
  void deal(std::vector<Atom> atoms, std::vector<Pull>& pulls) {
    std::stable_sort(atoms.begin(), atoms.end(),
                     [](const Atom& a, const Atom& b) { return a.holders.size() < b.holders.size(); });
    for (Atom& atom : atoms) {
      deal_one(atom, pulls);
    }
  }

 private:
  void deal_one(Atom& atom, std::vector<Pull>& pulls) {
    std::vector<Holder>& holders = atom.holders;
    const auto rank = [this](const Holder& holder) {  // serving order
      const auto count = static_cast<uint32_t>(loads_.size());
      return std::make_tuple(loads_[holder.source], (holder.source + count - options_.first_source % count) % count,
                             holder.entry);
    };
    std::sort(holders.begin(), holders.end(), [&](const Holder& a, const Holder& b) { return rank(a) < rank(b); });
    holders.erase(std::unique(holders.begin(), holders.end(),
                              [](const Holder& a, const Holder& b) { return a.source == b.source; }),
                  holders.end());
    const uint32_t element_bytes = needs_[atom.part.need].element_bytes;
    const uint64_t count = elements(atom.part.box);
    const std::vector<uint64_t> shares = fill(holders, count * element_bytes);
    const uint64_t block = block_elements(atom.part.box, element_bytes);
    uint64_t from = 0;
    uint64_t bytes = 0;
    for (size_t at = 0; at < shares.size(); ++at) {
      bytes += shares[at];
      const uint64_t exact = bytes / element_bytes;
      const uint64_t to = at + 1 == shares.size() ? count : std::max(from, (exact + block / 2) / block * block);
      for (Box& box : row_major_part(atom.part.box, from, to)) {
        pulls.push_back({atom.part.need, holders[at].source, holders[at].entry, std::move(box)});
      }
      loads_[holders[at].source] += (to - from) * element_bytes;
      from = to;
    }
  }

  // Like water: the least loaded holders are filled up to the same level, each with at least a stripe.
  std::vector<uint64_t> fill(const std::vector<Holder>& holders, uint64_t bytes) const {
    uint64_t among = 1;
    uint64_t sum = bytes + loads_[holders[0].source];
    while (among < holders.size()) {
      const uint64_t load = loads_[holders[among].source];
      if ((sum + load) / (among + 1) < load + options_.least_stripe_bytes) {
        break;
      }
      sum += load;
      ++among;
    }
    std::vector<uint64_t> shares;
    for (uint64_t at = 0; at < among; ++at) {
      shares.push_back(sum / among - loads_[holders[at].source]);
    }
    shares.back() += sum % among;
    return shares;
  }

  // The size of the blocks between which cuts are made: as many whole rows as fit a stripe, so that pieces stay boxes.
  uint64_t block_elements(const Box& box, uint32_t element_bytes) const {
    uint64_t block = 1;
    for (size_t dimension = box.dimensions(); dimension-- > 0;) {
      if (block * box.lengths[dimension] > options_.least_stripe_bytes / element_bytes) {
        break;
      }
      block *= box.lengths[dimension];
    }
    return block;
  }

  const std::vector<ShardEntry>& needs_;
  std::vector<uint64_t> loads_;
  const ReshardOptions options_;
};

// Merges pulls of one need from one entry into as few as possible, ordered by their place in it.
std::vector<Pull> merged(std::vector<Pull> pulls, const std::vector<ShardEntry>& needs,
                         const std::vector<ShardSource>& sources) {
  const auto key = [](const Pull& pull) { return std::make_tuple(pull.source, pull.entry, pull.need); };
  std::stable_sort(pulls.begin(), pulls.end(), [&](const Pull& a, const Pull& b) { return key(a) < key(b); });
  using Placed = std::pair<uint64_t, Pull>;  // with its place in the entry
  std::vector<Placed> placed;
  std::vector<Box> boxes;
  for (size_t first = 0, end = 0; first < pulls.size(); first = end) {
    const auto [source, entry, need] = key(pulls[first]);
    boxes.clear();
    for (; end < pulls.size() && key(pulls[end]) == key(pulls[first]); ++end) {
      boxes.push_back(std::move(pulls[end].box));
    }
    merge_neighbours(boxes);
    for (Box& box : boxes) {
      const ShardEntry& has = sources[source].entries[entry];
      const uint64_t offset = strided_copy(has.box, needs[need].box, box, has.element_bytes).source_offset;
      placed.emplace_back(offset, Pull{need, source, entry, std::move(box)});
    }
  }
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::tie(a.second.source, a.second.entry, a.first) < std::tie(b.second.source, b.second.entry, b.first);
  });
  pulls.clear();
  for (auto& [offset, pull] : placed) {
    pulls.push_back(std::move(pull));
  }
  return pulls;
}

// By distance: what is to be distributed among the sources there. `missing`: what nobody has.
struct Cover {
  std::map<uint32_t, std::vector<Atom>> atoms;
  std::vector<Part> missing;
};

std::optional<Cover> cover(std::vector<Part> parts, const Holdings& holdings, const std::vector<ShardEntry>& needs,
                           const std::vector<ShardSource>& sources) {
  Cover result;
  Cutter cutter;
  for (Part& part : parts) {
    std::map<uint32_t, std::vector<Holder>> by_distance;
    for (const Holder& holder : holdings.of(needs[part.need].name)) {
      if (overlap(*holder.box, part.box)) {
        by_distance[sources[holder.source].distance].push_back(holder);
      }
    }
    std::vector<Part> uncovered;
    uncovered.push_back(std::move(part));
    for (const auto& [distance, holders] : by_distance) {
      std::vector<Part> still;
      for (Part& one : uncovered) {
        if (!cutter.cut(std::move(one), holders, result.atoms[distance], still)) {
          return std::nullopt;
        }
      }
      uncovered = std::move(still);
    }
    std::move(uncovered.begin(), uncovered.end(), std::back_inserter(result.missing));
  }
  return result;
}

std::string missing_text(const std::vector<Part>& missing, const std::vector<ShardEntry>& needs) {
  std::map<uint32_t, std::vector<Box>> by_need;
  for (const Part& part : missing) {
    by_need[part.need].push_back(part.box);
  }
  Reasons reasons;
  for (auto& [need, boxes] : by_need) {
    merge_neighbours(boxes);
    for (const Box& box : boxes) {
      reasons.add(describe(box) + " of " + describe(needs[need]));
    }
  }
  return "nobody has " + reasons.text(", ");
}

std::string versions_text(const std::vector<ShardSource>& sources) {
  std::map<Version, size_t, std::greater<>> versions;
  for (const ShardSource& source : sources) {
    ++versions[source.version];
  }
  Reasons reasons;
  for (const auto& [version, count] : versions) {
    reasons.add(std::to_string(version) + " (" + std::to_string(count) + (count == 1 ? " source)" : " sources)"));
  }
  return versions.empty() ? "there is no source" : "there are versions " + reasons.text(", ");
}

std::string overlapping_needs(const std::vector<ShardEntry>& needs) {
  std::unordered_map<std::string_view, std::vector<const ShardEntry*>> by_name;
  Reasons reasons;
  for (const ShardEntry& need : needs) {
    std::vector<const ShardEntry*>& others = by_name[need.name];
    for (const ShardEntry* other : others) {
      if (overlap(other->box, need.box) && elements(other->box) > 0 && elements(need.box) > 0) {
        reasons.add(describe(other->box) + " and " + describe(need.box) + " of " + describe(need));
      }
    }
    others.push_back(&need);
  }
  return reasons.empty() ? "" : "needed twice: " + reasons.text();
}

// A cover of `parts` at `version` with nothing missing; or why there is none.
std::optional<Cover> whole_cover(std::vector<Part> parts, const std::vector<ShardEntry>& needs,
                                 const std::vector<ShardSource>& sources, Version version,
                                 const std::vector<uint32_t>& lost, std::string& why) {
  const Holdings holdings(needs, sources, version, {lost.begin(), lost.end()});
  if (!holdings.wrong().empty()) {
    why = holdings.wrong().text();
    return std::nullopt;
  }
  if (!holdings.any() && !parts.empty()) {
    why = lost.empty() ? "no source has version " + std::to_string(version) + ": " + versions_text(sources)
                       : "no source of version " + std::to_string(version) + " is left";
    return std::nullopt;
  }
  std::optional<Cover> result = cover(std::move(parts), holdings, needs, sources);
  if (!result.has_value()) {
    why = "the sources cut what is needed into more than " + std::to_string(kMaxPieces) + " pieces";
  } else if (!result->missing.empty()) {
    why = "version " + std::to_string(version) + " is not whole: " + missing_text(result->missing, needs);
    return std::nullopt;
  }
  return result;
}

std::vector<Part> parts_of(const std::vector<ShardEntry>& needs) {
  std::vector<Part> parts;
  for (uint32_t need = 0; need < needs.size(); ++need) {
    if (elements(needs[need].box.lengths) != uint64_t{0}) {
      parts.push_back({need, needs[need].box});
    }
  }
  return parts;
}

std::optional<std::vector<Pull>> plan_parts(std::vector<Part> parts, const std::vector<uint32_t>& lost,
                                            std::vector<uint64_t> loads, const std::vector<ShardEntry>& needs,
                                            const std::vector<ShardSource>& sources, const ReshardOptions& options,
                                            std::string& why) {
  std::optional<Cover> found = whole_cover(std::move(parts), needs, sources, options.version, lost, why);
  if (!found.has_value()) {
    return std::nullopt;
  }
  loads.resize(sources.size(), 0);
  Dealer dealer(needs, std::move(loads), options);
  std::vector<Pull> pulls;
  for (auto& [distance, atoms] : found->atoms) {
    dealer.deal(std::move(atoms), pulls);
  }
  return merged(std::move(pulls), needs, sources);
}

template <typename Result>
std::optional<Result> with_reason(std::optional<Result> result, std::string reason, std::string* why) {
  if (!result.has_value() && why != nullptr) {
    *why = std::move(reason);
  }
  return result;
}

}  // namespace

std::optional<std::vector<Pull>> plan_reshard(const std::vector<ShardEntry>& needs,
                                              const std::vector<ShardSource>& sources, const ReshardOptions& options,
                                              std::string* why) {
  std::string reason;
  std::optional<std::vector<Pull>> plan = plan_parts(parts_of(needs), {}, {}, needs, sources, options, reason);
  if (plan.has_value()) {  // the entries are now known to be sound
    reason = overlapping_needs(needs);
    if (!reason.empty()) {
      plan.reset();
    }
  }
  return with_reason(std::move(plan), std::move(reason), why);
}

std::optional<std::vector<Pull>> replan_reshard(const std::vector<Pull>& owed, const std::vector<uint32_t>& lost,
                                                const std::vector<uint64_t>& loads,
                                                const std::vector<ShardEntry>& needs,
                                                const std::vector<ShardSource>& sources, const ReshardOptions& options,
                                                std::string* why) {
  std::vector<Part> parts;
  for (const Pull& pull : owed) {
    require(pull.need < needs.size() && contains(needs[pull.need].box, pull.box), "what is owed was never needed");
    parts.push_back({pull.need, pull.box});
  }
  std::string reason;
  std::optional<std::vector<Pull>> plan = plan_parts(std::move(parts), lost, loads, needs, sources, options, reason);
  return with_reason(std::move(plan), std::move(reason), why);
}

std::optional<Version> newest_whole_version(const std::vector<ShardEntry>& needs,
                                            const std::vector<ShardSource>& sources, std::string* why) {
  std::set<Version, std::greater<>> versions;
  for (const ShardSource& source : sources) {
    versions.insert(source.version);
  }
  Reasons reasons;
  for (const Version version : versions) {
    std::string reason;
    if (whole_cover(parts_of(needs), needs, sources, version, {}, reason).has_value()) {
      return version;
    }
    reasons.add(reason);
  }
  return with_reason(std::optional<Version>(), versions.empty() ? versions_text(sources) : reasons.text(), why);
}

}  // namespace keepstep::brain
