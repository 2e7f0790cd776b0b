// A communicator as Python holds it: any thread may call it until end(), which waits for the threads inside.
//
// Python may keep such an object indefinitely (a traceback holds frames, a user's thread returns late). The
// communicator must be gone earlier, because its arena then belongs to the next generation.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"
#include "comm/communicator.h"

namespace keepstep::rank {

class CommunicatorHandle {
 public:
  explicit CommunicatorHandle(std::shared_ptr<comm::Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  // Holds the communicator while it exists.
  class Use {
   public:
    explicit Use(CommunicatorHandle& handle) : handle_(&handle) {}
    Use(Use&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use() {
      if (handle_ != nullptr) {
        handle_->leave();
      }
    }
    comm::Communicator* operator->() const { return handle_->communicator_.get(); }

   private:
    CommunicatorHandle* handle_;
  };
  // ABORTED after end().
  StatusOr<Use> use() {
    const std::lock_guard lock(mutex_);
    if (ended_) {
      return absl::AbortedError("the generation ended");
    }
    ++inside_;
    return Use(*this);
  }
  // Its operations must complete on their own: interrupt the communicator first if a peer may be gone. When end()
  // returns, they are complete, nothing touches their memory any more, and the communicator is released. Call it once.
  void end() {
    std::unique_lock lock(mutex_);
    ended_ = true;
    left_.wait(lock, [this] { return inside_ == 0; });
    lock.unlock();
    communicator_->wait_all();
    communicator_.reset();
  }

 private:
  void leave() {
    const std::lock_guard lock(mutex_);
    --inside_;
    left_.notify_all();
  }

  std::shared_ptr<comm::Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable left_;
  size_t inside_ = 0;
  bool ended_ = false;
};

}  // namespace keepstep::rank
