// Stores in the memory of a real server, over its socket: the contract of all stores, contents held once, and clients
// that are killed.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/runtime_folder_testing.h"
#include "base/socket/local_socket.h"
#include "checkpoint/store_testing.h"
#include "memory_server/server_testing.h"

namespace keepstep::memory_server {
namespace {

using checkpoint::as_span;
using checkpoint::content;
using checkpoint::ObjectStore;
using checkpoint::PutCondition;
using checkpoint::text_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MemoryStoreTest : public testing::Test {
 protected:
  const OwnRuntimeFolder folder_;
  RunningServer server_;
};

// Runs `body` in a child, which is killed where `body` ends.
template <typename Body>
void in_a_process_that_is_killed(const Body& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}

void put_large(ObjectStore& store, const std::string& key, std::string_view bytes) {
  auto writer = store.create(key, bytes.size());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->append(as_span(bytes)).ok());
  const auto done = (*writer)->commit();
  ASSERT_TRUE(done.ok()) << done.status();
}

TEST_F(MemoryStoreTest, it_keeps_the_contract_of_a_store) { expect_the_contract_of_a_store(*open_memory("run")); }

TEST_F(MemoryStoreTest, of_racing_puts_exactly_one_wins) {
  for (const bool replacing : {false, true}) {
    checkpoint::expect_one_winner_a_round([] { return open_memory("race"); }, 30, 4, replacing);
  }
}

TEST_F(MemoryStoreTest, destinations_are_apart) {
  const auto one = open_memory("one");
  const auto two = open_memory("two");
  ASSERT_TRUE(one->put("a", as_span("1"), {}).ok());
  EXPECT_THAT(*two->list(""), IsEmpty());
  EXPECT_EQ(two->head("a").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MemoryStoreTest, what_is_there_already_is_held_once) {
  const auto store = open_memory("run");
  const std::string bytes = content(1, (size_t{20} << 20) + 77);
  put_large(*store, "step-000000000001/a", bytes);
  const uint64_t once = server_.used();
  EXPECT_GE(once, bytes.size());
  EXPECT_LT(once, bytes.size() + 8 * Extents::kPage);
  put_large(*open_memory("other"), "step-000000000002/b", bytes);
  EXPECT_EQ(server_.used(), once);
  std::string changed = bytes;
  changed[size_t{9} << 20] ^= 1;  // one chunk of six
  put_large(*store, "step-000000000003/c", changed);
  EXPECT_EQ(server_.used(), once + checkpoint::memory::kMaxChunkBytes);
  EXPECT_EQ(store->read_all("step-000000000003/c", changed.size())->bytes, changed);
  ASSERT_TRUE(store->remove("step-000000000001/a").ok());
  EXPECT_EQ(server_.used(), once + checkpoint::memory::kMaxChunkBytes);  // b needs it
  ASSERT_TRUE(open_memory("other")->remove("step-000000000002/b").ok());
  EXPECT_EQ(server_.used(), once);  // all but one chunk are those of c
}

TEST_F(MemoryStoreTest, a_piece_that_did_not_change_is_held_once_wherever_it_lies) {
  const auto store = open_memory("run");
  const std::string tensor = content(2, (size_t{6} << 20) + 5);
  const auto write = [&](const std::string& key, const std::string& before) {
    auto writer = *store->create(key, 0);
    ASSERT_TRUE(writer->append(as_span(before)).ok());
    writer->begin_piece();
    ASSERT_TRUE(writer->append(as_span(tensor)).ok());
    ASSERT_TRUE(writer->commit().ok());
  };
  write("a", "short");
  const uint64_t first = server_.used();
  write("b", content(3, 5000));  // all after it moves
  EXPECT_EQ(server_.used(), first + 2 * Extents::kPage);
  EXPECT_EQ(store->read_all("b", size_t{10} << 20)->bytes, content(3, 5000) + tensor);
}

TEST_F(MemoryStoreTest, what_packs_is_packed_in_the_background_and_reads_the_same) {
  const auto store = open_memory("run");
  std::string bytes = content(4, size_t{9} << 20);
  for (size_t i = 0; i < bytes.size(); i += 2) {
    bytes[i] = 0;  // like the upper bytes of small numbers
  }
  put_large(*store, "a", bytes);
  EXPECT_LT(server_.used(), bytes.size() * 3 / 4);
  EXPECT_EQ(store->read_all("a", bytes.size())->bytes, bytes);
  std::string part(1000, '\0');
  ASSERT_TRUE(store->read("a", (size_t{4} << 20) - 500, std::as_writable_bytes(std::span(part))).ok());
  EXPECT_EQ(part, bytes.substr((size_t{4} << 20) - 500, 1000));
  put_large(*store, "b", bytes);  // is found, though packed
  EXPECT_LT(server_.used(), bytes.size() * 3 / 4);
}

TEST_F(MemoryStoreTest, what_does_not_pack_stays_as_it_is) {
  put_large(*open_memory("run"), "a", content(5, size_t{4} << 20));
  EXPECT_EQ(server_.used(), size_t{4} << 20);
}

TEST_F(MemoryStoreTest, a_client_that_is_killed_leaves_nothing) {
  const std::string bytes = content(6, size_t{9} << 20);
  in_a_process_that_is_killed([&] {
    const auto store = open_memory("run");
    const auto writer = *store->create("step-000000000001/a", bytes.size());
    (void)writer->append(as_span(bytes));
  });
  const auto store = open_memory("run");
  server_.wait_for_clients(0);
  EXPECT_THAT(*store->list(""), IsEmpty());
  EXPECT_EQ(server_.used(), 0);
  in_a_process_that_is_killed([&] { put_large(*open_memory("run"), "step-000000000001/a", bytes); });
  EXPECT_EQ(store->read_all("step-000000000001/a", bytes.size())->bytes, bytes);
}

TEST_F(MemoryStoreTest, a_writer_that_gives_up_leaves_nothing) {
  const auto store = open_memory("run");
  {
    const auto writer = *store->create("a", 0);
    ASSERT_TRUE(writer->append(as_span(content(7, size_t{5} << 20))).ok());
  }
  ASSERT_TRUE(store->put("b", as_span("x"), {}).ok());  // over the same connection
  EXPECT_EQ(server_.used(), Extents::kPage);
}

TEST_F(MemoryStoreTest, readers_get_memory_that_they_cannot_write) {
  const auto link = checkpoint::memory::MemoryLink::connect({.name = "run"});
  ASSERT_TRUE(link.ok()) << link.status();
  const StatusOr<Fd> memory = server_.memory_for_readers();
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(pwrite(memory->get(), "x", 1, 0), -1);
}

TEST_F(MemoryStoreTest, nonsense_ends_one_connection_or_is_refused) {
  const auto store = open_memory("run");
  ASSERT_TRUE(store->put("a", as_span("1"), {}).ok());
  for (const char* nonsense :
       {"", "{", "[]", R"({"do":5})", R"({"do":"chunk","slot":0,"bytes":1})", R"({"do":"fly"})",
        R"({"do":"hello","version":1,"destination":"../x"})", R"({"do":"hello","version":2,"destination":"run"})"}) {
    const auto socket = connect_local(server_.path());
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(socket->send(nonsense).ok() || std::string_view(nonsense).empty());
    if (std::string_view(nonsense).empty()) {
      continue;
    }
    const auto answer = socket->receive();
    ASSERT_TRUE(answer.ok()) << nonsense;
    EXPECT_THAT(answer->bytes, HasSubstr("error")) << nonsense;
  }
  const auto link = checkpoint::memory::MemoryLink::connect({.name = "run"});
  ASSERT_TRUE(link.ok());
  for (const char* request :
       {R"({"do":"chunk","slot":0,"bytes":1})", R"({"do":"commit","key":"../a","condition":0,"etag":""})",
        R"({"do":"commit","key":"a","condition":9,"etag":""})", R"({"do":"read","key":"a","offset":5,"bytes":1})",
        R"({"do":"read","key":"a","offset":0,"bytes":18446744073709551615})",
        R"({"do":"read","key":"a","offset":18446744073709551615,"bytes":2})", R"({"do":"list","prefix":"../"})",
        R"({"do":"arena"})"}) {
    EXPECT_FALSE((*link)->ask(checkpoint::memory::Json::parse(request)).ok()) << request;
  }
  ASSERT_TRUE((*link)->arena().ok());
  for (const char* request : {R"({"do":"chunk","slot":4,"bytes":1})", R"({"do":"chunk","slot":0,"bytes":0})",
                              R"({"do":"chunk","slot":0,"bytes":4194305})"}) {
    EXPECT_FALSE((*link)->ask(checkpoint::memory::Json::parse(request)).ok()) << request;
  }
  EXPECT_EQ(store->read_all("a", 10)->bytes, "1");
}

TEST_F(MemoryStoreTest, an_interrupted_store_ends_its_calls) {
  const auto store = open_memory("run");
  ASSERT_TRUE(store->put("a", as_span("1"), {}).ok());
  store->interrupt();
  EXPECT_EQ(store->put("b", as_span("1"), {}).status().code(), absl::StatusCode::kCancelled);
}

TEST(MemoryStoreWithoutAServerTest, it_is_empty_for_readers) {
  const OwnRuntimeFolder folder;
  const auto store = open_memory("run");
  EXPECT_THAT(*store->list(""), IsEmpty());
  EXPECT_THAT(*store->list_folders(""), IsEmpty());
  EXPECT_EQ(store->head("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->read_all("a", 10).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store->remove("a").ok());
}

TEST(MemoryStoreOfASmallServerTest, it_makes_room_with_the_oldest_and_keeps_the_newest) {
  const OwnRuntimeFolder folder;
  RunningServer server({.limit = uint64_t{40} << 20});
  const auto store = open_memory("run");
  const auto save = [&](uint64_t step) -> Status {
    const std::string place = absl::StrFormat("step-%012d/", step);
    auto writer = store->create(place + "__0_0.1-1.distcp", 0);
    KEEPSTEP_RETURN_IF_ERROR(writer.status());
    KEEPSTEP_RETURN_IF_ERROR((*writer)->append(as_span(content(step, size_t{12} << 20))));
    KEEPSTEP_RETURN_IF_ERROR((*writer)->commit().status());
    return store->put(place + "manifest.json", as_span("{}"), {}).status();
  };
  for (uint64_t step = 1; step <= 6; ++step) {
    ASSERT_TRUE(save(step).ok());
    EXPECT_LE(server.used(), uint64_t{40} << 20);
  }
  EXPECT_THAT(*store->list_folders(""),
              testing::ElementsAre("step-000000000004", "step-000000000005", "step-000000000006"));
  // Pinned ones stay, and so does the newest: then there is no room.
  ASSERT_TRUE(store->put("pins/step-000000000004", as_span(""), {}).ok());
  ASSERT_TRUE(store->put("pins/step-000000000005", as_span(""), {}).ok());
  const Status full = save(7);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(text_of(full), HasSubstr("limit of 40 MiB"));
  EXPECT_THAT(text_of(full), HasSubstr("KEEPSTEP_MEMORY_LIMIT"));
  EXPECT_THAT(*store->list("step-000000000007"), IsEmpty());
  EXPECT_EQ(store->read_all("step-000000000004/__0_0.1-1.distcp", size_t{12} << 20)->bytes,
            content(4, size_t{12} << 20));
}

TEST(MemoryStoreOfASmallServerTest, it_leaves_the_machine_what_others_need) {
  const auto extents = Extents::create(uint64_t{1} << 40, [] { return Extents::kReserve + 5000; });
  ASSERT_TRUE(extents.ok());
  EXPECT_TRUE((*extents)->hold(as_span(content(1, 4000))).ok());
  const auto more = (*extents)->hold(as_span(content(1, 5000)));
  EXPECT_EQ(more.status().code(), absl::StatusCode::kOk);  // looked at after every so many bytes
  std::vector<std::shared_ptr<Extent>> held;
  Status status;
  for (uint64_t taken = 0; status.ok() && taken < 2 * Extents::kCheckEvery; taken += size_t{4} << 20) {
    auto next = (*extents)->hold(as_span(content(1, size_t{4} << 20)));
    status = next.status();
    if (next.ok()) {
      held.push_back(*next);
    }
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(text_of(status), HasSubstr("to others"));
}

TEST(ExtentsTest, ranges_do_not_overlap_and_return_whole) {
  const auto extents = *Extents::create(uint64_t{64} << 20, [] { return ~uint64_t{0}; });
  std::vector<std::pair<std::shared_ptr<Extent>, std::string>> held;
  uint64_t seed = 1;
  for (int i = 0; i < 2000; ++i) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    const size_t bytes = 1 + (seed >> 33) % 200'000;
    auto next = extents->hold(as_span(content(seed, bytes)));
    if (next.ok()) {
      held.emplace_back(*next, content(seed, bytes));
    }
    if (!next.ok() || seed % 3 == 0) {
      ASSERT_FALSE(held.empty());
      held.erase(held.begin() + static_cast<std::ptrdiff_t>((seed >> 20) % held.size()));
    }
  }
  for (const auto& [extent, bytes] : held) {
    std::string there(bytes.size(), '\0');
    ASSERT_TRUE(extent->read(std::as_writable_bytes(std::span(there))).ok());
    EXPECT_EQ(there, bytes);
  }
  held.clear();
  EXPECT_EQ(extents->used(), 0);
  EXPECT_TRUE(extents->hold(as_span(content(1, size_t{64} << 20))).ok());  // it is one range again
}

}  // namespace
}  // namespace keepstep::memory_server
