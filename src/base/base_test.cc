// Tests the wrappers around the OS on the real OS: memfds, sockets, futexes, and a process that is killed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <thread>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/futex.h"
#include "base/robust_mutex.h"
#include "base/running_checksum.h"
#include "base/shared_memory.h"
#include "base/short_turns.h"
#include "base/socket/packet_socket.h"
#include "base/token.h"

namespace keepstep {
namespace {

TEST(DigestTest, any_flipped_bit_another_order_and_another_cut_change_it_and_threads_do_not) {
  std::vector<uint8_t> bytes(9 << 20);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * 2654435761u >> 13);
  }
  const Piece small{bytes.data(), 1000};
  const Piece large{bytes.data() + 1000, bytes.size() - 1000};
  const std::vector<Piece> pieces = {small, {}, large};
  const uint64_t whole = digest_of(pieces);
  for (unsigned threads = 2; threads <= 8; ++threads) {
    EXPECT_EQ(digest_of(pieces, threads), whole);
  }
  EXPECT_NE(digest_of(std::vector<Piece>{large, {}, small}), whole);
  EXPECT_NE(digest_of(std::vector<Piece>{small, large}), whole);
  EXPECT_NE(digest_of(std::vector<Piece>{{bytes.data(), 1001}, {}, {bytes.data() + 1001, bytes.size() - 1001}}), whole);
  for (const size_t at : {size_t{0}, size_t{999}, size_t{1000}, size_t{3} << 20, bytes.size() - 1}) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[at] ^= static_cast<uint8_t>(1 << bit);
      EXPECT_NE(digest_of(pieces, 4), whole) << "byte " << at << ", bit " << bit;
      bytes[at] ^= static_cast<uint8_t>(1 << bit);
    }
  }
  EXPECT_EQ(digest_of({}), digest_of({}));
}

TEST(SharedMemoryTest, two_mappings_of_one_fd_show_the_same_bytes) {
  auto first = SharedMemory::create("test", 1 << 16);
  ASSERT_TRUE(first.ok()) << first.status();
  auto second = SharedMemory::attach(Fd(dup(first->fd())), 1 << 16);
  ASSERT_TRUE(second.ok()) << second.status();
  first->data()[1234] = std::byte{42};
  EXPECT_EQ(second->data()[1234], std::byte{42});
}

TEST(SharedMemoryTest, it_cannot_be_resized_and_a_file_that_can_is_refused) {
  auto memory = SharedMemory::create("test", 4096);
  ASSERT_TRUE(memory.ok());
  EXPECT_NE(ftruncate(memory->fd(), 10), 0);
  EXPECT_NE(ftruncate(memory->fd(), 1 << 20), 0);
  Fd unsealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_FALSE(SharedMemory::attach(std::move(unsealed), 4096).ok());
  EXPECT_FALSE(SharedMemory::attach(Fd(dup(memory->fd())), 8192).ok());
}

TEST(SharedMemoryTest, more_than_the_machine_has_is_an_error_now_not_a_crash_later) {
  const auto memory = SharedMemory::create("test", size_t{1} << 50);
  ASSERT_FALSE(memory.ok());
  EXPECT_NE(memory.status().message().find("test"), std::string::npos);
}

TEST(PacketSocketTest, packets_keep_their_borders_and_carry_descriptors) {
  auto pair = PacketSocket::pair();
  ASSERT_TRUE(pair.ok());
  auto memory = SharedMemory::create("test", 4096);
  const int fds[] = {memory->fd()};
  ASSERT_TRUE(pair->first.send("one", fds).ok());
  ASSERT_TRUE(pair->first.send("two").ok());
  const auto one = pair->second.receive();
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->bytes, "one");
  EXPECT_EQ(one->fds.size(), 1u);
  EXPECT_EQ(pair->second.receive()->bytes, "two");
}

TEST(PacketSocketTest, the_end_and_too_large_packets_are_errors) {
  auto pair = PacketSocket::pair();
  EXPECT_TRUE(absl::IsInvalidArgument(pair->first.send(std::string(kMaxPacketBytes + 1, 'x'))));
  pair->first = PacketSocket();
  EXPECT_TRUE(absl::IsUnavailable(pair->second.receive().status()));
  EXPECT_TRUE(absl::IsUnavailable(pair->second.send("x")));
}

TEST(PacketSocketTest, a_reader_that_does_not_read_stops_nobody_who_does_not_wait) {
  auto pair = PacketSocket::pair();
  Status status;
  for (int i = 0; i < 10'000 && status.ok(); ++i) {
    status = pair->first.try_send(std::string(10'000, 'x'));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(RobustMutexTest, the_death_of_the_owner_is_told_and_a_clean_end_is_not) {
  for (const bool killed : {true, false}) {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    auto* mutex = new (page) RobustMutex;
    auto* held = new (static_cast<char*>(page) + 1024) std::atomic<uint32_t>(0);
    ASSERT_TRUE(mutex->init());
    const pid_t child = fork();
    if (child == 0) {
      mutex->lock();
      held->store(1);
      futex_wake_all(*held);
      if (killed) {
        pause();
      }
      mutex->unlock();
      _exit(0);
    }
    while (held->load() == 0) {
      futex_wait(*held, 0, 10'000'000);
    }
    if (killed) {
      kill(child, SIGKILL);
    }
    const RobustMutex::LockResult locked = mutex->lock();
    EXPECT_EQ(locked, killed ? RobustMutex::LockResult::kOwnerDied : RobustMutex::LockResult::kHeld);
    mutex->release_after(locked);
    EXPECT_EQ(mutex->lock(), RobustMutex::LockResult::kHeld) << "it can be used again";
    mutex->unlock();
    waitpid(child, nullptr, 0);
    munmap(page, 4096);
  }
}

TEST(FutexTest, a_sleeper_is_woken_and_a_changed_word_does_not_sleep) {
  std::atomic<uint32_t> word{0};
  futex_wait(word, 1);  // returns at once: the word is not 1
  std::thread waker([&] {
    word.store(1);
    futex_wake_all(word);
  });
  while (word.load() == 0) {
    futex_wait(word, 0);
  }
  waker.join();
}

TEST(JobTokenTest, short_tokens_are_refused_and_white_space_is_trimmed) {
  EXPECT_FALSE(JobToken::parse("short").ok());
  EXPECT_FALSE(JobToken::parse(std::string(5000, 'a')).ok());
  EXPECT_FALSE(JobToken::parse("    " + std::string(31, 'a')).ok());
  EXPECT_EQ(JobToken::parse("  " + std::string(32, 'a') + "\n")->secret(), std::string(32, 'a'));
}

TEST(Checksum, is_xxh3_whatever_the_cpu_and_however_the_data_are_cut) {
  EXPECT_EQ(checksum(nullptr, 0), 0x2D06800538D394C2u) << "of no bytes, as the specification has it";
  std::vector<std::byte> data(100'000);
  uint64_t state = 1;
  for (std::byte& byte : data) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56U);
  }
#undef XXH3_64bits  // the library's own, built for any CPU
  for (size_t bytes = 0; bytes < data.size(); bytes += 1 + bytes / 7) {
    const uint64_t expected = XXH3_64bits(data.data(), bytes);
    EXPECT_EQ(checksum(data.data(), bytes), expected);
    RunningChecksum running;
    for (size_t at = 0; at < bytes; at += 1 + at % 1500) {
      running.add(std::span(data).subspan(at, std::min(1 + at % 1500, bytes - at)));
    }
    EXPECT_EQ(running.value(), expected) << bytes << " bytes";
  }
}

TEST(ShortTurns, are_what_the_kernel_says_of_the_thread_and_of_no_other) {
  struct Attributes {  // as in <linux/sched/types.h>, which conflicts with glibc's <sched.h>
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
  };
  const auto slice_ns = [] {
    Attributes attributes{};
    EXPECT_EQ(syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0), 0);
    return attributes.runtime_ns;
  };
  const uint64_t usual_ns = slice_ns();
  if (usual_ns == 0) {
    GTEST_SKIP() << "this kernel has the same slice for all (before Linux 6.12)";
  }
  uint64_t short_ns = 0;
  std::thread([&] {
    take_short_turns();
    short_ns = slice_ns();
  }).join();
  EXPECT_LT(short_ns, usual_ns);
  EXPECT_EQ(slice_ns(), usual_ns);
}

}  // namespace
}  // namespace keepstep
