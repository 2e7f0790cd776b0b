// A collective call and its group. Plain data; only the collectives give it meaning.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/layout.h"
#include "comm/node_map.h"
#include "comm/sync.h"

namespace keepstep::comm {

class Parts;

// A group of ranks as one member sees it.
struct Group {
  std::string name;               // "world", or the key it was created with
  uint32_t place = kWorld;        // its slots in the layout
  uint64_t context = 0;           // separates its messages and parts from those of other groups, including past ones
  std::vector<Rank> members;      // world ranks, in group order
  size_t self = 0;                // our rank in the group
  std::vector<std::byte*> slots;  // by group rank: the group's four slots in that rank's arena; null on other nodes
  size_t slot_bytes = 0;
  NodeMap nodes;
  std::shared_ptr<Parts> parts;            // between members on different nodes; null if all are on this one
  GroupSync sync;                          // of the members on this node, in the order of nodes.here()
  std::atomic<uint64_t>* moved = nullptr;  // CollectiveWords::moved of this rank; never null
  uint64_t entered = 0;                    // operations of this group that we ran or tried to run

  size_t size() const { return members.size(); }
};

enum class Kind : uint8_t {
  kInvalid,  // as a descriptor: this rank's call was refused; see its own error
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier,
  kAllReduceCanonical,
};
const char* name(Kind kind);

struct Operation {
  Kind kind = Kind::kBarrier;
  std::byte* data = nullptr;             // in place: all_reduce, reduce, broadcast
  std::vector<const std::byte*> inputs;  // one, or one per rank where each rank gets its own
  std::vector<std::byte*> outputs;
  std::vector<size_t> input_bytes;  // all_to_all only
  std::vector<size_t> output_bytes;
  size_t bytes = 0;  // of one buffer; canonical: of the output
  DataType type = DataType::kUint8;
  ReduceOp op = ReduceOp::kSum;
  Rank root = 0;
  LeafRun run;          // canonical only: the leaves whose sums the inputs are
  uint64_t weight = 0;  // canonical only: our share of the divisor
  int64_t timeout_ns = -1;
};

// Fills every output that is not in place with zeros (garbage indices could trigger a device assert).
void zero_outputs(const Operation& operation);

}  // namespace keepstep::comm
