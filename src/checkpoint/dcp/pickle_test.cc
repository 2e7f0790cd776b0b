// Pickles as data: what plain data and dataclasses need is accepted, everything else is refused by name, nothing runs.
#include "checkpoint/dcp/pickle.h"

#include <random>

#include "checkpoint/dcp/metadata.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint::dcp {
namespace {

using ::testing::HasSubstr;
using namespace std::string_literals;

StatusOr<PickleTree> read(const std::string& bytes, const PickleLimits& limits = {}) {
  return read_pickle(
      as_span(bytes), [](std::string_view module, std::string_view) { return module == "known"; }, limits);
}

TEST(Pickle, ReadsPlainData) {
  // pickle.dumps({"a": [1, -2, 70000, 1 << 40, True, None, 0.5, b"x"], ("t",): {}}, 4), without its frame
  const std::string bytes =
      "\x80\x04}\x94(\x8c\x01"
      "a\x94]\x94(K\x01J\xfe\xff\xff\xffJ\x70\x11\x01\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x88NG?"
      "\xe0\x00\x00\x00\x00\x00"
      "\x00"
      "C\x01x\x94"
      "e\x8c\x01t\x94\x85\x94}\x94u."s;
  const auto tree = read(bytes);
  ASSERT_TRUE(tree.ok()) << tree.status();
  const PickleValue& dict = tree->root();
  ASSERT_EQ(dict.kind, PickleKind::kDict);
  ASSERT_EQ(dict.items.size(), 4U);
  EXPECT_EQ(tree->at(dict.items[0]).text, "a");
  const PickleValue& list = tree->at(dict.items[1]);
  ASSERT_EQ(list.items.size(), 8U);
  EXPECT_EQ(tree->at(list.items[0]).integer, 1);
  EXPECT_EQ(tree->at(list.items[1]).integer, -2);
  EXPECT_EQ(tree->at(list.items[2]).integer, 70000);
  EXPECT_EQ(tree->at(list.items[3]).integer, int64_t{1} << 40);
  EXPECT_EQ(tree->at(list.items[4]).kind, PickleKind::kBool);
  EXPECT_EQ(tree->at(list.items[5]).kind, PickleKind::kNone);
  EXPECT_EQ(tree->at(list.items[6]).real, 0.5);
  EXPECT_EQ(tree->at(list.items[7]).text, "x");
  EXPECT_EQ(tree->at(dict.items[2]).kind, PickleKind::kTuple);
}

TEST(Pickle, KeepsACallAsItsNameAndArguments) {
  const auto tree = read(
      "\x80\x02"
      "cknown\nThing\n)\x81}X\x01\x00\x00\x00xK\x07sb."s);
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ(tree->root().kind, PickleKind::kObject);
  EXPECT_EQ(tree->at(tree->root().callee).text, "known Thing");
  EXPECT_EQ(tree->at(tree->at(tree->root().state).items[1]).integer, 7);
}

TEST(Pickle, RefusesOtherNamesAndSaysWhich) {
  const auto tree = read(
      "\x80\x02"
      "cposix\nsystem\nX\x02\x00\x00\x00id\x85R."s);
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(text_of(tree.status()), HasSubstr("'posix.system'"));
  EXPECT_THAT(text_of(tree.status()), HasSubstr("nothing of it was run"));
  // Through the stack, and through the table of numbered extensions.
  EXPECT_EQ(read("\x80\x04\x8c\x08"
                 "builtins\x8c\x04"
                 "eval\x93."s)
                .status()
                .code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(read("\x80\x04\x82\x01."s).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Pickle, RefusesWhatIsNone) {
  for (const std::string& bytes :
       {""s, "."s, "\x80\x04"s, "\x80\x01N."s, "\x80\x04]"s, "\x80\x04(."s, "\x80\x04t."s, "\x80\x04]N}u."s,
        "\x80\x04h\x05."s,
        "\x80\x04X\xff\xff\xff\xff"
        "a."s,
        "\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."s, "\x80\x04NNR."s, "\x80\x04N\x85)R."s, "\x80\x04NN."s,
        "\x80\x04\x8a\x09"
        "123456789."s,
        "\x80\x04}(Nu."s, "\x80\x04\x94."s,
        "\x80\x04"
        "c."s}) {
    const auto tree = read(bytes);
    EXPECT_EQ(tree.status().code(), absl::StatusCode::kInvalidArgument) << testing::PrintToString(bytes);
  }
}

TEST(Pickle, AHugePlaceInTheMemoTakesNoMemory) {
  const auto tree = read("\x80\x02Nr\xff\xff\xff\xff."s);  // CPython would allocate a table of 2^33 pointers
  EXPECT_EQ(tree.status().code(), absl::StatusCode::kInvalidArgument) << tree.status();
  EXPECT_THAT(tree.status().message(), HasSubstr("a number that Python does not give"));
}

TEST(Pickle, HasLimits) {
  std::string many = "\x80\x04";
  many += std::string(1000, ']') + ".";
  EXPECT_EQ(read(many, {.values = 100}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(read(many, {.bytes = 100}).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Pickle, AnyBytesAreAnsweredAndNotDiedOf) {
  std::mt19937_64 random(17);
  const std::string seed =
      "\x80\x04}\x94(\x8c\x01"
      "a\x94]\x94(K\x01J\xfe\xff\xff\xff"
      "e\x8c\x01t\x94\x85\x94}\x94u"
      "cknown\nThing\n)\x81}b."s;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = seed;
    for (uint64_t i = 0; i < 1 + random() % 6; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % 4 == 0 ? random() % bytes.size() : bytes.size());
    (void)read(bytes);
    (void)read_metadata(as_span(bytes));
  }
}

}  // namespace
}  // namespace keepstep::checkpoint::dcp
