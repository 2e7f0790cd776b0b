#include "comm/collectives/hierarchical.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/checksum.h"
#include "comm/collectives/agreement.h"

namespace keepstep::comm {
namespace {

// Operations of at most this many bytes of all members together are exchanged with the agreement.
constexpr size_t kSmallBytes = 64 << 10;

// What a leader says about its node; followed by the descriptors (one when all are equal) and the payload.
struct BlockHeader {
  uint32_t node;
  uint32_t descriptors;
  uint64_t members;  // digest of the group's list of ranks
  uint64_t payload_bytes;
};
static_assert(sizeof(BlockHeader) == 24);

void append(std::string& to, const void* data, size_t bytes) { to.append(static_cast<const char*>(data), bytes); }

uint64_t digest_of(const std::vector<Rank>& members) {
  return checksum(members.data(), members.size() * sizeof(members[0]));
}

}  // namespace

HierarchicalRun::HierarchicalRun(Group& group, const Operation& operation, const std::string& refused)
    : CollectiveRun(group, operation, refused), parts_(*group.parts), drivers_(group.nodes.drivers()) {}

PartKey HierarchicalRun::key(Stage stage, size_t index) const {
  return {group_.context, group_.entered, static_cast<uint32_t>(stage) << 28 | static_cast<uint32_t>(index)};
}

bool HierarchicalRun::wait(const PartRequest& request, std::span<const size_t> late) {
  if (request.done) {
    return true;
  }
  switch (parts_.wait(request, deadline_ns_, group_.sync.given_up_word())) {
    case Waited::kDone:
      return true;
    case Waited::kInterrupted:
      return interrupt();
    case Waited::kTimedOut:
      result_.missing.assign(late.begin(), late.end());
      return give_up({rank_of(self())},
                     absl::StrCat(late.empty() ? absl::StrCat("rank ", request.peer) : rank_list(group_, late),
                                  late.empty() ? " stopped in the middle of it; waited " : " did not arrive within ",
                                  seconds(operation_.timeout_ns)));
    case Waited::kLost:
      return give_up({rank_of(self()), true, request.peer},
                     absl::StrFormat("the link between rank %d and rank %d broke (%s), and no new generation began. Is "
                                     "that rank's process, or its node, gone?",
                                     rank_of(self()), request.peer, parts_.why_lost(request.peer)));
    case Waited::kGivenUp: {
      const bool here = group_.sync.given_up_word().load() != 0;
      return follow(here ? group_.sync.given_up() : parts_.given_up());
    }
  }
  return false;
}

bool HierarchicalRun::wait_all(std::span<const PartRequest> requests) {
  return std::all_of(requests.begin(), requests.end(),
                     [&](const PartRequest& request) { return request.done || wait(request); });
}

bool HierarchicalRun::wait_sent(std::span<const PartRequest> requests) {
  return std::all_of(requests.begin(), requests.end(),
                     [&](const PartRequest& request) { return !request.begun || wait(request); });
}

// ---- agreement

size_t HierarchicalRun::max_payload() const {
  const size_t table = whole_lines(size() * sizeof(Descriptor));
  return std::min(kSmallBytes, group_.slot_bytes - table) / size();
}

// What this node says: its members' descriptors and payloads, from the slots of the last meeting.
std::string HierarchicalRun::own_block(size_t bytes) const {
  const Descriptor& own = group_.sync.descriptor(map_.local);
  bool same = true;
  for (size_t i = 0; i < local_size(); ++i) {
    same = same && group_.sync.descriptor(i) == own;
  }
  const bool pays = same && own.kind != static_cast<uint8_t>(Kind::kInvalid);
  const BlockHeader header{static_cast<uint32_t>(map_.node), static_cast<uint32_t>(same ? 1 : local_size()),
                           digest_of(group_.members), pays ? bytes * local_size() : 0};
  std::string block;
  append(block, &header, sizeof header);
  for (size_t i = 0; i < header.descriptors; ++i) {
    append(block, &group_.sync.descriptor(i), sizeof(Descriptor));
  }
  for (size_t i = 0; i < local_size() && pays; ++i) {
    append(block, input_of(map_.here()[i]), bytes);
  }
  return block;
}

// Bruck's all-gather among the leaders: in round k each passes on what it has to the one 2^k before it. `blocks`: our
// own first, then those of the nodes after it, in order.
bool HierarchicalRun::exchange_between_nodes(Stage stage, std::vector<std::string>& blocks) {
  const size_t n = map_.nodes();
  for (size_t distance = 1, round = 0; distance < n; distance *= 2, ++round) {
    const size_t count = std::min(distance, n - distance);
    std::string out;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t bytes = blocks[i].size();
      append(out, &bytes, sizeof bytes);
      out += blocks[i];
    }
    size_t most = 0;
    std::vector<size_t> late;
    for (size_t i = 0; i < count; ++i) {
      const auto& members = map_.members[(map_.node + distance + i) % n];
      most += sizeof(uint64_t) + sizeof(BlockHeader) + members.size() * sizeof(Descriptor);
      late.insert(late.end(), members.begin(), members.end());
    }
    std::string in(most + kSmallBytes, '\0');
    PartRequest sending;
    PartRequest receiving;
    parts_.receive(receiving, rank_of(map_.members[(map_.node + distance) % n][0]), key(stage, round),
                   std::as_writable_bytes(std::span(in)));
    parts_.send(sending, rank_of(map_.members[(map_.node + n - distance) % n][0]), key(stage, round),
                std::as_bytes(std::span(out)));
    std::sort(late.begin(), late.end());
    if (!wait(receiving, late) || !wait(sending)) {
      return false;
    }
    std::string_view rest(in.data(), receiving.bytes);
    for (size_t i = 0; i < count; ++i) {
      uint64_t bytes = 0;
      if (rest.size() < sizeof bytes) {
        return give_up({rank_of(self())}, absl::StrCat("rank ", receiving.peer, " sent an agreement that is cut off"));
      }
      std::memcpy(&bytes, rest.data(), sizeof bytes);
      rest.remove_prefix(sizeof bytes);
      if (rest.size() < bytes) {
        return give_up({rank_of(self())}, absl::StrCat("rank ", receiving.peer, " sent an agreement that is cut off"));
      }
      blocks.emplace_back(rest.substr(0, bytes));
      rest.remove_prefix(bytes);
    }
  }
  return true;
}

// Puts all members' descriptors and payloads into our result slot, for the members on this node.
bool HierarchicalRun::spread_blocks(const std::vector<std::string>& blocks, size_t bytes) {
  std::byte* table = own_result();
  std::byte* payloads = table + whole_lines(size() * sizeof(Descriptor));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t node = (map_.node + i) % map_.nodes();
    const auto& members = map_.members[node];
    BlockHeader header{};
    const std::string& block = blocks[i];
    const auto wrong = [&](const char* why) {
      return give_up({rank_of(self())},
                     absl::StrFormat("%s; it has the ranks %s of this group", why, rank_list(group_, members)));
    };
    if (block.size() < sizeof header) {
      return wrong("a node sent an agreement that is cut off");
    }
    std::memcpy(&header, block.data(), sizeof header);
    if (header.members != digest_of(group_.members)) {
      return wrong("a node made this group with other ranks, or in another order");
    }
    const bool sound = header.node == node && (header.descriptors == 1 || header.descriptors == members.size()) &&
                       block.size() == sizeof header + header.descriptors * sizeof(Descriptor) + header.payload_bytes;
    if (!sound) {
      return wrong("a node sent an agreement that contradicts itself");
    }
    const char* descriptors = block.data() + sizeof header;
    const char* from = descriptors + header.descriptors * sizeof(Descriptor);
    for (size_t j = 0; j < members.size(); ++j) {
      std::memcpy(table + members[j] * sizeof(Descriptor),
                  descriptors + (header.descriptors == 1 ? 0 : j) * sizeof(Descriptor), sizeof(Descriptor));
      if (bytes > 0 && header.payload_bytes == bytes * members.size()) {
        std::memcpy(payloads + members[j] * bytes, from + j * bytes, bytes);
      }
    }
  }
  return true;
}

bool HierarchicalRun::agree(Stage stage, const std::byte* payload, size_t bytes) {
  if (bytes > 0 && payload != nullptr) {
    std::memcpy(own_input(), payload, bytes);
  }
  if (!meet()) {
    return false;
  }
  if (map_.leads()) {
    std::vector<std::string> blocks{own_block(bytes)};
    if (!exchange_between_nodes(stage, blocks) || !spread_blocks(blocks, bytes)) {
      return false;
    }
  }
  if (!meet()) {
    return false;
  }
  const std::byte* table = result_of(map_.here()[0]);
  const std::span<const Descriptor> descriptors(reinterpret_cast<const Descriptor*>(table), size());
  payload_ = table + whole_lines(size() * sizeof(Descriptor));
  payload_bytes_ = bytes;
  return agreed(disagreement(group_, descriptors));
}

}  // namespace keepstep::comm
