// What a rank has of the generation that it is in: its place, the memory of the ranks on its node, the communicator.
//
// Changed by the worker's main thread, between generations, while nothing else uses it; other threads may look at
// `page` at any time: the page before stays until another one has come.
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

// What came of an operation. ABORTED: interrupted; UNAVAILABLE: a link broke.
Status status_of(const comm::Completion& completion);

struct RankGeneration {
 private:
  std::vector<SharedMemory> pages_;  // the newest, and the one before; outlive the communicator

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

  // `here`: the memory of the ranks that `prepared` says are on this node. The communicator follows by
  // make_communicator().
  void enter(Prepared& prepared, const std::vector<std::byte*>& here);
  void make_communicator(Prepared& prepared);
  std::vector<const WorkerPage*> member_pages() const;  // by rank; null: on another node

  WorkerPage& own_page() const { return *reinterpret_cast<WorkerPage*>(own); }
  ProgressWords& progress() const { return own_page().progress; }
  comm::Rank self() const { return assignment.rank; }
  comm::Rank world() const { return assignment.world; }
  bool across() const { return page.load()->across != 0; }  // there are members on other nodes
  bool speaks_for_node() const;                             // the lowest rank there

  // ---- what comes of operations of the communicator ----
  // Waits for it, and forgets it. ABORTED: interrupted. UNAVAILABLE: a link broke, and no interruption says why.
  Status exchange(comm::OpId op) const;
  // A link that broke is mostly a process that is gone, and the interruption is on its way: ABORTED then. `why` if it
  // does not come.
  Status await_interruption(const Status& why) const;
  // The same for what is UNAVAILABLE; else `status`.
  Status passed_on(const Status& status) const;
};

}  // namespace keepstep::rank
