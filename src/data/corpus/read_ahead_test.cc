#include "data/corpus/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace keepstep::data {
namespace {

constexpr size_t kBytes = size_t{4} << 20;

class ReadAheadTest : public testing::Test {
 protected:
  ReadAheadTest() {
    char name[] = "/tmp/keepstep-read-ahead-XXXXXX";
    const int fd = mkstemp(name);
    path_ = name;
    const std::string bytes(kBytes, 'k');
    EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(kBytes));
    EXPECT_EQ(fsync(fd), 0);
    EXPECT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    close(fd);
    file_ = std::make_shared<const MappedFile>(MappedFile::open(path_).value());
  }
  ~ReadAheadTest() override { unlink(path_.c_str()); }

  bool in_memory() const {
    std::vector<unsigned char> pages(kBytes / 4096);
    EXPECT_EQ(mincore(const_cast<std::byte*>(file_->bytes().data()), kBytes, pages.data()), 0);
    for (const unsigned char page : pages) {
      if ((page & 1) == 0) {
        return false;
      }
    }
    return true;
  }

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
};

TEST_F(ReadAheadTest, what_was_asked_for_is_in_memory_and_no_reader_waits) {
  ReadAhead& ahead = ReadAhead::of_process();
  ahead.wake();
  ahead.ask({{file_, 0, kBytes / 2}, {file_, kBytes / 2, kBytes}});  // clipped to the end of the file
  ahead.wait();
  EXPECT_TRUE(in_memory());
  const uint64_t before = page_faults_waited_for();
  uint64_t sum = 0;
  for (size_t i = 0; i < kBytes; i += 512) {
    sum += static_cast<uint64_t>(file_->bytes()[i]);
  }
  EXPECT_EQ(sum, kBytes / 512 * 'k');
  EXPECT_EQ(page_faults_waited_for(), before);
}

TEST_F(ReadAheadTest, rests_while_nothing_has_to_be_read_and_wakes) {
  ReadAhead& ahead = ReadAhead::of_process();
  ahead.wake();
  ahead.ask({{file_, 0, kBytes}});
  ahead.wait();
  ahead.wake();
  EXPECT_FALSE(ahead.rests());
  uint64_t looked_at = 0;
  for (int request = 0; request < 1000; ++request) {
    if (!ahead.rests()) {
      ++looked_at;
      ahead.ask({{file_, 0, kBytes}});
      ahead.wait();
    }
  }
  EXPECT_LT(looked_at, 30);
  ahead.wake();
  EXPECT_FALSE(ahead.rests());
}

TEST_F(ReadAheadTest, holds_a_file_until_it_is_done_with_it) {
  ReadAhead& ahead = ReadAhead::of_process();
  ahead.ask({{std::move(file_), 0, kBytes}});
  ahead.wait();
  file_ = std::make_shared<const MappedFile>(MappedFile::open(path_).value());
  ahead.ask({{file_, kBytes, 1}, {file_, 0, 0}});  // no bytes of the file
  ahead.wait();
}

TEST_F(ReadAheadTest, a_truncated_file_ends_nothing) {
  ASSERT_EQ(truncate(path_.c_str(), 4096), 0);
  ReadAhead& ahead = ReadAhead::of_process();
  ahead.ask({{file_, 0, kBytes}});
  ahead.wait();
  EXPECT_EQ(static_cast<char>(file_->bytes()[0]), 'k');
}

TEST_F(ReadAheadTest, a_forked_child_has_one_of_its_own) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child of a process that has some";
#endif
  ReadAhead::of_process().ask({{file_, 0, 4096}});
#if defined(__SANITIZE_ADDRESS__)
  ReadAhead::of_process().wait();  // GCC 12's allocator locks are copied as the thread holds them: the child would hang
#endif
  const pid_t child = fork();
  if (child == 0) {
    ReadAhead& ahead = ReadAhead::of_process();
    ahead.ask({{file_, 0, kBytes}});
    ahead.wait();  // would hang if it waited for its parent's thread
    _exit(in_memory() ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ReadAhead::of_process().wait();
}

}  // namespace
}  // namespace keepstep::data
