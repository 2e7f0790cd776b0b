// What the failure detector sees: pages as workers write them, real processes, reports between two agents.
#include "agent/watch/hang_watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "base/socket/tcp_socket.h"
#include "comm/progress.h"
#include "comm/tcp/tcp_config.h"

namespace keepstep::agent {
namespace {

constexpr int64_t kLookNs = 100'000'000;
constexpr brain::Identity kIdentity{1, 3};

// A process that does nothing, and the memory of a worker.
class FakeWorker {
 public:
  explicit FakeWorker(brain::WorkerId id) {
    comm::CommConfig config{.max_world = 2, .groups = 1, .slot_bytes = 4096, .group_slot_bytes = 4096};
    process_ = *WorkerProcess::create(id, false, rank::WorkerLayout(config));
    process_->recoverable = true;
    process_->pid = fork();
    if (process_->pid == 0) {
      while (true) {
        pause();
      }
    }
    wait_until_it_sleeps();
    page().word = brain::pack(brain::StepWord{kIdentity, 101, brain::Vote::kOpen, false});
  }
  ~FakeWorker() {
    kill(process_->pid, SIGKILL);
    waitpid(process_->pid, nullptr, 0);
  }
  FakeWorker(const FakeWorker&) = delete;
  FakeWorker& operator=(const FakeWorker&) = delete;

  rank::WorkerPage& page() { return process_->page(); }
  const WorkerProcess& process() const { return *process_; }
  void stop() {
    kill(process_->pid, SIGSTOP);
    waitpid(process_->pid, nullptr, WUNTRACED);
  }
  void commit(brain::Step step, int64_t at_ns) {
    page().progress.committed_ns = at_ns;
    page().progress.committed = step;
    page().progress.place = rank::pack_place(step + 1, 1, brain::StepPhase::kMicroBatch);
    page().word = brain::pack(brain::StepWord{kIdentity, step + 1, brain::Vote::kOpen, false});
  }
  void enter_collective() {
    comm::CollectiveWords& words = page().progress.collectives;
    words.kind = 1;
    words.world = 1;
    ++words.entered_world;
    ++words.entered;
  }

 private:
  // A process that waits for a CPU is starved, and these tests check more often than their clock says.
  void wait_until_it_sleeps() const {
    char state = '?';
    for (int tries = 0; tries < 10'000 && state != 'S'; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::ifstream in("/proc/" + std::to_string(process_->pid) + "/stat");
      std::string stat;
      std::getline(in, stat);
      state = process_state(stat);
    }
    EXPECT_EQ(state, 'S') << "the process does not come to its pause";
  }

  std::shared_ptr<WorkerProcess> process_;
};

// An agent with its ranks.
struct Node {
  HangWatch watch{brain::HangConfig{}};
  HangWatch::View view{.identity = kIdentity, .world = 2, .version = 100, .trains = true};
};

std::vector<brain::Suspicion> look_for(Node& node, int64_t& now_ns, int looks) {
  for (int i = 0; i < looks; ++i) {
    now_ns += kLookNs;
    if (auto found = node.watch.look(node.view, now_ns); !found.empty()) {
      return found;
    }
  }
  return {};
}

TEST(HangWatch, reads_the_state_of_a_process_whatever_its_name) {
  EXPECT_EQ(process_state("4711 (python3) T 1 4711"), 'T');
  EXPECT_EQ(process_state("4711 (a) R (b)) S 1 4711"), 'S');
  EXPECT_EQ(process_state(""), '?');
  EXPECT_EQ(process_state("4711 (python3)"), '?');
}

TEST(HangWatch, a_stopped_process_is_told_and_no_other) {
  FakeWorker first(10);
  FakeWorker second(11);
  Node node;
  node.view.members = {{0, &first.process()}, {1, &second.process()}};
  int64_t now_ns = 1'000'000'000;
  EXPECT_TRUE(look_for(node, now_ns, 5).empty());
  second.stop();
  const auto found = look_for(node, now_ns, 3);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().culprit.worker, 11u);
  EXPECT_TRUE(found.front().stopped);
}

// After this the watch knows how long a step takes.
void commit_until_step_120(Node& node, FakeWorker& first, FakeWorker& second, int64_t& now_ns) {
  node.view.members = {{0, &first.process()}, {1, &second.process()}};
  for (brain::Step step = 101; step < 120; ++step) {
    first.commit(step, now_ns);
    second.commit(step, now_ns);
    EXPECT_TRUE(look_for(node, now_ns, 2).empty());
  }
}

// Its pages still say how many steps the function before had. A step that takes long is not measured against these.
TEST(HangWatch, what_was_committed_in_another_generation_is_not_learned_from) {
  FakeWorker first(10);
  FakeWorker second(11);
  Node node;
  int64_t now_ns = 1'000'000'000;
  commit_until_step_120(node, first, second, now_ns);
  node.view.identity.generation += 1;
  node.view.version = 0;
  EXPECT_TRUE(look_for(node, now_ns, 1).empty());
  for (FakeWorker* worker : {&first, &second}) {
    EXPECT_EQ(worker->process().committed(kIdentity), 119u);
    EXPECT_EQ(worker->process().committed(node.view.identity), 0u);
    worker->page().progress.committed = 0;
    worker->page().progress.place = rank::pack_place(1, 1, brain::StepPhase::kMicroBatch);
    worker->page().word = brain::pack(brain::StepWord{node.view.identity, 1, brain::Vote::kOpen, false});
  }
  first.enter_collective();
  EXPECT_TRUE(look_for(node, now_ns, 50).empty());
}

TEST(HangWatch, who_does_not_come_to_a_collective_is_told_by_the_words_in_the_pages) {
  FakeWorker first(10);
  FakeWorker second(11);
  Node node;
  int64_t now_ns = 1'000'000'000;
  commit_until_step_120(node, first, second, now_ns);
  first.enter_collective();
  const auto found = look_for(node, now_ns, 20);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().culprit.worker, 11u);
  EXPECT_EQ(found.front().culprit.step, 120u);
  EXPECT_EQ(found.front().step_time, std::chrono::milliseconds(200));
  EXPECT_NE(found.front().because.find("all_reduce 1"), std::string::npos) << found.front().because;
}

TEST(HangWatch, ranks_that_wait_for_another_node_are_reported_and_the_agent_there_names_its_rank) {
  FakeWorker here(10);
  FakeWorker there(11);
  Node waits;
  Node hangs;
  waits.view.members = {{0, &here.process()}};
  hangs.view.members = {{1, &there.process()}};
  int64_t now_ns = 1'000'000'000;
  for (brain::Step step = 101; step < 120; ++step) {
    here.commit(step, now_ns);
    there.commit(step, now_ns);
    for (int i = 0; i < 2; ++i) {
      now_ns += kLookNs;
      EXPECT_TRUE(waits.watch.look(waits.view, now_ns).empty());
      EXPECT_TRUE(hangs.watch.look(hangs.view, now_ns).empty());
      EXPECT_FALSE(waits.watch.report().has_value());
    }
  }
  here.enter_collective();
  std::vector<brain::Suspicion> found;
  for (int i = 0; i < 30 && found.empty(); ++i) {
    now_ns += kLookNs;
    EXPECT_TRUE(waits.watch.look(waits.view, now_ns).empty());
    EXPECT_FALSE(hangs.watch.report().has_value());
    if (const auto report = waits.watch.report(); report.has_value()) {
      const auto came = messages::read<messages::ByAny>(messages::write(*report));
      ASSERT_TRUE(came.ok()) << came.status();
      ASSERT_TRUE(hangs.watch.on_report(0, std::get<messages::WaitingRanks>(*came), now_ns).ok());
    }
    found = hangs.watch.look(hangs.view, now_ns);
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.front().culprit.worker, 11u);
  EXPECT_EQ(found.front().waiting, std::vector<brain::Rank>{0});
}

// The limits belong to different modules: the one that detects a silent link must be over before a rank is blamed for
// it.
TEST(HangWatch, a_silent_link_is_told_by_the_ranks_before_anybody_is_named_for_it) {
  const comm::TcpConfig tcp{.key = *net::SharedKey::data(std::string(64, '0'), 1, 1)};
  const brain::Time keepalive = std::chrono::seconds(kKeepaliveIdleS + kKeepaliveProbes * kKeepaliveIntervalS);
  const brain::Time told = std::max({keepalive, brain::Time(tcp.connect_ns), brain::Time(tcp.silent_ns)});
  EXPECT_GT(brain::HangConfig{}.link_limit, told + brain::Time(tcp.patience_ns) + std::chrono::seconds(5));
}

TEST(HangWatch, a_collective_that_goes_on_for_long_is_no_hang) {
  FakeWorker first(10);
  FakeWorker second(11);
  Node node;
  int64_t now_ns = 1'000'000'000;
  commit_until_step_120(node, first, second, now_ns);
  first.enter_collective();
  second.enter_collective();
  for (int second_of_it = 0; second_of_it < 60; ++second_of_it) {
    comm::note_moved(second.page().progress.collectives.moved);
    EXPECT_TRUE(look_for(node, now_ns, 10).empty()) << "after " << second_of_it << " s";
  }
  EXPECT_EQ(look_for(node, now_ns, 200).size(), 1u) << "nothing goes on any more";
}

TEST(HangWatch, what_a_process_waits_for_a_cpu_or_a_disk_does_not_count_against_it) {
  constexpr int64_t kPassed = 100;
  EXPECT_EQ(starved_time('S', kPassed, 0, 0), brain::Time(0)) << "it sleeps";
  EXPECT_EQ(starved_time('S', kPassed, 5, 30), brain::Time(30)) << "it waited, ran, and sleeps again";
  EXPECT_EQ(starved_time('R', kPassed, 100, 0), brain::Time(0)) << "it loops, alone";
  EXPECT_EQ(starved_time('R', kPassed, 15, 85), brain::Time(85)) << "it loops, or computes, on a busy machine";
  EXPECT_EQ(starved_time('R', kPassed, 0, 0), brain::Time(100)) << "it waits for a CPU all the time";
  EXPECT_EQ(starved_time('D', kPassed, 1, 10), brain::Time(99));
  EXPECT_EQ(starved_time('D', kPassed, 60, 10), brain::Time(10)) << "in between it computed";
  EXPECT_EQ(starved_time('S', kPassed, 0, 140), brain::Time(100)) << "no more than passed";
}

TEST(HangWatch, a_report_that_no_agent_makes_is_refused) {
  FakeWorker only(10);
  Node node;
  node.view.members = {{0, &only.process()}};
  EXPECT_TRUE(node.watch.look(node.view, 1).empty());
  brain::RankProgress rank;
  rank.rank = 1;
  rank.still_for = brain::Time(1);
  messages::WaitingRanks report{{1, 3}, {rank}};
  EXPECT_TRUE(node.watch.on_report(1, report, 2).ok());
  report.ranks = {rank, rank, rank};
  EXPECT_FALSE(node.watch.on_report(1, report, 2).ok()) << "more ranks than there are";
  const auto refused = [&](const std::function<void(brain::RankProgress&)>& mistake) {
    report.ranks = {rank};
    mistake(report.ranks.front());
    return !node.watch.on_report(1, report, 2).ok();
  };
  EXPECT_TRUE(refused([](brain::RankProgress& each) { each.phase = static_cast<brain::StepPhase>(4); }));
  EXPECT_TRUE(refused([](brain::RankProgress& each) { each.waits = static_cast<brain::WaitsIn>(8); }));
  EXPECT_TRUE(refused([](brain::RankProgress& each) { each.what = std::string(65, 'x'); }));
  EXPECT_TRUE(refused([](brain::RankProgress& each) { each.still_for = brain::Time(-1); }));
  EXPECT_TRUE(refused([](brain::RankProgress& each) { each.still_for.reset(); }));
  report.identity.generation = 2;
  EXPECT_TRUE(node.watch.on_report(1, report, 2).ok()) << "of a generation that is over: dropped";
}

}  // namespace
}  // namespace keepstep::agent
