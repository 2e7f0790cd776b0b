#include "comm/under_way.h"

#include <algorithm>

namespace keepstep::comm {
namespace {

// Called under the lock, so no read-modify-write is needed.
void add_one(std::atomic<uint64_t>& word) {
  word.store(word.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

uint64_t bits_of(const std::vector<Rank>& members) {
  uint64_t bits = 0;
  for (const Rank member : members) {
    if (member > 63) {
      return 0;
    }
    bits |= uint64_t{1} << member;
  }
  return bits;
}

}  // namespace

void UnderWay::enter(const Group& group, Kind kind) {
  const uint64_t members = bits_of(group.members);
  const std::lock_guard lock(mutex_);
  collectives_.push_back({group.place, kind, members});
  say();
  if (group.place == kWorld) {
    add_one(words_.entered_world);
  }
  add_one(words_.entered);
}

void UnderWay::leave(const Group& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(collectives_, [&](const Collective& each) { return each.place == group.place; });
  if (!collectives_.empty()) {
    say();
  }
  add_one(words_.left);
}

void UnderWay::say() {
  uint64_t members = 0;
  const Collective* told = &collectives_.back();
  bool known = true;
  for (const Collective& each : collectives_) {
    known = known && each.members != 0;
    members |= each.members;
    told = each.place == kWorld ? &each : told;
  }
  words_.kind.store(static_cast<uint32_t>(told->kind), std::memory_order_relaxed);
  words_.members.store(known ? members : 0, std::memory_order_relaxed);
  words_.world.store(told->place == kWorld ? 1 : 0, std::memory_order_relaxed);
}

}  // namespace keepstep::comm
