// Runs testdata/*.txt: in goes what happens to one rank, out comes what it does.

#include <gtest/gtest.h>

#include "brain/rank/rank.h"
#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;
using transcript::numbers;
using transcript::state_word;

constexpr const char* kPhases[] = {"no_rank", "joining", "between", "step", "voted", "left", "finished"};
constexpr const char* kFills[] = {"nothing", "peers", "copy", "parts", "saved"};
constexpr const char* kNextSteps[] = {"step", "leave", "pause", "stop", "end"};

template <typename Value, size_t kCount>
std::string name(const char* const (&names)[kCount], Value value) {
  return names[static_cast<size_t>(value)];
}

class RankScene {
 public:
  std::vector<std::string> run(const Line& line) {
    const std::string answer = answer_to(line);
    return {(answer.empty() ? "" : answer + " ") + "phase=" + name(kPhases, brain_.phase()) + " version=" +
            std::to_string(brain_.version()) + (brain_.step() == 0 ? "" : " step=" + std::to_string(brain_.step()))};
  }

 private:
  std::string answer_to(const Line& line) {
    if (line.verb == "assigned") {
      const Assignment assignment{static_cast<Rank>(line.number("rank")),
                                  static_cast<uint32_t>(line.number("world", 4)),
                                  static_cast<uint32_t>(line.number("sharding"))};
      return text_of(brain_.assigned(assignment, line.number("version")));
    } else if (line.verb == "built") {
      brain_.built();
    } else if (line.verb == "let_go") {
      brain_.let_go();
    } else if (line.verb == "activated") {
      const Joining joining =
          brain_.activated(numbers(line.text("sources")), numbers(line.text("targets")), state_word(line.text("state")),
                           line.number("sharded") != 0, line.number("as_built") != 0);
      return "fill=" + name(kFills, joining.fill) + (joining.gives ? " gives" : "");
    } else if (line.verb == "found") {
      return "fill=" + name(kFills, RankBrain::found(line.number("copy") != 0, line.number("parts") != 0));
    } else if (line.verb == "joined") {
      brain_.joined();
    } else if (line.verb == "left") {
      brain_.left();
    } else if (line.verb == "finished") {
      brain_.finished();
    } else if (line.verb == "start_again") {
      brain_.start_again();
    } else if (line.verb == "next") {
      return "next=" + name(kNextSteps, brain_.next(line.number("until"), line.number("interrupted") != 0));
    } else if (line.verb == "vote") {
      brain_.voting();
    } else if (line.verb == "voted") {
      const AfterVote after = brain_.voted(line.number("decided") != 0, flags(line));
      return after == AfterVote::kUpdate ? "update" : "await_verdict";
    } else if (line.verb == "verdict") {
      return brain_.counts(line.number("version")) ? "update" : "again";
    } else if (line.verb == "updated") {
      brain_.updated();
    } else {
      ADD_FAILURE() << "no such line: " << line.verb;
    }
    return "";
  }

  static std::string text_of(const Moved& moved) {
    std::string text = moved.regroup ? "regroup " : "";
    text += moved.put_back ? "put_back " : "";
    text += moved.resized ? "resized_from=" + std::to_string(moved.resized_from) + " " : "";
    text += moved.rebuild ? "rebuild " : "";
    return text.substr(0, text.empty() ? 0 : text.size() - 1);
  }
  static uint32_t flags(const Line& line) {
    return (line.number("pause") != 0 ? kFlagPause : 0U) | (line.number("drain") != 0 ? kFlagDrain : 0U);
  }

  RankBrain brain_;
};

class RankTranscript : public ::testing::TestWithParam<std::string> {};

TEST_P(RankTranscript, reads_as_recorded) {
  RankScene scene;
  EXPECT_EQ(transcript::check(GetParam(), [&](const Line& line) { return scene.run(line); }), "");
}

INSTANTIATE_TEST_SUITE_P(testdata, RankTranscript, ::testing::ValuesIn(transcript::below("rank/testdata")),
                         [](const auto& info) { return transcript::test_name(info.param); });

}  // namespace
}  // namespace keepstep::brain
