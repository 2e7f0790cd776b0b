// Round trips of every event and effect through bytes.
#include "proto/convert.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "proto/held_tables.h"
#include "proto/rank_table_wire.h"

namespace keepstep::brain {

// Structured bindings stop compiling when a field is added: add it to convert.cc, control.proto and here.
auto fields(const NodeLost& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const NodeJoined& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const WorkerParked& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const WorkerRecoverable& e) {
  const auto& [a] = e;
  return std::tuple(a);
}
auto fields(const WorkerDied& e) {
  const auto& [a, b, c, d, f, g, h, i] = e;
  return std::tuple(a, b, c, d, f, g, h, i);
}
auto fields(const WorkerHung& e) {
  const auto& [a, b, c, d, f] = e;
  return std::tuple(a, b, c, d, f);
}
auto fields(const WorkerExited& e) {
  const auto& [a] = e;
  return std::tuple(a);
}
auto fields(const WorkerFaulted& e) {
  const auto& [a, b, c, d, f, g, h, i, j] = e;
  return std::tuple(a, b, c, d, f, g, h, i, j);
}
auto fields(const SealedWord& e) {
  const auto& [a, b, c, d, f] = e;
  return std::tuple(a, b, c, d, f);
}
bool operator==(const SealedWord& a, const SealedWord& b) { return fields(a) == fields(b); }
auto fields(const Sealed& e) {
  const auto& [a, b, c, d, f, g, h, i] = e;
  return std::tuple(a, b, c, d, f, g, h, i);
}
auto fields(const MemberState& e) {
  const auto& [a, b, c, d] = e;
  return std::tuple(a, b, c, d);
}
bool operator==(const MemberState& a, const MemberState& b) { return fields(a) == fields(b); }
auto fields(const Ready& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const Formed& e) {
  const auto& [a] = e;
  return std::tuple(a);
}
auto fields(const Progress& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const WorkerFinished& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const StopRequested& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const WorkerPaused& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const NodeLeaves& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const ScaleRequested& e) {
  const auto& [a] = e;
  return std::tuple(a);
}
auto fields(const PolicyChanged& e) {
  const auto& [a, b, c, d, f, g, h, i, j, k, l] = e.config;
  return std::tuple(a, b, c, d, f, g, h, i, j, k, l);
}
auto fields(const Saved& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const UsefulWorlds& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const Tick&) { return std::tuple(); }
auto fields(const Spawn& e) {
  const auto& [a, b, c, d, f] = e;
  return std::tuple(a, b, c, d, f);
}
auto fields(const Seal& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const Verdict& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const Decide& e) {
  const auto& [a, b, c, d] = e;
  return std::tuple_cat(std::tuple(a, c, d), fields(b));
}
auto fields(const Prepare& e) {
  const auto& [a, b, c, d, f, g, h, i, j, k] = e;
  return std::tuple(a, b, c, d, f, g, h, i.number, i.world, j.number, j.world, k);
}
auto fields(const Activate& e) {
  const auto& [a, b, c, d, f] = e;
  return std::tuple(a, b, c, d, f);
}
auto fields(const Kill& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const Pause& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const ReleaseNode& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const Release& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const EndJob& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const Journal& e) { return std::tuple(e.event, e.because); }

}  // namespace keepstep::brain

namespace keepstep::proto {
namespace {

using brain::Identity;
using brain::StateKind;
using brain::Vote;

constexpr brain::NodeId kNode = 7;
constexpr Identity kOwn{3, 41};     // the message's
constexpr Identity kNewest{3, 44};  // the sender's

template <class Variant>
bool equal(const Variant& a, const Variant& b) {
  return a.index() == b.index() &&
         std::visit([&](const auto& x) { return fields(x) == fields(std::get<std::decay_t<decltype(x)>>(b)); }, a);
}

class EveryEvent : public testing::TestWithParam<brain::Event> {};

TEST_P(EveryEvent, comes_back_from_its_bytes_as_it_was) {
  control::FromAgent message;
  ASSERT_TRUE(message.ParseFromString(to_wire(GetParam(), kNode, kNewest).SerializeAsString()));
  EXPECT_EQ(message.node(), kNode);
  EXPECT_EQ(message.term(), 3u);
  const StatusOr<brain::Event> back = event_from_wire(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(equal(*back, GetParam())) << message.ShortDebugString();
}

const std::string kNotUtf8 = "bytes \xff\xfe\0 of a program";
const brain::SealedWord kWordA{0, 11, {kOwn, 118, Vote::kYes, true}, {StateKind::kClean, 117}};
const brain::SealedWord kWordB{
    3, 14, {{3, 40}, 1ull << 31, Vote::kDecided, false}, {StateKind::kUpdating, 1}, brain::StepDigest{~0ull, 7}};

const brain::ElasticConfig kPolicy{2,
                                   8,
                                   3,
                                   {2, 5, 8},
                                   brain::Time(1),
                                   brain::Time(2),
                                   brain::Time(3),
                                   brain::Time(4),
                                   brain::Time(5),
                                   1.5,
                                   brain::Time(6)};

INSTANTIATE_TEST_SUITE_P(
    All, EveryEvent,
    testing::Values(
        brain::NodeJoined{kNode, {brain::ipv4(10, 1, 2, 3), 65535}}, brain::WorkerParked{5, 4711, 2},
        brain::WorkerRecoverable{5}, brain::WorkerDied{5, 4711, 9, 0, "robust mutex", kNotUtf8},
        brain::WorkerDied{brain::kNoWorker - 1, 4711, -1, 255, "pidfd", "", "memory", uint64_t{1} << 40},
        brain::WorkerExited{5}, brain::WorkerFaulted{5, kOwn, 118, "ValueError: x", kNotUtf8, true, false},
        brain::WorkerFaulted{5, kOwn, 118, "a link broke", "", false, true},
        brain::WorkerFaulted{5, kOwn, 118, "digests differ", "", false, false, true},
        brain::WorkerFaulted{5, kOwn, 118, "KeyError: y", "", false, false, false, true},
        brain::WorkerHung{5, kOwn, 4711, std::chrono::milliseconds(1250), kNotUtf8},
        brain::Sealed{
            kNode, kOwn, {kWordA, kWordB}, 118, 0.1, 16, {{2, 117}, {7, uint64_t{1} << 31, 3}}, {{{{4, 2}, 1}, 117}}},
        brain::Sealed{kNode, kOwn, {}}, brain::Ready{kOwn, {{5, {StateKind::kHydrating, 12}}}},
        brain::Ready{kOwn,
                     {{5, {StateKind::kClean, 12}, true, std::chrono::microseconds(7)}, {6, {StateKind::kEmpty, 0}}}},
        brain::Formed{kOwn}, brain::Progress{kOwn, 1ull << 40},
        brain::Progress{kOwn, 2, brain::StepDigest{0, 1ull << 63}}, brain::WorkerFinished{5, kOwn},
        brain::StopRequested{130, "Ctrl-C"}, brain::WorkerPaused{5, kOwn}, brain::NodeLeaves{kNode, kNotUtf8},
        brain::ScaleRequested{6}, brain::ScaleRequested{}, brain::PolicyChanged{kPolicy}, brain::UsefulWorlds{64},
        brain::UsefulWorlds{24, {1, 2, 24}}, brain::Saved{uint64_t{1} << 40, 7}));

class EveryEffect : public testing::TestWithParam<brain::Effect> {};

TEST_P(EveryEffect, comes_back_from_its_bytes_as_it_was) {
  std::vector<const brain::Member*> members;
  control::FromCoordinator body = payload(GetParam());
  if (const auto* prepare = std::get_if<brain::Prepare>(&GetParam())) {
    for (const brain::Member& member : prepare->members) {
      members.push_back(&member);
    }
    body.mutable_effect()->mutable_prepare()->set_table(encode(prepare->identity, prepare->table));
  }
  const control::FromCoordinator head = envelope(GetParam(), kNode, kNewest, members);
  control::FromCoordinator message;
  ASSERT_TRUE(message.ParseFromString(head.SerializeAsString() + body.SerializeAsString()));
  EXPECT_EQ(message.node(), kNode);
  EXPECT_EQ(message.term(), 3u);
  HeldTables tables;
  const StatusOr<brain::Effect> back = effect_from_wire(message, tables);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(equal(*back, GetParam())) << message.ShortDebugString();
}

const brain::RankTable kTable =
    *brain::RankTable::make({{kNode, 2, 0, {brain::ipv4(10, 0, 0, 7), 20000}}, {9, 8, 3, {{}, 0}}});

INSTANTIATE_TEST_SUITE_P(
    All, EveryEffect,
    testing::Values(brain::Spawn{kNode, 8, true, "a spare", 1}, brain::Seal{kOwn, "rank 1 died"},
                    brain::Decide{kOwn, {118, true, "all had voted"}, 0.3, 16},
                    brain::Decide{kOwn, {7, false, "it had not voted"}},
                    brain::Prepare{kOwn,
                                   118,
                                   kTable,
                                   {{0, 11, kNode, false, brain::kNoWorker}, {1, 12, kNode, true, 9}},
                                   "rank 1",
                                   true,
                                   3,
                                   {5, static_cast<brain::Rank>(kTable.world_size())},
                                   {4, 7},
                                   2},
                    brain::Pause{kOwn, "the world grows", {0, 3}}, brain::ReleaseNode{kNode, "it was told to leave"},
                    brain::Activate{kOwn, 118, {0, 2}, {1}, true}, brain::Activate{kOwn, 0, {}, {}, false},
                    brain::Activate{kOwn, 7, {1, 2, 3, 70000}, {0, 4}, false}, brain::Kill{8, "too late", kNode},
                    brain::Release{kOwn}, brain::Release{kOwn, "rank 1 died"}, brain::EndJob{-1, "over", kNotUtf8}));

TEST(Convert, an_event_without_an_identity_travels_under_the_newest_one) {
  EXPECT_EQ(to_wire(brain::Event(brain::WorkerParked{1, 2}), kNode, kNewest).generation(), kNewest.generation);
  EXPECT_EQ(to_wire(brain::Event(brain::Formed{kOwn}), kNode, kNewest).generation(), kOwn.generation);
  EXPECT_EQ(envelope(brain::Effect(brain::Kill{1, ""}), kNode, kNewest).generation(), kNewest.generation);
}

TEST(Convert, a_text_without_end_is_cut_in_its_middle) {
  const std::string endless = "start" + std::string(8 * kMaxTextBytes, '.') + "end";
  const auto message =
      to_wire(brain::Event(brain::WorkerFaulted{1, kOwn, 2, endless, endless, false, false}), kNode, kNewest);
  EXPECT_LT(message.ByteSizeLong(), static_cast<size_t>(kMaxMessageBytes));
  const std::string& cut = message.event().worker_faulted().traceback();
  EXPECT_LE(cut.size(), kMaxTextBytes);
  EXPECT_EQ(cut.substr(0, 5), "start");
  EXPECT_EQ(cut.substr(cut.size() - 3), "end");
}

TEST(Convert, a_world_of_ranks_travels_as_a_few_runs_and_no_run_takes_memory_that_no_world_has) {
  brain::Activate activate{kOwn, 118, {}, {4711}, false};
  for (brain::Rank rank = 0; rank < 16384; ++rank) {
    if (rank != 4711) {
      activate.sources.push_back(rank);
    }
  }
  control::FromCoordinator message = payload(activate);
  EXPECT_LT(message.ByteSizeLong(), 40u);
  HeldTables tables;
  message.mutable_effect()->mutable_activate()->set_sources(3, 0xffffffff);
  EXPECT_EQ(effect_from_wire(message, tables).status().message(), "4 runs of ranks up to 4294972007");
  message.mutable_effect()->mutable_activate()->mutable_sources()->Add(1);
  EXPECT_FALSE(effect_from_wire(message, tables).ok());
}

TEST(Convert, values_that_do_not_exist_are_refused_by_name) {
  control::FromAgent ready;
  ready.mutable_event()->mutable_ready()->add_members()->mutable_state()->set_kind(static_cast<control::StateKind>(4));
  EXPECT_EQ(event_from_wire(ready).status().message(), "state kind 4 does not exist");

  control::FromAgent sealed;
  sealed.mutable_event()->mutable_sealed()->add_words()->mutable_word()->set_vote(static_cast<control::Vote>(3));
  EXPECT_EQ(event_from_wire(sealed).status().message(), "vote 3 does not exist");

  control::FromAgent joined;
  joined.mutable_event()->mutable_node_joined()->set_address("four");
  EXPECT_EQ(event_from_wire(joined).status().message(),
            "an address of 4 bytes (not 16) with port base 0 (at most 65535)");

  control::FromAgent policy;
  control::PolicyChanged* changed = policy.mutable_event()->mutable_policy_changed();
  for (int i = 0; i <= 4096; ++i) {
    changed->add_discrete_values(1);
  }
  EXPECT_EQ(event_from_wire(policy).status().message(), "4097 sizes that a job may have, 4096 is the most");

  control::FromAgent nothing;
  nothing.mutable_event();
  EXPECT_FALSE(event_from_wire(nothing).ok());
  HeldTables tables;
  EXPECT_FALSE(effect_from_wire(control::FromCoordinator(), tables).ok());
}

}  // namespace
}  // namespace keepstep::proto
