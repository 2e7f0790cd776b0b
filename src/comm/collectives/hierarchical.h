// The collectives of a group whose members are on several nodes: shared memory inside a node, a transport between them.
//
// Inside a node the rules are those of layout.h: every step is "fill my slots, meet, read the others' slots". Between
// nodes, members with the same place on their nodes are counterparts; the first `drivers` of each node exchange its
// data with their counterparts, each a slice of it. The first member of a node, its leader, speaks for it in the
// agreement that opens every operation, and small operations are over with that.
//
// Sums are taken in rank order for each element, so the bits are those of one node. That makes a chain over the nodes
// of sums on their way (partial.h), and results come back along it: each direction of a link carries the data once.
//
// The same numbers as in collectives.h: one thread at a time per group.
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
  // Which part of an operation a message between nodes is.
  enum class Stage : uint32_t { kAgreement, kVerdict, kDown, kUp, kCopy, kSizes };
  PartKey key(Stage stage, size_t index) const;

  // ---- hierarchical.cc: waiting, agreeing
  bool is_here(size_t member) const { return group_.slots[member] != nullptr; }
  size_t counterpart(size_t node) const { return map_.members[node][map_.local]; }
  bool drives() const { return map_.local < drivers_; }
  // Of the drivers' shares of a chunk.
  Slice slice_of(size_t bytes, size_t driver) const { return comm::slice_of(bytes, drivers_, driver); }

  // Waits for a message from or to another node. `late`: whom to name when it does not come; the peer if empty.
  bool wait(const PartRequest& request, std::span<const size_t> late = {});
  bool wait_all(std::span<const PartRequest> requests);
  bool wait_sent(std::span<const PartRequest> requests);  // those of them that were sent at all

  // All members exchange what they called and `bytes` (the same for all; few) each: every rank has all of it then, by
  // group rank, in `payload_`, until the next meeting. False: they do not agree, or some did not come.
  bool agree(Stage stage, const std::byte* payload, size_t bytes);
  void barrier() override { agree(Stage::kAgreement, nullptr, 0); }
  size_t most_payload() const;
  bool exchange_between_nodes(Stage stage, std::vector<std::string>& blocks);
  std::string own_block(size_t bytes) const;
  bool spread_blocks(const std::vector<std::string>& blocks, size_t bytes);
  const std::byte* payload(size_t member) const { return payload_ + member * payload_bytes_; }

  // ---- hierarchical_reduce.cc
  // A sum over all members of a vector that is worked on chunk by chunk.
  struct Chain {
    size_t chunks = 0;
    size_t root_node = 0;                                             // nodes before it need no results
    bool inputs_stay = true;                                          // what own() gives is not written again
    std::function<size_t(size_t chunk)> bytes;                        // of a chunk
    std::function<void(size_t chunk, std::byte* slot)> share;         // our input, as others on this node read it
    std::function<const std::byte*(size_t chunk, const Slice&)> own;  // our input of a slice
    std::function<std::byte*(size_t chunk, const Slice&)> place;      // of a result; null: we have none
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
  // `bytes` of each member to all: `own` is ours; `visit` gets each block while it lasts.
  using Visit = std::function<void(size_t member, const std::byte* block)>;
  size_t gather_bytes() const;  // the most at once
  bool gather_round(size_t round, const std::byte* own, size_t bytes, const Visit& visit);
  bool broadcast_chunk(size_t chunk, std::byte* data, size_t bytes, std::vector<PartRequest>& sends);

  Parts& parts_;
  const size_t drivers_;
  const std::byte* payload_ = nullptr;
  size_t payload_bytes_ = 0;
};

}  // namespace keepstep::comm
