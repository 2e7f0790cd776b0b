// Connections between the agents of a job whose ranks keepstep did not start, each to each, for their Store
// (store/rootless_store.h): TLS with a key from the job's token and name (net/shared_key.h), so other jobs and
// strangers are refused. Of two nodes the one with the higher number connects, and tries again until it succeeds. An
// agent listens at all of its machine's addresses, because the machine may know itself by another one (127.0.1.1, NAT);
// at its own only if all nodes are on one machine.
//
// Threads: one that listens and connects, and those of net::Listener and net::Hub. Handlers run on the event loop.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "agent/loop/event_loop.h"
#include "agent/nodes/store_nodes.h"
#include "base/status.h"
#include "brain/types.h"
#include "net/hub.h"
#include "net/listener.h"
#include "net/tls_context.h"

namespace keepstep::agent {

class StoreLines {
 public:
  struct Handlers {
    std::function<void(brain::NodeId)> connected;
    std::function<void(brain::NodeId, std::string message)> received;
    std::function<void(brain::NodeId, const Status& why)> disconnected;  // after `connected`, once
  };
  // No threads before start(): the process may fork. `loop` must live longer.
  static StatusOr<std::unique_ptr<StoreLines>> create(EventLoop& loop, const StoreNodes& nodes, const std::string& job,
                                                      Handlers handlers);
  ~StoreLines();
  Status start();

  // The loop's thread. Dropped if the node is not connected.
  void send(brain::NodeId node, std::string message);
  // The loop's thread. The nodes that are not connected, and why; empty if all are.
  std::string absent();

 private:
  struct Line;
  StoreLines(EventLoop& loop, const StoreNodes& nodes, std::shared_ptr<const net::TlsContext> context,
             Handlers handlers)
      : loop_(loop),
        addresses_(nodes.addresses),
        self_(nodes.self),
        context_(std::move(context)),
        handlers_(std::move(handlers)),
        failures_(addresses_.size()) {}
  void run(const std::stop_token& stop);
  void listen();
  bool is_dialled(brain::NodeId node);
  void dial(brain::NodeId node);
  void add(net::TlsStream stream, std::optional<brain::NodeId> dialled);
  void post(const std::shared_ptr<Line>& line, std::function<void()> task);
  void on_greeted(const std::shared_ptr<Line>& line);
  void on_closed(const std::shared_ptr<Line>& line, const Status& why);
  void note(brain::NodeId node, const Status& why);
  void note_refused(const Status& why);

  EventLoop& loop_;
  const std::vector<SocketAddress> addresses_;
  const brain::NodeId self_;
  const std::shared_ptr<const net::TlsContext> context_;
  const Handlers handlers_;

  // The loop's thread.
  std::map<brain::NodeId, std::shared_ptr<Line>> connected_;

  std::mutex mutex_;
  std::condition_variable_any changes_;
  std::map<Line*, std::shared_ptr<Line>> lines_;  // open ones
  std::vector<std::string> failures_;             // by node: why it was not connected last time; this one's: listening
  std::string refused_;                           // why somebody who connected was refused last

  std::unique_ptr<net::Hub> hub_;
  std::unique_ptr<net::Listener> listener_;
  std::jthread thread_;
};

}  // namespace keepstep::agent
