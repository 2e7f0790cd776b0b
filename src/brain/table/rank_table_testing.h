// Random rank tables for the tests of the table and its encoding. Test code only.
#pragma once

#include <random>
#include <vector>

#include "brain/table/rank_table.h"

namespace keepstep::brain::testing_tables {

// Often similar, as in a real job: the wire format relies on a dictionary of few shapes.
inline RankTable::Entry random_entry(std::mt19937_64& random) {
  RankTable::Entry entry;
  entry.node = random() % 4 == 0 ? static_cast<uint32_t>(random()) : static_cast<uint32_t>(random() % 100);
  entry.ranks = random() % 3 == 0 ? 1 + static_cast<uint32_t>(random() % 64) : 8;
  entry.first_local = random() % 4 == 0 ? static_cast<uint16_t>(random() % 100) : uint16_t{0};
  entry.endpoint.port_base = random() % 4 == 0 ? uint16_t{0} : static_cast<uint16_t>(1024 + random() % 60000);
  const auto byte = [&random] { return static_cast<uint8_t>(random()); };
  if (random() % 2 == 0) {
    entry.endpoint.address = ipv4(10, byte(), byte(), byte());
  } else {
    for (uint8_t& each : entry.endpoint.address.bytes) {
      each = byte();
    }
  }
  return entry;
}

inline std::vector<RankTable::Entry> random_entries(std::mt19937_64& random, size_t most) {
  std::vector<RankTable::Entry> entries(random() % (most + 1));
  for (RankTable::Entry& entry : entries) {
    entry = random_entry(random);
  }
  return entries;
}

// A few entries replaced, inserted or removed.
inline std::vector<RankTable::Entry> changed(std::mt19937_64& random, std::vector<RankTable::Entry> entries) {
  for (uint64_t changes = random() % 4; changes > 0; --changes) {
    const auto at = static_cast<ptrdiff_t>(random() % (entries.size() + 1));
    switch (random() % 3) {
      case 0:
        entries.insert(entries.begin() + at, random_entry(random));
        break;
      case 1:
        if (at < static_cast<ptrdiff_t>(entries.size())) entries.erase(entries.begin() + at);
        break;
      default:
        if (at < static_cast<ptrdiff_t>(entries.size())) entries[static_cast<size_t>(at)] = random_entry(random);
    }
  }
  return entries;
}

}  // namespace keepstep::brain::testing_tables
