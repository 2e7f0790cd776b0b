#include "agent/rings/ring_service.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <future>
#include <mutex>
#include <thread>

#include "agent/workers/temp_folder.h"
#include "base/socket/local_socket.h"
#include "data/ring/ring_testing.h"
#include "rank/link/ring_link.h"

namespace keepstep::agent {
namespace {

using data::LoaderState;
using data::RingReader;
using data::RingSpec;
using data::RingWriter;
using rank::RingLink;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr RingSpec kSpec{.round = 2, .ahead = 4, .behind = 2};

bool ended(const Fd& pidfd) {
  pollfd waiting{.fd = pidfd.get(), .events = POLLIN};
  return poll(&waiting, 1, 30'000) == 1;
}

Fd pidfd_of(pid_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

// Of kSpec.
std::string open_data(uint64_t position) { return messages::write(messages::OpenRing{"data", 2, 4, 2, 0, position}); }

// A real service, in its own thread.
class RingServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    loop_ = *EventLoop::create();
    auto service = RingService::open(*loop_, name_, [this](const RingService::News& news) {
      const std::lock_guard lock(mutex_);
      news_.push_back(news);
      changed_.notify_all();
    });
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    thread_ = std::thread([this] { loop_->run(); });
  }
  void TearDown() override { end_service(); }
  void end_service() {
    if (thread_.joinable()) {
      loop_->post([this] { loop_->stop(); });
      thread_.join();
      service_.reset();
    }
  }

  std::unique_ptr<RingLink> link() const {
    auto link = RingLink::connect(name_);
    EXPECT_TRUE(link.ok()) << link.status();
    return *std::move(link);
  }
  PacketSocket connect() const { return *connect_local(name_); }
  static bool let_go(const PacketSocket& socket) { return absl::IsUnavailable(socket.receive().status()); }
  // It still serves everybody else.
  void expect_served() const {
    const auto one = link();
    auto reader = one->open("served", kSpec, 0);
    ASSERT_TRUE(reader.ok()) << reader.status();
    (*reader).reset();
    one->leave();
  }
  // Runs on the service's thread, between two turns of its loop.
  template <typename Asked>
  auto ask(Asked asked) {
    std::promise<decltype(asked())> answer;
    loop_->post([&] { answer.set_value(asked()); });
    return answer.get_future().get();
  }
  size_t clients() {
    return ask([this] { return service_->clients(); });
  }
  std::vector<std::string> events() {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> all;
    for (const RingService::News& each : news_) {
      all.push_back(each.event);
    }
    return all;
  }
  // The newest news of this kind, once there were `count`.
  RingService::News await(const std::string& event, size_t count = 1) {
    std::unique_lock lock(mutex_);
    RingService::News newest;
    const bool came = changed_.wait_for(lock, std::chrono::seconds(30), [&] {
      size_t found = 0;
      for (const RingService::News& each : news_) {
        if (each.event == event) {
          newest = each;
          ++found;
        }
      }
      return found >= count;
    });
    EXPECT_TRUE(came) << "no " << count << " " << event;
    return newest;
  }
  static void await_loader(const RingReader& reader, LoaderState state) {
    while (true) {
      const uint32_t seen = reader.bell();
      if (reader.loader() == state) {
        return;
      }
      reader.wait(seen);
    }
  }
  // Like a loader process: says hello over `socket` and stays until it is killed.
  static pid_t start_loader(Fd socket) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setsid();
      const PacketSocket channel(std::move(socket));
      const Fd own = pidfd_of(getpid());
      const bool go = channel.send("{}", std::vector<int>{own.get()}).ok() && channel.receive().ok();
      (void)channel.receive();  // until the agent ends
      _exit(go ? 0 : 1);
    }
    return pid;
  }

  const TempFolder folder_ = *TempFolder::create();
  const std::string name_ = folder_.path() / "rings";
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<RingService> service_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RingService::News> news_;
  std::thread thread_;
};

TEST_F(RingServiceTest, ranks_that_open_one_name_share_one_ring_and_one_of_them_starts_its_loader) {
  const auto first = link();
  const auto second = link();
  const auto a = *first->open("data", kSpec, 6);
  const auto b = *second->open("data", kSpec, 6);
  EXPECT_EQ(a->incarnation(), b->incarnation());
  const Fd channel = *first->ask_for_loader();
  ASSERT_TRUE(channel.valid());
  EXPECT_FALSE(second->ask_for_loader()->valid()) << "one is being started";
  RingWriter writer(first->memory());
  EXPECT_EQ(writer.head(), 6u);
  ASSERT_TRUE(data::put(writer, 5000).ok());
  EXPECT_TRUE(data::holds(**a->view(6), 5000));
  EXPECT_TRUE(data::holds(**b->view(6), 5000));
}

TEST_F(RingServiceTest, names_are_apart_and_one_that_asks_without_a_ring_starts_nothing) {
  const auto first = link();
  const auto second = link();
  EXPECT_FALSE(first->ask_for_loader()->valid());
  const auto a = *first->open("train", kSpec, 0);
  const auto b = *second->open("valid", kSpec, 0);
  EXPECT_NE(a->incarnation(), b->incarnation());
  EXPECT_TRUE(first->ask_for_loader()->valid());
  EXPECT_TRUE(second->ask_for_loader()->valid());
}

TEST_F(RingServiceTest, a_ring_stays_for_the_next_process_when_ranks_die_and_goes_when_the_last_one_leaves) {
  auto first = link();
  auto reader = *first->open("data", kSpec, 0);
  RingWriter writer(first->memory());
  ASSERT_TRUE(data::put(writer, 100).ok());
  // As with a killed process: the connection ends without a message.
  PacketSocket silent = connect();
  ASSERT_TRUE(silent.send(open_data(0)).ok());
  EXPECT_TRUE(silent.receive()->fds.size() == 2);
  silent = PacketSocket();
  reader.reset();
  first->leave();
  while (clients() > 0) {
    std::this_thread::yield();
  }
  const auto second = link();
  auto again = *second->open("data", kSpec, 0);
  EXPECT_EQ(again->incarnation(), 2u) << "a leave of the last one ends the ring";
  EXPECT_EQ(again->head(), 0u);
  RingWriter next(second->memory());
  ASSERT_TRUE(data::put(next, 100).ok());
  PacketSocket survivor = connect();
  ASSERT_TRUE(survivor.send(open_data(0)).ok());
  ASSERT_TRUE(survivor.receive().ok());
  survivor = PacketSocket();
  const auto third = link();
  EXPECT_EQ((*third->open("data", kSpec, 0))->head(), 1u) << "a death does not";
}

TEST_F(RingServiceTest, a_killed_reader_keeps_no_room_though_its_child_has_its_socket) {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t rank = fork();
  if (rank == 0) {
    const auto mine = RingLink::connect(name_);
    const auto reader = (*mine)->open("data", kSpec, 0);
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, 0);
      pause();
    }
    (void)!write(ready[1], &child, sizeof child);
    pause();
  }
  pid_t child = 0;
  ASSERT_EQ(read(ready[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  const auto other = link();
  const auto reader = *other->open("data", kSpec, 0);
  RingWriter writer(other->memory());
  for (uint64_t number = 0; number < kSpec.slots(); ++number) {
    ASSERT_TRUE(data::put(writer, 100).ok());
  }
  ASSERT_TRUE(reader->move_to(6).ok());
  kill(rank, SIGKILL);
  ASSERT_TRUE(data::put(writer, 100).ok());  // waits for the room that the row held back
  EXPECT_EQ(reader->head(), kSpec.slots() + 1);
  waitpid(rank, nullptr, 0);
  kill(child, SIGKILL);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(RingServiceTest, a_loader_that_dies_is_told_and_may_be_started_again) {
  const auto rank = link();
  const auto reader = *rank->open("data", kSpec, 0);
  const pid_t first = start_loader(*rank->ask_for_loader());
  EXPECT_EQ(await("loader_started").pid, first);
  await_loader(*reader, LoaderState::kRuns);
  EXPECT_FALSE(rank->ask_for_loader()->valid()) << "one runs";
  kill(first, SIGKILL);
  const RingService::News end = await("loader_ended");
  EXPECT_EQ(end.pid, first);
  EXPECT_THAT(end.because, HasSubstr("was killed by signal 9"));
  await_loader(*reader, LoaderState::kNone);
  const pid_t second = start_loader(*rank->ask_for_loader());
  EXPECT_EQ(await("loader_started", 2).pid, second);
}

TEST_F(RingServiceTest, a_loader_that_nobody_starts_may_be_started_by_another_and_three_times_are_enough) {
  const auto first = link();
  const auto second = link();
  const auto a = *first->open("data", kSpec, 0);
  const auto b = *second->open("data", kSpec, 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(first->ask_for_loader()->valid());  // and nobody holds its other end: it ends at once
    await_loader(*b, LoaderState::kNone);
  }
  EXPECT_TRUE(second->ask_for_loader()->valid());
  await_loader(*a, LoaderState::kGivenUp);
  EXPECT_THAT(a->why(), HasSubstr("the last: it did not start"));
}

TEST_F(RingServiceTest, a_loader_that_says_nonsense_instead_of_hello_is_none) {
  const auto rank = link();
  const auto reader = *rank->open("data", kSpec, 0);
  const PacketSocket without(*rank->ask_for_loader());
  ASSERT_TRUE(without.send("{}").ok());
  await_loader(*reader, LoaderState::kNone);
  const PacketSocket other(*rank->ask_for_loader());
  const Fd no_pidfd(dup(STDERR_FILENO));
  ASSERT_TRUE(other.send("{}", std::vector<int>{no_pidfd.get()}).ok());
  await_loader(*reader, LoaderState::kNone);
  EXPECT_THAT(events(), ElementsAre("ring_opened"));
}

TEST_F(RingServiceTest, three_deaths_without_a_new_batch_between_are_the_last_and_with_one_they_are_not) {
  const auto rank = link();
  const auto reader = *rank->open("data", kSpec, 0);
  RingWriter writer(rank->memory());
  for (size_t number = 1; number <= 5; ++number) {
    kill(start_loader(*rank->ask_for_loader()), SIGKILL);
    // It may have said hello before; a batch counts only for a known loader.
    await_loader(*reader, number == 5 ? LoaderState::kGivenUp : LoaderState::kNone);
    if (number == 2) {
      const pid_t good = start_loader(*rank->ask_for_loader());
      await_loader(*reader, LoaderState::kRuns);
      ASSERT_TRUE(data::put(writer, 100).ok());
      kill(good, SIGKILL);
      await_loader(*reader, LoaderState::kNone);
      number = 3;  // the good loader's death is the first since its batch
    }
  }
  EXPECT_THAT(reader->why(),
              HasSubstr("3 loader processes ended one after the other without a new batch after batch 1"));
  EXPECT_FALSE(rank->ask_for_loader()->valid());
}

TEST_F(RingServiceTest, a_rank_from_an_older_state_gets_a_ring_of_its_own_and_the_others_read_on) {
  const auto first = link();
  const auto reader = *first->open("data", kSpec, 100);
  const pid_t pid = start_loader(*first->ask_for_loader());
  await_loader(*reader, LoaderState::kRuns);
  const Fd process = pidfd_of(pid);
  RingWriter writer(first->memory());
  ASSERT_TRUE(data::put(writer, 100).ok());
  const auto second = link();
  const auto other = *second->open("data", kSpec, 40);
  EXPECT_EQ(other->head(), 40u);
  EXPECT_EQ(other->loader(), LoaderState::kNone);
  EXPECT_THAT(await("ring_opened", 2).because, AllOf(HasSubstr("wants item 40"), HasSubstr("from 100 to 101")));
  EXPECT_EQ(reader->loader(), LoaderState::kRuns);
  EXPECT_TRUE(data::holds(**reader->view(100), 100));
  const auto third = link();
  EXPECT_EQ((*third->open("data", kSpec, 100))->incarnation(), reader->incarnation()) << "who reads there joins there";
  // Both go to where the other one is; the ring that they left is removed, and its loader ends.
  third->leave();
  const auto again = *first->open("data", kSpec, 40);
  EXPECT_EQ(again->incarnation(), other->incarnation());
  EXPECT_TRUE(ended(process));
}

TEST_F(RingServiceTest, a_ring_whose_ranks_died_stays_only_while_its_name_has_no_other) {
  const auto open_at = [&](uint64_t position) {
    PacketSocket socket = connect();
    EXPECT_TRUE(socket.send(open_data(position)).ok());
    EXPECT_EQ(socket.receive()->fds.size(), 2u);
    return socket;
  };
  PacketSocket slow = open_at(0);
  PacketSocket fast = open_at(500);
  slow = PacketSocket();
  while (clients() > 1) {
    std::this_thread::yield();
  }
  fast = PacketSocket();
  while (clients() > 0) {
    std::this_thread::yield();
  }
  const auto one = link();
  EXPECT_EQ((*one->open("data", kSpec, 500))->incarnation(), 2u) << "the last one's";
  const auto two = link();
  EXPECT_EQ((*two->open("data", kSpec, 0))->incarnation(), 3u) << "the other's went with it";
}

TEST_F(RingServiceTest, a_process_that_is_let_out_keeps_no_room_and_finds_that_it_has_to_join_again) {
  const auto rank = link();
  const auto reader = *rank->open("data", kSpec, 0);
  const pid_t other = fork();
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const auto mine = RingLink::connect(name_);
    const auto reader = (*mine)->open("data", kSpec, 0);
    RingWriter writer((*mine)->memory());
    for (uint64_t number = 0; number <= kSpec.slots(); ++number) {  // the last one waits for room
      (void)data::put(writer, 100);
      (void)(*reader)->move_to(std::min<uint64_t>(number, 6));
    }
    _exit((*reader)->joined() ? 0 : 1);
  }
  data::wait_for(*reader, kSpec.slots() - 1);
  const auto view = *reader->view(0);
  reader->detach();
  EXPECT_TRUE(reader->joined());
  ask([&] { return service_->let_out(getpid()), 0; });
  EXPECT_FALSE(reader->joined());
  int status = 0;
  EXPECT_EQ(waitpid(other, &status, 0), other) << "its loader went on";
  EXPECT_EQ(status, 0) << "it was not let out";
  EXPECT_TRUE(data::holds(*view, 100));
  EXPECT_TRUE((*rank->open("data", kSpec, kSpec.slots()))->joined());
}

TEST_F(RingServiceTest, ranks_of_one_node_that_read_in_too_many_places_get_an_error_and_not_loader_after_loader) {
  std::vector<std::unique_ptr<RingLink>> links;
  std::vector<std::unique_ptr<RingReader>> readers;
  Status refused;
  while (refused.ok()) {
    links.push_back(link());
    auto reader = links.back()->open("data", kSpec, links.size() * 1000);
    refused = reader.status();
    if (reader.ok()) {
      readers.push_back(*std::move(reader));
    }
  }
  EXPECT_EQ(readers.size(), 8u);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("read 'data' in 8 different places already"),
                    HasSubstr("wants item 9000; the ring has those from 1000 to 1000")));
  EXPECT_TRUE(links.back()->open("data", kSpec, 1000).ok()) << "where somebody reads there is room";
}

TEST_F(RingServiceTest, what_cannot_be_is_refused_with_the_reason_and_the_rank_may_ask_again) {
  const auto rank = link();
  const auto error = [&](const std::string& name, RingSpec spec, uint64_t position) {
    return std::string(rank->open(name, spec, position).status().message());
  };
  EXPECT_THAT(error("", kSpec, 0), HasSubstr("1 to 200 bytes"));
  EXPECT_THAT(error(std::string(201, 'n'), kSpec, 0), HasSubstr("1 to 200 bytes, this one 201"));
  EXPECT_THAT(error("data", {.round = 0}, 0), HasSubstr("between 1 and"));
  EXPECT_THAT(error("data", {.round = 1, .ahead = UINT32_MAX, .behind = UINT32_MAX}, 0), HasSubstr("lower ahead="));
  EXPECT_THAT(error("data", {.limit_bytes = UINT64_MAX}, 0), HasSubstr("limit_bytes="));
  EXPECT_THAT(error("data", kSpec, UINT64_MAX), HasSubstr("position 18446744073709551615"));
  EXPECT_THAT(events(), IsEmpty()) << "no memory was taken for any of them";
  EXPECT_TRUE(rank->open(std::string(200, 'n'), kSpec, uint64_t{1} << 40).ok());
}

TEST_F(RingServiceTest, a_client_that_talks_nonsense_is_let_go_and_the_others_go_on) {
  const auto rank = link();
  const auto reader = *rank->open("data", kSpec, 0);
  const std::string begin = R"(open_ring {"name":"data","ahead":4,"behind":2,"limit_bytes":0,)";
  const std::vector<std::string> nonsense = {
      "",
      "open_ring",
      "open_ring no json",
      "open_ring []",
      "open_ring {}",
      "dance {}",
      begin + R"("round":2})",
      begin + R"("round":2,"position":0,"more":0})",
      begin + R"("round":[2],"position":0})",
      begin + R"("round":-1,"position":0})",
      begin + R"("round":4294967298,"position":0})",  // would be 2 if truncated
      begin + R"("round":2.5,"position":0})",
      begin + R"("round":2,"position":1e300})",
      begin + R"("round":2,"position":"0"})",
      std::string(3000, '['),
      "ask_for_loader {}" + std::string(messages::kMaxRingMessageBytes, ' '),
      std::string("\xff\xfe\0", 3),
  };
  for (const std::string& each : nonsense) {
    const PacketSocket bad = connect();
    ASSERT_TRUE(bad.send(each).ok());
    EXPECT_TRUE(let_go(bad)) << each.substr(0, 100);
  }
  const PacketSocket giver = connect();
  ASSERT_TRUE(giver.send(messages::write(messages::AskForLoader{}), std::vector<int>{STDERR_FILENO}).ok());
  EXPECT_TRUE(let_go(giver)) << "descriptors that nobody asked for";
  RingWriter writer(rank->memory());
  ASSERT_TRUE(data::put(writer, 100).ok());
  EXPECT_TRUE(data::holds(**reader->view(0), 100));
  EXPECT_EQ(reader->loader(), LoaderState::kNone) << "its ring is the same one";
  EXPECT_THAT(events(), ElementsAre("ring_opened"));
  expect_served();
}

TEST_F(RingServiceTest, clients_that_vanish_at_any_moment_leave_nothing_behind) {
  const auto rank = link();
  const auto reader = *rank->open("data", kSpec, 0);
  const std::string open = open_data(0);
  for (int i = 0; i < 200; ++i) {  // more than there are rows, so each must be free again
    const PacketSocket gone = connect();
    if (i % 4 > 0) {
      ASSERT_TRUE(gone.send(open).ok());
    }
    if (i % 4 > 1) {
      ASSERT_TRUE(gone.receive().ok());
    }
    if (i % 4 > 2) {
      ASSERT_TRUE(gone.send(messages::write(messages::AskForLoader{})).ok());  // it dies while the answer is on its way
    }
  }
  while (clients() > 1) {
    std::this_thread::yield();
  }
  await_loader(*reader, LoaderState::kNone);
  const auto next = link();
  EXPECT_TRUE(next->open("data", kSpec, 0).ok());
  EXPECT_TRUE(next->ask_for_loader()->valid());
}

TEST_F(RingServiceTest, readers_rings_and_clients_are_bounded) {
  std::vector<std::unique_ptr<RingLink>> links;
  std::vector<std::unique_ptr<RingReader>> readers;
  for (uint32_t i = 0; i < data::kRingReaders; ++i) {
    links.push_back(link());
    readers.push_back(*links.back()->open("data", kSpec, 0));
  }
  links.push_back(link());
  EXPECT_THAT(std::string(links.back()->open("data", kSpec, 0).status().message()),
              HasSubstr("64 processes read these batches already, which is the most"));
  Status refused;
  for (int i = 0; i < 100 && refused.ok(); ++i) {
    links.push_back(link());
    auto reader = links.back()->open("ring " + std::to_string(i), kSpec, 0);
    refused = reader.status();
    if (reader.ok()) {
      readers.push_back(*std::move(reader));
    }
  }
  EXPECT_THAT(std::string(refused.message()), HasSubstr("64 cached loaders on this node already, which is the most"));
  std::vector<PacketSocket> idle;
  for (size_t more = 1024 - clients(); more > 0; --more) {
    idle.push_back(connect());
  }
  while (clients() < 1024) {  // a connection is not a client yet
    std::this_thread::yield();
  }
  EXPECT_TRUE(let_go(connect())) << "the 1025th";
  idle.pop_back();
  while (clients() > 1023) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(link()->ask_for_loader()->valid()) << "one that ended makes room";
  readers[0].reset();
  links[0] = nullptr;
  while (clients() > 1022) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(link()->open("data", kSpec, 0).ok());
}

TEST_F(RingServiceTest, a_client_that_never_reads_its_answers_holds_up_nobody) {
  const PacketSocket deaf = connect();
  const std::string ask = messages::write(messages::AskForLoader{});
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(deaf.send(ask).ok());
  }
  expect_served();
}

TEST_F(RingServiceTest, bells_wake_ranks_that_wait_and_the_services_end_ends_its_loaders) {
  const auto rank = link();
  const auto reader = *rank->open("data", kSpec, 0);
  const uint32_t seen = reader->bell();
  std::thread waiter([&] {
    while (reader->bell() == seen) {
      reader->wait(seen);
    }
  });
  loop_->post([this] { service_->ring_bells(); });
  waiter.join();
  const pid_t pid = start_loader(*rank->ask_for_loader());
  await_loader(*reader, LoaderState::kRuns);
  const Fd process = pidfd_of(pid);
  end_service();
  EXPECT_TRUE(ended(process));
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(reader->loader(), LoaderState::kGivenUp);
  EXPECT_EQ(reader->why(), "the agent ends");
  EXPECT_TRUE(absl::IsUnavailable(rank->ask_for_loader().status()));
}

}  // namespace
}  // namespace keepstep::agent
