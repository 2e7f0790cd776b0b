// Pulling the state of peers on other nodes: ranks on several "nodes" of this machine, threads, TCP over loopback.
#include <gmock/gmock.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>

#include "comm/test_world.h"
#include "rank/hydrate/remote_peer.h"
#include "rank/hydrate/remote_source.h"
#include "rank/link/reserved_tags.h"
#include "state/channel.h"
#include "state/hydration.h"
#include "state/hydration_testing.h"
#include "state/shared_link.h"

namespace keepstep::rank {
namespace {

using comm::Communicator;
using comm::Mode;
using comm::Rank;
using comm::TestWorld;
using state::Pulled;
using state::Puller;
using state::SourceAccess;
using state::testing::expect_all;
using state::testing::HookedCopy;
using state::testing::kVersion;
using state::testing::model_sizes;
using state::testing::SharedRegion;
using state::testing::sum_of;
using state::testing::Tensors;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPatienceNs = 60'000'000'000;
constexpr brain::Identity kIdentity{1, 1};  // that of a TestWorld's first generation

// What the ranks of a test know about each other. A rank is a source or a target, or neither.
class Job {
 public:
  Job(std::vector<uint32_t> nodes, std::set<Rank> sources, std::set<Rank> targets)
      : nodes_(nodes),
        world_(nodes.size(), comm::small_config(), nodes),
        sources_(std::move(sources)),
        targets_(std::move(targets)),
        regions_(nodes.size()) {}

  TestWorld& world() { return world_; }
  std::byte* region(Rank rank) { return regions_[rank].data(); }

  // A source's part: publishes, serves, and stops once all targets have left it.
  void serve(Communicator& comm, Rank self, state::DeviceCopy& copy, Tensors& tensors, std::string manifest = "{}") {
    state::Source source(region(self), copy, &world_.words().interrupted);
    const Status published = source.publish(kIdentity, kVersion, std::move(manifest), tensors.regions());
    ASSERT_TRUE(published.ok()) << published;
    const std::unique_ptr<RemoteSource> remote = serve_elsewhere(comm, self);
    EXPECT_TRUE(remote->finish(kPatienceNs));
    await_leavers();
  }
  std::unique_ptr<RemoteSource> serve_elsewhere(Communicator& comm, Rank self) {
    std::set<Rank> elsewhere;
    for (const Rank target : targets_) {
      if (nodes_[target] != nodes_[self]) {
        elsewhere.insert(target);
      }
    }
    return std::make_unique<RemoteSource>(comm, self, region(self), kIdentity, &world_.words().interrupted, elsewhere);
  }

  // Tells sources on this node, which cannot find out otherwise, that this target needs nothing more.
  void left() { world_.signal(); }
  void await_leavers() {
    if (world_.words().interrupted.load() == 0) {
      world_.await(static_cast<uint32_t>(targets_.size()));
    }
  }

  // A target's view of the sources.
  struct Sources {
    std::shared_ptr<Communicator> comm;
    std::vector<std::unique_ptr<RemotePeer>> peers;
    std::vector<SourceAccess> sources;
    // Also waits until the sources know it, because in a test the peers are destroyed before the communicator.
    void leave() {
      std::vector<comm::OpId> ops;
      for (const std::unique_ptr<RemotePeer>& peer : peers) {
        ops.push_back(peer->leave());
      }
      for (const comm::OpId op : ops) {
        comm->wait(op);
      }
    }
  };
  // The caller owns the communicator.
  Sources sources(Communicator& comm, Rank self) {
    Sources result{.comm = std::shared_ptr<Communicator>(&comm, [](Communicator*) {})};
    for (const Rank source : sources_) {
      if (nodes_[source] == nodes_[self]) {
        result.sources.push_back({.region = region(source)});
      } else {
        result.peers.push_back(std::make_unique<RemotePeer>(result.comm, source));
        result.sources.push_back({.peer = result.peers.back().get()});
      }
    }
    return result;
  }
  const std::atomic<uint32_t>* interrupted() { return &world_.words().interrupted; }

  // A target's part: pulls, and then leaves all sources.
  StatusOr<Pulled> pull(Communicator& comm, Rank self, state::DeviceCopy& copy, Tensors& tensors,
                        brain::Version version = kVersion, bool compare = false) {
    Sources from = sources(comm, self);
    StatusOr<Pulled> pulled =
        Puller(from.sources, self, copy, interrupted()).pull(kIdentity, version, tensors.regions(), compare);
    from.leave();
    left();
    return pulled;
  }

  // The same for targets that share with the others on their node, until all of them are done.
  StatusOr<Pulled> pull_shared(Communicator& comm, Rank self, state::DeviceCopy& copy, Tensors& tensors) {
    state::Source own(region(self), copy, interrupted());
    state::Sharing sharing{
        .publish = [&] { return own.publish(kIdentity, kVersion, "", tensors.regions()); },
    };
    for (const Rank target : targets_) {
      if (nodes_[target] == nodes_[self]) {
        sharing.siblings.push_back(target == self ? nullptr : region(target));
      }
    }
    Sources from = sources(comm, self);
    StatusOr<Pulled> pulled =
        Puller(from.sources, self, copy, interrupted()).pull(kIdentity, kVersion, tensors.regions(), false, &sharing);
    from.leave();
    left();
    await_leavers();
    return pulled;
  }

 private:
  const std::vector<uint32_t> nodes_;
  TestWorld world_;
  std::set<Rank> sources_;
  std::set<Rank> targets_;
  std::vector<SharedRegion> regions_;
};

// Makes a source withdraw after six reads. What it reads afterwards is corrupt, so the others must help however late it
// withdraws.
class SixGoodReads {
 public:
  explicit SixGoodReads(HookedCopy& copy) {
    copy.before = [this](int number) {
      reads_.store(static_cast<uint32_t>(number));
      futex_wake_all(reads_);
    };
    copy.after = [](std::byte* slot, size_t, int number) {
      slot[0] ^= std::byte{number > 6 ? uint8_t{1} : uint8_t{0}};
    };
  }
  void await() {
    for (uint32_t seen = 0; (seen = reads_.load()) < 6;) {
      futex_wait(reads_, seen, 50'000'000);
    }
  }

 private:
  std::atomic<uint32_t> reads_{0};
};

TEST(RemoteHydration, a_target_whose_sources_are_all_on_another_node_gets_their_bytes) {
  Job job({0, 0, 1}, {0, 1}, {2});
  const std::vector<uint64_t> sizes = model_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(sizes, self == 2 ? 99 : 1);
    if (self != 2) {
      job.serve(comm, self, copy, mine);
      return;
    }
    const Pulled pulled = expect_all(job.pull(comm, self, copy, mine), mine, sizes);
    EXPECT_EQ(pulled.chunks_repeated, 0u);
    ASSERT_EQ(pulled.bytes_by_source.size(), 2u);
    EXPECT_EQ(pulled.bytes_by_source[0] + pulled.bytes_by_source[1], sum_of(sizes));
    // Equal shares to within a chunk.
    EXPECT_LE(std::max(pulled.bytes_by_source[0], pulled.bytes_by_source[1]),
              std::min(pulled.bytes_by_source[0], pulled.bytes_by_source[1]) + state::kSlotBytes);
  });
}

TEST(RemoteHydration, a_source_on_the_own_node_gives_everything_while_it_is_there) {
  Job job({0, 1, 1}, {0, 1}, {2});
  const std::vector<uint64_t> sizes = model_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(sizes, self == 2 ? 99 : 1);
    if (self != 2) {
      job.serve(comm, self, copy, mine);
      return;
    }
    const Pulled pulled = expect_all(job.pull(comm, self, copy, mine), mine, sizes);
    EXPECT_EQ(pulled.bytes_by_source, (std::vector<uint64_t>{0, sum_of(sizes)}));
  });
}

TEST(RemoteHydration, what_a_source_on_the_own_node_owes_when_it_withdraws_comes_from_another_node) {
  Job job({0, 1, 1}, {0, 1}, {2});
  const std::vector<uint64_t> sizes = model_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    HookedCopy copy;
    Tensors mine(sizes, self == 2 ? 99 : 1);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
    } else if (self == 1) {
      SixGoodReads six(copy);
      state::Source source(job.region(self), copy, job.interrupted());
      ASSERT_TRUE(source.publish(kIdentity, kVersion, "{}", mine.regions()).ok());
      six.await();
      source.stop();
      job.await_leavers();
    } else {
      const Pulled pulled = expect_all(job.pull(comm, self, copy, mine), mine, sizes);
      EXPECT_EQ(pulled.bytes_by_source[0] + pulled.bytes_by_source[1], sum_of(sizes));
      EXPECT_GT(pulled.bytes_by_source[0], 0u);
    }
  });
}

TEST(RemoteHydration, a_source_elsewhere_that_withdraws_in_the_middle_is_replaced_by_another) {
  Job job({0, 1, 2}, {0, 1}, {2});
  const std::vector<uint64_t> sizes = model_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    HookedCopy copy;
    Tensors mine(sizes, self == 2 ? 99 : 1);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
    } else if (self == 1) {
      SixGoodReads six(copy);
      state::Source source(job.region(self), copy, job.interrupted());
      ASSERT_TRUE(source.publish(kIdentity, kVersion, "{}", mine.regions()).ok());
      const std::unique_ptr<RemoteSource> remote = job.serve_elsewhere(comm, self);
      six.await();
      source.stop();
      mine[0].assign(sizes[0], 0);  // from here on its state may change
      EXPECT_TRUE(remote->finish(kPatienceNs));
    } else {
      const Pulled pulled = expect_all(job.pull(comm, self, copy, mine), mine, sizes);
      EXPECT_LT(pulled.bytes_by_source[1], pulled.bytes_by_source[0]);
    }
  });
}

TEST(RemoteHydration, a_source_elsewhere_that_is_killed_in_the_middle_is_replaced_by_another) {
  Job job({0, 1, 2}, {0, 1}, {2});
  const std::vector<uint64_t> sizes = model_sizes();
  std::vector<pid_t> pids;
  for (const Rank self : {0u, 1u, 2u}) {
    pids.push_back(job.world().fork_rank(self, [&](Communicator& comm, Rank) {
      HookedCopy copy;
      if (self == 1) {
        copy.before = [](int number) {
          if (number == 4) {
            kill(getpid(), SIGKILL);
          }
        };
      }
      Tensors mine(sizes, self == 2 ? 99 : 1);
      if (self != 2) {
        job.serve(comm, self, copy, mine);
        return;
      }
      Job::Sources sources = job.sources(comm, self);
      const StatusOr<Pulled> pulled =
          Puller(sources.sources, self, copy, job.interrupted()).pull(kIdentity, kVersion, mine.regions(), false);
      job.left();
      sources.leave();  // the dead source never receives it; the interruption ends that
      ASSERT_TRUE(pulled.ok()) << pulled.status();
      EXPECT_EQ(mine, Tensors(sizes, 1));
      EXPECT_GT(pulled->chunks_repeated, 0u);
      EXPECT_LT(pulled->bytes_by_source[1], pulled->bytes_by_source[0]);
    }));
  }
  job.world().await(1);
  EXPECT_TRUE(WIFSIGNALED(TestWorld::status_of(pids[1])));
  job.world().interrupt();
  EXPECT_EQ(TestWorld::status_of(pids[0]), 0);
  EXPECT_EQ(TestWorld::status_of(pids[2]), 0);
}

TEST(RemoteHydration, a_wrong_checksum_is_asked_for_again_elsewhere) {
  Job job({0, 1, 2}, {0, 1}, {2});
  const std::vector<uint64_t> sizes = model_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    HookedCopy copy;
    if (self == 0) {
      copy.after = [](std::byte* slot, size_t, int) { slot[0] ^= std::byte{1}; };  // every time
    }
    Tensors mine(sizes, self == 2 ? 99 : 1);
    if (self != 2) {
      job.serve(comm, self, copy, mine);
      return;
    }
    const Pulled pulled = expect_all(job.pull(comm, self, copy, mine), mine, sizes);
    EXPECT_EQ(pulled.bytes_by_source, (std::vector<uint64_t>{0, sum_of(sizes)}));
    EXPECT_GT(pulled.chunks_repeated, 3u);
  });
}

TEST(RemoteHydration, more_targets_than_channels_on_both_nodes_all_get_their_bytes) {
  Job job({0, 0, 0, 1, 1, 1, 2, 2}, {0}, {1, 2, 3, 4, 5, 6, 7});
  const std::vector<uint64_t> sizes = model_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(sizes, self == 0 ? 1 : 99);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
      return;
    }
    expect_all(job.pull(comm, self, copy, mine), mine, sizes);
  });
}

// More than targets fetch on their own in any case.
std::vector<uint64_t> shared_sizes() {
  std::vector<uint64_t> sizes = model_sizes();
  sizes.push_back((uint64_t{5} << 20) + 12345);
  sizes.push_back(77);
  return sizes;
}

TEST(RemoteHydration, targets_of_one_node_fetch_the_state_once_and_give_it_to_each_other) {
  Job job({0, 1, 2, 2, 2}, {0, 1}, {2, 3, 4});
  const std::vector<uint64_t> sizes = shared_sizes();
  std::mutex mutex;
  uint64_t from_elsewhere = 0;
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(sizes, self < 2 ? 1 : 99);
    if (self < 2) {
      job.serve(comm, self, copy, mine);
      return;
    }
    const Pulled pulled = expect_all(job.pull_shared(comm, self, copy, mine), mine, sizes);
    EXPECT_EQ(pulled.chunks_repeated, 0u);
    EXPECT_EQ(pulled.bytes, sum_of(sizes));
    ASSERT_EQ(pulled.bytes_by_source.size(), 4u);  // two sources, two siblings
    EXPECT_EQ(sum_of(pulled.bytes_by_source), sum_of(sizes));
    for (const uint64_t bytes : pulled.bytes_by_source) {
      EXPECT_GT(bytes, 0u);
    }
    const std::lock_guard lock(mutex);
    from_elsewhere += pulled.bytes_by_source[0] + pulled.bytes_by_source[1];
  });
  EXPECT_EQ(from_elsewhere, sum_of(sizes));
}

TEST(RemoteHydration, what_a_sibling_gives_wrong_comes_from_elsewhere) {
  Job job({0, 1, 1}, {0}, {1, 2});
  const std::vector<uint64_t> sizes = shared_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    HookedCopy copy;
    if (self == 1) {
      copy.after = [](std::byte* slot, size_t, int) { slot[0] ^= std::byte{1}; };  // the chunks that it gives
    }
    Tensors mine(sizes, self == 0 ? 1 : 99);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
      return;
    }
    const Pulled pulled = expect_all(job.pull_shared(comm, self, copy, mine), mine, sizes);
    EXPECT_EQ(pulled.bytes_by_source[1] == 0, self == 2);
    EXPECT_EQ(pulled.chunks_repeated > 0, self == 2);
  });
}

TEST(RemoteHydration, what_a_sibling_owes_when_it_withdraws_comes_from_elsewhere) {
  Job job({0, 1, 1}, {0}, {1, 2});
  const std::vector<uint64_t> sizes = shared_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    HookedCopy copy;
    Tensors mine(sizes, self == 0 ? 1 : 99);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
    } else if (self == 1) {  // has the state, gives six chunks of it, and fails
      mine = Tensors(sizes, 1);
      SixGoodReads six(copy);
      state::Source source(job.region(self), copy, job.interrupted());
      ASSERT_TRUE(source.publish(kIdentity, kVersion, "", mine.regions()).ok());
      Job::Sources from = job.sources(comm, self);
      six.await();
      source.stop();
      from.leave();
      job.left();
    } else {
      const Pulled pulled = expect_all(job.pull_shared(comm, self, copy, mine), mine, sizes);
      EXPECT_GT(pulled.chunks_repeated, 0u);
      EXPECT_GT(pulled.bytes_by_source[0], pulled.bytes_by_source[1]);
    }
  });
}

TEST(RemoteHydration, who_waits_for_a_sibling_that_gets_nothing_ends_with_the_generation) {
  Job job({0, 1, 1}, {0}, {1, 2});
  const std::vector<uint64_t> sizes = shared_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    HookedCopy copy;
    Tensors mine(sizes, self == 0 ? 1 : 99);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
    } else if (self == 1) {  // never asks for anything; dies once its sibling waits for it
      job.world().await(1);
      job.world().interrupt();
    } else {
      state::Sharing sharing{.siblings = {job.region(1), nullptr}, .publish = [&] {
                               job.left();
                               return absl::OkStatus();
                             }};
      Job::Sources from = job.sources(comm, self);
      const StatusOr<Pulled> pulled = Puller(from.sources, self, copy, job.interrupted())
                                          .pull(kIdentity, kVersion, mine.regions(), false, &sharing);
      EXPECT_TRUE(absl::IsAborted(pulled.status())) << pulled.status();
      from.leave();
    }
  });
}

TEST(RemoteHydration, with_compare_only_what_differs_is_moved) {
  Job job({0, 1}, {0}, {1});
  const std::vector<uint64_t> sizes = model_sizes();
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(sizes, 1);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
      return;
    }
    mine[3][7] ^= 1;
    const Pulled pulled = expect_all(job.pull(comm, self, copy, mine, kVersion, true), mine, sizes);
    EXPECT_EQ(pulled.bytes, sizes[3]);
    EXPECT_EQ(pulled.bytes_skipped, sum_of(sizes) - sizes[3]);
  });
}

TEST(RemoteHydration, a_manifest_of_some_mebibytes_comes_whole_and_the_pull_goes_on_over_the_same_line) {
  Job job({0, 1, 2}, {0, 1}, {2});
  const std::vector<uint64_t> sizes{1 << 20, 12};
  std::string manifest(5'000'001, ' ');
  for (size_t i = 0; i < manifest.size(); ++i) {
    manifest[i] = static_cast<char>('a' + (i * i) % 23);
  }
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(sizes, self == 2 ? 99 : 1);
    if (self != 2) {
      job.serve(comm, self, copy, mine, manifest);
      return;
    }
    Job::Sources sources = job.sources(comm, self);
    const StatusOr<std::string> read = Puller(sources.sources, self, copy, job.interrupted()).manifest(kIdentity);
    const StatusOr<Pulled> pulled =
        Puller(sources.sources, self, copy, job.interrupted()).pull(kIdentity, kVersion, mine.regions(), false);
    sources.leave();
    job.left();
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == manifest);
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_EQ(mine, Tensors(sizes, 1));
  });
}

TEST(RemoteHydration, sizes_that_differ_are_refused_by_the_number_of_the_entry) {
  Job job({0, 1}, {0}, {1});
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(self == 0 ? std::vector<uint64_t>{8, 64, 4} : std::vector<uint64_t>{8, 60, 8}, 1);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
      return;
    }
    const Status status = job.pull(comm, self, copy, mine).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("entry 1 has 60 bytes here"), HasSubstr("64 bytes at the source")));
  });
}

TEST(RemoteHydration, a_request_of_another_version_is_refused_with_the_reason) {
  Job job({0, 1}, {0}, {1});
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine({8}, 1);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
      return;
    }
    const Status status = job.pull(comm, self, copy, mine, kVersion + 1).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("published version 118, not 119"));
  });
}

TEST(RemoteHydration, garbage_from_the_wire_is_refused_and_the_source_goes_on_serving) {
  Job job({0, 1}, {0}, {1});
  const std::vector<uint64_t> sizes{100, 1'000'000};
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(sizes, self == 0 ? 1 : 99);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
      return;
    }
    Job::Sources sources = job.sources(comm, self);
    RemotePeer& peer = *sources.peers[0];
    const uint64_t identity = state::pack(kIdentity);
    const auto data = static_cast<uint32_t>(state::Kind::kData);
    const std::vector<std::pair<state::RemoteRequest, std::string>> bad{
        {{.identity = identity, .version = kVersion, .bytes = 1, .kind = 77}, "malformed"},
        {{.identity = identity, .version = kVersion, .bytes = state::kSlotBytes + 1, .kind = data}, "malformed"},
        {{.identity = identity, .version = kVersion, .offset = ~uint64_t{0}, .bytes = 8, .kind = data}, "malformed"},
        {{.identity = identity,
          .version = kVersion,
          .bytes = 1 << 16,
          .kind = static_cast<uint32_t>(state::Kind::kSizes)},
         "malformed"},
        {{.identity = identity, .version = 5, .bytes = 8, .kind = data}, "another identity or version"},
        {{.identity = identity + 1, .version = kVersion, .bytes = 8, .kind = data}, "another identity or version"},
        {{.identity = identity, .version = kVersion, .bytes = 8, .kind = data, .layout = 3},
         "another version of keepstep"},
        {{.identity = identity, .kind = static_cast<uint32_t>(state::RemoteKind::kStop)}, "malformed"},
    };
    for (const auto& [request, why] : bad) {
      peer.ask(request);
      const StatusOr<state::Peer::Answer> answer = peer.answer(10'000'000'000);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_EQ(answer->head.code, state::kReplyRefused);
      EXPECT_THAT(std::string(reinterpret_cast<const char*>(answer->bytes), answer->head.bytes), HasSubstr(why));
      peer.done();
    }
    // Longer than a request: both sides' messages fail, and nothing else does.
    const std::vector<std::byte> long_one(4096);
    EXPECT_EQ(
        comm::finish(comm, comm.send(comm::kWorld, long_one.data(), long_one.size(), 0, kTagHydrationRequest)).outcome,
        comm::Outcome::kFailed);
    const StatusOr<Pulled> pulled =
        Puller(sources.sources, self, copy, job.interrupted()).pull(kIdentity, kVersion, mine.regions(), false);
    sources.leave();
    job.left();
    ASSERT_TRUE(pulled.ok()) << pulled.status();
    EXPECT_EQ(mine, Tensors(sizes, 1));
  });
}

TEST(RemoteHydration, an_interruption_in_the_middle_ends_both_sides) {
  Job job({0, 1}, {0}, {1});
  const std::vector<uint64_t> sizes(40, state::kSlotBytes);  // each a chunk
  constexpr size_t kReadAtOnce = size_t{64} << 10;
  std::atomic<int> reads{0};
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    HookedCopy copy;
    copy.before = [&](int number) {
      reads = number;
      if (number == 5) {
        job.world().interrupt();
      }
    };
    Tensors mine(sizes, self == 0 ? 1 : 99);
    if (self == 0) {
      job.serve(comm, self, copy, mine);
      return;
    }
    Job::Sources sources = job.sources(comm, self);
    const Status status = Puller(sources.sources, self, copy, job.interrupted())
                              .pull(kIdentity, kVersion, mine.regions(), false)
                              .status();
    sources.leave();
    EXPECT_TRUE(absl::IsAborted(status)) << "neither done nor given up after a silence, but: " << status;
  });
  // Both got here without the other's goodbye, and nobody served or asked any further.
  constexpr int kReadsOfChunk = state::kSlotBytes / kReadAtOnce;
  EXPECT_LE(reads, kReadsOfChunk * static_cast<int>(1 + state::kRemoteWindow));
  EXPECT_LT(reads, kReadsOfChunk * static_cast<int>(sizes.size())) << "the model is too small for this test";
}

TEST(RemoteHydration, an_interruption_ends_the_wait_for_a_source_that_never_publishes) {
  Job job({0, 1}, {0}, {1});
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine({8}, 1);
    if (self == 0) {
      job.world().await(1);
      job.world().interrupt();
      return;
    }
    Job::Sources sources = job.sources(comm, self);
    Puller puller(sources.sources, self, copy, job.interrupted());
    job.world().signal();
    EXPECT_TRUE(absl::IsAborted(puller.manifest(kIdentity).status()));
    EXPECT_TRUE(absl::IsAborted(puller.pull(kIdentity, kVersion, mine.regions(), false).status()));
    sources.leave();
  });
}

// Such targets may compare gigabytes, one request after another, before they give a channel back.
TEST(RemoteHydration, targets_on_the_own_node_that_keep_their_channels_do_not_hold_up_those_elsewhere) {
  Job job({0, 1}, {0}, {1});
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    state::HostCopy copy;
    Tensors mine(model_sizes(), self + 1);
    if (self == 1) {
      job.world().await(1);
      const StatusOr<Pulled> pulled = job.pull(comm, self, copy, mine);
      ASSERT_TRUE(pulled.ok()) << pulled.status();
      EXPECT_EQ(mine, Tensors(model_sizes(), 1));
      return;
    }
    state::Source source(job.region(self), copy, job.interrupted());
    ASSERT_TRUE(source.publish(kIdentity, kVersion, "{}", mine.regions()).ok());
    std::vector<std::unique_ptr<state::SharedLink>> here;
    for (uint32_t target = 0; target < state::kChannels; ++target) {
      here.push_back(std::make_unique<state::SharedLink>(job.region(self), 100 + target, job.interrupted()));
      const StatusOr<bool> published = here.back()->look(kIdentity);
      ASSERT_TRUE(published.ok() && *published);
      ASSERT_TRUE(here.back()->take_channel().ok());
    }
    const std::unique_ptr<RemoteSource> remote = job.serve_elsewhere(comm, self);
    job.world().signal();
    EXPECT_TRUE(remote->finish(kPatienceNs));
    here.clear();
  });
}

// Rank 0 publishes and serves rank 1, which never asks.
void serve_nobody(const std::function<void(std::unique_ptr<RemoteSource>)>& then) {
  Job job({0, 1}, {0}, {1});
  job.world().run(Mode::kThreads, [&](Communicator& comm, Rank self) {
    if (self != 0) {
      return;
    }
    state::HostCopy copy;
    Tensors mine({8}, 1);
    state::Source source(job.region(self), copy, job.interrupted());
    ASSERT_TRUE(source.publish(kIdentity, kVersion, "{}", mine.regions()).ok());
    then(job.serve_elsewhere(comm, self));
  });
}

// The link between the two broke, and no other rank is affected.
TEST(RemoteHydration, a_source_does_not_wait_for_ever_for_a_goodbye_that_never_comes) {
  serve_nobody([](std::unique_ptr<RemoteSource> remote) { EXPECT_FALSE(remote->finish(50'000'000)); });
}

TEST(RemoteHydration, a_source_that_ends_early_waits_for_nobody) {
  // Returns; and the communicator has nothing left to wait for.
  serve_nobody([](std::unique_ptr<RemoteSource> remote) { remote.reset(); });
}

}  // namespace
}  // namespace keepstep::rank
