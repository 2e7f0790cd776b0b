// Objects on a real disk: whole or absent, whichever process writes, races or dies.
#include "checkpoint/disk_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <future>

#include "base/fd.h"
#include "checkpoint/disk_files.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<ObjectStore> open_at(const std::string& path) {
  return std::move(open_store("file://" + path)).value();
}

std::vector<std::string> files_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> partial_files(const std::string& root) {
  std::vector<std::string> names = files_in(root + "/.keepstep-partial");
  std::erase(names, "lock");
  return names;
}

// Runs `body` in a child, which reports completion with one byte and is then killed.
template <typename Body>
void in_a_process_that_is_killed(const Body& body) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(pipes[0]);
    const auto kept = body();
    const char done = 1;
    if (write(pipes[1], &done, 1) == 1) {
      pause();
    }
    _exit(1);
  }
  close(pipes[1]);
  char done = 0;
  EXPECT_EQ(read(pipes[0], &done, 1), 1);
  close(pipes[0]);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(DiskStoreTest, it_keeps_the_contract_of_a_store) {
  const TestFolder folder;
  const auto store = open_at(folder.path + "/deep/er");  // created by the first write
  expect_the_contract_of_a_store(*store);
  EXPECT_THAT(files_in(folder.path + "/deep/er"), ElementsAre(".keepstep-partial"));
  EXPECT_THAT(partial_files(folder.path + "/deep/er"), IsEmpty());
}

TEST(DiskStoreTest, of_racing_puts_that_want_nothing_there_exactly_one_wins) {
  const TestFolder folder;
  expect_one_winner_a_round([&] { return open_at(folder.path); }, 40, 16, false);
}

TEST(DiskStoreTest, of_racing_puts_that_replace_one_version_exactly_one_wins) {
  const TestFolder folder;
  expect_one_winner_a_round([&] { return open_at(folder.path); }, 40, 16, true);
}

TEST(DiskStoreTest, readers_see_the_old_or_the_new_object_and_nothing_between) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  constexpr size_t kBytes = 300'000;
  ASSERT_TRUE(store->put("a/b", as_span(std::string(kBytes, 'a')), {}).ok());
  std::jthread writer([&](const std::stop_token& stop) {
    for (char c = 'b'; !stop.stop_requested(); c = c == 'z' ? 'a' : static_cast<char>(c + 1)) {
      EXPECT_TRUE(store->put("a/b", as_span(std::string(kBytes, c)), {}).ok());
    }
  });
  for (int i = 0; i < 200; ++i) {
    const auto object = store->read_all("a/b", kBytes);
    ASSERT_TRUE(object.ok()) << object.status();
    EXPECT_EQ(object->bytes, std::string(kBytes, object->bytes[0]));
  }
}

TEST(DiskStoreTest, writing_and_removing_in_one_folder_never_meet_a_folder_that_is_gone) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string key = absl::StrFormat("one/two/three/%d", i);
      for (int round = 0; round < 10; ++round) {
        const auto put = store->put(key, as_span("x"), {});
        EXPECT_TRUE(put.ok()) << put.status();
        const Status removed = store->remove(key);
        EXPECT_TRUE(removed.ok()) << removed;
      }
    });
  }
  threads.clear();
  EXPECT_THAT(*store->list_folders(""), IsEmpty());
}

TEST(DiskStoreTest, what_a_killed_writer_left_is_seen_by_nobody_and_removed_and_that_of_a_living_one_stays) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  auto living = store->create("living", 0);
  ASSERT_TRUE(living.ok() && (*living)->append(as_span("half")).ok());
  in_a_process_that_is_killed([&] {
    auto writer = store->create("dead", 1 << 20);
    EXPECT_TRUE((*writer)->append(as_span(content(1, 1 << 20))).ok());
    return writer;
  });
  EXPECT_EQ(partial_files(folder.path).size(), 2u);
  EXPECT_THAT(*store->list(""), IsEmpty());
  EXPECT_EQ(*store->remove_leftovers("", std::chrono::hours(24)), 1u);
  EXPECT_EQ(partial_files(folder.path).size(), 1u);
  EXPECT_EQ(*store->remove_leftovers("", std::chrono::seconds(0)), 0u);  // its writer is alive: age does not matter
  ASSERT_TRUE((*living)->append(as_span(" and half")).ok());
  ASSERT_TRUE((*living)->commit().ok());
  EXPECT_EQ(store->read_all("living", 100)->bytes, "half and half");
}

TEST(DiskStoreTest, what_another_machine_may_be_writing_goes_only_when_it_is_old) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  ASSERT_TRUE(store->put("a", as_span("x"), {}).ok());
  const std::string foreign = folder.path + "/.keepstep-partial/0badb007-1-00";
  std::ofstream(foreign) << "half";
  EXPECT_EQ(*store->remove_leftovers("", std::chrono::hours(24)), 0u);
  const timespec old[2] = {{1'700'000'000, 0}, {1'700'000'000, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, foreign.c_str(), old, 0), 0);
  EXPECT_EQ(*store->remove_leftovers("", std::chrono::hours(24)), 1u);
}

TEST(DiskStoreTest, a_stopped_process_that_holds_the_lock_is_waited_for_until_the_call_is_called_off) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  ASSERT_TRUE(store->put("a", as_span("x"), {}).ok());
  const std::atomic<bool> never = false;
  const auto held = lock_for_puts(folder.path, never);
  ASSERT_TRUE(held.ok());
  auto waiting = std::async(std::launch::async, [&] { return store->put("a", as_span("y"), {}).status(); });
  store->interrupt();
  EXPECT_EQ(waiting.get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(open_at(folder.path)->read_all("a", 10)->bytes, "x");
}

TEST(DiskStoreTest, a_file_cut_short_is_an_error_that_says_how_long_it_is) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  ASSERT_TRUE(store->put("a", as_span("0123456789"), {}).ok());
  ASSERT_EQ(truncate((folder.path + "/a").c_str(), 4), 0);
  std::string got(10, '\0');
  const Status read = store->read("a", 0, std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(read.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(text_of(read), HasSubstr("has 4 bytes"));
}

TEST(DiskStoreTest, what_is_no_regular_file_is_no_object_and_links_to_folders_are_not_followed) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  ASSERT_TRUE(store->put("a/b", as_span("x"), {}).ok());
  ASSERT_EQ(mkfifo((folder.path + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(store->read_all("pipe", 10).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->read_all("a", 10).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->read_all("a/b/c", 10).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(keys_of(*store->list("")), ElementsAre("a/b"));
  EXPECT_EQ(store->put("a", as_span("x"), {}).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::create_directory_symlink(folder.path, folder.path + "/a/up");
  std::filesystem::create_symlink(folder.path + "/a/b", folder.path + "/also-b");
  EXPECT_THAT(keys_of(*store->list("")), ElementsAre("a/b", "also-b"));
}

TEST(DiskStoreTest, a_file_size_limit_is_an_error_that_leaves_nothing) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    auto writer = store->create("large", 0);
    const Status appended = (*writer)->append(as_span(content(1, 2 << 20)));
    const bool right = appended.code() == absl::StatusCode::kResourceExhausted &&
                       text_of(appended).find("ulimit -f") != std::string::npos && !(*writer)->commit().ok();
    writer->reset();
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_THAT(partial_files(folder.path), IsEmpty());
}

// A small file system, mounted for this test alone.
struct SmallDisk {
  explicit SmallDisk(const std::string& at) : path(at) {
    std::filesystem::create_directory(path);
    mounted = mount("none", path.c_str(), "tmpfs", 0, "size=4m") == 0;
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted) {
      umount2(path.c_str(), MNT_DETACH);
    }
  }
  std::string path;
  bool mounted = false;
};

TEST(DiskStoreTest, a_full_disk_and_a_read_only_one_are_errors_that_say_so_and_what_was_there_stays) {
  const TestFolder folder;
  const SmallDisk disk(folder.path + "/disk");
  if (!disk.mounted) {
    GTEST_SKIP() << "mounting a small file system needs root: " << std::generic_category().message(errno);
  }
  const auto store = open_at(disk.path);
  ASSERT_TRUE(store->put("kept", as_span("before"), {}).ok());
  const auto announced = store->create("large", 64 << 20);
  EXPECT_EQ(announced.status().code(), absl::StatusCode::kResourceExhausted) << announced.status();
  EXPECT_THAT(text_of(announced.status()), HasSubstr("MiB free"));
  {
    const auto writer = store->create("large", 0);
    ASSERT_TRUE(writer.ok());
    const Status appended = (*writer)->append(as_span(content(1, 8 << 20)));
    EXPECT_EQ(appended.code(), absl::StatusCode::kResourceExhausted) << appended;
    EXPECT_EQ((*writer)->commit().status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_TRUE(store->put("small", as_span("room again"), {}).ok());  // nothing is left of the failed one
  ASSERT_EQ(mount("none", disk.path.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  const auto put = store->put("other", as_span("x"), {});
  EXPECT_EQ(put.status().code(), absl::StatusCode::kFailedPrecondition) << put.status();
  EXPECT_THAT(text_of(put.status()), HasSubstr("Mount it for writing"));
  EXPECT_EQ(store->remove("kept").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->read_all("kept", 10)->bytes, "before");
}

}  // namespace
}  // namespace keepstep::checkpoint
