#include "agent/inject_spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace keepstep::agent {
namespace {

constexpr std::array kKinds = {InjectKind::kKill, InjectKind::kSegv, InjectKind::kException, InjectKind::kExit};
constexpr std::array kPhases = {InjectPhase::kForward,    InjectPhase::kBackward,  InjectPhase::kAllreduce,
                                InjectPhase::kBeforeVote, InjectPhase::kAfterVote, InjectPhase::kUpdate,
                                InjectPhase::kBetween,    InjectPhase::kHydrate,   InjectPhase::kRecovery,
                                InjectPhase::kBuild};

template <typename Values>
std::string names(const Values& values) {
  return absl::StrJoin(values, ", ", [](std::string* out, auto value) { out->append(name(value)); });
}

template <typename Values>
auto find_name(const Values& values, const std::string& text) {
  return std::find_if(values.begin(), values.end(), [&](auto value) { return text == name(value); });
}

template <typename Integer>
bool parse_integer(const std::string& text, Integer& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

// One `key=value` into `spec`; what is wrong with it, or an empty string.
std::string take(InjectSpec& spec, const std::string& key, const std::string& value) {
  if (key == "rank") {
    uint32_t rank = 0;
    if (value == "any") {
      spec.rank.reset();
    } else if (parse_integer(value, rank)) {
      spec.rank = rank;
    } else {
      return absl::StrFormat("rank is '%s'; a rank's number or 'any' is needed", value);
    }
  } else if (key == "step") {
    if (!parse_integer(value, spec.step) || spec.step < 1) {
      return absl::StrFormat("step is '%s'; steps are numbered from 1", value);
    }
  } else if (key == "phase") {
    const auto found = find_name(kPhases, value);
    if (found == kPhases.end()) {
      return absl::StrFormat("phase is '%s'; it is one of %s", value, inject_phases());
    }
    spec.phase = *found;
  } else if (key == "on") {
    if (value != "spare") {
      return absl::StrFormat("on is '%s'; only 'spare' is known", value);
    }
    spec.on_spare = true;
  } else {
    return absl::StrFormat("'%s' is no key; the keys are rank, step, phase, on", key);
  }
  return "";
}

}  // namespace

bool for_programs(InjectKind kind) {
  return kind == InjectKind::kKill || kind == InjectKind::kSegv || kind == InjectKind::kException ||
         kind == InjectKind::kExit;
}

const char* name(InjectKind kind) {
  switch (kind) {
    case InjectKind::kKill:
      return "kill";
    case InjectKind::kSegv:
      return "segv";
    case InjectKind::kException:
      return "exception";
    case InjectKind::kExit:
      return "exit";
  }
  return "?";
}

const char* name(InjectPhase phase) {
  switch (phase) {
    case InjectPhase::kForward:
      return "forward";
    case InjectPhase::kBackward:
      return "backward";
    case InjectPhase::kAllreduce:
      return "allreduce";
    case InjectPhase::kBeforeVote:
      return "before_vote";
    case InjectPhase::kAfterVote:
      return "after_vote";
    case InjectPhase::kUpdate:
      return "update";
    case InjectPhase::kBetween:
      return "between";
    case InjectPhase::kHydrate:
      return "hydrate";
    case InjectPhase::kRecovery:
      return "recovery";
    case InjectPhase::kBuild:
      return "build";
  }
  return "?";
}

std::string inject_kinds() { return names(kKinds); }
std::string inject_phases() { return names(kPhases); }

StatusOr<InjectSpec> parse_inject(std::string_view text) {
  InjectSpec spec;
  spec.text = std::string(text);
  std::vector<std::string> mistakes;
  const size_t colon = spec.text.find(':');
  const std::string kind = spec.text.substr(0, colon);
  if (const auto found = find_name(kKinds, kind); found != kKinds.end()) {
    spec.kind = *found;
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
      continue;
    }
    if (std::string mistake = take(spec, key, pair.substr(equals + 1)); !mistake.empty()) {
      mistakes.push_back(std::move(mistake));
    }
  }
  for (const char* key : {"rank", "step", "phase"}) {
    if (!given.contains(key)) {
      mistakes.push_back(absl::StrFormat("%s is missing", key));
    }
  }
  if (mistakes.empty()) {
    return spec;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s (the form is KIND:rank=R|any,step=K,phase=P[,on=spare])", absl::StrJoin(mistakes, "; ")));
}

}  // namespace keepstep::agent
