// A rank's view of its current generation: its place, the memory of the ranks on its node, the communicator.
//
// Changed by the worker's main thread, between generations, while nothing else uses it. Other threads may look at
// `page` at any time: the previous page stays until the next one has arrived.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/shared_memory.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "rank/link/assignment.h"
#include "rank/link/page.h"

namespace keepstep::rank {

// The result of an operation. ABORTED: interrupted; UNAVAILABLE: a link broke.
Status status_of(const comm::Completion& completion);

struct RankGeneration {
 private:
  std::vector<SharedMemory> pages_;  // the newest, and the previous one; they outlive the communicator

 public:
  // `own`: this worker's memory.
  RankGeneration(std::byte* own, const comm::CommConfig& config, const WorkerLayout& layout)
      : own(own), config(config), layout(layout) {}

  std::byte* const own;
  const comm::CommConfig config;
  const WorkerLayout layout;
  Assignment assignment;
  Activation activation;            // once it is ready
  std::vector<std::byte*> members;  // memory by rank; null: on another node
  std::vector<uint32_t> nodes;      // by rank; empty: all on one
  std::atomic<GenerationPage*> page{nullptr};
  std::shared_ptr<comm::Communicator> communicator;

  // `here`: the memory of the ranks that `prepared` lists on this node. make_communicator() must follow.
  void enter(Prepared& prepared, const std::vector<std::byte*>& here);
  void make_communicator(Prepared& prepared);
  std::vector<const WorkerPage*> member_pages() const;  // by rank; null: on another node

  WorkerPage& own_page() const { return *reinterpret_cast<WorkerPage*>(own); }
  ProgressWords& progress() const { return own_page().progress; }
  comm::Rank self() const { return assignment.rank; }
  comm::Rank world() const { return assignment.world; }
  bool across() const { return page.load()->across != 0; }  // there are members on other nodes
  bool speaks_for_node() const;                             // whether this is the lowest rank on its node

  // ---- results of the communicator's operations ----
  // Waits for the operation, and forgets it. ABORTED: interrupted. UNAVAILABLE: a link broke, and no interruption
  // explains it.
  Status exchange(comm::OpId op) const;
  // A broken link usually means that a process is gone and the interruption is on its way: ABORTED if it arrives,
  // otherwise `why`.
  Status await_interruption(const Status& why) const;
  // The same if `status` is UNAVAILABLE; otherwise `status`.
  Status passed_on(const Status& status) const;
};

}  // namespace keepstep::rank
