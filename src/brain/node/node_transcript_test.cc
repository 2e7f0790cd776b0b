// Runs testdata/*.txt: in go the coordinator's orders and workers' deaths, out comes what the agent does.

#include <gtest/gtest.h>

#include "brain/node/node.h"
#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;
using transcript::numbers;
using transcript::split;

std::string gen(Identity identity) { return " generation=" + std::to_string(identity.generation); }
std::string number(const char* name, uint64_t value) { return std::string(" ") + name + "=" + std::to_string(value); }
std::string workers(const std::vector<WorkerId>& ids) {
  std::string text = " workers=";
  for (const WorkerId id : ids) {
    text += (text.back() == '=' ? "" : ",") + std::to_string(id);
  }
  return text.back() == '=' ? text + "none" : text;
}
std::string holders(const std::vector<Holder>& holders) {
  std::string text = " words=";
  for (const Holder& holder : holders) {
    text += (text.back() == '=' ? "" : ",") + std::to_string(holder.rank) + ":" + std::to_string(holder.worker);
  }
  return text.back() == '=' ? text + "none" : text;
}

class NodeScene {
 public:
  std::vector<std::string> run(const Line& line) {
    lines_.clear();
    now_ += std::chrono::milliseconds(line.number("after_ms"));
    for (const NodeEvent& event : events(line)) {
      for (const NodeEffect& effect : brain_.step(event, now_)) {
        std::visit([this](const auto& done) { show(done); }, effect);
      }
    }
    return lines_.empty() ? std::vector<std::string>{"(nothing)"} : lines_;
  }

 private:
  Identity identity(const Line& line) const {
    return {1, static_cast<uint32_t>(line.number("generation", brain_.identity().generation))};
  }

  // "0:5 1:6<2": rank 0 is worker 5, which held it before; rank 1 is the newcomer 6, after worker 2. "0:5<": the
  // newcomer 5, after nobody.
  Prepare prepare(const Line& line) const {
    Prepare prepare;
    prepare.identity = identity(line);
    prepare.version = line.number("version");
    prepare.resized = line.has("resized");
    prepare.sharding.number = static_cast<uint32_t>(line.number("sharding"));
    prepare.from.number = static_cast<uint32_t>(line.number("from", prepare.sharding.number));
    for (const std::string& text : split(line.text("members"), ',')) {
      const auto rank_and_worker = split(text, ':');
      const size_t after = rank_and_worker[1].find('<');
      Member member;
      member.rank = static_cast<Rank>(std::stoul(rank_and_worker[0]));
      member.worker = static_cast<WorkerId>(std::stoul(rank_and_worker[1]));
      member.newcomer = after != std::string::npos;
      if (member.newcomer && after + 1 < rank_and_worker[1].size()) {
        member.previous = static_cast<WorkerId>(std::stoul(rank_and_worker[1].substr(after + 1)));
      }
      prepare.members.push_back(member);
    }
    return prepare;
  }

  std::vector<NodeEvent> events(const Line& line) const {
    if (line.verb == "seal") return {Seal{identity(line), line.text("because")}};
    if (line.verb == "decide") return {Decide{identity(line), {line.number("version"), line.has("forward"), ""}}};
    if (line.verb == "prepare") return {prepare(line)};
    if (line.verb == "activate") return {Activate{identity(line), line.number("version"), {}, {}, false}};
    if (line.verb == "pause") return {Pause{identity(line), line.text("because")}};
    if (line.verb == "release") return {Release{identity(line), line.text("because")}};
    if (line.verb == "end") return {EndJob{static_cast<int>(line.number("exit_code")), "", ""}};
    if (line.verb == "formed") return {Formed{identity(line)}};
    if (line.verb == "committed") return {FormedByCommit{identity(line)}};
    if (line.verb == "settled") return {Settled{static_cast<uint32_t>(line.number("sharding"))}};
    if (line.verb == "tick") return {Tick{}};
    std::vector<NodeEvent> events;
    for (const WorkerId worker : numbers(line.text("worker"))) {
      events.push_back(worker_event(line, worker));
    }
    return events;
  }

  NodeEvent worker_event(const Line& line, WorkerId worker) const {
    if (line.verb == "spawn") return Spawn{0, worker, line.has("spare"), ""};
    if (line.verb == "kill") return Kill{worker, ""};
    if (line.verb == "ready") return MemberReady{identity(line), {worker, {}}};
    if (line.verb == "attached") return Attached{worker};
    if (line.verb == "limit") return LeaveLimit{worker, std::chrono::milliseconds(line.number("ms"))};
    if (line.verb == "exited") return WorkerExited{worker};
    if (line.verb == "died")
      return WorkerDied{worker, 100 + int64_t{worker}, std::stoi(line.text("signal", "9")), 0, ""};
    ADD_FAILURE() << "no such event: " << line.verb;
    return Tick{};
  }

  void say(const std::string& text) { lines_.push_back(text); }
  void show(const Tell& effect) {
    if (const auto* died = std::get_if<WorkerDied>(&effect.event)) {
      say("tell died" + number("worker", died->worker) + " signal=" + std::to_string(died->signal));
    } else if (const auto* exited = std::get_if<WorkerExited>(&effect.event)) {
      say("tell exited" + number("worker", exited->worker));
    } else if (const auto* ready = std::get_if<Ready>(&effect.event)) {
      std::vector<WorkerId> told;
      for (const MemberState& member : ready->members) {
        told.push_back(member.worker);
      }
      say("tell ready" + workers(told) + gen(ready->identity));
    } else if (const auto* formed = std::get_if<Formed>(&effect.event)) {
      say("tell formed" + gen(formed->identity));
    } else {
      ADD_FAILURE() << "something else is told";
    }
  }
  void show(const StartWorker& effect) { say("start" + number("worker", effect.spawn.worker)); }
  void show(const SealWords& effect) {
    say("seal" + gen(effect.identity) + (effect.unknown ? " unknown" : holders(effect.holders)));
  }
  void show(const Interrupt& effect) { say("interrupt" + gen(effect.identity) + workers(effect.workers)); }
  void show(const Announce& effect) {
    say("announce" + gen(effect.decide.identity) + number("version", effect.decide.verdict.version));
  }
  void show(const Begin& effect) {
    say("begin" + gen(effect.prepare.identity) + number("before", effect.before.generation));
  }
  void show(const Inherit& effect) {
    say("inherit" + number("from", effect.from) + number("to", effect.to) + (effect.copies ? " copies" : ""));
  }
  void show(const ForgetCapsules& effect) { say("forget_capsules" + number("worker", effect.worker)); }
  void show(const Assign& effect) {
    say("assign" + number("rank", effect.member.rank) + number("worker", effect.member.worker) +
        " entry=" + effect.entry);
  }
  void show(const GoOn& effect) {
    say("go_on" + gen(effect.activate.identity) + workers(effect.workers) + (effect.first ? " first" : ""));
  }
  void show(const Forget& effect) {
    say("forget" + (effect.beyond ? number("beyond", *effect.beyond) : "") + number("before", effect.before));
  }
  void show(const ForgetUnused&) { say("forget_unused"); }
  void show(const TellPause& effect) { say("pause" + workers(effect.workers)); }
  void show(const TellRelease& effect) { say("release" + workers(effect.workers) + (effect.wake ? " wake" : "")); }
  void show(const HasFormed& effect) { say("has_formed" + gen(effect.identity)); }
  void show(const KillProcess& effect) {
    say("kill" + number("worker", effect.worker) +
        (effect.because.empty() ? "" : " because=\"" + effect.because + "\""));
  }
  void show(const FreeMemory& effect) { say("free_memory" + number("worker", effect.worker)); }
  void show(const Close& effect) {
    say("close" + gen(effect.identity) + holders(effect.holders) + workers(effect.ranks) +
        " spares:" + workers(effect.spares));
  }

  NodeBrain brain_{0};
  Time now_{};
  std::vector<std::string> lines_;
};

class NodeTranscript : public ::testing::TestWithParam<std::string> {};

TEST_P(NodeTranscript, reads_as_recorded) {
  NodeScene scene;
  EXPECT_EQ(transcript::check(GetParam(), [&](const Line& line) { return scene.run(line); }), "");
}

INSTANTIATE_TEST_SUITE_P(testdata, NodeTranscript, ::testing::ValuesIn(transcript::below("node/testdata")),
                         [](const auto& info) { return transcript::test_name(info.param); });

}  // namespace
}  // namespace keepstep::brain
