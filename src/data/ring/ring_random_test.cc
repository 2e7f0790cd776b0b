// A loader that dies at any point, and ranks that come and go and hold views too long, all at once, following a seed.
// KEEPSTEP_RING_SCHEDULES=N runs more schedules; KEEPSTEP_RING_SEED=S repeats one.

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "data/ring/ring_testing.h"

namespace keepstep::data {
namespace {

uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The same for every caller, so that readers know what they must find.
size_t size_of(uint64_t seed, uint64_t number) { return std::mt19937_64(seed + number)() % 20000; }

struct Schedule {
  explicit Schedule(uint64_t seed)
      : seed(seed),
        random(seed),
        spec{.round = static_cast<uint32_t>(1 + random() % 4),
             .ahead = static_cast<uint32_t>(random() % 8),
             .behind = static_cast<uint32_t>(random() % 5)},
        start(random() % 3 * 1000),
        end(start + spec.round * (20 + random() % 40)),
        readers(static_cast<uint32_t>(1 + random() % 4)) {
    if (random() % 2 == 0) {
      spec.limit_bytes = spec.slots() * 24 * 4096;  // the largest item, plus what gaps may waste
    }
  }
  uint64_t seed;
  std::mt19937_64 random;
  RingSpec spec;
  uint64_t start;
  uint64_t end;
  uint32_t readers;
};

void load(const RingFixture& ring, const Schedule& schedule, uint64_t seed) {
  std::mt19937_64 random(seed);
  while (true) {
    RingWriter writer = ring.writer();  // a new process
    for (uint64_t left = random() % 10; left > 0; --left) {
      if (writer.head() == schedule.end) {
        return;
      }
      const Status status = put(writer, size_of(schedule.seed, writer.head()));
      ASSERT_TRUE(status.ok()) << status;
    }
    if (writer.head() < schedule.end) {
      (void)put_half(writer, 1 + size_of(schedule.seed, writer.head()));
    }
  }
}

// A reader's row, given back at the end.
struct Row {
  Row(RingOwner& ring_owner, uint64_t position) : owner(&ring_owner), number(*ring_owner.join(position, 1)) {}
  Row(Row&& other) noexcept : owner(std::exchange(other.owner, nullptr)), number(other.number) {}
  Row& operator=(Row&& other) noexcept {
    std::swap(owner, other.owner);
    std::swap(number, other.number);
    return *this;
  }
  ~Row() {
    if (owner != nullptr) {
      owner->leave(number);
    }
  }
  RingOwner* owner;
  uint32_t number;
};

// One rank after another in one row: each may end at any point, and its successor begins at its round.
void read(const RingFixture& ring, const Schedule& schedule, uint64_t seed, Row row) {
  std::mt19937_64 random(seed);
  uint64_t position = schedule.start;
  std::vector<std::shared_ptr<RingView>> kept;
  auto memory = ring.memory();
  auto reader = *RingReader::create(memory, row.number);
  while (position < schedule.end) {
    for (uint64_t number = position; number < position + schedule.spec.round; ++number) {
      wait_for(*reader, number);
      const auto view = reader->view(number);
      ASSERT_TRUE(view.ok()) << view.status();
      ASSERT_TRUE(holds(**view, size_of(schedule.seed, number))) << "item " << number;
      if (random() % 8 == 0 && (*view)->size() > 0) {
        std::memset((*view)->data(), 0xee, (*view)->size());  // in place, as a model might
        ASSERT_TRUE(holds(**reader->view(number), size_of(schedule.seed, number))) << "item " << number;
      } else if (random() % 4 == 0) {
        kept.push_back(*view);
      }
    }
    if (random() % 6 == 0) {
      kept.clear();
      row = Row(*ring.owner, position);  // it died; its successor can read what it had not moved past
      reader = *RingReader::create(memory, row.number);
      continue;  // redo
    }
    position += schedule.spec.round;
    ASSERT_TRUE(reader->move_to(position).ok());
    for (const auto& view : kept) {
      ASSERT_TRUE(holds(*view, size_of(schedule.seed, view->item().number))) << "item " << view->item().number;
    }
    if (random() % 5 == 0) {
      kept.clear();
    }
  }
}

TEST(RingRandom, every_reader_finds_every_item_whoever_dies) {
  const uint64_t first = number_from("KEEPSTEP_RING_SEED", 1);
  const uint64_t schedules =
      std::getenv("KEEPSTEP_RING_SEED") != nullptr ? 1 : number_from("KEEPSTEP_RING_SCHEDULES", 60);
  for (uint64_t seed = first; seed < first + schedules; ++seed) {
    SCOPED_TRACE("repeat with KEEPSTEP_RING_SEED=" + std::to_string(seed));
    const Schedule schedule(seed);
    const RingFixture ring(schedule.spec, schedule.start);
    std::vector<Row> rows;  // all join before any moves on
    for (uint32_t reader = 0; reader < schedule.readers; ++reader) {
      rows.emplace_back(*ring.owner, schedule.start);
    }
    std::vector<std::thread> threads;
    threads.emplace_back([&] { load(ring, schedule, seed * 1000); });
    for (uint32_t reader = 0; reader < schedule.readers; ++reader) {
      threads.emplace_back([&, reader] { read(ring, schedule, seed * 1000 + 1 + reader, std::move(rows[reader])); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

}  // namespace
}  // namespace keepstep::data
