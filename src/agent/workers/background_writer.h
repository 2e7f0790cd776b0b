// The process that writes checkpoints of this node's ranks, so that a save outlives the rank that it is of
// (python/keepstep/checkpoint/background; docs/design/checkpoints.md).
//
// We hold the socket on which ranks call for it. The first call starts the process, which takes the socket over; when
// it ends, whatever the reason, the next call starts another one. It ends with us: it holds the other end of a socket
// pair. On that pair go messages to the processes of other nodes, which we hand on unread, and the news that a save is
// complete: its ranks may be gone.
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
    // A line for the journal: it started, it ended and how, it is given up.
    std::function<void(const std::string& event, const std::string& because)> on_note;
    // A save that ranks of this generation handed over is complete.
    std::function<void(brain::Version version, uint32_t generation)> on_saved;
    std::function<void(brain::NodeId to, const std::string& message)> on_message;
  };

  // Ranks call at `path` (base/socket/local_socket.h). The loop must outlive this.
  static StatusOr<std::unique_ptr<BackgroundWriter>> open(EventLoop& loop, const std::string& path,
                                                          const std::string& python, brain::NodeId node,
                                                          Callbacks callbacks);
  // Kills it.
  ~BackgroundWriter();

  // From a process like it on another node. Dropped where none runs, or takes no more: what matters is said again.
  void hand(brain::NodeId from, const std::string& message);
  // This node has no ranks any more, or is lost: a save that waits for a file of it is given up soon.
  void without(brain::NodeId node);
  // At the end of the job: it lets go of its destinations, and is killed if that takes longer than `limit`, or when
  // `hurry` can be read.
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
  int early_ends_ = 0;  // one after the other
};

}  // namespace keepstep::agent
