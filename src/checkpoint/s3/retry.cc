#include "checkpoint/s3/retry.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace keepstep::checkpoint {

using std::chrono::milliseconds;

bool RetryBudget::take() {
  const std::lock_guard lock(mutex_);
  if (left_ < kRetry) {
    return false;
  }
  left_ -= kRetry;
  return true;
}

void RetryBudget::succeeded() {
  const std::lock_guard lock(mutex_);
  left_ = std::min(left_ + 1, kFull);
}

Retries::Decision Retries::failed(milliseconds elapsed, std::optional<milliseconds> retry_after) {
  ++tries_;
  if (tries_ >= limits_.tries) {
    return {.because = absl::StrFormat("tried %d times", tries_)};
  }
  milliseconds bound = limits_.first_pause;
  for (int i = 1; i < tries_ && bound < limits_.longest_pause; ++i) {
    bound *= 2;
  }
  bound = std::min(bound, limits_.longest_pause);
  milliseconds pause(std::uniform_int_distribution<int64_t>(0, bound.count())(random_));
  if (retry_after.has_value()) {
    pause = std::max(pause, *retry_after);
  }
  if (elapsed + pause > limits_.give_up_after) {
    return {.because = retry_after.has_value()
                           ? absl::StrFormat("tried %d times in %d ms, and the server asks for a pause of %d ms",
                                             tries_, elapsed.count(), retry_after->count())
                           : absl::StrFormat("tried %d times in %d ms", tries_, elapsed.count())};
  }
  if (!budget_.take()) {
    return {.because =
                absl::StrFormat("tried %d times, and the budget of retries is spent: too many requests fail", tries_)};
  }
  return {.again = true, .pause = pause};
}

}  // namespace keepstep::checkpoint
