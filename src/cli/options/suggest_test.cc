#include "cli/options/suggest.h"

#include <gtest/gtest.h>

namespace keepstep::cli {
namespace {

const std::vector<std::string> kKnown = {"run", "report", "bench", "--version", "--nproc-per-node", "-m", "-r"};

TEST(Suggest, counts_letters_that_differ_and_swapped_neighbours_once) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("reprot", "report"), 1u);
  EXPECT_EQ(edit_distance("same", "same"), 0u);
}

TEST(Suggest, a_typing_mistake_finds_its_word) {
  EXPECT_EQ(nearest("reprot", kKnown), "report");
  EXPECT_EQ(nearest("rum", kKnown), "run");
  EXPECT_EQ(nearest("--npoc-per-node", kKnown), "--nproc-per-node");
}

TEST(Suggest, a_beginning_finds_the_whole) { EXPECT_EQ(nearest("--nproc", kKnown), "--nproc-per-node"); }

TEST(Suggest, what_is_far_from_everything_finds_nothing) {
  EXPECT_EQ(nearest("--zebra-crossing", kKnown), "");
  EXPECT_EQ(nearest("", kKnown), "");
  EXPECT_EQ(nearest("train.py", {}), "");
}

}  // namespace
}  // namespace keepstep::cli
