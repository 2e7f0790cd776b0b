// Round trips of every event and effect through bytes (src/proto/convert.h). Here because proto is built without tests.
#include "proto/convert.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace keepstep::brain {

// Structured bindings stop compiling when a field is added: then convert.cc, control.proto and this must learn it.
auto fields(const NodeJoined& e) { return std::tuple(e.node); }
auto fields(const WorkerParked& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const WorkerRecoverable& e) {
  const auto& [a] = e;
  return std::tuple(a);
}
auto fields(const WorkerDied& e) {
  const auto& [a, b, c, d, f, g] = e;
  return std::tuple(a, b, c, d, f, g);
}
auto fields(const WorkerExited& e) {
  const auto& [a] = e;
  return std::tuple(a);
}
auto fields(const WorkerFaulted& e) {
  const auto& [a, b, c, d, f, g] = e;
  return std::tuple(a, b, c, d, f, g);
}
auto fields(const SealedWord& e) {
  const auto& [a, b, c, d] = e;
  return std::tuple(a, b, c, d);
}
bool operator==(const SealedWord& a, const SealedWord& b) { return fields(a) == fields(b); }
auto fields(const Sealed& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const Ready& e) {
  const auto& [a, b, c] = e;
  return std::tuple(a, b, c);
}
auto fields(const Formed& e) {
  const auto& [a] = e;
  return std::tuple(a);
}
auto fields(const Progress& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const WorkerFinished& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const StopRequested& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const Tick&) { return std::tuple(); }
auto fields(const Spawn& e) {
  const auto& [a, b, c, d] = e;
  return std::tuple(a, b, c, d);
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
  const auto& [a, b] = e;
  return std::tuple_cat(std::tuple(a), fields(b));
}
auto fields(const Prepare& e) {
  const auto& [a, b, c, d] = e;
  return std::tuple(a, b, c, d);
}
auto fields(const Activate& e) {
  const auto& [a, b, c, d, f] = e;
  return std::tuple(a, b, c, d, f);
}
auto fields(const Kill& e) {
  const auto& [a, b] = e;
  return std::tuple(a, b);
}
auto fields(const Release& e) {
  const auto& [a] = e;
  return std::tuple(a);
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
constexpr Identity kOwn{3, 41};     // of the message
constexpr Identity kNewest{3, 44};  // of the sender

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
const brain::SealedWord kWordB{3, 14, {{3, 40}, 1ull << 31, Vote::kDecided, false}, {StateKind::kUpdating, 1}};

INSTANTIATE_TEST_SUITE_P(All, EveryEvent,
                         testing::Values(brain::NodeJoined{kNode}, brain::WorkerParked{5, 4711},
                                         brain::WorkerRecoverable{5},
                                         brain::WorkerDied{5, 4711, 9, 0, "robust mutex", kNotUtf8},
                                         brain::WorkerDied{brain::kNoWorker - 1, 4711, -1, 255, "pidfd", ""},
                                         brain::WorkerExited{5},
                                         brain::WorkerFaulted{5, kOwn, 118, "ValueError: x", kNotUtf8, true},
                                         brain::Sealed{kNode, kOwn, {kWordA, kWordB}}, brain::Sealed{kNode, kOwn, {}},
                                         brain::Ready{5, kOwn, {StateKind::kHydrating, 12}}, brain::Formed{kOwn},
                                         brain::Progress{kOwn, 1ull << 40}, brain::WorkerFinished{5, kOwn},
                                         brain::StopRequested{130, "Ctrl-C"}));

class EveryEffect : public testing::TestWithParam<brain::Effect> {};

TEST_P(EveryEffect, comes_back_from_its_bytes_as_it_was) {
  control::FromCoordinator message;
  ASSERT_TRUE(message.ParseFromString(to_wire(GetParam(), kNode, kNewest).SerializeAsString()));
  EXPECT_EQ(message.node(), kNode);
  EXPECT_EQ(message.term(), 3u);
  const StatusOr<brain::Effect> back = effect_from_wire(message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(equal(*back, GetParam())) << message.ShortDebugString();
}

INSTANTIATE_TEST_SUITE_P(
    All, EveryEffect,
    testing::Values(brain::Spawn{kNode, 8, true, "a spare"}, brain::Seal{kOwn, "rank 1 died"},
                    brain::Decide{kOwn, {118, true, "all had voted"}},
                    brain::Prepare{kOwn, 118, {{0, 11, kNode, false, brain::kNoWorker}, {1, 12, 2, true, 9}}, "rank 1"},
                    brain::Activate{kOwn, 118, {0, 2}, {1}, true}, brain::Activate{kOwn, 0, {}, {}, false},
                    brain::Kill{8, "too late"}, brain::Release{kOwn}, brain::EndJob{-1, "over", kNotUtf8}));

TEST(Convert, an_event_without_an_identity_travels_under_the_newest_one) {
  EXPECT_EQ(to_wire(brain::Event(brain::WorkerParked{1, 2}), kNode, kNewest).generation(), kNewest.generation);
  EXPECT_EQ(to_wire(brain::Event(brain::Formed{kOwn}), kNode, kNewest).generation(), kOwn.generation);
  EXPECT_EQ(to_wire(brain::Effect(brain::Kill{1, ""}), kNode, kNewest).generation(), kNewest.generation);
}

TEST(Convert, a_text_without_end_is_cut_in_its_middle) {
  const std::string endless = "start" + std::string(8 * kMaxTextBytes, '.') + "end";
  const auto message = to_wire(brain::Event(brain::WorkerFaulted{1, kOwn, 2, endless, endless, false}), kNode, kNewest);
  EXPECT_LT(message.ByteSizeLong(), static_cast<size_t>(kMaxMessageBytes));
  const std::string& cut = message.event().worker_faulted().traceback();
  EXPECT_LE(cut.size(), kMaxTextBytes);
  EXPECT_EQ(cut.substr(0, 5), "start");
  EXPECT_EQ(cut.substr(cut.size() - 3), "end");
}

TEST(Convert, values_that_do_not_exist_are_refused_by_name) {
  control::FromAgent ready;
  ready.mutable_event()->mutable_ready()->mutable_state()->set_kind(static_cast<control::StateKind>(4));
  EXPECT_EQ(event_from_wire(ready).status().message(), "state kind 4 does not exist");

  control::FromAgent sealed;
  sealed.mutable_event()->mutable_sealed()->add_words()->mutable_word()->set_vote(static_cast<control::Vote>(3));
  EXPECT_EQ(event_from_wire(sealed).status().message(), "vote 3 does not exist");

  EXPECT_FALSE(event_from_wire(control::FromAgent()).ok());
  EXPECT_FALSE(effect_from_wire(control::FromCoordinator()).ok());
}

}  // namespace
}  // namespace keepstep::proto
