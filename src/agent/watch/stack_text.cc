#include "agent/watch/stack_text.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace keepstep::agent {
namespace {

constexpr size_t kMaxThreads = 1000;
constexpr size_t kMaxFrames = 1000;  // of a thread; endless recursion has more, and its ends are enough
constexpr size_t kMaxWordBytes = 300;

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>().substr(0, kMaxWordBytes) : "";
}

int64_t number_of(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

// The part of a path that people recognize: from the package on.
std::string short_file(const std::string& file) {
  for (const char* mark : {"/site-packages/", "/dist-packages/", "/python/keepstep/"}) {
    if (const size_t at = file.rfind(mark); at != std::string::npos) {
      const std::string_view found(mark);
      return found == "/python/keepstep/" ? "keepstep/" + file.substr(at + found.size())
                                          : file.substr(at + found.size());
    }
  }
  // Packages may be in a folder of any name.
  if (const size_t at = file.find("/torch/"); at != std::string::npos) {
    return file.substr(at + 1);
  }
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? file : file.substr(slash + 1);
}

// A user's folder may be called keepstep: only the package, and the place of scripts/setup.sh's packages, are not the
// user's.
bool users_own(const StackFrame& frame) {
  for (const char* mark :
       {"/torch/", "/python/keepstep/", "/keepstep/packages-", "/site-packages/", "/dist-packages/", "/lib/python3"}) {
    if (frame.file.find(mark) != std::string::npos) {
      return false;
    }
  }
  return frame.line > 0 && !frame.file.empty() && frame.file.front() != '<' && !frame.function.starts_with("<module>");
}

// torch's entry points to collectives: dist.all_reduce(...) and the like.
bool collective(const StackFrame& frame) {
  return frame.file.ends_with("torch/distributed/distributed_c10d.py") && !frame.function.starts_with("_") &&
         frame.function != "wrapper";
}

std::string shown(const StackFrame& frame) {
  return frame.line > 0 ? absl::StrFormat("%s (%s:%d)", frame.function, short_file(frame.file), frame.line)
                        : absl::StrFormat("%s (%s)", frame.function, short_file(frame.file));
}

const std::vector<StackFrame>& main_frames(const ProcessStacks& stacks) {
  static const std::vector<StackFrame> none;
  return stacks.threads.empty() ? none : stacks.threads.front().frames;
}

std::string who(const std::vector<RankStacks>& ranks, const std::vector<size_t>& members) {
  std::vector<std::string> names;
  bool have_ranks = true;
  for (const size_t member : members) {
    const RankFacts& facts = ranks[member].facts;
    have_ranks = have_ranks && facts.rank.has_value();
    names.push_back(std::to_string(facts.rank.value_or(facts.worker)));
  }
  const char* one = have_ranks ? "rank" : "worker without a rank";
  const char* many = have_ranks ? "ranks" : "workers without a rank";
  return members.size() == 1 ? absl::StrFormat("%s %s", one, names.front())
                             : absl::StrFormat("%d %s (%s)", members.size(), many, absl::StrJoin(names, ", "));
}

std::string headline(const std::vector<RankStacks>& ranks, const std::vector<size_t>& members) {
  const RankStacks& first = ranks[members.front()];
  std::string text = who(ranks, members);
  if (first.stacks.state == 'T') {
    text += members.size() == 1 ? " is stopped" : " are stopped";
  }
  if (!first.facts.doing.empty()) {
    text += " in " + first.facts.doing;
  }
  if (!first.stacks.error.empty()) {
    text += ": no stacks: " + first.stacks.error;
  } else if (const std::string place = place_of(main_frames(first.stacks));
             !place.empty() && first.facts.doing.empty()) {
    text += " in " + place;
  } else if (place.empty()) {
    text += ": no Python frames in the main thread";
  }
  if (first.facts.step != 0) {
    text += first.facts.doing.empty() ? absl::StrFormat(", step %d", first.facts.step)
                                      : absl::StrFormat(" of step %d", first.facts.step);
  }
  return text;
}

void write_frames(std::string& out, const ThreadStack& thread, const char* indent) {
  for (const StackFrame& frame : thread.frames) {
    out += indent;
    out += shown(frame);
    out += '\n';
  }
}

}  // namespace

StatusOr<std::vector<ThreadStack>> parse_stacks(std::string_view json, pid_t pid) {
  const nlohmann::json body = nlohmann::json::parse(json, nullptr, false);
  if (!body.is_array() || body.empty()) {
    return absl::InvalidArgumentError("py-spy printed no list of threads");
  }
  std::vector<ThreadStack> threads;
  for (const nlohmann::json& each : body) {
    if (!each.is_object() || !each.contains("frames") || !each["frames"].is_array()) {
      return absl::InvalidArgumentError("py-spy printed a thread without frames");
    }
    if (threads.size() == kMaxThreads) {
      break;
    }
    ThreadStack& thread = threads.emplace_back();
    thread.name = text_of(each, "thread_name");
    thread.os_id = number_of(each, "os_thread_id");
    thread.holds_gil = each.contains("owns_gil") && each["owns_gil"].is_boolean() && each["owns_gil"].get<bool>();
    for (const nlohmann::json& frame : each["frames"]) {
      if (!frame.is_object() || thread.frames.size() == kMaxFrames) {
        break;
      }
      thread.frames.push_back({text_of(frame, "name"), text_of(frame, "filename"), number_of(frame, "line")});
    }
  }
  const auto main = std::find_if(threads.begin(), threads.end(), [&](const ThreadStack& thread) {
    return thread.os_id == pid || (thread.os_id == 0 && thread.name == "MainThread");
  });
  if (main != threads.end()) {
    std::rotate(threads.begin(), main, main + 1);
  }
  return threads;
}

std::string place_of(const std::vector<StackFrame>& frames) {
  if (frames.empty()) {
    return "";
  }
  const auto own = std::find_if(frames.begin(), frames.end(), users_own);
  // A collective called by the user's code: the outermost of its frames has the name that the user knows.
  const auto waits = std::find_if(std::make_reverse_iterator(own), frames.rend(), collective);
  std::string place = waits != frames.rend() ? waits->function : shown(frames.front());
  if (own != frames.end() && own != frames.begin()) {
    place += ", called by " + shown(*own);
  }
  return place;
}

std::vector<StackGroup> group_stacks(const std::vector<RankStacks>& ranks) {
  std::vector<StackGroup> groups;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const StackGroup& group) {
      const RankStacks& other = ranks[group.members.front()];
      return other.facts.rank.has_value() == ranks[i].facts.rank.has_value() &&
             other.facts.step == ranks[i].facts.step && other.facts.doing == ranks[i].facts.doing &&
             other.stacks.error == ranks[i].stacks.error &&
             (other.stacks.state == 'T') == (ranks[i].stacks.state == 'T') &&
             main_frames(other.stacks) == main_frames(ranks[i].stacks);
    });
    if (same != groups.end()) {
      same->members.push_back(i);
    } else {
      groups.push_back({{i}, ""});
    }
  }
  for (StackGroup& group : groups) {
    group.headline = headline(ranks, group.members);
  }
  std::stable_sort(groups.begin(), groups.end(), [&](const StackGroup& a, const StackGroup& b) {
    const bool a_rank = ranks[a.members.front()].facts.rank.has_value();
    const bool b_rank = ranks[b.members.front()].facts.rank.has_value();
    return a_rank != b_rank ? a_rank : a.members.size() < b.members.size();
  });
  return groups;
}

std::string stacks_as_text(const std::vector<RankStacks>& ranks) {
  std::string out;
  for (const StackGroup& group : group_stacks(ranks)) {
    const ProcessStacks& stacks = ranks[group.members.front()].stacks;
    std::vector<std::string> pids;
    for (const size_t member : group.members) {
      pids.push_back(std::to_string(ranks[member].stacks.pid));
    }
    out += absl::StrFormat("%s%s [pid %s]\n", out.empty() ? "" : "\n", group.headline, absl::StrJoin(pids, ", "));
    if (!stacks.note.empty()) {
      out += "  (" + stacks.note + ")\n";
    }
    bool first = true;
    for (const ThreadStack& thread : stacks.threads) {
      if (!first || thread.holds_gil) {
        out += absl::StrFormat("  thread %s%s\n", thread.name.empty() ? std::to_string(thread.os_id) : thread.name,
                               thread.holds_gil ? ", holds the GIL" : "");
      }
      write_frames(out, thread, "    ");
      first = false;
    }
  }
  return out;
}

nlohmann::json to_json(const RankStacks& rank) {
  nlohmann::json threads = nlohmann::json::array();
  for (const ThreadStack& thread : rank.stacks.threads) {
    nlohmann::json frames = nlohmann::json::array();
    for (const StackFrame& frame : thread.frames) {
      frames.push_back({frame.function, frame.file, frame.line});
    }
    threads.push_back(
        {{"name", thread.name}, {"os_id", thread.os_id}, {"holds_gil", thread.holds_gil}, {"frames", frames}});
  }
  return {{"rank", rank.facts.rank.has_value() ? nlohmann::json(*rank.facts.rank) : nlohmann::json()},
          {"worker", rank.facts.worker},
          {"step", rank.facts.step},
          {"doing", rank.facts.doing},
          {"pid", rank.stacks.pid},
          {"state", std::string(1, rank.stacks.state)},
          {"error", rank.stacks.error},
          {"note", rank.stacks.note},
          {"threads", threads}};
}

RankStacks rank_stacks_from(const nlohmann::json& body) {
  RankStacks rank;
  if (!body.at("rank").is_null()) {
    rank.facts.rank = body.at("rank").get<uint32_t>();
  }
  rank.facts.worker = body.at("worker");
  rank.facts.step = body.at("step");
  rank.facts.doing = body.at("doing");
  rank.stacks.pid = body.at("pid");
  const std::string state = body.at("state");
  rank.stacks.state = state.empty() ? '?' : state.front();
  rank.stacks.error = body.at("error");
  rank.stacks.note = body.at("note");
  for (const nlohmann::json& each : body.at("threads")) {
    ThreadStack& thread = rank.stacks.threads.emplace_back();
    thread.name = each.at("name");
    thread.os_id = each.at("os_id");
    thread.holds_gil = each.at("holds_gil");
    for (const nlohmann::json& frame : each.at("frames")) {
      thread.frames.push_back({frame.at(0), frame.at(1), frame.at(2)});
    }
  }
  return rank;
}

}  // namespace keepstep::agent
