// A communicator as Python holds it: any thread may call it until end(), which waits for those that are inside.
//
// Python keeps such an object as long as it likes (a traceback holds frames, a thread of the user's comes back late);
// the communicator, whose arena belongs to the next generation then, must be gone earlier.
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

  // Keeps the communicator while it lives.
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
  // Its operations must complete by themselves: interrupt before where a peer may be gone. When it returns they have,
  // nothing touches their memory any more, and the communicator is released. Once.
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
