// A generation on two nodes with real engines: pages, Prepare and words as agents make them, TCP on loopback between.
#include "agent/memory/generation.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "agent/workers/worker_process.h"
#include "base/socket/tcp_socket.h"
#include "brain/commit/step_commit.h"
#include "messages/envelope.h"
#include "messages/rank_messages.h"
#include "rank/engine/engine.h"

namespace keepstep::agent {
namespace {

using brain::Identity;
using brain::Member;
using brain::Rank;
using brain::StateKind;
using brain::Step;
using brain::Version;
using messages::Envelope;
using rank::Engine;

constexpr comm::CommConfig kConfig{
    .max_world = 4, .groups = 2, .slot_bytes = 16384, .group_slot_bytes = 4096, .ring_bytes = 8192};

// What the agents receive from one worker.
class Heard {
 public:
  explicit Heard(const PacketSocket& socket) : thread_([this, &socket] { listen(socket); }) {}
  ~Heard() { thread_.join(); }
  // The first `Message`, and the generation in which it was sent.
  template <typename Message>
  std::pair<Message, Identity> await() {
    std::unique_lock lock(mutex_);
    std::optional<Envelope> found;
    came_.wait(lock, [&] {
      const auto first = std::ranges::find_if(envelopes_, is<Message>);
      found = first == envelopes_.end() ? std::nullopt : std::optional(*first);
      return found.has_value();
    });
    return {std::get<Message>(*messages::read<messages::FromRank>(found->text)), found->identity};
  }
  template <typename Message>
  size_t count() {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::ranges::count_if(envelopes_, is<Message>));
  }

 private:
  template <typename Message>
  static bool is(const Envelope& envelope) {
    return messages::name_of(envelope.text) == Message::kName;
  }
  void listen(const PacketSocket& socket) {
    while (true) {
      StatusOr<Packet> packet = socket.receive();
      if (!packet.ok()) {
        return;
      }
      const std::lock_guard lock(mutex_);
      envelopes_.push_back(*messages::decode(*packet));
      came_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Envelope> envelopes_;
  std::thread thread_;
};

// A worker as its agent sees it, and its engine.
struct Worker {
  explicit Worker(brain::WorkerId id) : process(*WorkerProcess::create(id, false, rank::WorkerLayout(kConfig))) {
    heard = std::make_unique<Heard>(process->socket);
    tell({}, messages::Welcome{.comm = kConfig});
    Fd memory(fcntl(process->memory.fd(), F_DUPFD_CLOEXEC, 0));
    Fd socket(fcntl(process->child_socket.fd(), F_DUPFD_CLOEXEC, 0));
    process->child_socket = PacketSocket();
    engine = *Engine::attach(std::move(socket), std::move(memory), {});
    engine->set_state(StateKind::kClean, 0);
  }
  ~Worker() { engine.reset(); }
  template <typename Message>
  void tell(Identity identity, const Message& message, const std::vector<int>& fds = {}) {
    const Status sent =
        messages::send_encoded(process->socket, messages::encode({0, identity, messages::write(message)}), fds, true);
    ASSERT_TRUE(sent.ok()) << sent;
  }
  std::vector<rank::CommitRecord> commits() {
    std::vector<rank::CommitRecord> found;
    const Status status = process->log.collect(
        process->memory.data() + rank::WorkerLayout::kLog,
        [&](const rank::CommitRecord& record) { found.push_back(record); },
        [](Step, std::string_view) { FAIL() << "nobody logged"; });
    EXPECT_TRUE(status.ok()) << status;
    return found;
  }

  std::shared_ptr<WorkerProcess> process;
  std::unique_ptr<Heard> heard;  // ends when the engine's end of the socket is gone
  std::unique_ptr<Engine> engine;
};

// A job; this plays its agents. `nodes`: by rank, numbered from 0.
class Job {
 public:
  explicit Job(std::vector<uint32_t> nodes) : nodes_(std::move(nodes)) {
    for (Rank rank = 0; rank < world(); ++rank) {
      listeners_.push_back(*listen_tcp({"127.0.0.1", 0}));
      workers_.push_back(nullptr);
      start(rank);
    }
  }
  uint32_t world() const { return static_cast<uint32_t>(nodes_.size()); }
  uint32_t count() const { return *std::max_element(nodes_.begin(), nodes_.end()) + 1; }
  Worker& worker(Rank rank) { return *workers_[rank]; }
  Engine& engine(Rank rank) { return *workers_[rank]->engine; }
  Generation& generation(uint32_t node) { return *generations_[node]; }
  rank::WorkerPage& page(Rank rank) { return workers_[rank]->process->page(); }

  void kill(Rank rank) {
    graves_.push_back(workers_[rank]->process);  // its agent keeps its memory
    workers_[rank]->engine.reset();
  }
  void start(Rank rank) { workers_[rank] = std::make_unique<Worker>(next_worker_++); }

  messages::Prepare message(Rank rank, Version version, Identity identity) const {
    messages::Prepare prepare{.rank = rank,
                              .version = version,
                              .entry = "start",
                              .because = "test",
                              .data_key = net::SharedKey::data_of(secret_, identity.term, identity.generation)->hex()};
    for (Rank other = 0; other < world(); ++other) {
      prepare.table.push_back({nodes_[other], "127.0.0.1", local_address(listeners_[other].get())->port, 1, 0});
      if (nodes_[other] == nodes_[rank]) {
        prepare.workers.push_back(workers_[other]->process->id);
        prepare.ranks.push_back(other);
      }
    }
    return prepare;
  }
  std::vector<int> fds(Rank rank) const {
    std::vector<int> result = {generations_[nodes_[rank]]->fd()};
    for (Rank other = 0; other < world(); ++other) {
      if (nodes_[other] == nodes_[rank]) {
        result.push_back(workers_[other]->process->memory.fd());
      }
    }
    result.push_back(listeners_[rank].get());
    return result;
  }
  void create(Identity identity, Version version) {
    std::vector<brain::RankTable::Entry> entries;
    for (Rank rank = 0; rank < world(); ++rank) {
      const uint16_t port = local_address(listeners_[rank].get())->port;
      entries.push_back({nodes_[rank], 1, 0, {brain::ipv4(127, 0, 0, 1), port}});
    }
    old_ = std::exchange(generations_, {});
    for (uint32_t node = 0; node < count(); ++node) {
      brain::Prepare prepare{identity, version, *brain::RankTable::make(entries), {}, "test"};
      for (Rank rank = 0; rank < world(); ++rank) {
        if (nodes_[rank] == node) {
          prepare.members.push_back({rank, workers_[rank]->process->id, node});
        }
      }
      generations_.push_back(*Generation::create(prepare, kConfig));
    }
  }
  void prepare(Identity identity, Version version) {
    create(identity, version);
    for (Rank rank = 0; rank < world(); ++rank) {
      worker(rank).tell(identity, message(rank, version, identity), fds(rank));
      worker(rank).tell(identity, messages::Activate{.version = version});
    }
  }
  std::vector<brain::SealedWord> seal(uint32_t node) {
    std::vector<Generation::Holder> holders;
    for (Rank rank = 0; rank < world(); ++rank) {
      if (nodes_[rank] == node) {
        holders.push_back({rank, workers_[rank]->process->id, &page(rank)});
      }
    }
    return generations_[node]->seal(holders);
  }

  void in_threads(const std::function<void(Rank)>& body) {
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < world(); ++rank) {
      threads.emplace_back(body, rank);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

 private:
  const std::vector<uint32_t> nodes_;
  const std::string secret_ = net::SharedKey::random_data_secret();
  brain::WorkerId next_worker_ = 1;
  std::vector<Fd> listeners_;
  std::vector<std::unique_ptr<Generation>> generations_;
  std::vector<std::unique_ptr<Generation>> old_;
  std::vector<std::shared_ptr<WorkerProcess>> graves_;
  std::vector<std::unique_ptr<Worker>> workers_;  // destroyed first
};

double loss_of(Rank rank, Step step) {
  return std::ldexp(1.0 + 0.1 * rank, static_cast<int>((step * 13 + rank * 29) % 60));
}

// The mean as computed in rank order on one node.
double mean_of(uint32_t world, Step step) {
  double sum = 0;
  uint64_t count = 0;
  for (Rank rank = 0; rank < world; ++rank) {
    sum += loss_of(rank, step);
    count += rank + 1;
  }
  return sum / static_cast<double>(count);
}

void enter(Engine& engine, Identity identity, Rank rank, uint32_t world) {
  const StatusOr<rank::Assignment> assignment = engine.wait_assignment();
  ASSERT_TRUE(assignment.ok()) << assignment.status();
  ASSERT_EQ(assignment->identity, identity);
  ASSERT_EQ(assignment->rank, rank);
  ASSERT_EQ(assignment->world, world);
  ASSERT_TRUE(engine.ready().ok());
  const Status formed = engine.form();
  ASSERT_TRUE(formed.ok()) << formed;
}

rank::VoteResult vote(Engine& engine, Rank rank, Step step) {
  engine.steps().record_loss(step, loss_of(rank, step), rank + 1);
  return engine.steps().vote(step, 0);
}

void commit(Engine& engine, Rank rank, uint32_t world, Step step) {
  float sum = static_cast<float>(rank + step);
  comm::Communicator& comm = *engine.communicator();
  const comm::OpId op = comm.all_reduce(comm::kWorld, &sum, 1, comm::DataType::kFloat32, comm::ReduceOp::kSum);
  ASSERT_EQ(comm.wait(op).outcome, comm::Outcome::kDone);
  comm.forget(op);
  ASSERT_EQ(sum, static_cast<float>(world * step + world * (world - 1) / 2));
  ASSERT_TRUE(vote(engine, rank, step).decided) << "step " << step;
  engine.steps().begin_update(step);
  ASSERT_TRUE(engine.steps().end_update(step));
  ASSERT_EQ(std::bit_cast<uint64_t>(engine.steps().mean_loss(step)), std::bit_cast<uint64_t>(mean_of(world, step)));
}

TEST(GenerationTest, a_job_of_one_node_has_no_votes_across) {
  brain::Prepare prepare{{1, 1}, 0, *brain::RankTable::make({{0, 2, 0, {}}}), {{0, 1, 0}, {1, 2, 0}}, "test"};
  const auto generation = *Generation::create(prepare, kConfig);
  const auto memory = *SharedMemory::attach(Fd(fcntl(generation->fd(), F_DUPFD_CLOEXEC, 0)), rank::kHeaderBytes);
  const auto& page = *reinterpret_cast<const rank::GenerationPage*>(memory.data());
  EXPECT_EQ(page.world, 2u);
  EXPECT_EQ(page.across, 0u);
}

TEST(GenerationTest,
     a_page_whose_collectives_are_cut_short_is_interrupted_and_only_a_sealed_one_says_so_to_who_opens_its_word) {
  brain::Prepare prepare{{1, 1}, 0, *brain::RankTable::make({{0, 1, 0, {}}}), {{0, 1, 0}}, "test"};
  const auto generation = *Generation::create(prepare, kConfig);
  const auto memory = *SharedMemory::attach(Fd(fcntl(generation->fd(), F_DUPFD_CLOEXEC, 0)), rank::kHeaderBytes);
  const auto& page = *reinterpret_cast<const rank::GenerationPage*>(memory.data());
  generation->cut_collectives_short();
  EXPECT_EQ(page.interrupted.load(), 1u);
  EXPECT_EQ(page.sealing.load(), 0u);
  (void)generation->seal({});
  EXPECT_EQ(page.sealing.load(), 1u);
}

// Two ranks finished. One is released, ends, and is killed; only then is the other released, too.
TEST(GenerationTest, a_death_after_the_release_interrupts_who_waits_and_nobody_else) {
  constexpr Identity kIdentity{1, 1};
  Job job({0, 0});
  job.prepare(kIdentity, 0);
  job.in_threads([&](Rank rank) { enter(job.engine(rank), kIdentity, rank, 2); });
  std::thread finishing([&] { EXPECT_TRUE(job.engine(0).finish().ok()) << "a release that was on its way is lost"; });
  (void)job.worker(0).heard->await<messages::Finished>();
  job.generation(0).cut_collectives_short();
  // Once this has arrived the rank has been through a wait, and did not leave because of the page.
  job.worker(0).tell(kIdentity, messages::Notice{"test"});
  while (job.engine(0).agent().notice().empty()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(job.engine(0).interrupted());
  job.worker(0).tell(kIdentity, messages::Release{});
  finishing.join();
  EXPECT_FALSE(job.engine(0).interrupted()) << "a forward after the training function would be left";
  float value = 1;
  comm::Communicator& comm = *job.engine(0).communicator();
  const comm::OpId op = comm.all_reduce(comm::kWorld, &value, 1, comm::DataType::kFloat32, comm::ReduceOp::kSum);
  EXPECT_EQ(comm.wait(op).outcome, comm::Outcome::kInterrupted);
  comm.forget(op);
}

TEST(GenerationTest, ranks_on_two_nodes_commit_together_and_go_on_with_a_newcomer) {
  constexpr Identity kFirst{1, 1};
  constexpr Identity kSecond{1, 2};
  Job job({0, 0, 1});
  job.prepare(kFirst, 0);
  job.in_threads([&](Rank rank) {
    enter(job.engine(rank), kFirst, rank, 3);
    for (Step step = 1; step <= 20; ++step) {
      commit(job.engine(rank), rank, 3, step);
    }
  });
  EXPECT_EQ(job.worker(0).heard->await<messages::Formed>().second, kFirst);
  EXPECT_EQ(job.worker(1).heard->count<messages::Formed>() + job.worker(2).heard->count<messages::Formed>(), 0u);
  const std::vector<rank::CommitRecord> commits = job.worker(2).commits();
  ASSERT_EQ(commits.size(), 20u);
  EXPECT_EQ(commits.back().step, 20u);
  EXPECT_EQ(commits.back().identity, kFirst);
  EXPECT_TRUE(commits.back().has_mean);
  EXPECT_EQ(commits.back().mean, mean_of(3, 20));
  EXPECT_EQ(job.worker(2).heard->count<messages::Collect>(), 1u) << "of the generation's first step";

  // Rank 2 dies, and no agent is told: its peers' leader reports it.
  job.kill(2);
  std::vector<std::thread> waiting;
  for (const Rank rank : {0u, 1u}) {
    waiting.emplace_back([&, rank] {
      EXPECT_FALSE(vote(job.engine(rank), rank, 21).decided);
      const StatusOr<Version> verdict = job.engine(rank).steps().wait_verdict();
      EXPECT_TRUE(verdict.ok() && *verdict == 20) << verdict.status();
    });
  }
  const messages::Faulted fault = job.worker(0).heard->await<messages::Faulted>().first;
  EXPECT_EQ(fault.step, 21);
  EXPECT_NE(fault.what.find("rank 2"), std::string::npos) << fault.what;
  EXPECT_FALSE(fault.fatal);
  std::vector<brain::SealedWord> words = job.seal(1);
  std::ranges::copy(job.seal(0), std::back_inserter(words));
  const brain::Verdict verdict = brain::decide(kFirst, 0, words);
  EXPECT_EQ(verdict.version, 20u) << verdict.because;
  job.generation(0).announce(verdict.version);
  for (std::thread& thread : waiting) {
    thread.join();
  }

  job.start(2);
  job.engine(2).set_state(StateKind::kClean, 20);
  job.prepare(kSecond, 20);
  job.in_threads([&](Rank rank) {
    enter(job.engine(rank), kSecond, rank, 3);
    for (Step step = 21; step <= 40; ++step) {
      commit(job.engine(rank), rank, 3, step);
    }
  });
}

// All had voted, but no leader had received all votes: the verdict counts the step, and brings its loss.
TEST(GenerationTest, a_verdict_brings_the_loss_that_no_rank_can_add) {
  constexpr Identity kIdentity{1, 1};
  Job job({0, 0, 1});
  job.prepare(kIdentity, 0);
  job.in_threads([&](Rank rank) { enter(job.engine(rank), kIdentity, rank, 3); });
  const auto had_voted = [&](Rank rank) {
    return brain::unpack_step_word(job.page(rank).word.load()).vote == brain::Vote::kYes;
  };
  std::vector<std::thread> waiting;
  const auto start = [&](Rank rank) {
    waiting.emplace_back([&, rank] {
      EXPECT_FALSE(vote(job.engine(rank), rank, 1).decided);
      const StatusOr<Version> verdict = job.engine(rank).steps().wait_verdict();
      EXPECT_TRUE(verdict.ok() && *verdict == 1) << verdict.status();
      EXPECT_EQ(job.engine(rank).steps().mean_loss(1), mean_of(3, 1));
    });
    while (!had_voted(rank)) {
      std::this_thread::yield();
    }
  };
  start(2);
  std::vector<brain::SealedWord> words = job.seal(1);
  start(0);
  start(1);
  std::ranges::copy(job.seal(0), std::back_inserter(words));
  const brain::Verdict verdict = brain::decide(kIdentity, 0, words);
  EXPECT_EQ(verdict.version, 1u) << verdict.because;
  EXPECT_TRUE(verdict.forward);
  EXPECT_TRUE(std::isnan(job.engine(0).steps().mean_loss(1)));
  job.generation(0).announce(verdict.version, mean_of(3, 1));
  job.generation(1).announce(verdict.version, mean_of(3, 1));
  for (std::thread& thread : waiting) {
    thread.join();
  }
}

// A request to the agent must not outlast the generation, answered or not: the answer may be lost, and to make memory
// takes a while.
TEST(GenerationTest, a_question_that_is_never_answered_ends_with_its_generation_and_does_not_hold_up_the_next) {
  constexpr Identity kFirst{1, 1};
  constexpr Identity kSecond{1, 2};
  Job job({0, 0});
  job.prepare(kFirst, 0);
  job.in_threads([&](Rank rank) {
    ASSERT_TRUE(job.engine(rank).wait_assignment().ok());
    ASSERT_TRUE(job.engine(rank).ready(true).ok());
    ASSERT_TRUE(job.engine(rank).form().ok());
  });
  // Rank 0 asks in another thread, for its copies; rank 1 in its main thread, for a copy to start from.
  std::vector<double> tensor(100);
  const std::vector<state::Region> regions = {{tensor.data(), tensor.size() * sizeof(double)}};
  ASSERT_TRUE(job.engine(0).shards().protect(0, regions, "text", {}).ok());
  Status found;
  std::thread asks([&] { found = job.engine(1).shards().find({}, true).status(); });
  EXPECT_EQ(job.worker(0).heard->await<messages::VaultQuestion>().first.rank, 0u);
  EXPECT_EQ(job.worker(1).heard->await<messages::VaultQuestion>().first.rank, 1u);
  job.seal(0);
  asks.join();
  EXPECT_TRUE(absl::IsAborted(found)) << found;
  EXPECT_TRUE(job.engine(0).shards().wait(0).ok()) << "the vote finds the seal";
  job.prepare(kSecond, 0);
  job.in_threads([&](Rank rank) { enter(job.engine(rank), kSecond, rank, 2); });
}

// Resharded state: a rank without a shard looks for a copy of its own, then all look for the parts.
TEST(GenerationTest, where_the_parts_of_another_division_are_nowhere_all_know_and_who_needs_them_loads_what_was_saved) {
  constexpr Identity kIdentity{1, 1};
  Job job({0, 0});
  job.create(kIdentity, 0);
  for (const Rank rank : {0u, 1u}) {
    messages::Prepare prepare = job.message(rank, 0, kIdentity);
    prepare.sharding = 1;
    prepare.from = {0, 2};
    job.worker(rank).tell(kIdentity, prepare, job.fds(rank));
    job.worker(rank).tell(kIdentity, messages::Activate{.copies_from = {}});
  }
  job.engine(1).drop_state();
  std::vector<rank::Readiness> readiness(2);
  std::thread answers([&] {
    const messages::VaultQuestion question = job.worker(1).heard->await<messages::VaultQuestion>().first;
    EXPECT_EQ(question.sharding, 1u);
    EXPECT_EQ(question.rank, 1u);
    job.worker(1).tell(kIdentity, messages::VaultAnswer{question.id, "there is none"});
  });
  job.in_threads([&](Rank rank) {
    ASSERT_TRUE(job.engine(rank).wait_assignment().ok());
    const StatusOr<rank::Readiness> ready = job.engine(rank).ready(true);
    ASSERT_TRUE(ready.ok()) << ready.status();
    readiness[rank] = *ready;
  });
  answers.join();
  EXPECT_EQ(readiness[0].fill, brain::Fill::kNothing);
  EXPECT_EQ(readiness[1].fill, brain::Fill::kSaved);
  EXPECT_TRUE(readiness[1].texts.empty());
}

TEST(GenerationTest, messages_longer_than_a_packet_go_both_ways) {
  Job job({0});
  const std::string text(1 << 20, 'x');
  ASSERT_TRUE(job.engine(0).agent().send(messages::Note{.because = text}).ok());
  EXPECT_EQ(job.worker(0).heard->await<messages::Note>().first.because, text);
  job.worker(0).tell({}, messages::Inject{.fault = {.text = text}});
  std::vector<messages::Fault> injections;
  while (injections.empty()) {
    std::this_thread::yield();
    injections = job.engine(0).agent().take_injections();
  }
  EXPECT_EQ(injections.front().text, text);
  EXPECT_TRUE(absl::IsInvalidArgument(
      job.engine(0).agent().send(messages::Note{.because = std::string(messages::kMaxTextBytes, 'x')})));
}

TEST(GenerationTest, a_prepare_that_contradicts_itself_is_not_entered) {
  Job job({0, 1});
  using Message = messages::Prepare;
  const std::vector<std::function<void(Message&, std::vector<int>&)>> mistakes = {
      [](Message& message, std::vector<int>&) { message.ranks = {1}; },
      [](Message& message, std::vector<int>&) { message.ranks = {0, 1}; },
      [](Message& message, std::vector<int>&) { message.ranks.clear(); },
      [](Message& message, std::vector<int>&) { message.table.clear(); },
      [](Message& message, std::vector<int>&) { message.table[1].address = "node-b"; },
      [](Message& message, std::vector<int>&) { message.table[1].ranks = 1000; },
      [](Message& message, std::vector<int>&) { message.table.pop_back(); },  // the page lists another node
      [](Message& message, std::vector<int>&) { message.table[1].node = 0; },
      [](Message& message, std::vector<int>& fds) {
        message.table.clear();
        fds.pop_back();
        message.ranks = {1};
      },
      [](Message&, std::vector<int>& fds) { fds.pop_back(); },
      [](Message& message, std::vector<int>&) { message.data_key = "00"; },
  };
  uint32_t number = 0;
  for (const auto& mistake : mistakes) {
    const Identity identity{1, ++number};
    job.create(identity, 0);
    Message message = job.message(0, 0, identity);
    std::vector<int> fds = job.fds(0);
    mistake(message, fds);
    job.worker(0).tell(identity, message, fds);
  }
  const Identity good{1, ++number};
  job.prepare(good, 0);
  job.in_threads([&](Rank rank) {
    enter(job.engine(rank), good, rank, 2);
    commit(job.engine(rank), rank, 2, 1);
  });
}

}  // namespace
}  // namespace keepstep::agent
