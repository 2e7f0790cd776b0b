#include "agent/store/store.h"

#include <gtest/gtest.h>

namespace keepstep::agent {
namespace {

StoreRequest ask(uint64_t id, const std::string& op, const std::string& key, const std::string& value = "") {
  return {0, id, op, key, value};
}

TEST(StoreTest, a_get_waits_for_the_set) {
  Store store;
  EXPECT_TRUE(store.handle(ask(1, "get", "k")).empty());
  EXPECT_TRUE(store.handle(ask(2, "wait", "k")).empty());
  const auto answers = store.handle(ask(3, "set", "k", "v"));
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0].id, 1u);
  EXPECT_EQ(answers[0].value, "v");
  EXPECT_EQ(answers[1].id, 2u);
  EXPECT_EQ(answers[2].id, 3u);
}

TEST(StoreTest, add_counts_and_compare_set_does_as_c10d_does) {
  Store store;
  EXPECT_EQ(store.handle(ask(1, "add", "n", "2"))[0].value, "2");
  EXPECT_EQ(store.handle(ask(2, "add", "n", "-5"))[0].value, "-3");
  EXPECT_EQ(store.handle(ask(3, "compare_set", "k", "0:new"))[0].value, "new");
  EXPECT_EQ(store.handle(ask(4, "compare_set", "k", "5:otherX"))[0].value, "new");
  EXPECT_EQ(store.handle(ask(5, "compare_set", "k", "3:newX"))[0].value, "X");
  EXPECT_EQ(store.handle(ask(6, "compare_set", "absent", "1:ab"))[0].value, "a");
  EXPECT_FALSE(store.handle(ask(7, "compare_set", "k", "99:ab"))[0].ok);
  EXPECT_FALSE(store.handle(ask(8, "nonsense", "k"))[0].ok);
}

TEST(StoreTest, a_generation_is_forgotten_with_its_questions) {
  Store store;
  store.handle(ask(1, "set", "1/k", "v"));
  store.handle(ask(2, "set", "2/k", "v"));
  store.handle(ask(3, "get", "1/absent"));
  store.drop_before(2);
  EXPECT_FALSE(store.handle(ask(4, "check", "1/k"))[0].ok);
  EXPECT_TRUE(store.handle(ask(5, "check", "2/k"))[0].ok);
  EXPECT_EQ(store.handle(ask(6, "set", "1/absent", "v")).size(), 1u) << "nobody waits any more";
}

}  // namespace
}  // namespace keepstep::agent
