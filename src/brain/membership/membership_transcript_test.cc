// Runs testdata/*/*.txt.

#include <gtest/gtest.h>

#include <algorithm>

#include "brain/membership/membership.h"
#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;
using transcript::numbers;
using transcript::split;
using transcript::state_word;

template <typename Numbers>
std::string list_text(const Numbers& values) {
  std::string text;
  for (const auto value : values) {
    text += (text.empty() ? "" : ",") + std::to_string(value);
  }
  return text.empty() ? "none" : text;
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', '|');
  return text;
}

std::string quoted(const std::string& text) { return "\"" + text + "\""; }

std::string value_text(const Field& field) {
  return std::visit(
      [](const auto& value) -> std::string {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::string>) {
          return quoted(value);
        } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
          return list_text(value);
        } else if constexpr (std::is_same_v<Value, bool>) {
          return value ? "true" : "false";
        } else {
          return std::to_string(value);
        }
      },
      field.second);
}

std::string gen(Identity identity) { return " generation=" + std::to_string(identity.generation); }

class Scene {
 public:
  std::vector<std::string> run(const Line& line) {
    if (line.verb == "config") {
      configure(line);
      return {};
    }
    lines_.clear();
    for (const Event& event : events(line)) {
      for (const Effect& effect : brain_->step(event, now_)) {
        std::visit([this](const auto& done) { show(done); }, effect);
      }
    }
    return lines_.empty() ? std::vector<std::string>{"(nothing)"} : lines_;
  }

 private:
  void configure(const Line& line) {
    MembershipConfig config;
    config.world_size = static_cast<uint32_t>(line.number("world_size"));
    config.nodes = static_cast<uint32_t>(line.number("nodes", 1));
    config.spare_nodes = static_cast<uint32_t>(line.number("spare_nodes"));
    config.spares = static_cast<uint32_t>(line.number("spares"));
    config.ladder.restarts = static_cast<int>(line.number("restarts", 3));
    config.ladder.replacements_per_step = static_cast<int>(line.number("replacements_per_step", 3));
    config.ladder.faults_per_node = static_cast<int>(line.number("faults_per_node", 3));
    if (line.has("max_nodes")) {
      config.max_nodes = static_cast<uint32_t>(line.number("max_nodes"));
      config.ranks_per_node = static_cast<uint32_t>(line.number("ranks_per_node", 1));
      config.ranks_per_replica = static_cast<uint32_t>(line.number("ranks_per_replica", 1));
      config.start_grace = std::chrono::milliseconds(line.number("start_grace_ms"));
      ElasticConfig elastic;
      elastic.min_replicas = static_cast<uint32_t>(line.number("min_replicas", 1));
      elastic.max_replicas = static_cast<uint32_t>(
          line.number("max_replicas", config.max_nodes * config.ranks_per_node / config.ranks_per_replica));
      elastic.min_between_changes = {};
      elastic.scale_up_snooze = {};
      elastic.scaling_timeout = std::chrono::seconds(line.number("scaling_timeout_s", 5));
      elastic.faulty_scale_down_timeout = std::chrono::seconds(line.number("faulty_scale_down_s", 30));
      config.elastic = elastic;
    }
    full_journal_ = line.text("journal") == "full";
    brain_.emplace(config);
  }

  Identity identity(const Line& line) const {
    return {1, static_cast<uint32_t>(line.number("generation", brain_->identity().generation))};
  }

  Sealed sealed(const Line& line) const {
    return {static_cast<NodeId>(line.number("node")),
            identity(line),
            words(line),
            line.number("mean_step"),
            static_cast<double>(line.number("mean_loss")),
            0,
            copies(line),
            parity(line)};
  }

  // "0@117,1@117": rank and version; "0@117@2": in the sharding of generation 2 (the default is 1)
  static std::vector<ShardCopy> copies(const Line& line) {
    std::vector<ShardCopy> copies;
    for (const std::string& text : split(line.text("copies"), ',')) {
      const auto parts = split(text, '@');
      copies.push_back({static_cast<Rank>(std::stoul(parts[0])), std::stoull(parts[1]),
                        parts.size() > 2 ? static_cast<uint32_t>(std::stoul(parts[2])) : 1});
    }
    return copies;
  }

  // "0.2:1@117": the second parity row of ranks 0 and 2, and its version
  static std::vector<ParityCopy> parity(const Line& line) {
    std::vector<ParityCopy> parity;
    for (const std::string& text : split(line.text("parity"), ',')) {
      const auto parts = split(text, '@');
      const auto block = split(parts[0], ':');
      ParityCopy& copy = parity.emplace_back();
      for (const std::string& member : split(block[0], '.')) {
        copy.block.members.push_back(static_cast<Rank>(std::stoul(member)));
      }
      copy.block.row = static_cast<uint32_t>(std::stoul(block[1]));
      copy.version = std::stoull(parts[1]);
    }
    return parity;
  }

  static StepDigest digest(const std::string& text) {
    const auto parts = split(text, '.');
    return {std::stoull(parts[0]), parts.size() > 1 ? std::stoull(parts[1]) : 0};
  }

  // "0:yes@118/clean@117 1:open@118"; an older word: "2:yes@118#3" (generation 3). With digests of the gradients and
  // the state: "0:yes@118~7" and "0:yes@118~7.9".
  std::vector<SealedWord> words(const Line& line) const {
    std::vector<SealedWord> words;
    for (const std::string& text : split(line.text("words"), ',')) {
      const auto digests = split(text, '~');
      const auto parts = split(digests[0], '/');
      const auto rank_and_word = split(parts[0], ':');
      const auto vote_and_step = split(rank_and_word[1], '@');
      SealedWord word;
      word.rank = static_cast<Rank>(std::stoul(rank_and_word[0]));
      word.worker = table_.at(word.rank);
      const auto step_and_generation = split(vote_and_step[1], '#');
      word.word.identity = identity(line);
      if (step_and_generation.size() > 1) {
        word.word.identity.generation = static_cast<uint32_t>(std::stoul(step_and_generation[1]));
      }
      word.word.step = std::stoull(step_and_generation[0]);
      for (const Vote vote : {Vote::kYes, Vote::kDecided}) {
        word.word.vote = vote_and_step[0] == name(vote) ? vote : word.word.vote;
      }
      word.state = parts.size() > 1 ? state_word(parts[1]) : StateWord{StateKind::kClean, word.word.step - 1};
      if (digests.size() > 1) {
        word.digest = digest(digests[1]);
      }
      words.push_back(word);
    }
    return words;
  }

  Progress progress(const Line& line) const {
    Progress told{identity(line), line.number("version")};
    if (line.has("digest")) {
      told.digest = digest(line.text("digest"));
    }
    return told;
  }

  static std::vector<Event> joined(const Line& line) {
    const auto node = static_cast<NodeId>(line.number("node"));
    const auto port_base = static_cast<uint16_t>(line.number("port_base"));
    return {NodeJoined{node, {ipv4(10, 0, 0, static_cast<uint8_t>(node)), port_base}}};
  }

  std::vector<Event> events(const Line& line) {
    if (line.verb == "tick") {
      now_ += std::chrono::milliseconds(line.number("after_ms"));
      return {Tick{}};
    }
    if (line.verb == "joined") return joined(line);
    if (line.verb == "lost") return {NodeLost{static_cast<NodeId>(line.number("node")), line.text("because")}};
    if (line.verb == "sealed") return {sealed(line)};
    if (line.verb == "formed") return {Formed{identity(line)}};
    if (line.verb == "progress") return {progress(line)};
    if (line.verb == "leaves") return {NodeLeaves{static_cast<NodeId>(line.number("node")), line.text("because")}};
    if (line.verb == "scale") {
      return {ScaleRequested{line.has("to") ? std::optional(static_cast<uint32_t>(line.number("to"))) : std::nullopt}};
    }
    if (line.verb == "saved") return {Saved{line.number("version"), identity(line).generation}};
    if (line.verb == "useful") {
      const auto sizes = numbers(line.text("sizes"));
      return {UsefulWorlds{static_cast<uint32_t>(line.number("ranks")), {sizes.begin(), sizes.end()}}};
    }
    if (line.verb == "stop") return {StopRequested{static_cast<int>(line.number("exit_code")), line.text("because")}};
    std::vector<Event> events;
    for (const WorkerId worker : numbers(line.text("worker"))) {
      events.push_back(worker_event(line, worker));
    }
    return events;
  }

  Event worker_event(const Line& line, WorkerId worker) const {
    const int64_t pid = 100 + int64_t{worker};
    if (line.verb == "parked") return WorkerParked{worker, pid, static_cast<uint32_t>(line.number("functions"))};
    if (line.verb == "recoverable") return WorkerRecoverable{worker};
    if (line.verb == "exited") return WorkerExited{worker};
    if (line.verb == "ready")
      return Ready{identity(line), {{worker, state_word(line.text("state", "empty")), line.has("sharded")}}};
    if (line.verb == "hung")
      return WorkerHung{worker, identity(line), pid, std::chrono::milliseconds(1250), line.text("because")};
    if (line.verb == "paused") return WorkerPaused{worker, identity(line)};
    if (line.verb == "finished") return WorkerFinished{worker, identity(line)};
    if (line.verb == "died") {
      const std::string signal = line.text("signal", "0");
      return WorkerDied{worker,
                        pid,
                        std::stoi(signal),
                        static_cast<int>(line.number("exit_code")),
                        line.text("detected_by", "pidfd"),
                        line.text("traceback"),
                        line.text("unfit"),
                        line.number("committed", 0)};
    }
    if (line.verb == "raised") {
      return WorkerFaulted{worker,
                           identity(line),
                           line.number("step"),
                           line.text("what"),
                           line.text("traceback"),
                           line.text("fatal") == "true",
                           line.text("link") == "true",
                           line.text("digests") == "true",
                           line.text("after_commit") == "true"};
    }
    ADD_FAILURE() << "no such event: " << line.verb;
    return Tick{};
  }

  void show(const Spawn& effect) {
    lines_.push_back("spawn worker=" + std::to_string(effect.worker) + " node=" + std::to_string(effect.node) +
                     (effect.spare ? " spare" : "") + functions(effect.functions));
  }
  static std::string functions(uint32_t over) { return over == 0 ? "" : " functions=" + std::to_string(over); }
  void show(const Seal& effect) { lines_.push_back("seal" + gen(effect.identity)); }
  void show(const Decide& effect) {
    lines_.push_back("decide" + gen(effect.identity) + (effect.verdict.forward ? " forward" : " redo") + " version=" +
                     std::to_string(effect.verdict.version) + " because=" + quoted(effect.verdict.because) +
                     (effect.mean_loss ? " mean_loss=" + std::to_string(*effect.mean_loss) : ""));
  }
  void show(const Prepare& effect) {
    std::string text = "prepare" + gen(effect.identity) + functions(effect.functions) +
                       " version=" + std::to_string(effect.version) + " table=";
    table_.clear();
    for (const Member& member : effect.members) {
      table_[member.rank] = member.worker;
      text += (member.rank == 0 ? "" : " ") + std::to_string(member.rank) + ":" + std::to_string(member.worker);
      if (member.newcomer) {
        text += member.previous == kNoWorker ? "(new)" : "(new, after " + std::to_string(member.previous) + ")";
      }
    }
    if (effect.from != effect.sharding) {
      text += " sharding=" + std::to_string(effect.sharding.number) + " from=" + std::to_string(effect.from.number) +
              " of " + std::to_string(effect.from.world);
    }
    lines_.push_back(text);
    if (effect.table.entries().size() > 1) {
      show(effect.table);
    }
  }
  void show(const RankTable& table) {
    std::string text = "  rank table:";
    Rank rank = 0;
    for (const RankTable::Entry& entry : table.entries()) {
      text += " " + std::to_string(rank) + ".." + std::to_string(rank + entry.ranks - 1) + "@node" +
              std::to_string(entry.node) + ":" + std::to_string(entry.endpoint.port_base);
      rank += entry.ranks;
    }
    lines_.push_back(text);
  }
  void show(const Activate& effect) {
    lines_.push_back("activate" + gen(effect.identity) + " version=" + std::to_string(effect.version) +
                     " sources=" + list_text(effect.sources) + " targets=" + list_text(effect.targets) +
                     (effect.compare ? " compare" : ""));
  }
  void show(const Kill& effect) { lines_.push_back("kill worker=" + std::to_string(effect.worker)); }
  void show(const Pause& effect) {
    lines_.push_back("pause" + gen(effect.identity) + (effect.stay.empty() ? "" : " stay=" + list_text(effect.stay)));
  }
  void show(const ReleaseNode& effect) { lines_.push_back("part node=" + std::to_string(effect.node)); }
  void show(const Release& effect) {
    lines_.push_back("release" + gen(effect.identity) +
                     (effect.because.empty() ? "" : " because=" + quoted(effect.because)));
  }
  void show(const EndJob& effect) {
    const std::string message = one_line(effect.message);
    lines_.push_back("end_job exit_code=" + std::to_string(effect.exit_code) + " message=" + quoted(message) +
                     (effect.traceback.empty() ? "" : " traceback=" + quoted(effect.traceback)));
  }
  // Without journal=full, shows only lines that give a reason, without their fields.
  void show(const Journal& effect) {
    const bool says_why = effect.event == "rung" || effect.event == "fault_detected" || effect.event == "restart" ||
                          effect.event == "kill" || effect.event == "spares_given_up" ||
                          effect.event == "failure_outlived" || effect.event == "restart_with_state" ||
                          effect.event == "node_replaced" || effect.event == "node_kept" ||
                          effect.event == "corruption" || effect.event.starts_with("resize") ||
                          effect.event == "size_kept" || effect.aloud || effect.event == "growth_given_up" ||
                          effect.event == "node_leaves" || effect.event == "node_left" || effect.event == "orphan_save";
    const bool with_fields = effect.event == "rung" || effect.event == "restart" ||
                             effect.event == "restart_with_state" || effect.event == "node_replaced" ||
                             effect.event == "corruption" || effect.event == "resized" ||
                             effect.event == "growth_given_up" || effect.event == "orphan_save";
    if (!full_journal_ && !says_why) {
      return;
    }
    std::string text = "* " + effect.event;
    for (const Field& field : effect.fields) {
      if (full_journal_ || with_fields) {
        text += " " + field.first + "=" + value_text(field);
      }
    }
    lines_.push_back(text + ": " + effect.because);
  }

  std::optional<Membership> brain_;
  bool full_journal_ = false;
  Time now_{};
  std::map<Rank, WorkerId> table_;
  std::vector<std::string> lines_;
};

class MembershipTranscript : public ::testing::TestWithParam<std::string> {};

TEST_P(MembershipTranscript, reads_as_recorded) {
  Scene scene;
  EXPECT_EQ(transcript::check(GetParam(), [&](const Line& line) { return scene.run(line); }), "");
}

INSTANTIATE_TEST_SUITE_P(testdata, MembershipTranscript, ::testing::ValuesIn(transcript::below("membership/testdata")),
                         [](const auto& info) { return transcript::test_name(info.param); });

}  // namespace
}  // namespace keepstep::brain
