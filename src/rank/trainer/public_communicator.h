// Behind include/keepstep/communicator.h: a communicator of the engine, and its owner. There are two kinds of owner:
// the link to a node's agent (public_communicator.cc) and a trainer's generation (public_trainer.cc).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "comm/communicator.h"
#include "keepstep/communicator.h"

namespace keepstep {

struct Communicator::Impl {
  // When the gate is called. If it returns an error, the operation fails with it, or, if it was already queued, once it
  // has completed.
  enum class Moment { kStart, kAllReduceUnderWay };
  using Gate = std::function<absl::Status(Moment)>;
  // What the owner knows and does about its ranks' communicator.
  struct Owner {
    std::function<std::string()> why_interrupted;
    std::function<void(const std::string& because)> abort;
    std::function<void(const absl::Status&)> on_failure;  // an operation failed, other than by an interruption
    Gate gate;
  };

  uint32_t rank = 0;
  uint32_t world = 0;
  int64_t timeout_ns = -1;
  std::shared_ptr<const Owner> owner;
  std::shared_ptr<comm::Communicator> comm;  // null before the first generation and after one ended
  std::shared_ptr<std::atomic<int>> outstanding = std::make_shared<std::atomic<int>>(0);  // Works not waited for yet

  using Queue = std::function<comm::OpId(comm::Communicator&, int64_t timeout_ns)>;
  std::unique_ptr<Work::State> start(const Queue& queue, bool all_reduce = false) const;
};

struct Work::State {
  std::shared_ptr<comm::Communicator> comm;
  std::shared_ptr<const Communicator::Impl::Owner> owner;
  std::shared_ptr<std::atomic<int>> outstanding;
  comm::OpId op = 0;
  bool waited = false;
  absl::Status status;  // the gate's error, until waited for
  uint32_t source = 0;
};

}  // namespace keepstep
