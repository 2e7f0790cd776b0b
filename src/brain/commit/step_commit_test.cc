#include "brain/commit/step_commit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;
using transcript::split;

constexpr Identity kNow{1, 4};

SealedWord word(Rank rank, Vote vote, Step step, Identity identity = kNow) {
  return SealedWord{rank, rank, StepWord{identity, step, vote, true}, StateWord{StateKind::kClean, step - 1}};
}

Vote vote_named(const std::string& text) {
  return text == "yes" ? Vote::kYes : text == "decided" ? Vote::kDecided : Vote::kOpen;
}

// "1:yes@118"; from generation 3: "1:yes@118#3"; with a digest: "1:yes@118~7"
SealedWord parse_word(const std::string& text) {
  const size_t colon = text.find(':');
  const size_t at = text.find('@');
  const size_t hash = text.find('#');
  const Identity identity{
      1, hash == std::string::npos ? kNow.generation : static_cast<uint32_t>(std::stoul(text.substr(hash + 1)))};
  SealedWord parsed = word(static_cast<Rank>(std::stoul(text)), vote_named(text.substr(colon + 1, at - colon - 1)),
                           std::stoull(text.substr(at + 1)), identity);
  if (const size_t tilde = text.find('~'); tilde != std::string::npos) {
    parsed.digest = StepDigest{std::stoull(text.substr(tilde + 1)), 0};
  }
  return parsed;
}

std::vector<std::string> run_line(const Line& line) {
  std::vector<SealedWord> words;
  for (const std::string& text : split(line.text("words"), ',')) {
    words.push_back(parse_word(text));
  }
  const Verdict verdict = decide(kNow, line.number("floor"), words);
  return {std::string(verdict.forward ? "forward" : "redo") + " version=" + std::to_string(verdict.version) +
          " because=\"" + verdict.because + "\""};
}

TEST(StepCommit, reads_as_recorded) { EXPECT_EQ(transcript::check("commit/testdata/step_commit", run_line), ""); }

// Plays the vote of `world` ranks up to a random point, seals all words in random order, and loses some.
struct Round {
  std::vector<SealedWord> survivors;
  bool anybody_decided = false;
  bool everybody_voted = false;
};

Round play(std::mt19937_64& random, Rank world, Version floor) {
  const Step step = floor + 1;
  std::vector<Vote> votes(world, Vote::kOpen);
  const auto moves = random() % (2 * world + 1);
  for (uint64_t move = 0; move < moves; ++move) {
    const Rank rank = static_cast<Rank>(random() % world);
    const bool all = std::none_of(votes.begin(), votes.end(), [](Vote vote) { return vote == Vote::kOpen; });
    if (votes[rank] == Vote::kOpen) {
      votes[rank] = Vote::kYes;
    } else if (all) {
      votes[rank] = Vote::kDecided;
    }
  }
  Round round;
  round.everybody_voted = std::none_of(votes.begin(), votes.end(), [](Vote vote) { return vote == Vote::kOpen; });
  for (Rank rank = 0; rank < world; ++rank) {
    round.anybody_decided |= votes[rank] == Vote::kDecided;
    if (random() % 3 != 0) {
      round.survivors.push_back(word(rank, votes[rank], step));
    }
  }
  return round;
}

TEST(StepCommit, a_step_that_anybody_decided_is_never_undone_and_one_without_all_gradients_never_counts) {
  std::mt19937_64 random(1);
  int forward = 0;
  for (int round = 0; round < 20000; ++round) {
    const Round played = play(random, 1 + static_cast<Rank>(random() % 5), 7);
    const Verdict verdict = decide(kNow, 7, played.survivors);
    if (played.anybody_decided && !played.survivors.empty()) {
      EXPECT_EQ(verdict.version, 8u) << verdict.because;
    }
    const bool survivor_without_vote =
        std::any_of(played.survivors.begin(), played.survivors.end(),
                    [](const SealedWord& word) { return word.word.vote == Vote::kOpen; });
    if (survivor_without_vote) {
      EXPECT_EQ(verdict.version, 7u) << verdict.because;
    }
    EXPECT_EQ(verdict.forward, verdict.version == 8u);
    EXPECT_FALSE(verdict.because.empty());
    forward += verdict.forward ? 1 : 0;
  }
  EXPECT_GT(forward, 1000);
}

TEST(StepCommit, the_order_of_the_words_does_not_matter) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    std::vector<SealedWord> words = play(random, 4, 7).survivors;
    const Verdict before = decide(kNow, 7, words);
    std::shuffle(words.begin(), words.end(), random);
    const Verdict after = decide(kNow, 7, words);
    EXPECT_EQ(before.version, after.version);
    EXPECT_EQ(before.forward, after.forward);
  }
}

}  // namespace
}  // namespace keepstep::brain
