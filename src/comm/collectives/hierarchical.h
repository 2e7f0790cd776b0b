// The collectives of a group whose members are on several nodes: shared memory inside a node, a transport between them.
//
// Inside a node the rules in layout.h apply: every step is "fill my slots, meet, read the others' slots". Between
// nodes, members with the same place on their nodes are counterparts. The first `drivers` members of each node exchange
// its data with their counterparts, one slice each. The first member of a node, its leader, represents it in the
// agreement that opens every operation; small operations are complete with that.
//
// Each element is summed in rank order, so the bits are the same as on one node. Therefore partial sums travel along a
// chain of nodes (partial.h), and results come back along it: each direction of a link carries the data once.
//
// As in collectives.h: one thread at a time per group.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/collectives/collective_run.h"
#include "comm/operation.h"
#include "comm/transport.h"

namespace keepstep::comm {

class HierarchicalRun final : public CollectiveRun {
 public:
  HierarchicalRun(Group& group, const Operation& operation, const std::string& refused);

 private:
  // The stage of an operation to which a message between nodes belongs.
  enum class Stage : uint32_t { kAgreement, kVerdict, kDown, kUp, kCopy, kSizes };
  PartKey key(Stage stage, size_t index) const;

  // ---- hierarchical.cc: waiting, agreement
  bool is_here(size_t member) const { return group_.slots[member] != nullptr; }
  size_t counterpart(size_t node) const { return map_.members[node][map_.local]; }
  bool drives() const { return map_.local < drivers_; }
  // One of the drivers' slices of a chunk.
  Slice slice_of(size_t bytes, size_t driver) const { return comm::slice_of(bytes, drivers_, driver); }

  // Waits for a message from or to another node. `late`: the members to name if it times out; the peer if empty.
  bool wait(const PartRequest& request, std::span<const size_t> late = {});
  bool wait_all(std::span<const PartRequest> requests);
  bool wait_sent(std::span<const PartRequest> requests);  // only those that were sent at all

  // All members exchange their calls and `bytes` bytes each (the same number for all; few). Every rank then has all of
  // it, by group rank, in `payload_`, until the next meeting. False: they do not agree, or some are missing.
  bool agree(Stage stage, const std::byte* payload, size_t bytes);
  void barrier() override { agree(Stage::kAgreement, nullptr, 0); }
  size_t max_payload() const;
  bool exchange_between_nodes(Stage stage, std::vector<std::string>& blocks);
  std::string own_block(size_t bytes) const;
  bool spread_blocks(const std::vector<std::string>& blocks, size_t bytes);
  const std::byte* payload(size_t member) const { return payload_ + member * payload_bytes_; }

  // ---- hierarchical_reduce.cc
  // A sum over all members of a vector, processed chunk by chunk.
  struct Chain {
    size_t chunks = 0;
    size_t root_node = 0;                                             // nodes before it need no results
    bool inputs_stay = true;                                          // own() returns memory that is not overwritten
    std::function<size_t(size_t chunk)> bytes;                        // size of a chunk
    std::function<void(size_t chunk, std::byte* slot)> share;         // writes our input for others on this node
    std::function<const std::byte*(size_t chunk, const Slice&)> own;  // our input for a slice
    std::function<std::byte*(size_t chunk, const Slice&)> place;      // where a result goes; null: nowhere
    std::function<void(size_t chunk, const Slice&, const std::byte* result)> take;
  };
  struct Driving;
  void reduce(bool to_all) override;
  void reduce_scatter() override;
  void run_chain(const Chain& chain);
  bool drive_chunk(const Chain& chain, Driving& driving, size_t chunk);
  bool bring_result(const Chain& chain, Driving& driving, size_t chunk);
  void reduce_by_gathering(bool to_all);
  size_t chunk_bytes(size_t total) const;

  // ---- hierarchical_canonical.cc
  void all_reduce_canonical() override;

  // ---- hierarchical_copy.cc
  void broadcast() override;
  void gather(bool to_all) override { to_all ? all_gather() : exchange_with_root(true); }
  void scatter() override { exchange_with_root(false); }
  void all_to_all() override;
  void all_gather();
  void exchange_with_root(bool gathers);
  bool agree_on_sizes();
  // Sends `bytes` of each member to all: `own` is ours; `visit` gets each block, which is valid during the call.
  using Visit = std::function<void(size_t member, const std::byte* block)>;
  size_t gather_bytes() const;  // the largest block per round
  bool gather_round(size_t round, const std::byte* own, size_t bytes, const Visit& visit);
  bool broadcast_chunk(size_t chunk, std::byte* data, size_t bytes, std::vector<PartRequest>& sends);

  Parts& parts_;
  const size_t drivers_;
  const std::byte* payload_ = nullptr;
  size_t payload_bytes_ = 0;
};

}  // namespace keepstep::comm
