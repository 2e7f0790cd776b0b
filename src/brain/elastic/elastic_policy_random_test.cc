// The elastic policy against random views, configs and users in virtual time, judged by a second, straightforward
// implementation of its rules; and against capacity that comes and goes all day. A schedule can be repeated from its
// seed:
//   KEEPSTEP_SEED=41 keepstep_brain_test --gtest_filter='ElasticRandom*'
// KEEPSTEP_SCHEDULES=1000000 runs more of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <random>
#include <set>

#include "brain/elastic/elastic_policy.h"
#include "brain/simulation.h"

namespace keepstep::brain {
namespace {

using simulation::number_from;

using Kind = ElasticDecision::Kind;

constexpr Time kTick = std::chrono::milliseconds(250);
constexpr Time seconds(int64_t count) { return std::chrono::seconds(count); }

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  bool happens(double chance) { return static_cast<double>(random_() >> 11) * 0x1p-53 < chance; }
  Time between(Time least, Time most) {
    return least + Time(static_cast<int64_t>(random_() % static_cast<uint64_t>((most - least).count() + 1)));
  }

 private:
  std::mt19937_64 random_;
};

// The sizes that a config allows, enumerated.
std::set<uint32_t> sizes_of(const ElasticConfig& config) {
  if (!config.discrete_values.empty()) {
    return {config.discrete_values.begin(), config.discrete_values.end()};
  }
  std::set<uint32_t> sizes;
  for (uint32_t size = config.min_replicas; size <= config.max_replicas; size += config.increment_step) {
    sizes.insert(size);
  }
  return sizes;
}

uint32_t largest(const std::set<uint32_t>& sizes, uint32_t at_most) {
  const auto above = sizes.upper_bound(at_most);
  return above == sizes.begin() ? 0 : *std::prev(above);
}

// How many unforced changes a config allows in `span`, whatever the world does.
double max_unforced(const ElasticConfig& config, Time span) {
  return 1 + std::chrono::duration<double>(span) / std::chrono::duration<double>(config.min_between_changes);
}

// The same if no growth lasts as long as the minimum time between changes: each one makes the next wait longer.
double max_unforced_if_none_lasts(const ElasticConfig& config, Time span) {
  double count = 0;
  for (double wait = 0, at = 0; at <= std::chrono::duration<double>(span).count(); ++count) {
    const double least = std::chrono::duration<double>(config.min_between_changes).count();
    wait = std::min(std::max(wait * config.backoff_factor, least),
                    std::chrono::duration<double>(config.max_backoff).count());
    at += wait;
  }
  return count;
}

// ---- random views --------------------------------------------------------------------------------------------------

struct Seen {
  std::map<std::string, uint64_t> times;
};

class Walk {
 public:
  Walk(uint64_t seed, Seen& seen) : random_(seed), seen_(seen), config_(some_config()), policy_(config_) {
    replicas_ = *std::next(sizes().begin(), random_.below(static_cast<uint32_t>(sizes().size())));
    newcomers_ = random_.below(4);
    pace_ = random_.happens(0.5) ? 0.01 : 0.1;
    meddles_ = random_.happens(0.5);
    calm_ = random_.happens(0.3);
    batch_changes_ = random_.happens(0.5);
  }

  void run(int ticks) {
    for (int tick = 0; tick < ticks && !::testing::Test::HasFailure(); ++tick) {
      now_ += kTick;
      turn();
      world();
      if (meddles_ && random_.happens(0.003)) {
        user();
      }
      ask();
    }
    if (!reconfigured_) {
      EXPECT_LE(unforced_, max_unforced(config_, now_));
    }
  }

 private:
  ElasticConfig some_config() {
    ElasticConfig config;
    config.min_replicas = 1 + random_.below(4);
    if (random_.happens(0.3)) {
      config.max_replicas = config.min_replicas + 8;
      for (uint32_t size = config.min_replicas; size <= config.max_replicas; ++size) {
        if (random_.happens(0.3)) {
          config.discrete_values.insert(config.discrete_values.begin(), size);
        }
      }
    }
    if (config.discrete_values.empty()) {
      config.increment_step = 1 + random_.below(3);
      config.max_replicas = config.min_replicas + config.increment_step * (1 + random_.below(4));
    }
    config.scaling_timeout = seconds(random_.below(8));
    config.faulty_scale_down_timeout = seconds(random_.below(8));
    config.scale_up_snooze = seconds(random_.below(20));
    config.min_between_changes = seconds(random_.below(10));
    config.backoff_factor = random_.happens(0.3) ? 1 : 1 + random_.below(30) / 10.0;
    config.max_backoff = config.min_between_changes + seconds(random_.below(40));
    EXPECT_EQ(mistakes(config), std::vector<std::string>{});
    return config;
  }

  std::set<uint32_t> sizes() const { return sizes_of(config_); }
  uint32_t stay() const { return replicas_ - missing_ - static_cast<uint32_t>(leaving_.size()); }
  uint32_t hold() const { return stay() + newcomers_; }

  // A decision is carried out a while later, if what it needs still exists.
  void turn() {
    if (!forms_at_.has_value() || now_ < *forms_at_) {
      return;
    }
    forms_at_.reset();
    const uint32_t from = replicas_;
    const uint32_t to = deciding_.replicas;
    if (hold() < to) {
      return;
    }
    newcomers_ = hold() - to;  // those no longer needed wait with the newcomers
    replicas_ = to;
    missing_ = 0;
    leaving_.clear();
    policy_.on_changed(from, to, deciding_.forced, now_);
    if (from != 0) {
      last_change_ = now_;
      unforced_ += !deciding_.forced;
      if (deciding_.forced && to < from) {
        last_forced_down_ = now_;
      }
    }
    fresh();
  }

  void world() {
    const double chance = calm_ && (now_ / seconds(60)) % 2 == 1 ? 0 : pace_;
    if (random_.happens(chance)) {
      coming_ += coming_ < 6;
    }
    if (coming_ > 0 && random_.happens(0.1)) {
      --coming_;
      newcomers_ += random_.happens(0.9);
    }
    if (newcomers_ > 0 && random_.happens(chance / 3)) {
      --newcomers_;
    }
    if (stay() > 0 && random_.happens(chance / 4)) {
      leaving_.push_back(now_ + random_.between(Time{}, seconds(20)));
    }
    if (stay() > 0 && random_.happens(chance / 6)) {
      ++missing_;
    }
    missing_ += static_cast<uint32_t>(std::erase_if(leaving_, [&](Time by) { return by <= now_; }));
    if (batch_changes_ && random_.happens(chance / 10)) {
      useful_ = random_.happens(0.3) ? 0 : 1 + random_.below(config_.max_replicas + 2);
    }
  }

  void user() {
    if (random_.happens(0.3)) {
      const ElasticConfig next = some_config();
      const std::optional<uint32_t> asked = policy_.asked_for();
      const bool fits = !asked.has_value() || sizes_of(next).contains(*asked);
      EXPECT_EQ(policy_.configure(next).empty(), fits);
      if (fits) {
        config_ = next;
        reconfigured_ = true;
        fresh();
      }
    } else if (random_.happens(0.3)) {
      EXPECT_EQ(policy_.scale_to(std::nullopt), "");
      fresh();
    } else {
      const uint32_t asked = random_.below(config_.max_replicas + 3);
      const std::string mistake = policy_.scale_to(asked);
      EXPECT_EQ(mistake.empty(), sizes().contains(asked)) << asked << ": " << mistake;
      if (mistake.empty()) {
        EXPECT_EQ(policy_.asked_for(), asked);
        fresh();
      }
    }
  }

  ElasticView view() const {
    ElasticView view{replicas_,    hold(), coming_, missing_, static_cast<uint32_t>(leaving_.size()),
                     std::nullopt, useful_};
    if (!leaving_.empty()) {
      view.leave_by = *std::ranges::min_element(leaving_);
    }
    return view;
  }

  void ask() {
    const ElasticView view = this->view();
    held_.emplace_back(now_, hold());
    missing_since_ = missing_ == 0 ? std::nullopt : std::optional(missing_since_.value_or(now_));
    const ElasticDecision decision = policy_.step(view, now_);
    const ElasticDecision again = policy_.step(view, now_);
    EXPECT_EQ(decision.kind, again.kind);
    EXPECT_EQ(decision.replicas, again.replicas);
    EXPECT_EQ(decision.because, again.because);
    SCOPED_TRACE(std::string(name(decision.kind)) + " to " + std::to_string(decision.replicas) + " of " +
                 std::to_string(replicas_) + " because " + decision.because);
    if (decision.kind == Kind::kStay) {
      judge_stay(view, decision);
    } else {
      judge_change(view, decision);
      if (!forms_at_.has_value()) {
        forms_at_ = now_ + random_.between(Time{}, seconds(2));
      }
      deciding_ = decision;  // only the newest counts
    }
    judge_words(view, decision);
    ++seen_.times[std::string(name(decision.kind)) + (decision.forced ? ", forced" : "")];
  }

  // The most the job may have: limits, the user, the batch; the smallest size is always allowed.
  uint32_t wanted() const {
    uint32_t most = policy_.asked_for().value_or(config_.max_replicas);
    most = useful_ == 0 ? most : std::min(most, useful_);
    return std::max(largest(sizes(), most), *sizes().begin());
  }

  // Since when this many replicas could run, without a break.
  std::optional<Time> there_since(uint32_t replicas) const {
    std::optional<Time> since;
    for (auto held = held_.rbegin(); held != held_.rend() && held->second >= replicas; ++held) {
      since = held->first;
    }
    return since;
  }

  void judge_change(const ElasticView& view, const ElasticDecision& decision) {
    EXPECT_TRUE(sizes().contains(decision.replicas));
    EXPECT_LE(decision.replicas, hold());
    EXPECT_LE(decision.replicas, wanted());
    EXPECT_NE(decision.because, "");
    EXPECT_EQ(decision.kind, decision.replicas > replicas_   ? Kind::kGrow
                             : decision.replicas < replicas_ ? Kind::kShrink
                                                             : Kind::kSwap);
    const bool fixed = policy_.asked_for().has_value() || !sizes().contains(replicas_);
    if (decision.forced) {
      EXPECT_TRUE(view.leaving + view.missing > 0 || fixed);
      if (decision.kind == Kind::kGrow) {
        EXPECT_TRUE(fixed);
      }
      return;
    }
    EXPECT_EQ(view.leaving + view.missing, 0U);
    if (last_change_.has_value()) {
      EXPECT_GE(now_ - *last_change_, config_.min_between_changes);
      EXPECT_GE(now_ - *last_change_, policy_.wait());
    }
    if (decision.kind == Kind::kShrink) {
      EXPECT_LT(useful_, replicas_);
      EXPECT_GT(useful_, 0U);
      return;
    }
    ASSERT_EQ(decision.kind, Kind::kGrow);
    const std::optional<Time> since = there_since(decision.replicas);
    ASSERT_TRUE(since.has_value());
    EXPECT_GE(now_ - *since, config_.scaling_timeout);
    if (last_forced_down_.has_value()) {
      EXPECT_GE(now_ - *last_forced_down_, config_.scale_up_snooze);
    }
  }

  void judge_stay(const ElasticView& view, const ElasticDecision& decision) {
    EXPECT_EQ(decision.replicas, replicas_);
    EXPECT_FALSE(decision.forced);
    const uint32_t most = std::min(wanted(), replicas_);
    if (view.leaving > 0 || !sizes().contains(replicas_)) {
      EXPECT_EQ(largest(sizes(), std::min(hold(), most)), 0U) << "could shrink";
    } else if (view.missing > 0) {
      EXPECT_LT(hold(), most) << "replacements are there";
      if (now_ - *missing_since_ >= config_.faulty_scale_down_timeout) {
        EXPECT_EQ(largest(sizes(), std::min(hold(), most)), 0U) << "could shrink";
      }
    } else if (policy_.asked_for().has_value()) {
      EXPECT_LE(replicas_, *policy_.asked_for());
    }
    // Growth comes eventually: once it may, it waits for more no longer than the scaling timeout.
    const std::set<uint32_t> all = sizes();
    const auto above = all.upper_bound(replicas_);
    bool may_grow = view.leaving + view.missing == 0 && above != all.end() && *above <= std::min(hold(), wanted());
    if (may_grow) {
      may_grow = now_ - *there_since(*above) >= config_.scaling_timeout &&
                 (!last_change_.has_value() || now_ - *last_change_ >= policy_.wait()) &&
                 (!last_forced_down_.has_value() || now_ - *last_forced_down_ >= config_.scale_up_snooze);
    }
    may_grow_since_ = may_grow ? std::optional(may_grow_since_.value_or(now_)) : std::nullopt;
    if (may_grow) {
      EXPECT_LT(now_ - *may_grow_since_, std::max(config_.scaling_timeout, Time(1)));
      ++seen_.times["waits for more"];
    }
  }

  // While nothing happens, the wording changes a few times at most, and never back.
  void judge_words(const ElasticView& view, const ElasticDecision& decision) {
    const auto key = std::tuple(view.replicas, view.ready, view.coming, view.missing, view.leaving, view.useful);
    if (key != words_for_) {
      words_for_ = key;
      words_.clear();
    }
    if (words_.empty() || words_.back() != decision.because) {
      EXPECT_EQ(std::ranges::count(words_, decision.because), 0) << "said before, and something else in between";
      words_.push_back(decision.because);
    }
    EXPECT_LE(words_.size(), 5U);
  }
  void fresh() {
    words_.clear();
    may_grow_since_.reset();
  }

  Random random_;
  Seen& seen_;
  ElasticConfig config_;
  ElasticPolicy policy_;
  double pace_ = 0;
  bool meddles_ = false;
  bool calm_ = false;
  bool batch_changes_ = false;
  bool reconfigured_ = false;

  Time now_{};
  uint32_t replicas_ = 0;
  uint32_t missing_ = 0;
  std::vector<Time> leaving_;
  uint32_t newcomers_ = 0;
  uint32_t coming_ = 0;
  uint32_t useful_ = 0;

  std::optional<Time> forms_at_;
  ElasticDecision deciding_;
  std::vector<std::pair<Time, uint32_t>> held_;
  std::optional<Time> missing_since_;
  std::optional<Time> last_change_;
  std::optional<Time> last_forced_down_;
  std::optional<Time> may_grow_since_;
  double unforced_ = 0;
  std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t> words_for_;
  std::vector<std::string> words_;
};

TEST(ElasticRandom, every_decision_keeps_to_the_rules) {
  const uint64_t only = number_from("KEEPSTEP_SEED", 0);
  const uint64_t first = only != 0 ? only : 1;
  const uint64_t last = only != 0 ? only : number_from("KEEPSTEP_SCHEDULES", 20000) / 50;
  Seen seen;
  for (uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE("KEEPSTEP_SEED=" + std::to_string(seed) + " keepstep_brain_test --gtest_filter='ElasticRandom*'");
    Walk(seed, seen).run(2000);
  }
  if (only == 0) {
    for (const char* path :
         {"stay", "grow", "grow, forced", "shrink", "shrink, forced", "swap, forced", "waits for more"}) {
      EXPECT_GT(seen.times[path], 100U) << path;
    }
  }
}

// ---- capacity that comes and goes all day --------------------------------------------------------------------------

// Besides kFirm nodes that never leave, kFlapping nodes come and go independently.
constexpr uint32_t kFirm = 2;
constexpr uint32_t kFlapping = 6;
constexpr Time kDay = std::chrono::hours(24);

struct Weather {
  Time spell{};        // how long one is there, and then away: varies from half to one and a half times this
  bool notice = true;  // it gives notice five seconds before it leaves; otherwise it is lost
};

struct Outcome {
  double work = 0;  // seconds of training, times replicas
  uint64_t changes = 0;
  uint64_t unforced = 0;
  uint64_t lasted = 0;  // unforced growth that was not undone within the minimum time between changes
};

// A job of replicas of one node each. Every change, whatever its cause, stops training for `cost`. Without a policy the
// job follows every change at once; then a lost node costs no more than one that gives notice, which flatters that
// side.
class Day {
 public:
  Day(const Weather& weather, Time cost, ElasticPolicy* policy)
      : random_(7), weather_(weather), cost_(cost), policy_(policy), nodes_(kFirm + kFlapping) {
    for (size_t node = 0; node < nodes_.size(); ++node) {
      const bool firm = node < kFirm;
      nodes_[node] = Node{firm, firm, false, firm ? Time::max() : spell()};
    }
  }

  Outcome run() {
    for (now_ = Time{}; now_ < kDay; now_ += kTick) {
      pass();
      ElasticView view = look();
      Time from = now_;  // trains from then to the end of the tick
      if (!forms_at_.has_value()) {
        if (const ElasticDecision decision = decide(view); decision.kind != Kind::kStay) {
          begin(decision, view.replicas);
        }
      }
      if (forms_at_.has_value()) {
        if (*forms_at_ >= now_ + kTick) {
          continue;
        }
        from = *forms_at_;
        form();
        view = look();
      }
      if (view.missing == 0) {
        outcome_.work += std::chrono::duration<double>(now_ + kTick - from).count() * view.replicas;
      }
    }
    return outcome_;
  }

 private:
  static constexpr Time kNotice = std::chrono::seconds(5);
  struct Node {
    bool there = false;
    bool in_job = false;
    bool leaves = false;
    Time turns{};  // when it arrives, announces its leave, or is gone
  };

  Time spell() { return now_ + random_.between(weather_.spell / 2, weather_.spell * 3 / 2); }

  void pass() {
    for (Node& node : nodes_) {
      if (now_ < node.turns) {
        continue;
      }
      if (weather_.notice && node.in_job && node.there && !node.leaves) {
        node.leaves = true;
        node.turns = now_ + kNotice;
      } else {
        node.there = !node.there;
        node.leaves = false;
        node.turns = spell();
      }
    }
  }

  ElasticView look() const {
    ElasticView view;
    for (const Node& node : nodes_) {
      view.replicas += node.in_job;
      view.ready += node.there && !node.leaves;
      view.missing += node.in_job && !node.there;
      view.leaving += node.in_job && node.there && node.leaves;
    }
    return view;
  }

  ElasticDecision decide(const ElasticView& view) {
    if (policy_ != nullptr) {
      return policy_->step(view, now_);
    }
    // Follows every change at once.
    const bool as_it_is = view.ready == view.replicas && view.missing + view.leaving == 0;
    return {as_it_is ? Kind::kStay : Kind::kGrow, view.ready, true, "", {}};
  }

  // Those that stay first, then newcomers.
  void begin(const ElasticDecision& decision, uint32_t replicas) {
    from_ = replicas;
    decision_ = decision;
    std::vector<Node*> order;
    for (const bool in_job : {true, false}) {
      for (Node& node : nodes_) {
        if (node.in_job == in_job && node.there && !node.leaves) {
          order.push_back(&node);
        }
      }
    }
    for (Node& node : nodes_) {
      node.in_job = false;
      node.turns = node.leaves ? now_ : node.turns;  // nothing holds it any more
    }
    for (size_t index = 0; index < decision.replicas; ++index) {
      order[index]->in_job = true;
    }
    forms_at_ = now_ + cost_;
  }

  void form() {
    ++outcome_.changes;
    if (policy_ != nullptr) {
      const Time at = *forms_at_;
      const uint32_t to = decision_.replicas;
      if (growth_.has_value() && at - growth_->second >= policy_->config().min_between_changes) {
        ++outcome_.lasted;
        growth_.reset();
      } else if (growth_.has_value() && to <= growth_->first) {
        growth_.reset();
      }
      if (!decision_.forced) {
        ++outcome_.unforced;
        growth_ = {from_, at};
      }
      policy_->on_changed(from_, to, decision_.forced, at);
    }
    forms_at_.reset();
  }

  Random random_;
  Weather weather_;
  Time cost_;
  ElasticPolicy* policy_;
  std::vector<Node> nodes_;
  Time now_{};
  std::optional<Time> forms_at_;
  ElasticDecision decision_;
  uint32_t from_ = 0;
  std::optional<std::pair<uint32_t, Time>> growth_;  // from which size, and when
  Outcome outcome_;
};

class ElasticThrash : public ::testing::Test {
 protected:
  // Prints the results, for docs/design/elastic.md.
  void compare(int64_t spell_s, bool notice, double cost_s) {
    const bool patient = config.min_between_changes >= seconds(60);
    config.max_replicas = kFirm + kFlapping;
    ElasticPolicy policy(config);
    const Weather weather{seconds(spell_s), notice};
    const Time cost = std::chrono::milliseconds(std::llround(cost_s * 1000));
    ours = Day(weather, cost, &policy).run();
    theirs = Day(weather, cost, nullptr).run();
    const double day = std::chrono::duration<double>(kDay).count();
    std::cout << (notice ? "notice " : "loss   ") << std::setw(5) << spell_s << " s, a change costs " << std::setw(4)
              << cost_s << " s, waits from " << config.min_between_changes / seconds(1) << " s: policy " << std::setw(7)
              << ours.work / day << " replicas on average, " << std::setw(5) << ours.changes << " changes; following "
              << std::setw(9) << theirs.work / day << ", " << std::setw(6) << theirs.changes << " changes; ratio "
              << ours.work / theirs.work << "\n";

    EXPECT_LE(static_cast<double>(ours.unforced), max_unforced(config, kDay));
    // Each growth can be undone one replica at a time; in addition there are swaps.
    const double swaps = ElasticPolicy::kMaxSwaps * (1 + kDay / config.min_between_changes);
    EXPECT_LE(static_cast<double>(ours.changes), static_cast<double>(ours.unforced) * (1 + kFlapping) + swaps);
    if (cost_s <= 1 || patient) {
      EXPECT_GT(ours.work / day, 0.95 * kFirm) << "worse than staying with the nodes that never go";
    }
  }

  void be_patient() {
    config.scaling_timeout = seconds(30);
    config.faulty_scale_down_timeout = seconds(30);
    config.min_between_changes = seconds(60);
    config.scale_up_snooze = seconds(120);
  }

  ElasticConfig config;
  Outcome ours;
  Outcome theirs;
};

TEST_F(ElasticThrash, capacity_that_flaps_every_few_seconds_leads_to_few_changes_and_more_work_than_following_it) {
  for (const auto& [spell_s, notice] : {std::pair(3, true), std::pair(6, true), std::pair(6, false)}) {
    for (const double cost_s : {0.2, 1.0, 10.0}) {
      compare(spell_s, notice, cost_s);
      // Growth that lasts allows one more early growth that does not.
      EXPECT_LE(static_cast<double>(ours.unforced),
                max_unforced_if_none_lasts(config, kDay) + 2 * static_cast<double>(ours.lasted));
      EXPECT_GT(theirs.changes, ours.changes);
      if (cost_s >= 1) {
        EXPECT_GT(ours.work, theirs.work * cost_s);
      }
    }
  }
}

TEST_F(ElasticThrash, longer_times_leave_capacity_alone_that_flaps_where_changes_cost_much) {
  be_patient();
  for (const auto& [spell_s, notice] : {std::pair(3, true), std::pair(6, true), std::pair(6, false)}) {
    compare(spell_s, notice, 10);
    EXPECT_GT(theirs.changes, 20 * ours.changes);
    EXPECT_GT(ours.work, 30 * theirs.work);
  }
  compare(60, true, 10);
  EXPECT_GT(ours.work, theirs.work);
  compare(300, true, 10);
  EXPECT_GT(ours.work, 0.9 * theirs.work);
}

TEST_F(ElasticThrash, capacity_that_stays_for_a_while_is_used) {
  compare(60, true, 1);
  EXPECT_GT(ours.work, 0.9 * theirs.work);
  for (const bool notice : {true, false}) {
    compare(60, notice, 0.2);
    EXPECT_GT(ours.work, 0.8 * theirs.work);
    compare(300, notice, 0.2);
    EXPECT_GT(ours.work, 0.95 * theirs.work);
    compare(1800, notice, 0.2);
    EXPECT_GT(ours.work, 0.99 * theirs.work);
  }
}

TEST_F(ElasticThrash, without_backoff_more_is_used_of_capacity_that_flaps_where_changes_are_cheap) {
  config.min_between_changes = seconds(5);
  config.backoff_factor = 1;
  compare(60, true, 0.2);
  EXPECT_GT(ours.work, 0.8 * theirs.work);
  compare(6, true, 0.2);
  EXPECT_GT(ours.work, 0.7 * theirs.work);
}

}  // namespace
}  // namespace keepstep::brain
