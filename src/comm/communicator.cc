#include "comm/communicator.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "comm/collectives/agreement.h"
#include "comm/collectives/collective_queue.h"
#include "comm/collectives/collectives.h"
#include "comm/completions.h"
#include "comm/flight_recorder.h"
#include "comm/group_table.h"
#include "comm/layout.h"
#include "comm/numbers/reduce.h"
#include "comm/operation.h"
#include "comm/p2p/point_to_point.h"
#include "comm/progress.h"
#include "comm/transport.h"
#include "comm/under_way.h"
#include "comm/wait_clock.h"

namespace keepstep::comm {
namespace {

constexpr int64_t kLeavingPatienceNs = 1'000'000'000;  // for a place that is being released

const std::byte* as_bytes(const void* data) { return static_cast<const std::byte*>(data); }
std::byte* as_bytes(void* data) { return static_cast<std::byte*>(data); }

std::vector<const std::byte*> as_bytes(const std::vector<const void*>& buffers) {
  std::vector<const std::byte*> result;
  for (const void* buffer : buffers) {
    result.push_back(as_bytes(buffer));
  }
  return result;
}

std::vector<std::byte*> as_bytes(const std::vector<void*>& buffers) {
  std::vector<std::byte*> result;
  for (void* buffer : buffers) {
    result.push_back(as_bytes(buffer));
  }
  return result;
}

// Stands in for CollectiveWords::moved if the endpoint has no words. All communicators of the process share it, because
// a transport may write to it after its communicator is gone.
std::atomic<uint64_t> unread_moved;

}  // namespace

struct Communicator::Impl {
  Impl(CommConfig config, Endpoint given)
      : layout(config),
        endpoint(std::move(given)),
        table(layout, endpoint.generation, endpoint.self, *endpoint.interrupted),
        progress(endpoint.progress == nullptr ? &unread : endpoint.progress),
        under_way(*progress),
        moved(endpoint.progress == nullptr ? unread_moved : progress->moved),
        point_to_point(layout, endpoint, completions, moved) {
    for (std::atomic<uint64_t>* word : {&progress->entered, &progress->left, &progress->entered_world,
                                        &progress->members, &progress->waited, &moved}) {
      word->store(0, std::memory_order_relaxed);
    }
    progress->waiting.store(0, std::memory_order_relaxed);
  }

  std::shared_ptr<Group> make_group(const std::string& name, GroupTable::Joined joined, std::vector<Rank> members);
  std::shared_ptr<Group> find(GroupId id);
  OpId start(GroupId group, Operation operation);
  OpId start_transfer(GroupId group, Transfer transfer);

  const Layout layout;
  const Endpoint endpoint;
  GroupTable table;
  Completions completions;

  std::mutex mutex;  // guards the groups, and the order of the queue
  std::map<GroupId, std::shared_ptr<Group>> groups;
  std::map<std::string, uint32_t> uses;  // of each key so far
  GroupId last_group = kWorld;
  CollectiveWords unread{};
  CollectiveWords* const progress;
  UnderWay under_way;
  std::atomic<uint64_t>& moved;
  FlightRecorder recorder;
  WaitClock waits;

  PointToPoint point_to_point;
  CollectiveQueue queue;  // last: its threads end first
};

std::shared_ptr<Group> Communicator::Impl::make_group(const std::string& name, GroupTable::Joined joined,
                                                      std::vector<Rank> members) {
  const size_t self = std::find(members.begin(), members.end(), endpoint.self) - members.begin();
  NodeMap nodes(members, endpoint.nodes, self);
  std::vector<std::byte*> slots;
  for (const Rank member : members) {
    std::byte* arena = endpoint.arenas[member];
    slots.push_back(arena == nullptr ? nullptr : layout.slots(arena, joined.index));
  }
  GroupSync sync(layout.group(endpoint.generation, joined.index), layout.lines(endpoint.generation, joined.index),
                 nodes.here().size(), nodes.local, *endpoint.interrupted);
  // Each node numbers its places itself, so across nodes only the group's identity is the same.
  const bool across = nodes.across();
  const uint64_t context = across ? joined.identity : uint64_t{joined.incarnation} << 32 | joined.index;
  return std::make_shared<Group>(Group{.name = name,
                                       .place = joined.index,
                                       .context = context,
                                       .members = std::move(members),
                                       .self = self,
                                       .slots = std::move(slots),
                                       .slot_bytes = layout.slot_bytes(joined.index),
                                       .nodes = std::move(nodes),
                                       .parts = across ? endpoint.transport->open_parts(context) : nullptr,
                                       .sync = sync,
                                       .moved = &moved});
}

std::shared_ptr<Group> Communicator::Impl::find(GroupId id) {
  const auto it = groups.find(id);
  return it == groups.end() ? nullptr : it->second;
}

OpId Communicator::Impl::start(GroupId id, Operation operation) {
  const std::lock_guard lock(mutex);
  const OpId op = completions.open();
  std::shared_ptr<Group> group = find(id);
  if (group == nullptr) {
    completions.complete(op, Outcome::kFailed,
                         absl::StrFormat("%s: group %d is not known here; was it released?", name(operation.kind), id));
    return op;
  }
  recorder.queued(op, id, descriptor_of(operation, false));
  waits.handed_in(op, monotonic_ns());
  const uint32_t lane = group->place;
  queue.push(lane, op, [this, op, group = std::move(group), operation = std::move(operation)] {
    under_way.enter(*group, operation.kind);
    recorder.started(op, group->entered + 1);
    Result result = run_collective(*group, operation);
    under_way.leave(*group);
    recorder.ended(op, result.outcome);
    waits.over(op, monotonic_ns());
    if (result.link) {
      completions.note_broken_link(result.error);
    }
    completions.complete(op, result.outcome, std::move(result.error), 0, std::move(result.missing));
  });
  return op;
}

OpId Communicator::Impl::start_transfer(GroupId id, Transfer transfer) {
  const std::lock_guard lock(mutex);
  transfer.op = completions.open();
  const char* kind = transfer.is_send ? "send" : "receive";
  const std::shared_ptr<Group> group = find(id);
  std::string why;
  if (group == nullptr) {
    why = absl::StrFormat("%s: group %d is not known here; was it released?", kind, id);
  } else if (transfer.peer >= group->size() && (transfer.is_send || transfer.peer != kAnySource)) {
    why = absl::StrFormat("%s: rank %d is not in group %s, which has %d ranks", kind, transfer.peer, group->name,
                          group->size());
  } else if (transfer.data == nullptr && transfer.bytes > 0) {
    why = absl::StrFormat("%s: the buffer is null", kind);
  }
  if (!why.empty()) {
    completions.complete(transfer.op, Outcome::kFailed, why);
    return transfer.op;
  }
  transfer.context = group->context;
  if (transfer.peer == kAnySource) {
    transfer.any_of = group->members;
    transfer.title = absl::StrFormat("%s from any rank (tag %d) in group %s", kind, transfer.tag, group->name);
  } else {
    transfer.group_peer = transfer.peer;
    transfer.peer = group->members[transfer.peer];
    transfer.title = absl::StrFormat("%s %s rank %d (tag %d) in group %s", kind, transfer.is_send ? "to" : "from",
                                     transfer.peer, transfer.tag, group->name);
  }
  const OpId op = transfer.op;
  point_to_point.post(std::move(transfer));
  return op;
}

Communicator::Communicator(CommConfig config, Endpoint endpoint) {
  const size_t world = endpoint.arenas.size();
  KEEPSTEP_CHECK(world > 0 && world <= config.max_world, "the world does not fit CommConfig.max_world");
  KEEPSTEP_CHECK(endpoint.self < world && endpoint.generation != nullptr && endpoint.interrupted != nullptr,
                 "an endpoint needs its rank, its generation's region and the interruption word");
  KEEPSTEP_CHECK(endpoint.nodes.empty() || endpoint.nodes.size() == world, "a node for each rank, or for none");
  for (size_t rank = 0; rank < endpoint.nodes.size(); ++rank) {
    const bool here = endpoint.nodes[rank] == endpoint.nodes[endpoint.self];
    KEEPSTEP_CHECK(here == (endpoint.arenas[rank] != nullptr), "arenas of the ranks on this node, and of no others");
    KEEPSTEP_CHECK(here || endpoint.transport != nullptr, "ranks on other nodes need a transport");
  }
  const auto here = std::ranges::count_if(endpoint.arenas, [](const std::byte* arena) { return arena != nullptr; });
  KEEPSTEP_CHECK(config.max_local == 0 || here <= int64_t{config.max_local}, "a node has more than max_local ranks");
  impl_ = std::make_unique<Impl>(config, std::move(endpoint));
  uint64_t fresh = 0;
  const uint64_t expected = impl_->layout.fingerprint(world);
  impl_->layout.header(impl_->endpoint.generation).fingerprint.compare_exchange_strong(fresh, expected);
  KEEPSTEP_CHECK(fresh == 0 || fresh == expected, "ranks of one generation have different CommConfigs or worlds");
  if (Transport* transport = impl_->endpoint.transport.get(); transport != nullptr) {
    const Layout& layout = impl_->layout;
    transport->start(*impl_->endpoint.interrupted, layout.header(impl_->endpoint.generation).interruption,
                     impl_->point_to_point.bell(), impl_->moved);
  }
  std::vector<Rank> everyone(world);
  for (Rank rank = 0; rank < world; ++rank) {
    everyone[rank] = rank;
  }
  impl_->groups[kWorld] = impl_->make_group("world", {}, std::move(everyone));
}

Communicator::~Communicator() { impl_->completions.close(); }

StatusOr<GroupId> Communicator::create_group(const std::vector<Rank>& members, const std::string& key) {
  const size_t world = impl_->endpoint.arenas.size();
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("create_group '", key, "': ", why));
  };
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] >= world) {
      return refuse(absl::StrFormat("rank %d is not in the world of %d", members[i], world));
    }
    if (std::count(members.begin(), members.end(), members[i]) > 1) {
      return refuse(absl::StrFormat("rank %d is named twice", members[i]));
    }
  }
  if (std::count(members.begin(), members.end(), impl_->endpoint.self) == 0) {
    return refuse(absl::StrFormat("rank %d, which calls, is not a member; only members call", impl_->endpoint.self));
  }
  uint32_t nth = 0;
  {
    const std::lock_guard lock(impl_->mutex);
    nth = impl_->uses[key]++;
  }
  const auto is_here = [&](Rank member) { return impl_->endpoint.arenas[member] != nullptr; };
  const auto local_count = static_cast<size_t>(std::count_if(members.begin(), members.end(), is_here));
  const StatusOr<GroupTable::Joined> joined = impl_->table.join(key, nth, members, local_count, kLeavingPatienceNs);
  const std::lock_guard lock(impl_->mutex);
  if (!joined.ok()) {
    --impl_->uses[key];
    return joined.status();
  }
  const GroupId id = ++impl_->last_group;
  impl_->groups[id] = impl_->make_group(key, *joined, members);
  return id;
}

void Communicator::release_group(GroupId id) {
  const std::lock_guard lock(impl_->mutex);
  const std::shared_ptr<Group> group = impl_->find(id);
  if (id == kWorld || group == nullptr) {
    return;
  }
  impl_->groups.erase(id);
  impl_->table.announce_leave();
  // Queued, so that it runs after the group's last operation.
  impl_->queue.push(group->place, 0, [impl = impl_.get(), group] { impl->table.leave(group->place); });
}

OpId Communicator::all_reduce(GroupId group, void* data, size_t count, DataType type, ReduceOp op, int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kAllReduce,
                              .data = as_bytes(data),
                              .bytes = count * size_of(type),
                              .type = type,
                              .op = op,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::reduce(GroupId group, void* data, size_t count, DataType type, ReduceOp op, Rank root,
                          int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kReduce,
                              .data = as_bytes(data),
                              .bytes = count * size_of(type),
                              .type = type,
                              .op = op,
                              .root = root,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::broadcast(GroupId group, void* data, size_t bytes, Rank root, int64_t timeout_ns) {
  return impl_->start(
      group,
      {.kind = Kind::kBroadcast, .data = as_bytes(data), .bytes = bytes, .root = root, .timeout_ns = timeout_ns});
}

OpId Communicator::all_gather(GroupId group, const void* input, const std::vector<void*>& outputs, size_t bytes,
                              int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kAllGather,
                              .inputs = {as_bytes(input)},
                              .outputs = as_bytes(outputs),
                              .bytes = bytes,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::reduce_scatter(GroupId group, const std::vector<const void*>& inputs, void* output, size_t count,
                                  DataType type, ReduceOp op, int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kReduceScatter,
                              .inputs = as_bytes(inputs),
                              .outputs = {as_bytes(output)},
                              .bytes = count * size_of(type),
                              .type = type,
                              .op = op,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::gather(GroupId group, const void* input, const std::vector<void*>& outputs, size_t bytes, Rank root,
                          int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kGather,
                              .inputs = {as_bytes(input)},
                              .outputs = as_bytes(outputs),
                              .bytes = bytes,
                              .root = root,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::scatter(GroupId group, const std::vector<const void*>& inputs, void* output, size_t bytes, Rank root,
                           int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kScatter,
                              .inputs = as_bytes(inputs),
                              .outputs = {as_bytes(output)},
                              .bytes = bytes,
                              .root = root,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::all_to_all(GroupId group, const std::vector<const void*>& inputs,
                              const std::vector<size_t>& input_bytes, const std::vector<void*>& outputs,
                              const std::vector<size_t>& output_bytes, int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kAllToAll,
                              .inputs = as_bytes(inputs),
                              .outputs = as_bytes(outputs),
                              .input_bytes = input_bytes,
                              .output_bytes = output_bytes,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::all_reduce_canonical(GroupId group, const LeafRun& run, const std::vector<const void*>& partials,
                                        void* output, size_t count, DataType type, uint64_t weight,
                                        int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kAllReduceCanonical,
                              .inputs = as_bytes(partials),
                              .outputs = {as_bytes(output)},
                              .bytes = count * size_of(type),
                              .type = type,
                              .run = run,
                              .weight = weight,
                              .timeout_ns = timeout_ns});
}

OpId Communicator::barrier(GroupId group, int64_t timeout_ns) {
  return impl_->start(group, {.kind = Kind::kBarrier, .timeout_ns = timeout_ns});
}

OpId Communicator::send(GroupId group, const void* data, size_t bytes, Rank to, uint32_t tag, int64_t timeout_ns) {
  return impl_->start_transfer(group, {.is_send = true,
                                       .data = const_cast<std::byte*>(as_bytes(data)),
                                       .bytes = bytes,
                                       .peer = to,
                                       .tag = tag,
                                       .timeout_ns = timeout_ns});
}

OpId Communicator::receive(GroupId group, void* data, size_t bytes, Rank from, uint32_t tag, int64_t timeout_ns) {
  return impl_->start_transfer(
      group, {.data = as_bytes(data), .bytes = bytes, .peer = from, .tag = tag, .timeout_ns = timeout_ns});
}

Completion Communicator::test(OpId op) const { return impl_->completions.test(op); }

Completion Communicator::wait(OpId op) {
  CollectiveWords& progress = *impl_->progress;
  progress.waiting.fetch_add(1, std::memory_order_relaxed);
  impl_->waits.begin(op, monotonic_ns());
  impl_->queue.help(op);
  Completion completion = impl_->completions.wait(op);
  impl_->waits.end(monotonic_ns());
  progress.waiting.fetch_sub(1, std::memory_order_relaxed);
  progress.waited.fetch_add(1, std::memory_order_relaxed);
  return completion;
}

Completion Communicator::wait_for(OpId op, int64_t limit_ns) { return impl_->completions.wait_for(op, limit_ns); }

void Communicator::wait_all() { impl_->completions.wait_all(); }

void Communicator::forget(OpId op) { impl_->completions.forget(op); }
void Communicator::watch(OpId op) {
  impl_->waits.watched(op);
  impl_->completions.watch(op);
}
std::vector<Completion> Communicator::next_completed() { return impl_->completions.next(); }
void Communicator::close() { impl_->completions.close(); }

bool Communicator::interrupted() const { return impl_->endpoint.interrupted->load(std::memory_order_acquire) != 0; }
std::string Communicator::broken_link() const { return impl_->completions.broken_link(); }
std::vector<FlightRecord> Communicator::recent() const { return impl_->recorder.records(); }
WaitClock& Communicator::waits() { return impl_->waits; }
uint64_t Communicator::collectives_entered() const { return impl_->progress->entered.load(std::memory_order_relaxed); }

}  // namespace keepstep::comm
