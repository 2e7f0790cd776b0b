// Drains to a real folder: what arrives is whole, and loads like any checkpoint there.
#include "memory_server/drains.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/runtime_folder_testing.h"
#include "checkpoint/catalog.h"
#include "checkpoint/file_recipe.h"
#include "checkpoint/store_testing.h"
#include "memory_server/server_testing.h"

namespace keepstep::memory_server {
namespace {

using checkpoint::as_span;
using checkpoint::Catalog;
using checkpoint::content;
using checkpoint::TestFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A checkpoint of one file, with the content of `step`.
void save(const std::shared_ptr<checkpoint::ObjectStore>& store, uint64_t step, uint64_t seed) {
  const auto owner = checkpoint::Owner::claim(store, {.job = "job", .renew_in_background = false});
  ASSERT_TRUE(owner.ok()) << owner.status();
  checkpoint::Manifest manifest{.step = step, .world = 1, .created_s = 1, .job = "job", .token = (*owner)->token()};
  const std::string name = checkpoint::data_file_name(0, 0, manifest.token, 1);
  const std::string bytes = content(seed, size_t{5} << 20);
  checkpoint::FileRecipe recipe{{std::as_bytes(std::span(bytes))}};
  const auto sums = checkpoint::write_file(*store, checkpoint::folder_of(step) + "/" + name, recipe);
  ASSERT_TRUE(sums.ok()) << sums.status();
  manifest.layout.files = {name};
  manifest.sums = {*sums};
  checkpoint::SumStream metadata;
  metadata.add(as_span("metadata"));
  manifest.metadata = metadata.finish();
  const Status done = Catalog(store).commit(**owner, manifest, as_span("metadata"), true);
  ASSERT_TRUE(done.ok()) << done;
}

void wait_until_drained(Server& server) {
  while (server.drains().waiting() > 0) {
    std::this_thread::yield();
  }
}

std::vector<uint64_t> complete(const std::shared_ptr<checkpoint::ObjectStore>& store) {
  std::vector<uint64_t> steps;
  const auto listed = Catalog(store).list();
  for (const auto& each : listed.value()) {
    if (each.complete) {
      steps.push_back(each.step);
    }
  }
  return steps;
}

// Another process that owns a destination until it is killed.
class Owning {
 public:
  explicit Owning(const std::string& url) {
    int pipes[2];
    EXPECT_EQ(pipe(pipes), 0);
    child_ = fork();
    if (child_ == 0) {
      const std::shared_ptr<checkpoint::ObjectStore> store = std::move(checkpoint::open_store(url)).value();
      const auto owner = checkpoint::Owner::claim(store, {.job = "another", .renew_in_background = false});
      if (owner.ok() && write(pipes[1], "x", 1) == 1) {
        pause();
      }
      _exit(1);
    }
    close(pipes[1]);
    char claimed = 0;
    EXPECT_EQ(read(pipes[0], &claimed, 1), 1);
    close(pipes[0]);
  }
  Owning(const Owning&) = delete;
  Owning& operator=(const Owning&) = delete;
  ~Owning() { end(); }
  void end() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(std::exchange(child_, -1), nullptr, 0);
    }
  }

 private:
  pid_t child_ = -1;
};

class DrainsTest : public testing::Test {
 protected:
  std::shared_ptr<checkpoint::ObjectStore> open(const std::string& parameters) {
    return std::move(checkpoint::open_store("memory://run?drain=file://" + folder_.path + "/disk" + parameters,
                                            {.command = "/nonexistent"}))
        .value();
  }
  std::shared_ptr<checkpoint::ObjectStore> disk() {
    return std::move(checkpoint::open_store("file://" + folder_.path + "/disk")).value();
  }

  const OwnRuntimeFolder runtime_;
  const TestFolder folder_;
  RunningServer server_;
};

TEST_F(DrainsTest, what_is_complete_reaches_the_disk) {
  const auto store = open("");
  save(store, 1, 1);
  save(store, 2, 2);
  wait_until_drained(server_.server());
  EXPECT_THAT(complete(disk()), ElementsAre(1, 2));
  const auto manifest = Catalog(disk()).manifest(2);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(disk()->read_all("step-000000000002/" + manifest->layout.files[0], size_t{5} << 20)->bytes,
            content(2, size_t{5} << 20));
  EXPECT_EQ(disk()->read_all("step-000000000002/.metadata", 100)->bytes, "metadata");
}

TEST_F(DrainsTest, so_many_stay) {
  const auto store = open("&drain_keep=2");
  for (uint64_t step = 1; step <= 5; ++step) {
    save(store, step, step);
    wait_until_drained(server_.server());
  }
  EXPECT_THAT(complete(disk()), ElementsAre(4, 5));
}

TEST_F(DrainsTest, a_step_that_is_saved_again_replaces_the_one_on_disk) {
  const auto store = open("");
  save(store, 1, 1);
  wait_until_drained(server_.server());
  save(store, 1, 2);
  wait_until_drained(server_.server());
  const auto manifest = Catalog(disk()).manifest(1);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(disk()->read_all("step-000000000001/" + manifest->layout.files[0], size_t{5} << 20)->bytes,
            content(2, size_t{5} << 20));
}

TEST_F(DrainsTest, a_destination_that_another_job_owns_is_left_alone_and_tried_again) {
  Owning theirs("file://" + folder_.path + "/disk");
  const auto store = open("");
  save(store, 1, 1);
  while (server_.server().drains().describe("run")["failures"] == 0) {
    std::this_thread::yield();
  }
  EXPECT_THAT(server_.server().drains().describe("run")["failure"].get<std::string>(), HasSubstr("another"));
  EXPECT_THAT(complete(disk()), ElementsAre());
  theirs.end();
  wait_until_drained(server_.server());
  EXPECT_THAT(complete(disk()), ElementsAre(1));
}

TEST_F(DrainsTest, another_drain_waits_until_this_one_is_done) {
  Owning theirs("file://" + folder_.path + "/disk");
  save(open(""), 1, 1);
  const auto other =
      std::move(checkpoint::open_store("memory://run?drain=file:///elsewhere", {.command = "/x"})).value();
  const auto refused = other->put("a", as_span("1"), {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("still drains to"));
}

}  // namespace
}  // namespace keepstep::memory_server
