// A memory server inside the test, on a thread of its own. The test has a runtime folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "checkpoint/memory/memory_link.h"
#include "checkpoint/object_store.h"
#include "memory_server/server.h"

namespace keepstep::memory_server {

// A store without the means to start a server.
inline std::unique_ptr<checkpoint::ObjectStore> open_memory(const std::string& name) {
  return std::move(checkpoint::open_store("memory://" + name, {.command = "/nonexistent"})).value();
}

class RunningServer {
 public:
  explicit RunningServer(ServerOptions options = {.limit = uint64_t{1} << 30}) {
    auto made = Server::create(options);
    EXPECT_TRUE(made.ok()) << made.status();
    server_ = *std::move(made);
    thread_ = std::thread([this] { server_->run(); });
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;
  ~RunningServer() {
    server_->stop();
    thread_.join();
  }

  Server& server() { return *server_; }
  // Without what is held for a moment to pack it.
  uint64_t used() {
    wait_until_packed();
    return server_->chunks().extents().used();
  }
  StatusOr<Fd> memory_for_readers() { return server_->chunks().extents().for_readers(); }
  std::string path() const { return server_->path(); }

  void wait_until_packed() {
    while (server_->chunks().waits_for_packing()) {
      std::this_thread::yield();
    }
  }
  void wait_for_clients(size_t count) {
    while (server_->clients() > count) {
      std::this_thread::yield();
    }
  }

 private:
  std::unique_ptr<Server> server_;
  std::thread thread_;
};

}  // namespace keepstep::memory_server
