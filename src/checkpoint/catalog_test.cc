// A namespace on a real disk: checkpoints appear whole or not at all, one job writes, and protected checkpoints stay.
#include "checkpoint/catalog.h"

#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/file_recipe.h"
#include "checkpoint/store_testing.h"

namespace keepstep::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<ObjectStore> open_at(const std::string& path) {
  return std::move(open_store("file://" + path)).value();
}

OwnerOptions options(const std::string& job, int64_t now = 1000) {
  return {.job = job, .renew_in_background = false, .now_s = [now] { return now; }};
}

// The data of one rank, and the manifest that would make it a checkpoint.
Manifest saved(ObjectStore& store, const Owner& owner, uint64_t step, uint64_t attempt = 1) {
  FileRecipe recipe;
  recipe.pieces.emplace_back(content(step, 1000));
  const std::string name = data_file_name(0, 0, owner.token(), attempt);
  const auto sums = write_file(store, folder_of(step) + "/" + name, recipe);
  EXPECT_TRUE(sums.ok()) << sums.status();
  Manifest manifest{.step = step, .world = 1, .created_s = 5, .job = "j", .token = owner.token()};
  manifest.layout.files = {name};
  manifest.sums = {*sums};
  SumStream metadata;
  metadata.add(as_span("metadata"));
  manifest.metadata = metadata.finish();
  return manifest;
}

TEST(Catalog, NamesSayWhatTheyAre) {
  EXPECT_EQ(folder_of(120), "step-000000000120");
  EXPECT_EQ(step_of("step-000000000120"), 120U);
  EXPECT_EQ(step_of("step-120"), std::nullopt);
  EXPECT_EQ(step_of("step-00000000012x"), std::nullopt);
  EXPECT_EQ(data_file_name(3, 0, 7, 2), "__3_0.7-2.distcp");
  EXPECT_TRUE(is_data_file_name("__3_0.7-2.distcp"));
  for (const char* name :
       {"__3_0.distcp", "__3_0.7-2.distcp2", "__3_0.7-2", "__03_0.7-2.distcp", "x__3_0.7-2.distcp"}) {
    EXPECT_FALSE(is_data_file_name(name)) << name;
  }
}

TEST(Catalog, WithoutAWholeManifestThereIsNoCheckpoint) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const Catalog catalog(store);
  EXPECT_EQ(catalog.newest().status().code(), absl::StatusCode::kNotFound);
  const auto owner = std::move(Owner::claim(store, options("a"))).value();
  for (const uint64_t step : {10, 20, 30}) {
    const Manifest manifest = saved(*store, *owner, step);
    ASSERT_TRUE(catalog.commit(*owner, manifest, as_span("metadata"), false).ok());
  }
  saved(*store, *owner, 40);
  std::vector<std::string> skipped;
  EXPECT_EQ(catalog.newest(&skipped)->step, 30U);
  EXPECT_THAT(skipped, ElementsAre(HasSubstr("step 40 has no manifest")));
  ASSERT_TRUE(store->put("step-000000000030/manifest.json", as_span("{\"format\":"), {}).ok());
  EXPECT_EQ(catalog.newest(&skipped)->step, 20U);
  EXPECT_THAT(text_of(catalog.manifest(30).status()), HasSubstr("'step-000000000030/manifest.json': it is cut off"));
  // There is one of a newer version, and taking an older one in its place would lose steps.
  ASSERT_TRUE(
      store->put("step-000000000030/manifest.json", as_span("{\"format\":\"keepstep checkpoint\",\"version\":2}"), {})
          .ok());
  EXPECT_EQ(catalog.newest().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Catalog, AStepIsReplacedOnlyIfAskedTo) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const Catalog catalog(store);
  const auto owner = std::move(Owner::claim(store, options("a"))).value();
  ASSERT_TRUE(catalog.commit(*owner, saved(*store, *owner, 1, 1), as_span("metadata"), false).ok());
  const Manifest second = saved(*store, *owner, 1, 2);
  EXPECT_EQ(catalog.commit(*owner, second, as_span("metadata"), false).code(), absl::StatusCode::kAborted);
  EXPECT_THAT(catalog.manifest(1)->layout.files, ElementsAre("__0_0.1-1.distcp"));
  ASSERT_TRUE(catalog.commit(*owner, second, as_span("metadata"), true).ok());
  EXPECT_THAT(catalog.manifest(1)->layout.files, ElementsAre("__0_0.1-2.distcp"));
  EXPECT_EQ(store->head("step-000000000001/__0_0.1-1.distcp").status().code(), absl::StatusCode::kNotFound);
}

// A new owner that takes over just after the old one confirmed its ownership may write into the same step before the
// old owner removes what it takes for leftovers.
TEST(Catalog, ACommitRemovesEarlierAttemptsAndNoLaterOnes) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const Catalog catalog(store);
  ASSERT_TRUE(std::move(Owner::claim(store, options("a"))).value()->release().ok());
  const auto owner = std::move(Owner::claim(store, options("a"))).value();
  ASSERT_EQ(owner->token(), 2U);
  for (const char* name : {"__0_0.1-9.distcp", "__0_0.2-2.distcp", "__0_0.2-4.distcp", "__0_0.3-1.distcp"}) {
    ASSERT_TRUE(store->put(folder_of(1) + "/" + name, as_span(name), {}).ok());
  }
  ASSERT_TRUE(catalog.commit(*owner, saved(*store, *owner, 1, 3), as_span("metadata"), false).ok());
  const auto left = store->list(folder_of(1) + "/__");
  ASSERT_TRUE(left.ok()) << left.status();
  EXPECT_THAT(keys_of(*left), ElementsAre(HasSubstr("__0_0.2-3."), HasSubstr("__0_0.2-4."), HasSubstr("__0_0.3-1.")));
}

TEST(Catalog, ThoseTooManyGoButNeverAPinnedOneOrTheLast) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const Catalog catalog(store);
  const auto owner = std::move(Owner::claim(store, options("a"))).value();
  for (const uint64_t step : {1, 2, 3, 4}) {
    ASSERT_TRUE(catalog.commit(*owner, saved(*store, *owner, step), as_span("metadata"), false).ok());
  }
  ASSERT_TRUE(store->put("step-000000000009/__0_0.distcp", as_span("DCP's own"), {}).ok());
  ASSERT_TRUE(catalog.pin(1, "the best one").ok());
  EXPECT_EQ(catalog.pin(7, "").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalog.remove(1).code(), absl::StatusCode::kFailedPrecondition);
  const auto gone = catalog.prune(*owner, {.keep = 1});
  ASSERT_TRUE(gone.ok()) << gone.status();
  const auto left = catalog.list();
  ASSERT_EQ(left->size(), 3U);
  EXPECT_EQ((*left)[0].step, 1U);
  EXPECT_TRUE((*left)[0].pinned);
  EXPECT_EQ((*left)[1].step, 4U);
  EXPECT_TRUE((*left)[1].complete);
  EXPECT_TRUE((*left)[2].foreign);
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/step-000000000002"));
  ASSERT_TRUE(catalog.unpin(1).ok());
  EXPECT_TRUE(catalog.remove(1).ok());
  EXPECT_EQ(catalog.list()->size(), 2U);
}

TEST(Owner, ASecondJobIsRefusedAndToldOfTheFirst) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const auto first = std::move(Owner::claim(store, options("first"))).value();
  EXPECT_EQ(first->token(), 1U);
  // In another process, because one process counts as one owner.
  const pid_t child = fork();
  if (child == 0) {
    const auto second = Owner::claim(store, options("second", 1050));
    const std::string why = text_of(second.status());
    _exit(absl::IsAborted(second.status()) && why.find("job 'first' (pid ") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(first->renew().ok());
}

TEST(Owner, OneWhoseProcessIsGoneIsTakenOverAtOnce) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const pid_t child = fork();
  if (child == 0) {
    const auto owner = Owner::claim(store, options("first"));
    _exit(owner.ok() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  const auto second = Owner::claim(store, options("second"));
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->token(), 2U);
}

// As if written by a process of another machine, of which only the lease is known.
OwnerRecord elsewhere(ObjectStore& store, bool released) {
  const std::string text = absl::StrFormat(
      R"({"format":"keepstep owner","version":1,"token":4,"claim":"x","job":"far","host":"node-b","pid":12,)"
      R"("process":"boot/1/2","renewed":1000,"lease":60,"released":%s})",
      released ? "true" : "false");
  EXPECT_TRUE(store.put(kOwnerName, as_span(text), {}).ok());
  return *read_owner(store);
}

TEST(Owner, OneElsewhereIsGoneWhenItsLeaseRanOutOrItLetGo) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  elsewhere(*store, false);
  const auto early = Owner::claim(store, options("near", 1060));
  EXPECT_EQ(early.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(text_of(early.status()), HasSubstr("job 'far' (pid 12 on node-b, token 4)"));
  const auto same = Owner::claim(store, options("far", 1001));  // the same job, started again
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ((*same)->token(), 5U);
  elsewhere(*store, false);
  EXPECT_TRUE(Owner::claim(store, options("near", 1061)).ok());
  elsewhere(*store, true);
  EXPECT_TRUE(Owner::claim(store, options("near", 1001)).ok());
}

TEST(Owner, OneThatWasTakenOverCommitsNothing) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const Catalog catalog(store);
  const auto first = std::move(Owner::claim(store, options("job", 1000))).value();
  const Manifest manifest = saved(*store, *first, 5);
  const auto second = std::move(Owner::claim(store, options("job", 1001))).value();
  const Manifest followers = saved(*store, *second, 5);
  const Status late = catalog.commit(*first, manifest, as_span("metadata"), false);
  EXPECT_EQ(late.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(text_of(late), HasSubstr("was taken over by job 'job'"));
  EXPECT_EQ(catalog.manifest(5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(first->release().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(catalog.commit(*second, followers, as_span("metadata"), false).ok());
  EXPECT_THAT(catalog.manifest(5)->layout.files, ElementsAre("__0_0.2-1.distcp"));
  ASSERT_TRUE(second->release().ok());
  EXPECT_TRUE(read_owner(*store)->released);
}

TEST(Owner, ARecordThatWasRemovedEndsTheHold) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  const auto owner = std::move(Owner::claim(store, options("job"))).value();
  ASSERT_TRUE(store->remove(kOwnerName).ok());
  EXPECT_EQ(owner->renew().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(owner->renew().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->head(kOwnerName).status().code(), absl::StatusCode::kNotFound);
}

TEST(Owner, ARecordThatCannotBeReadIsAnErrorThatSaysWhatToDo) {
  const TestFolder folder;
  const auto store = open_at(folder.path);
  ASSERT_TRUE(store->put(kOwnerName, as_span("what?"), {}).ok());
  const auto owner = Owner::claim(store, options("job"));
  EXPECT_EQ(owner.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(text_of(owner.status()), HasSubstr("If no job writes there, remove it"));
}

}  // namespace
}  // namespace keepstep::checkpoint
