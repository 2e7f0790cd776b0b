#include "comm/tcp/part_groups.h"

#include "base/check.h"

namespace keepstep::comm::tcp {
namespace {

constexpr size_t kMaxEarlyGroups = 64;  // of one peer: as many groups as a rank can be in

}  // namespace

// The links of one group while it is open.
class PartGroups::Opened final : public PartLinks {
 public:
  Opened(PartGroups& groups, uint64_t context)
      : PartLinks(groups.shared_, context), groups_(groups), context_(context) {}
  ~Opened() override { groups_.close(context_); }

 private:
  PartGroups& groups_;
  const uint64_t context_;
};

void PartGroups::start(const std::atomic<uint32_t>& interrupted, std::atomic<uint64_t>& moved) {
  shared_.interrupted = &interrupted;
  shared_.moved = &moved;
}

std::unique_ptr<Parts> PartGroups::open(uint64_t context) {
  auto opened = std::make_unique<Opened>(*this, context);
  const std::lock_guard lock(mutex_);
  Group& group = groups_[context];
  KEEPSTEP_CHECK(group.links == nullptr, "the parts of a group are opened once");
  group.links = opened.get();
  for (auto& [from, connection] : group.early) {
    --early_[from];
    group.links->adopt(from, std::move(connection));
  }
  group.early.clear();
  return opened;
}

void PartGroups::close(uint64_t context) {
  const std::lock_guard lock(mutex_);
  groups_.erase(context);
}

bool PartGroups::has_room_locked(Rank from, uint64_t context, uint32_t stream) const {
  const auto group = groups_.find(context);
  if (group != groups_.end() && group->second.known.contains({from, stream})) {
    return false;
  }
  if (group != groups_.end() && group->second.links != nullptr) {
    return true;
  }
  const auto waiting = early_.find(from);
  return waiting == early_.end() || waiting->second < kMaxEarlyGroups * shared_.config.streams;
}

bool PartGroups::has_room(Rank from, uint64_t context, uint32_t stream) const {
  const std::lock_guard lock(mutex_);
  return has_room_locked(from, context, stream);
}

bool PartGroups::adopt(Rank from, uint64_t context, uint32_t stream, FrameReader connection) {
  const std::lock_guard lock(mutex_);
  if (!has_room_locked(from, context, stream)) {
    return false;
  }
  Group& group = groups_[context];
  group.known.insert({from, stream});
  if (group.links != nullptr) {
    group.links->adopt(from, std::move(connection));
  } else {
    ++early_[from];
    group.early.emplace_back(from, std::move(connection));
  }
  return true;
}

void PartGroups::wake() {
  const std::lock_guard lock(mutex_);
  for (const auto& [context, group] : groups_) {
    if (group.links != nullptr) {
      group.links->wake();
    }
  }
}

void PartGroups::add_counters(Transport::Counters& counters) const {
  counters.malformed += shared_.malformed.load(std::memory_order_relaxed);
  counters.bytes_sent += shared_.bytes_sent.load(std::memory_order_relaxed);
  counters.bytes_received += shared_.bytes_received.load(std::memory_order_relaxed);
}

}  // namespace keepstep::comm::tcp
