// Ranks on several nodes: what is particular to them beside the bits (collectives_test.cc has those).

#include "comm/collectives/hierarchical.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <optional>
#include <random>

#include "base/clock.h"
#include "comm/tcp/handshake.h"
#include "comm/tcp/wire.h"
#include "comm/test_world.h"
#include "net/connection.h"

namespace keepstep::comm {
namespace {

using tcp::FrameKind;
using tcp::Hello;
using testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;

std::vector<uint32_t> layout_of(const std::string& text) {
  std::vector<uint32_t> nodes;
  for (const char node : text) {
    nodes.push_back(static_cast<uint32_t>(node - '0'));
  }
  return nodes;
}
TestWorld world_of(const std::string& nodes) { return TestWorld(nodes.size(), small_config(), layout_of(nodes)); }

// ---- who is let in

// Connects as `hello`; true when the acceptor took it. Keeps the connection in `stream`.
bool dial(const TestWorld& world, const Hello& hello, const net::SharedKey& key,
          std::optional<net::TlsStream>* stream = nullptr) {
  tcp::Dial dial(world.addresses()[hello.to], hello, *net::TlsContext::create(key), 0);
  while (true) {
    switch (dial.step()) {
      case tcp::Dial::State::kUnderWay: {
        pollfd poll_fd{dial.fd(), dial.events(), 0};
        poll(&poll_fd, 1, -1);
        break;
      }
      case tcp::Dial::State::kDone: {
        net::TlsStream taken = dial.take();
        if (stream != nullptr) {
          *stream = std::move(taken);
        }
        return true;
      }
      case tcp::Dial::State::kTryAgain:
      case tcp::Dial::State::kRefused:
        return false;
    }
  }
}

// Sends raw bytes to a rank's socket and waits until it closed the connection.
void send_raw(const TestWorld& world, Rank to, const std::string& bytes) {
  StatusOr<Fd> fd = start_connect(world.addresses()[to]);
  ASSERT_TRUE(fd.ok());
  pollfd poll_fd{fd->get(), POLLOUT, 0};
  poll(&poll_fd, 1, -1);
  (void)send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  poll_fd.events = POLLIN;
  poll(&poll_fd, 1, -1);
  char byte = 0;
  while (recv(fd->get(), &byte, 1, MSG_DONTWAIT) > 0) {  // an alert, at most
  }
}

class Strangers : public testing::Test {
 protected:
  Strangers()
      : world_(world_of("01")),
        transport_(world_.transport(0)),
        zero_(world_.communicator(0, transport_)),
        one_(world_.communicator(1)) {}

  // Both ranks still work together.
  void expect_that_the_job_goes_on() {
    std::thread peer([&] { sum(*one_); });
    sum(*zero_);
    peer.join();
  }
  static void sum(Communicator& comm) {
    std::vector<float> data(30'000, 1.0F);
    expect_done(comm, comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum));
    EXPECT_EQ(data[29'999], 2.0F);
  }
  Hello hello(uint32_t stream = 1) const { return {{1, 1}, 1, 0, stream}; }
  net::SharedKey key() const { return key_of({1, 1}, world_.secret()); }
  // The acceptor counts in its own time.
  uint64_t await(uint64_t Transport::Counters::* counter, uint64_t least = 1) {
    uint64_t count = 0;
    while ((count = transport_->counters().*counter) < least) {
      std::this_thread::yield();
    }
    return count;
  }

  TestWorld world_;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<Communicator> zero_;
  std::unique_ptr<Communicator> one_;
};

TEST_F(Strangers, without_the_key_are_refused_and_counted) {
  EXPECT_FALSE(dial(world_, hello(), key_of({1, 1}, net::SharedKey::random_data_secret())));
  EXPECT_EQ(await(&Transport::Counters::wrong_key), 1U);
  expect_that_the_job_goes_on();
}

TEST_F(Strangers, of_another_generation_are_refused_and_counted) {
  for (const uint32_t generation : {0U, 2U}) {
    Hello other = hello();
    other.identity = {1, generation};
    EXPECT_FALSE(dial(world_, other, key_of(other.identity, world_.secret())));
  }
  EXPECT_EQ(await(&Transport::Counters::other_generation, 2), 2U);
  // One that has this generation's key and names another one lies.
  Hello liar = hello();
  liar.identity = {1, 0};
  EXPECT_FALSE(dial(world_, liar, key()));
  EXPECT_EQ(await(&Transport::Counters::unknown_rank), 1U);
  expect_that_the_job_goes_on();
}

TEST_F(Strangers, that_protect_frames_in_another_way_are_told) {
  Hello plain = hello();
  plain.protection = Protection::kMac;
  tcp::Dial dial(world_.addresses()[0], plain, *net::TlsContext::create(key()), 0);
  tcp::Dial::State state;
  while ((state = dial.step()) == tcp::Dial::State::kUnderWay) {
    pollfd poll_fd{dial.fd(), dial.events(), 0};
    poll(&poll_fd, 1, -1);
  }
  EXPECT_EQ(state, tcp::Dial::State::kRefused);
  EXPECT_NE(dial.because().find("rank 0 protects frames as with --data-plane tls, this one as with --data-plane plain"),
            std::string::npos)
      << dial.because();
  expect_that_the_job_goes_on();
}

TEST_F(Strangers, that_name_no_rank_of_this_generation_are_refused_and_counted) {
  Hello unknown = hello();
  unknown.from = 7;
  EXPECT_FALSE(dial(world_, unknown, key()));
  EXPECT_EQ(await(&Transport::Counters::unknown_rank), 1U);
  expect_that_the_job_goes_on();
  EXPECT_FALSE(dial(world_, hello(), key())) << "that stream is connected already";
  EXPECT_EQ(await(&Transport::Counters::unknown_rank, 2), 2U);
  expect_that_the_job_goes_on();
}

TEST_F(Strangers, that_speak_nonsense_are_refused_and_counted) {
  send_raw(world_, 0, "GET / HTTP/1.1\r\nHost: rank-0.example\r\n\r\n........");
  EXPECT_EQ(await(&Transport::Counters::wrong_key), 1U);
  Fd fd = *start_connect(world_.addresses()[0]);
  pollfd poll_fd{fd.get(), POLLOUT, 0};
  poll(&poll_fd, 1, -1);
  net::TlsStream stream =
      *net::prove_key(std::move(fd), "rank 0", *net::TlsContext::create(key()), net::Deadline::never());
  ASSERT_TRUE(stream.write(std::string(tcp::kHelloBytes, 'x')).ok());
  ASSERT_EQ(*stream.flush(), 0);
  EXPECT_EQ(await(&Transport::Counters::malformed), 1U);
  expect_that_the_job_goes_on();
}

TEST_F(Strangers, that_say_nothing_do_not_keep_anyone_waiting) {
  std::vector<Fd> silent;
  for (int i = 0; i < 50; ++i) {
    StatusOr<Fd> fd = start_connect(world_.addresses()[0]);
    ASSERT_TRUE(fd.ok());
    silent.push_back(*std::move(fd));
  }
  expect_that_the_job_goes_on();
}

TEST_F(Strangers, a_peer_that_sends_a_malformed_frame_loses_that_connection_only) {
  std::optional<net::TlsStream> stream;
  ASSERT_TRUE(dial(world_, hello(0), key(), &stream));  // as rank 1, for messages
  ASSERT_TRUE(stream->write(std::string(tcp::kFrameHeaderBytes, 'x')).ok());
  ASSERT_EQ(*stream->flush(), 0);
  EXPECT_EQ(await(&Transport::Counters::malformed), 1U);
  expect_that_the_job_goes_on();
}

// ---- generations

TEST(Generations, an_endpoint_outlives_the_processes_that_used_it) {
  TestWorld world = world_of("0011");
  for (int generation = 0; generation < 4; ++generation) {
    world.run(Mode::kProcesses, [&](Communicator& comm, Rank) {
      std::vector<float> data(30'000, 1.0F);
      expect_done(comm, comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum));
      EXPECT_EQ(data[77], 4.0F);
    });
    world.begin_generation();
  }
}

TEST(Generations, connections_that_an_old_one_left_waiting_are_refused_by_the_next) {
  TestWorld world = world_of("01");
  const Hello hello{{1, 1}, 1, 0, 1};
  tcp::Dial left(world.addresses()[0], hello, *net::TlsContext::create(key_of({1, 1}, world.secret())), 0);
  while (left.step() == tcp::Dial::State::kUnderWay && !left.reached()) {  // nobody accepts yet
    pollfd poll_fd{left.fd(), left.events(), 0};
    poll(&poll_fd, 1, -1);
  }
  world.begin_generation();
  const auto transport = world.transport(0);
  const auto comm = world.communicator(0, transport);
  while (transport->counters().other_generation == 0) {
    std::this_thread::yield();
  }
  tcp::Dial::State state;
  while ((state = left.step()) == tcp::Dial::State::kUnderWay) {
    pollfd poll_fd{left.fd(), left.events(), 0};
    poll(&poll_fd, 1, -1);
  }
  EXPECT_EQ(state, tcp::Dial::State::kTryAgain);
}

size_t entries_of(const char* folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(Generations, leave_no_descriptor_and_no_thread_behind) {
  TestWorld world = world_of("01");
  size_t descriptors = 0;
  size_t threads = 0;
  for (int generation = 0; generation < 100; ++generation) {
    world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
      std::vector<float> data(30'000, 1.0F);
      expect_done(comm, comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum));
      expect_done(comm,
                  self == 0 ? comm.send(kWorld, data.data(), 100, 1, 0) : comm.receive(kWorld, data.data(), 100, 0, 0));
    });
    world.begin_generation();
    if (generation == 0) {
      descriptors = entries_of("/proc/self/fd");
      threads = entries_of("/proc/self/task");
    }
  }
  EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries_of("/proc/self/task"), threads);
}

// ---- disagreement, lateness

TEST(AcrossNodes, ranks_that_do_not_agree_are_told_both_sides) {
  world_of("0011").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    std::vector<float> data(100'000, 1.0F);
    const auto expect_told = [&](OpId op, const std::string& one, const std::string& other) {
      const Completion completion = finish(comm, op);
      EXPECT_EQ(completion.outcome, Outcome::kFailed);
      EXPECT_NE(completion.error.find(one), std::string::npos) << completion.error;
      EXPECT_NE(completion.error.find(other), std::string::npos) << completion.error;
    };
    // Another size, on one node only and between nodes; another type; another operation; small and large.
    for (const size_t count : {10, 100'000}) {
      expect_told(
          comm.all_reduce(kWorld, data.data(), self == 3 ? count - 1 : count, DataType::kFloat32, ReduceOp::kSum),
          "rank 3 called all_reduce", "ranks 0, 1, 2 called all_reduce");
      expect_told(comm.all_reduce(kWorld, data.data(), self >= 2 ? 20 : count, DataType::kFloat32, ReduceOp::kSum),
                  "ranks 2, 3 called", "ranks 0, 1 called");
      expect_told(self == 0 ? comm.barrier(kWorld) : comm.broadcast(kWorld, data.data(), 4 * count, 1),
                  "rank 0 called barrier", "ranks 1, 2, 3 called broadcast");
      expect_told(comm.reduce(kWorld, data.data(), count, DataType::kFloat32, ReduceOp::kSum, self == 2 ? 9 : 0),
                  "reduce #", self == 2 ? "root 9 is not in the group" : "rank 2 called a call that was refused there");
    }
    // The group is still of use.
    expect_done(comm, comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum));
    EXPECT_EQ(data[5], 4.0F);
  });
}

TEST(AcrossNodes, all_to_all_with_sizes_that_do_not_fit_fails_everywhere_with_the_two_ranks) {
  world_of("001").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    std::vector<uint8_t> in(300);
    std::vector<uint8_t> out(300);
    const std::vector<const void*> inputs(3, in.data());
    std::vector<size_t> given(3, 100);
    const std::vector<size_t> taken(3, 100);
    if (self == 2) {
      given[1] = 101;
    }
    const Completion completion =
        finish(comm, comm.all_to_all(kWorld, inputs, given, {&out[0], &out[100], &out[200]}, taken));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_NE(completion.error.find("rank 2 sends 101 bytes to rank 1, which expects 100"), std::string::npos)
        << completion.error;
    expect_done(comm, comm.barrier(kWorld));
  });
}

TEST(AcrossNodes, a_timeout_names_the_ranks_that_did_not_come) {
  TestWorld world = world_of("001");
  world.run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
    if (self == 2) {
      world.await(2);  // never calls
      return;
    }
    const Completion completion = finish(comm, comm.barrier(kWorld, kSecond / 5));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    if (self == 0) {
      EXPECT_EQ(completion.missing, std::vector<Rank>{2});
    }
    EXPECT_NE(completion.error.find(self == 0 ? "rank 2 did not arrive within 0.2 s" : "rank 0 gave up"),
              std::string::npos)
        << completion.error;
    EXPECT_EQ(finish(comm, comm.barrier(kWorld)).outcome, Outcome::kFailed) << "the group is of no more use";
    world.signal();
  });
}

TEST(AcrossNodes, a_link_that_breaks_without_an_interruption_is_an_error_that_names_the_peer) {
  TestWorld world = world_of("01");
  world.run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
    expect_done(comm, comm.barrier(kWorld));
    if (self == 1) {
      return;  // ends, and its connections with it
    }
    const Completion completion = finish(comm, comm.barrier(kWorld));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_NE(completion.error.find("the link between rank 0 and rank 1 broke"), std::string::npos) << completion.error;
    EXPECT_EQ(comm.broken_link(), completion.error) << "so that no exception of it passes for the user's";
  });
}

TEST(AcrossNodes, who_hears_of_a_broken_link_only_from_another_knows_that_it_was_one) {
  // Rank 3 ends. Rank 1 has no link to any other node: it hears of it from its node's leader.
  TestWorld world = world_of("0012");
  world.run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
    expect_done(comm, comm.barrier(kWorld));
    if (self == 3) {
      return;
    }
    const Completion completion = finish(comm, comm.barrier(kWorld));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_NE(completion.error.find(" and rank 3 broke"), std::string::npos) << completion.error;
    EXPECT_EQ(comm.broken_link(), completion.error);
  });
}

TEST(AcrossNodes, a_peer_to_which_no_connection_comes_about_is_a_broken_link_after_a_while) {
  TestWorld world = world_of("01");
  TcpConfig config = world.tcp_config(0);
  config.connect_ns = 20'000'000;
  config.patience_ns = 20'000'000;
  config.addresses[1] = *local_address(listen_tcp({"127.0.0.1", 0})->get());  // nothing listens there any more
  const std::unique_ptr<Communicator> comm =
      world.communicator(0, make_tcp_transport(config, *listen_tcp({"127.0.0.1", 0})));
  for (const OpId op : {comm->barrier(kWorld), comm->send(kWorld, &config, 1, 1, 1)}) {
    const Completion completion = finish(*comm, op);
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_NE(completion.error.find("the link between rank 0 and rank 1 broke (no connection to " +
                                    config.addresses[1].text() + " came about"),
              std::string::npos)
        << completion.error;
  }
  EXPECT_NE(comm->broken_link(), "");
}

TEST(AcrossNodes, what_accepts_connections_and_breaks_them_off_is_a_broken_link_after_a_while) {
  // A proxy, another service, a firewall that resets: each dial gets a step further than where nothing listens.
  const StatusOr<Fd> listener = listen_tcp({"127.0.0.1", 0});
  ASSERT_TRUE(listener.ok());
  std::jthread proxy([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      pollfd readable{.fd = listener->get(), .events = POLLIN, .revents = 0};
      if (poll(&readable, 1, 10) == 1) {
        (void)accept_tcp(listener->get());  // and closes it
      }
    }
  });
  TestWorld world = world_of("01");
  TcpConfig config = world.tcp_config(0);
  config.connect_ns = 200'000'000;
  config.patience_ns = 20'000'000;
  config.addresses[1] = *local_address(listener->get());
  const std::unique_ptr<Communicator> comm =
      world.communicator(0, make_tcp_transport(config, *listen_tcp({"127.0.0.1", 0})));
  const Completion completion = finish(*comm, comm->barrier(kWorld));
  EXPECT_EQ(completion.outcome, Outcome::kFailed);
  EXPECT_THAT(completion.error, HasSubstr("the link between rank 0 and rank 1 broke (no connection to " +
                                          config.addresses[1].text() + " came about"));
}

TEST(AcrossNodes, a_timeout_is_no_broken_link) {
  TestWorld world = world_of("01");
  world.run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
    if (self == 0) {
      EXPECT_EQ(finish(comm, comm.barrier(kWorld, 20'000'000)).outcome, Outcome::kFailed);
      EXPECT_EQ(comm.broken_link(), "");
      world.signal();
    }
    world.await(1);
  });
}

TEST(MessagesAcrossNodes, that_a_link_broke_is_told_with_both_its_ends_and_why) {
  TestWorld world = world_of("01");
  world.run(Mode::kProcesses, [&](Communicator& comm, Rank self) {
    int number = 0;
    if (self == 1) {
      expect_done(comm, comm.send(kWorld, &number, sizeof(number), 0, 1));
      return;  // ends, and its connections with it
    }
    expect_done(comm, comm.receive(kWorld, &number, sizeof(number), 1, 1));
    const Completion completion = finish(comm, comm.receive(kWorld, &number, sizeof(number), 1, 1));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_THAT(completion.error, testing::AllOf(HasSubstr("the link between rank 0 and rank 1 broke"),
                                                 HasSubstr("the peer closed it, or died")));
    EXPECT_NE(comm.broken_link(), "");
  });
}

// ---- without encryption

TEST(PlainDataPlane, carries_collectives_and_messages_of_one_generation_after_another) {
  TestWorld world = world_of("01");
  world.protect(Protection::kMac);
  for (int generation = 0; generation < 3; ++generation) {
    const bool cut_off = generation == 1;  // in the middle of a sum and of a message
    world.run(Mode::kThreads, [&](Communicator& comm, Rank self) {
      std::vector<float> data(300'000, 1.0F);
      std::vector<uint8_t> message = pattern(1'000'000, self);
      const OpId sum = comm.all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
      const OpId moved = self == 0 ? comm.send(kWorld, message.data(), message.size(), 1, 7)
                                   : comm.receive(kWorld, message.data(), message.size(), 0, 7);
      if (cut_off) {
        world.interrupt();
        finish(comm, sum);
        finish(comm, moved);
        return;
      }
      expect_done(comm, sum);
      expect_done(comm, moved);
      EXPECT_EQ(data[299'999], 2.0F);
      EXPECT_EQ(message, pattern(1'000'000, 0));
    });
    world.begin_generation();
  }
}

// ---- groups

TEST(AcrossNodes, groups_of_any_members_in_any_order_add_in_their_own_order) {
  world_of("001122").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    const std::vector<std::vector<Rank>> groups = {{0, 1, 2}, {5, 4, 3}, {2, 0, 3, 1},
                                                   {1, 2},    {5, 0},    {0, 1, 2, 3, 4, 5}};
    for (size_t g = 0; g < groups.size(); ++g) {
      const std::vector<Rank>& members = groups[g];
      if (std::find(members.begin(), members.end(), self) == members.end()) {
        continue;
      }
      const StatusOr<GroupId> group = comm.create_group(members, "group " + std::to_string(g));
      ASSERT_TRUE(group.ok()) << group.status();
      for (const size_t count : {100, 50'000}) {
        const auto input = [&](Rank rank, size_t i) {
          return static_cast<float>(rank * 7919 + i * 31 % 1009) * 1.37F + static_cast<float>(i % 7) * 1e6F;
        };
        std::vector<float> data(count);
        std::vector<float> expected(count);
        for (size_t i = 0; i < count; ++i) {
          data[i] = input(self, i);
          expected[i] = input(members[0], i);
          for (size_t m = 1; m < members.size(); ++m) {
            expected[i] += input(members[m], i);
          }
        }
        expect_done(comm, comm.all_reduce(*group, data.data(), count, DataType::kFloat32, ReduceOp::kSum));
        EXPECT_TRUE(data == expected) << "group " << g << " of " << count;
      }
      comm.release_group(*group);
    }
    expect_done(comm, comm.barrier(kWorld));
  });
}

TEST(AcrossNodes, a_group_made_with_other_members_elsewhere_is_told) {
  world_of("0011").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    if (self == 1) {
      return;  // of two minds about whom it belongs to
    }
    const std::vector<Rank> members = self == 0 ? std::vector<Rank>{0, 2, 3} : std::vector<Rank>{0, 1, 2, 3};
    const StatusOr<GroupId> group = comm.create_group(members, "mixed up");
    ASSERT_TRUE(group.ok());
    const Completion completion = finish(comm, comm.barrier(*group, 20 * kSecond));
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_NE(completion.error.find(self == 3 ? "rank 2 gave up" : "a node made this group with other ranks"),
              std::string::npos)
        << completion.error;
  });
}

TEST(AcrossNodes, places_of_groups_are_used_again) {
  world_of("0012").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    for (int round = 0; round < 20; ++round) {  // of 3 places
      const StatusOr<GroupId> group = comm.create_group({3, 2, 1, 0}, "again");
      ASSERT_TRUE(group.ok()) << round << " " << group.status();
      uint8_t data[100] = {};
      data[99] = self == 2 ? 42 : 0;
      expect_done(comm, comm.broadcast(*group, data, sizeof data, 1));
      EXPECT_EQ(data[99], 42);
      comm.release_group(*group);
    }
  });
}

// ---- messages

TEST(MessagesAcrossNodes, of_any_size_arrive_whole_whatever_the_order_of_their_tags) {
  world_of("0102").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    const std::vector<size_t> sizes = {0, 1, 4096, 16'384, 16'385, 1'000'003};
    std::vector<std::vector<uint8_t>> given;
    std::vector<std::vector<uint8_t>> taken;
    std::vector<OpId> ops;
    const auto seed = [](Rank from, Rank to, size_t tag) { return from * 100 + to * 10 + static_cast<uint32_t>(tag); };
    for (Rank peer = 0; peer < 4; ++peer) {
      for (size_t tag = 0; tag < sizes.size(); ++tag) {
        given.push_back(pattern(sizes[tag], seed(self, peer, tag)));
        taken.emplace_back(sizes[tag]);
      }
    }
    for (Rank peer = 0; peer < 4; ++peer) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        const size_t tag = sizes.size() - 1 - i;
        ops.push_back(comm.receive(kWorld, taken[peer * sizes.size() + tag].data(), sizes[tag], peer, tag));
        ops.push_back(comm.send(kWorld, given[peer * sizes.size() + i].data(), sizes[i], peer, i));
      }
    }
    for (const OpId op : ops) {
      expect_done(comm, op);
    }
    for (Rank peer = 0; peer < 4; ++peer) {
      for (size_t tag = 0; tag < sizes.size(); ++tag) {
        EXPECT_TRUE(taken[peer * sizes.size() + tag] == pattern(sizes[tag], seed(peer, self, tag)))
            << peer << " " << tag;
      }
    }
  });
}

TEST(MessagesAcrossNodes, a_rank_that_ends_after_its_send_has_sent_it) {
  for (int round = 0; round < 20; ++round) {
    world_of("01").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
      std::vector<uint8_t> data = self == 0 ? pattern(12'000, 5) : std::vector<uint8_t>(12'000);  // fits the ring
      expect_done(comm, self == 0 ? comm.send(kWorld, data.data(), data.size(), 1, 0)
                                  : comm.receive(kWorld, data.data(), data.size(), 0, 0));
      EXPECT_TRUE(data == pattern(12'000, 5));
    });
  }
}

TEST(MessagesAcrossNodes, too_long_a_message_fails_on_both_sides) {
  world_of("01").run(Mode::kProcesses, [](Communicator& comm, Rank self) {
    std::vector<uint8_t> data(100);
    const OpId op = self == 0 ? comm.send(kWorld, data.data(), 100, 1, 3) : comm.receive(kWorld, data.data(), 99, 0, 3);
    const Completion completion = finish(comm, op);
    EXPECT_EQ(completion.outcome, Outcome::kFailed);
    EXPECT_NE(completion.error.find("the message has 100 bytes, the receiver's buffer 99"), std::string::npos)
        << completion.error;
  });
}

// ---- interruption

// Runs all kinds of operations until interrupted; then everything must be over. `out`: the first one is.
void work_until_interrupted(Communicator& comm, Rank self, const std::function<void()>& begun,
                            const std::function<void()>& out) {
  const size_t count = 500'000;
  std::vector<float> data(count, 1.0F);
  std::vector<float> other(count);
  std::vector<float> given(250);
  std::vector<float> taken(250);
  const size_t world = 4;
  for (int round = 0;; ++round) {
    std::vector<OpId> ops;
    ops.push_back(comm.all_reduce(kWorld, data.data(), count, DataType::kFloat32, ReduceOp::kMax));
    ops.push_back(comm.broadcast(kWorld, data.data(), count * 4, round % world));
    const std::vector<void*> parts = {&other[0], &other[count / 4], &other[count / 2], &other[count / 4 * 3]};
    ops.push_back(comm.all_gather(kWorld, data.data(), parts, count));
    ops.push_back(comm.receive(kWorld, taken.data(), 1000, (self + 3) % world, round));
    ops.push_back(comm.send(kWorld, given.data(), 1000, (self + 1) % world, round));
    bool interrupted = false;
    for (const OpId op : ops) {
      const Completion completion = finish(comm, op);
      ASSERT_NE(completion.outcome, Outcome::kFailed) << completion.error;
      if (completion.outcome == Outcome::kInterrupted && !interrupted) {
        interrupted = true;
        out();
      }
    }
    if (round == 0) {
      begun();
    }
    if (interrupted) {
      return;
    }
  }
}

// How often: KEEPSTEP_INTERRUPTIONS, which `make test-all` sets to thousands.
int repetitions() {
  const char* text = std::getenv("KEEPSTEP_INTERRUPTIONS");
  return text == nullptr ? 20 : std::atoi(text);
}

// What befalls a victim at a random instant of its work; then the generation is interrupted, and all others must get
// out. Prints how long that took.
void interrupt_after(int signal) {
  std::mt19937 random(std::random_device{}());
  std::vector<double> microseconds;
  for (int round = 0; round < repetitions(); ++round) {
    const uint32_t seed = random();
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 mine(seed);
    TestWorld world = world_of(round % 2 == 0 ? "0011" : "0122");
    const Rank victim = mine() % 4;
    std::vector<pid_t> pids;
    for (Rank rank = 0; rank < 4; ++rank) {
      pids.push_back(world.fork_rank(rank, [&](Communicator& comm, Rank self) {
        work_until_interrupted(
            comm, self, [&] { world.signal(); },
            [&] {
              if (self != victim) {
                world.mark();
              }
            });
      }));
    }
    world.await(4);
    usleep(mine() % 20'000);  // a random instant, nothing is waited for
    kill(pids[victim], signal);
    if (signal == SIGKILL) {
      EXPECT_TRUE(WIFSIGNALED(TestWorld::status_of(pids[victim])));
    }
    const int64_t begin_ns = monotonic_ns();
    world.interrupt();
    for (Rank rank = 0; rank < 4; ++rank) {
      if (rank != victim) {
        EXPECT_EQ(TestWorld::status_of(pids[rank]), 0) << rank;
      }
    }
    microseconds.push_back(static_cast<double>(world.words().last_ns.load() - begin_ns) * 1e-3);
    if (signal == SIGSTOP) {  // it finds out as soon as it may go on
      kill(pids[victim], SIGCONT);
      EXPECT_EQ(TestWorld::status_of(pids[victim]), 0);
    }
    if (testing::Test::HasFailure()) {
      return;
    }
  }
  std::sort(microseconds.begin(), microseconds.end());
  std::printf("from the interruption to the last return: median %.0f us, worst %.0f us of %zu\n",
              microseconds[microseconds.size() / 2], microseconds.back(), microseconds.size());
}

TEST(InterruptionAcrossNodes, frees_the_peers_of_a_rank_killed_at_any_byte) { interrupt_after(SIGKILL); }
TEST(InterruptionAcrossNodes, frees_the_peers_of_a_rank_that_is_stopped) { interrupt_after(SIGSTOP); }

TEST(InterruptionAcrossNodes, frees_who_waits_for_a_peer_that_never_began) {
  TestWorld world = world_of("01");
  const auto comm = world.communicator(0);
  std::vector<float> data(100'000, 1.0F);
  const OpId large = comm->all_reduce(kWorld, data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
  const OpId small = comm->barrier(kWorld);
  const OpId message = comm->send(kWorld, data.data(), 100, 1, 0);
  std::thread waiter([&] {
    world.signal();
    EXPECT_EQ(finish(*comm, large).outcome, Outcome::kInterrupted);
    EXPECT_EQ(finish(*comm, small).outcome, Outcome::kInterrupted);
    EXPECT_EQ(finish(*comm, message).outcome, Outcome::kInterrupted);
  });
  world.await(1);
  world.interrupt();
  waiter.join();
  EXPECT_EQ(data[0], 1.0F);
}

}  // namespace
}  // namespace keepstep::comm
