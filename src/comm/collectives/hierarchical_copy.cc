// What is moved across nodes without being added up.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "comm/collectives/agreement.h"
#include "comm/collectives/hierarchical.h"

namespace keepstep::comm {
namespace {

constexpr size_t kAhead = 4;  // chunks of a broadcast under way

}  // namespace

// ---- broadcast: a chain of nodes that begins at the root's; each driver passes on its slice

bool HierarchicalRun::broadcast_chunk(size_t chunk, std::byte* data, size_t bytes, std::vector<PartRequest>& sends) {
  const size_t n = map_.nodes();
  const size_t root_node = map_.node_of(operation_.root);
  const bool at_root = map_.node == root_node;
  const bool last = (map_.node + 1) % n == root_node;
  const bool alone = local_size() == 1;
  const Slice slice = drives() ? slice_of(bytes, map_.local) : Slice{};
  PartRequest& sending = sends[chunk % sends.size()];
  const auto pass_on = [&](const std::byte* from) {
    if (!last && slice.bytes() > 0) {
      parts_.send(sending, rank_of(counterpart((map_.node + 1) % n)), key(Stage::kCopy, chunk), {from, slice.bytes()});
    }
  };
  if (at_root) {
    if (is_root() && !alone) {
      copy_bytes(own_input(), data, bytes);
    }
    if (is_root()) {
      pass_on(data + slice.begin);
    }
    if (alone) {
      return true;
    }
    if (!meet()) {
      return false;
    }
    if (!is_root()) {
      copy_bytes(data, input_of(operation_.root), bytes);
      pass_on(data + slice.begin);
    }
    return true;
  }
  if (slice.bytes() > 0) {
    PartRequest receiving;
    parts_.receive(receiving, rank_of(counterpart((map_.node + n - 1) % n)), key(Stage::kCopy, chunk),
                   {data + slice.begin, slice.bytes()});
    if (!wait(receiving)) {
      return false;
    }
    pass_on(data + slice.begin);
    if (!alone) {
      copy_bytes(own_input() + slice.begin, data + slice.begin, slice.bytes());
    }
  }
  if (alone) {
    return true;
  }
  if (!meet()) {
    return false;
  }
  for (size_t driver = 0; driver < drivers_; ++driver) {
    const Slice other = slice_of(bytes, driver);
    if (driver != map_.local) {
      copy_bytes(data + other.begin, input_of(map_.here()[driver]) + other.begin, other.bytes());
    }
  }
  return true;
}

void HierarchicalRun::broadcast() {
  if (operation_.bytes <= max_payload()) {
    if (agree(Stage::kAgreement, operation_.data, operation_.bytes) && !is_root()) {
      copy_bytes(operation_.data, payload(operation_.root), operation_.bytes);
    }
    return;
  }
  if (!agree(Stage::kAgreement, nullptr, 0)) {
    return;
  }
  const size_t chunk_size = chunk_bytes(operation_.bytes);
  std::vector<PartRequest> sends(kAhead);
  for (size_t chunk = 0, done = 0; done < operation_.bytes; ++chunk, done += chunk_size) {
    if (!wait_sent({&sends[chunk % kAhead], 1}) ||
        !broadcast_chunk(chunk, operation_.data + done, std::min(chunk_size, operation_.bytes - done), sends)) {
      return;
    }
  }
  wait_sent(sends);
}

// ---- all_gather: a ring of nodes; each driver carries what the members of its column gave

size_t HierarchicalRun::gather_bytes() const {
  size_t in_slot = 0;  // blocks in a driver's slot
  for (const auto& members : map_.members) {
    in_slot += (members.size() + drivers_ - 1) / drivers_;
  }
  return group_.slot_bytes / in_slot / kCacheLine * kCacheLine;
}

bool HierarchicalRun::gather_round(size_t round, const std::byte* own, size_t bytes, const Visit& visit) {
  const size_t n = map_.nodes();
  copy_bytes(own_input(), own, bytes);
  if (!meet()) {
    return false;
  }
  const auto in_column = [&](size_t node, size_t driver) {
    const size_t members = map_.members[node].size();
    return driver < members ? (members - driver - 1) / drivers_ + 1 : 0;
  };
  const auto offset = [&](size_t node, size_t driver) {
    size_t blocks = 0;
    for (size_t i = 0; i < node; ++i) {
      blocks += in_column(i, driver);
    }
    return blocks * bytes;
  };
  PartRequest sending;
  PartRequest receiving;
  // In step s the node passes on what came s steps before it; the first step is under way while we look at our own.
  const auto begin_step = [&](size_t step) {
    const size_t out = (map_.node + n - step) % n;
    const size_t in = (map_.node + n - step - 1) % n;
    parts_.receive(receiving, rank_of(counterpart((map_.node + n - 1) % n)), key(Stage::kCopy, round * n + step),
                   {own_result() + offset(in, map_.local), in_column(in, map_.local) * bytes});
    parts_.send(sending, rank_of(counterpart((map_.node + 1) % n)), key(Stage::kCopy, round * n + step),
                {own_result() + offset(out, map_.local), in_column(out, map_.local) * bytes});
  };
  if (drives()) {
    std::byte* to = own_result() + offset(map_.node, map_.local);
    for (size_t local = map_.local; local < local_size(); local += drivers_, to += bytes) {
      copy_bytes(to, input_of(map_.here()[local]), bytes);
    }
    begin_step(0);
  }
  for (const size_t member : map_.here()) {
    visit(member, member == self() ? own : input_of(member));
  }
  for (size_t step = 0; drives() && step + 1 < n; ++step) {
    if (!wait(receiving) || !wait(sending)) {
      return false;
    }
    if (step + 2 < n) {
      begin_step(step + 1);
    }
  }
  if (!meet()) {
    return false;
  }
  for (size_t node = 0; node < n; ++node) {
    for (size_t local = 0; local < map_.members[node].size() && node != map_.node; ++local) {
      const size_t driver = local % drivers_;
      visit(map_.members[node][local],
            result_of(map_.here()[driver]) + offset(node, driver) + local / drivers_ * bytes);
    }
  }
  return true;
}

void HierarchicalRun::all_gather() {
  const size_t bytes = operation_.bytes;
  if (bytes <= max_payload()) {
    if (agree(Stage::kAgreement, operation_.inputs[0], bytes)) {
      for (size_t member = 0; member < size(); ++member) {
        copy_bytes(operation_.outputs[member], payload(member), bytes);
      }
    }
    return;
  }
  if (!agree(Stage::kAgreement, nullptr, 0)) {
    return;
  }
  const size_t step = gather_bytes();
  for (size_t round = 0, done = 0; done < bytes; ++round, done += step) {
    const size_t n = std::min(step, bytes - done);
    const bool ok = gather_round(round, operation_.inputs[0] + done, n, [&](size_t member, const std::byte* block) {
      copy_bytes(operation_.outputs[member] + done, block, n);
    });
    if (!ok) {
      return;
    }
  }
}

// ---- between a root and each other member, straight to where the bytes belong

void HierarchicalRun::exchange_with_root(bool gathers) {
  if (!agree(Stage::kAgreement, nullptr, 0)) {
    return;
  }
  const auto begin = [&](PartRequest& request, bool sends, size_t peer, size_t buffer) {
    const Rank rank = rank_of(peer);
    sends ? parts_.send(request, rank, key(Stage::kCopy, 0), {operation_.inputs[buffer], operation_.bytes})
          : parts_.receive(request, rank, key(Stage::kCopy, 0), {operation_.outputs[buffer], operation_.bytes});
  };
  if (!is_here(operation_.root)) {
    PartRequest request;
    begin(request, gathers, operation_.root, 0);
    wait(request);
    return;
  }
  std::vector<PartRequest> requests(is_root() ? size() : 0);
  for (size_t member = 0; member < requests.size(); ++member) {
    requests[member].done = is_here(member);
    if (!is_here(member)) {
      begin(requests[member], !gathers, member, member);
    }
  }
  if (operation_.bytes == 0 || (gathers ? gather_here(is_root()) : scatter_here())) {
    wait_all(requests);
  }
}

// ---- all_to_all: each pair of ranks for itself

// Each tells each other what it will send, and each compares with what it expects. Then all tell all whether that fits,
// so that all fail alike.
bool HierarchicalRun::agree_on_sizes() {
  struct Misfit {
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t given = 0;
    uint64_t expected = 0;
    uint64_t is_one = 0;
  };
  const size_t n = size();
  std::vector<uint64_t> given(operation_.input_bytes.begin(), operation_.input_bytes.end());
  std::vector<uint64_t> taken(n);
  std::vector<PartRequest> sending(n);
  std::vector<PartRequest> receiving(n);
  for (size_t member = 0; member < n; ++member) {
    sending[member].done = receiving[member].done = is_here(member);
    if (!is_here(member)) {
      parts_.receive(receiving[member], rank_of(member), key(Stage::kSizes, 0),
                     std::as_writable_bytes(std::span(&taken[member], 1)));
      parts_.send(sending[member], rank_of(member), key(Stage::kSizes, 0), std::as_bytes(std::span(&given[member], 1)));
    }
  }
  std::memcpy(own_input(), given.data(), n * sizeof(uint64_t));
  if (!meet()) {
    return false;
  }
  for (const size_t member : map_.here()) {
    taken[member] = reinterpret_cast<const uint64_t*>(input_of(member))[self()];
  }
  if (!wait_all(receiving) || !wait_all(sending)) {
    return false;
  }
  Misfit own;
  for (size_t from = 0; from < n && own.is_one == 0; ++from) {
    if (taken[from] != operation_.output_bytes[from]) {
      own = {rank_of(from), rank_of(self()), taken[from], operation_.output_bytes[from], 1};
    }
  }
  if (sizeof own > max_payload()) {  // thousands of ranks: each sees its own misfits only
    return own.is_one == 0 || fail("a size differs from what the peer expects");
  }
  if (!agree(Stage::kVerdict, reinterpret_cast<const std::byte*>(&own), sizeof own)) {
    return false;
  }
  for (size_t member = 0; member < n; ++member) {
    Misfit misfit;
    std::memcpy(&misfit, payload(member), sizeof misfit);
    if (misfit.is_one != 0) {
      return fail(absl::StrFormat("rank %d sends %d bytes to rank %d, which expects %d", misfit.from, misfit.given,
                                  misfit.to, misfit.expected));
    }
  }
  return true;
}

void HierarchicalRun::all_to_all() {
  if (!agree(Stage::kAgreement, nullptr, 0) || !agree_on_sizes()) {
    return;
  }
  const size_t n = size();
  std::vector<PartRequest> sending(n);
  std::vector<PartRequest> receiving(n);
  for (size_t member = 0; member < n; ++member) {
    sending[member].done = is_here(member) || operation_.input_bytes[member] == 0;
    receiving[member].done = is_here(member) || operation_.output_bytes[member] == 0;
    if (!receiving[member].done) {
      parts_.receive(receiving[member], rank_of(member), key(Stage::kCopy, 0),
                     {operation_.outputs[member], operation_.output_bytes[member]});
    }
  }
  for (size_t i = 0; i < n; ++i) {
    const size_t member = (self() + i) % n;  // not all to the same rank at once
    if (!sending[member].done) {
      parts_.send(sending[member], rank_of(member), key(Stage::kCopy, 0),
                  {operation_.inputs[member], operation_.input_bytes[member]});
    }
  }
  // Members here must meet equally often: as often as the largest size between two of them needs.
  uint64_t most = 0;
  for (const size_t member : map_.here()) {
    most = std::max<uint64_t>({most, operation_.input_bytes[member], operation_.output_bytes[member]});
  }
  std::memcpy(own_input(), &most, sizeof most);
  if (!meet()) {
    return;
  }
  for (const size_t member : map_.here()) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, input_of(member), sizeof theirs);
    most = std::max(most, theirs);
  }
  if (exchange_here(most) && wait_all(receiving)) {
    wait_all(sending);
  }
}

}  // namespace keepstep::comm
