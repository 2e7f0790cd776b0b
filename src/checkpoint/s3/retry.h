// How often and when a failed request is tried again. Pure: time and randomness are inputs.
//
// Pauses have full jitter: a random time between zero and a bound that doubles with every try, so that many clients
// that failed together do not retry together. A server's Retry-After is obeyed. A budget that all requests of a store
// share keeps retries from multiplying the load on a sick server: it holds 500, a retry takes 5, and each success
// returns 1.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string>

namespace keepstep::checkpoint {

struct RetryLimits {
  int tries = 10;
  std::chrono::milliseconds give_up_after{120'000};
  std::chrono::milliseconds first_pause{100};
  std::chrono::milliseconds longest_pause{20'000};
};

class RetryBudget {
 public:
  static constexpr int kFull = 500;
  static constexpr int kRetry = 5;

  bool take();       // false: nothing left
  void succeeded();  // a request that needed no retry, or its last one

 private:
  std::mutex mutex_;
  int left_ = kFull;
};

// The retries of one request.
class Retries {
 public:
  Retries(const RetryLimits& limits, RetryBudget& budget, uint64_t seed)
      : limits_(limits), budget_(budget), random_(seed) {}

  struct Decision {
    bool again = false;
    std::chrono::milliseconds pause{0};
    std::string because;  // why not again
  };
  // A try failed `elapsed` after the first one began. `retry_after`: when the server wants us back, if it said.
  Decision failed(std::chrono::milliseconds elapsed, std::optional<std::chrono::milliseconds> retry_after);

  int tries() const { return tries_; }

 private:
  RetryLimits limits_;
  RetryBudget& budget_;
  std::mt19937_64 random_;
  int tries_ = 0;
};

}  // namespace keepstep::checkpoint
