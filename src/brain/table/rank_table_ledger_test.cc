// Runs testdata/*.txt: what each node is sent when a generation is prepared.

#include "brain/table/rank_table_ledger.h"

#include <gtest/gtest.h>

#include "brain/transcript.h"

namespace keepstep::brain {
namespace {

using transcript::Line;
using transcript::numbers;

std::string count_of(size_t number, const std::string& what) {
  return std::to_string(number) + " " + what + (number == 1 ? "" : "s");
}

class Scene {
 public:
  std::vector<std::string> run(const Line& line) {
    const std::vector<uint32_t> nodes = numbers(line.text("node"));
    if (line.verb == "holds") {
      for (const NodeId node : nodes) {
        ledger_.held(node, static_cast<uint32_t>(line.number("generation")));
      }
      return {"(nothing)"};
    }
    if (line.verb == "moved") {  // another machine takes the node's place
      for (const NodeId node : nodes) {
        addresses_[node] += 100;
      }
      return {"(nothing)"};
    }
    return prepared(static_cast<uint32_t>(line.number("generation")), nodes);
  }

 private:
  std::vector<std::string> prepared(uint32_t generation, const std::vector<uint32_t>& nodes) {
    std::vector<RankTable::Entry> entries;
    for (const NodeId node : nodes) {
      entries.push_back({node, 8, 0, {ipv4(10, 0, 0, static_cast<uint8_t>(node + addresses_[node])), 20000}});
    }
    const RankTable table = *RankTable::make(entries);
    ledger_.prepared(generation, table);
    std::vector<std::string> lines;
    for (const NodeId node : nodes) {
      const uint32_t base = ledger_.base_for(node);
      if (base == 0) {
        lines.push_back("node " + std::to_string(node) + " <- table of " + count_of(entries.size(), "node"));
        continue;
      }
      const RankTableDelta delta = difference(*ledger_.table(base), table);
      EXPECT_EQ(apply(*ledger_.table(base), delta), table);
      std::string changes;
      for (const auto& splice : delta.splices) {
        changes += "; at " + std::to_string(splice.at) + " " + std::to_string(splice.removed) + " out, " +
                   std::to_string(splice.inserted.size()) + " in";
      }
      lines.push_back("node " + std::to_string(node) + " <- difference to generation " + std::to_string(base) +
                      (changes.empty() ? "; nothing changed" : changes));
    }
    return lines;
  }

  RankTableLedger ledger_;
  std::map<NodeId, uint32_t> addresses_;
};

class RankTableLedgerTranscript : public ::testing::TestWithParam<std::string> {};

TEST_P(RankTableLedgerTranscript, reads_as_recorded) {
  Scene scene;
  EXPECT_EQ(transcript::check(GetParam(), [&](const Line& line) { return scene.run(line); }), "");
}

INSTANTIATE_TEST_SUITE_P(testdata, RankTableLedgerTranscript, ::testing::ValuesIn(transcript::below("table/testdata")),
                         [](const auto& info) { return transcript::test_name(info.param); });

}  // namespace
}  // namespace keepstep::brain
