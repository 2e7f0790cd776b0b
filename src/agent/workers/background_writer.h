// The process that writes the checkpoints of this node's ranks, so that a save outlives its rank
// (python/keepstep/checkpoint/background; docs/design/checkpoints.md).
//
// We hold the socket to which ranks connect. The first connection starts the process, which takes over the socket; when
// it ends, for any reason, the next connection starts another one. It ends when we do: it holds the other end of a
// socket pair. That pair carries messages to the background writers of other nodes, which we pass on unread, and the
// news that a save is complete: its ranks may be gone.
//
// Loop thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/loop/event_loop.h"
#include "base/fd.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "brain/types.h"

namespace keepstep::agent {

class BackgroundWriter {
 public:
  struct Callbacks {
    // A line for the journal: it started, how it ended, it is given up.
    std::function<void(const std::string& event, const std::string& because)> on_note;
    // A save that ranks of this generation handed over is complete.
    std::function<void(brain::Version version, uint32_t generation)> on_saved;
    std::function<void(brain::NodeId to, const std::string& message)> on_message;
  };

  // Ranks connect at `path` (base/socket/local_socket.h). The loop must outlive this.
  static StatusOr<std::unique_ptr<BackgroundWriter>> open(EventLoop& loop, const std::string& path,
                                                          const std::string& python, brain::NodeId node,
                                                          Callbacks callbacks);
  // Kills the process.
  ~BackgroundWriter();

  // A message from another node's background writer. Dropped if ours does not run or accepts no more: messages that
  // matter are repeated.
  void hand(brain::NodeId from, const std::string& message);
  // `node` has no more ranks, or is lost: a save that waits for one of its files is given up soon.
  void without(brain::NodeId node);
  // At the end of the job: the process releases its destinations. It is killed if that takes longer than `limit`, or
  // when `hurry` becomes readable.
  void end(std::chrono::milliseconds limit, int hurry);

 private:
  BackgroundWriter(EventLoop& loop, Fd listener, std::string python, brain::NodeId node, Callbacks callbacks)
      : loop_(loop),
        listener_(std::move(listener)),
        python_(std::move(python)),
        node_(node),
        callbacks_(std::move(callbacks)) {}
  StatusOr<pid_t> start();
  void on_call();
  void on_packet();
  void on_exit();
  void forget();

  EventLoop& loop_;
  Fd listener_;
  std::string python_;
  brain::NodeId node_;
  Callbacks callbacks_;
  pid_t pid_ = 0;
  Fd pidfd_;
  PacketSocket socket_;
  int64_t started_ns_ = 0;
  int early_ends_ = 0;  // in a row
};

}  // namespace keepstep::agent
