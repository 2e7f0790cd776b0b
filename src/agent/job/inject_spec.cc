#include "agent/job/inject_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <initializer_list>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rank/checks/fault_injector.h"

namespace keepstep::agent {
namespace {

// All properties of a kind, except what it does.
struct KindRow {
  InjectKind kind;
  const char* name;
  const char* keys;    // keys that only some kinds have
  const char* needed;  // the required ones of these
  bool by_agent;
  int signal;
};
constexpr std::array kKinds = {
    KindRow{InjectKind::kKill, "kill", "", "", false, SIGKILL},
    KindRow{InjectKind::kSegv, "segv", "", "", false, SIGSEGV},
    KindRow{InjectKind::kException, "exception", "", "", false, 0},
    KindRow{InjectKind::kExit, "exit", "", "", false, 0},
    KindRow{InjectKind::kStop, "stop", "seconds", "", false, SIGSTOP},
    KindRow{InjectKind::kGil, "gil", "seconds", "", false, 0},
    KindRow{InjectKind::kLoop, "loop", "seconds", "", false, 0},
    KindRow{InjectKind::kDeadlock, "deadlock", "", "", false, 0},
    KindRow{InjectKind::kOom, "oom", "what mib", "", false, 0},
    KindRow{InjectKind::kSlow, "slow", "seconds factor", "", false, 0},
    KindRow{InjectKind::kFlip, "flip", "what", "what", false, 0},
    KindRow{InjectKind::kAgentKill, "agent-kill", "", "", true, 0},
    KindRow{InjectKind::kAgentStop, "agent-stop", "seconds", "", true, 0},
    KindRow{InjectKind::kLinkDrop, "link-drop", "", "", false, 0},
    KindRow{InjectKind::kLinkDelay, "link-delay", "ms", "ms", false, 0},
    KindRow{InjectKind::kDiskFull, "disk-full", "seconds", "", true, 0},
};

struct PhaseRow {
  InjectPhase phase;
  const char* name;
};
constexpr std::array kPhases = {
    PhaseRow{InjectPhase::kForward, "forward"},      PhaseRow{InjectPhase::kBackward, "backward"},
    PhaseRow{InjectPhase::kAllreduce, "allreduce"},  PhaseRow{InjectPhase::kBeforeVote, "before_vote"},
    PhaseRow{InjectPhase::kAfterVote, "after_vote"}, PhaseRow{InjectPhase::kUpdate, "update"},
    PhaseRow{InjectPhase::kBetween, "between"},      PhaseRow{InjectPhase::kHydrate, "hydrate"},
    PhaseRow{InjectPhase::kRecovery, "recovery"},    PhaseRow{InjectPhase::kBuild, "build"},
};

constexpr double kMaxSeconds = 86'400;
constexpr double kMaxFactor = 1000;
constexpr uint64_t kMaxMs = 60'000;
constexpr uint64_t kMaxMib = 65'536;
constexpr uint64_t kMaxTimes = 1'000'000;
constexpr size_t kMaxTextBytes = 1000;

const KindRow& row(InjectKind kind) {
  return *std::find_if(kKinds.begin(), kKinds.end(), [&](const KindRow& each) { return each.kind == kind; });
}

template <typename Rows>
std::string names(const Rows& rows) {
  return absl::StrJoin(rows, ", ", [](std::string* out, const auto& each) { out->append(each.name); });
}

template <typename Rows>
auto find_name(const Rows& rows, const std::string& text) {
  return std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return text == each.name; });
}

// The words of a list separated by spaces.
std::vector<std::string> words(const char* list) { return absl::StrSplit(list, ' ', absl::SkipEmpty()); }

template <typename Number>
bool parse_number(const std::string& text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses `value` into `out` if it is a number from `least` (with `above`: greater than that) to `most`; otherwise
// returns what is wrong.
template <typename Number>
std::string take_number(const char* key, const std::string& value, std::optional<Number>& out, Number least,
                        Number most, bool above = false) {
  Number number{};
  if (!parse_number(value, number) || !(above ? number > least : number >= least) || number > most) {
    return absl::StrFormat("%s is '%s'; give a number %s %g and at most %g", key, value, above ? "above" : "from",
                           static_cast<double>(least), static_cast<double>(most));
  }
  out = number;
  return "";
}

// Sets one `key=value` in `spec`. Returns what is wrong with it, or an empty string.
std::string take(InjectSpec& spec, const std::string& key, const std::string& value) {
  if (key == "rank") {
    uint32_t rank = 0;
    if (value == "any") {
      spec.rank.reset();
    } else if (parse_number(value, rank)) {
      spec.rank = rank;
    } else {
      return absl::StrFormat("rank is '%s'; a rank's number or 'any' is needed", value);
    }
  } else if (key == "step") {
    uint64_t step = 0;
    if (!parse_number(value, step) || step < 1) {
      return absl::StrFormat("step is '%s'; steps are numbered from 1", value);
    }
    spec.step = step;
  } else if (key == "phase") {
    const auto found = find_name(kPhases, value);
    if (found == kPhases.end()) {
      return absl::StrFormat("phase is '%s'; it is one of %s", value, inject_phases());
    }
    spec.phase = found->phase;
  } else if (key == "on") {
    if (value != "spare") {
      return absl::StrFormat("on is '%s'; only 'spare' is known", value);
    }
    spec.on_spare = true;
  } else if (key == "probability") {
    return take_number("probability", value, spec.probability, 0.0, 1.0, true);
  } else if (key == "seed") {
    return take_number<uint64_t>("seed", value, spec.seed, 0, std::numeric_limits<uint64_t>::max());
  } else if (key == "times") {
    return take_number<uint64_t>("times", value, spec.times, 1, kMaxTimes);
  } else if (key == "seconds") {
    return take_number("seconds", value, spec.seconds, 0.0, kMaxSeconds, true);
  } else if (key == "factor") {
    return take_number("factor", value, spec.factor, 1.0, kMaxFactor, true);
  } else if (key == "ms") {
    return take_number<uint64_t>("ms", value, spec.ms, 1, kMaxMs);
  } else if (key == "mib") {
    return take_number<uint64_t>("mib", value, spec.mib, 1, kMaxMib);
  } else if (key == "what") {
    spec.what = value;
  }
  return "";
}

// Checks keys against each other that are valid by themselves.
void check_together(const InjectSpec& spec, std::vector<std::string>& mistakes) {
  const auto expect = [&](std::initializer_list<const char*> allowed) {
    if (!spec.what.empty() && std::find(allowed.begin(), allowed.end(), spec.what) == allowed.end()) {
      mistakes.push_back(absl::StrFormat("what is '%s'; it is one of %s", spec.what, absl::StrJoin(allowed, ", ")));
    }
  };
  switch (spec.kind) {
    case InjectKind::kFlip:
      expect({"gradient", "parameter"});
      if (spec.what == "gradient" && spec.phase.has_value() && *spec.phase != InjectPhase::kBeforeVote &&
          *spec.phase != InjectPhase::kAfterVote) {
        mistakes.push_back("a gradient is whole in phase before_vote or after_vote only");
      }
      break;
    case InjectKind::kOom:
      expect({"error", "kill"});
      break;
    case InjectKind::kSlow:
      if (spec.seconds.has_value() == spec.factor.has_value()) {
        mistakes.push_back("slow takes either seconds=S (longer, each step) or factor=F (times as long)");
      }
      if (spec.probability.has_value()) {
        mistakes.push_back("slow takes no probability: it goes on from step to step");
      }
      break;
    default:
      break;
  }
}

}  // namespace

const char* name(InjectKind kind) { return row(kind).name; }

const char* name(InjectPhase phase) {
  return std::find_if(kPhases.begin(), kPhases.end(), [&](const PhaseRow& each) { return each.phase == phase; })->name;
}

bool for_programs(InjectKind kind) { return rank::carried_out_by_programs(name(kind)); }
std::string program_faults() { return rank::program_faults(); }

bool by_agent(InjectKind kind) { return row(kind).by_agent; }
int signal_of(InjectKind kind) { return row(kind).signal; }

InjectPhase default_phase(const InjectSpec& spec) {
  if (spec.kind == InjectKind::kFlip && spec.what == "gradient") {
    return InjectPhase::kBeforeVote;
  }
  // A slow rank is slowed down before the others wait for its gradients.
  return spec.kind == InjectKind::kSlow ? InjectPhase::kForward : InjectPhase::kBetween;
}

std::string inject_kinds() { return names(kKinds); }
std::string inject_phases() { return names(kPhases); }

StatusOr<InjectSpec> parse_inject(std::string_view text, InjectFor for_what) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a fault of %d bytes; %d are enough for any", text.size(), kMaxTextBytes));
  }
  InjectSpec spec;
  spec.text = std::string(text);
  std::vector<std::string> mistakes;
  const size_t colon = spec.text.find(':');
  const std::string kind = spec.text.substr(0, colon);
  std::vector<std::string> keys = {"rank", "step", "phase", "on", "probability", "seed", "times"};
  std::vector<std::string> needed;
  const auto known = find_name(kKinds, kind);
  if (known != kKinds.end()) {
    spec.kind = known->kind;
    const std::vector<std::string> own = words(known->keys);
    keys.insert(keys.end(), own.begin(), own.end());
    needed = words(known->needed);
  } else {
    mistakes.push_back(absl::StrFormat("'%s' is no kind of fault; it is one of %s", kind, inject_kinds()));
  }
  const std::string rest = colon == std::string::npos ? "" : spec.text.substr(colon + 1);
  std::set<std::string> given;
  for (const std::string& pair : std::vector<std::string>(absl::StrSplit(rest, ',', absl::SkipEmpty()))) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) {
      mistakes.push_back(absl::StrFormat("'%s' is not KEY=VALUE", pair));
      continue;
    }
    const std::string key = pair.substr(0, equals);
    if (!given.insert(key).second) {
      mistakes.push_back(absl::StrFormat("%s is given twice", key));
    } else if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      mistakes.push_back(absl::StrFormat("'%s' is no key%s; the keys are %s", key,
                                         known == kKinds.end() ? "" : " of " + kind, absl::StrJoin(keys, ", ")));
    } else if (std::string mistake = take(spec, key, pair.substr(equals + 1)); !mistake.empty()) {
      mistakes.push_back(std::move(mistake));
    }
  }
  if (for_what == InjectFor::kRun) {
    needed.insert(needed.end(), {"rank", "step"});
    // A fault that ends or stops the process does so at a very different place in each phase.
    if (spec.kind == InjectKind::kFlip || spec.kind == InjectKind::kSlow || by_agent(spec.kind) ||
        spec.kind == InjectKind::kLinkDrop || spec.kind == InjectKind::kLinkDelay) {
      spec.phase = spec.phase.value_or(default_phase(spec));
    } else {
      needed.emplace_back("phase");
    }
  }
  for (const std::string& key : needed) {
    if (!given.contains(key)) {
      mistakes.push_back(absl::StrFormat("%s is missing", key));
    }
  }
  check_together(spec, mistakes);
  if (mistakes.empty()) {
    return spec;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s (the form is KIND:rank=R|any,step=K,phase=P[,on=spare]; other keys: docs/reference/inject.md)",
      absl::StrJoin(mistakes, "; ")));
}

messages::Fault for_worker(const InjectSpec& spec, const std::string& key, bool late) {
  return {.key = key,
          .text = spec.text,
          .kind = name(spec.kind),
          .phase = name(spec.phase.value_or(default_phase(spec))),
          .what = spec.what,
          .on_spare = spec.on_spare,
          .late = late,
          .rank = spec.rank,
          .step = spec.step,
          .probability = spec.probability,
          .seed = spec.seed,
          .times = spec.times,
          .seconds = spec.seconds,
          .factor = spec.factor,
          .ms = spec.ms,
          .mib = spec.mib};
}

}  // namespace keepstep::agent
