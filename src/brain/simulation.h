// The basis of simulated_node.h and membership_random_test.cc: virtual time, one source of randomness, and the ledger
// of what was really committed. Test code only.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain::simulation {

using Content = uint64_t;  // stands for all bytes of a protected state

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return (x ^ (x >> 27)) * 0x94d049bb133111ebu;
}

inline void must(bool condition, const std::string& what) {
  if (!condition) {
    throw std::runtime_error(what);
  }
}

// The number of schedules, the seed: from an environment variable.
inline uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoull(text);
}

// While it exists, a failed assertion (which throws nothing) also prints `repeat`.
class TellOnAbort {
 public:
  explicit TellOnAbort(std::string repeat) {
    text() = std::move(repeat) + "\n";
    before_ = std::signal(SIGABRT, [](int) { std::fputs(text().c_str(), stderr); });
  }
  ~TellOnAbort() { std::signal(SIGABRT, before_); }
  TellOnAbort(const TellOnAbort&) = delete;
  TellOnAbort& operator=(const TellOnAbort&) = delete;

 private:
  static std::string& text() {
    static std::string text;
    return text;
  }
  void (*before_)(int) = nullptr;
};

struct Chances {
  double death = 0;      // per action of a worker
  double exception = 0;  // per step, and per update
  double hang = 0;       // per unwinding, and per start
  double drop = 0;       // per message that is repeated if unanswered
  double repeat = 0;     // per message
  bool reorder = false;
  double node_loss = 0;   // per action of a worker not on the first node: its whole node is gone
  double corruption = 0;  // per step of a worker that has others to compare with: its gradients differ from theirs
  double flip = 0;        // per step of a worker, if states are compared: its state is not what it should be
};

// How often the rare paths were taken, over all schedules.
struct Paths {
  std::map<std::string, uint64_t> taken;
  void count(const std::string& path) { ++taken[path]; }
};

// Virtual time in microseconds, and the one source of randomness.
class Loop {
 public:
  explicit Loop(uint64_t seed) : random_(seed) {}
  int64_t now() const { return now_; }
  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool happens(double chance) { return chance > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < chance; }
  void after(int64_t delay, std::function<void()> action) {
    queue_.push(Entry{now_ + delay, next_++, std::move(action)});
  }
  bool run_one() {
    if (queue_.empty()) {
      return false;
    }
    Entry entry = std::move(const_cast<Entry&>(queue_.top()));
    queue_.pop();
    now_ = entry.at;
    entry.action();
    return true;
  }

 private:
  struct Entry {
    int64_t at;
    uint64_t order;
    std::function<void()> action;
    bool operator<(const Entry& other) const { return std::tie(at, order) > std::tie(other.at, other.order); }
  };
  std::mt19937_64 random_;
  int64_t now_ = 0;
  uint64_t next_ = 0;
  std::priority_queue<Entry> queue_;
};

// The truth that no process knows: what was decided, and what each committed version consists of. A step's content
// depends on the generation that attempted it, so that two attempts never look alike.
class Ledger {
 public:
  void decided(Identity identity, Step step) {
    newest_decided_ = identity > given_up_ ? std::max(newest_decided_, step) : newest_decided_;
  }
  void applied(Identity identity, Version version, Content content) {
    if (identity <= given_up_) {
      return;
    }
    const auto [entry, fresh] = content_.emplace(version, content);
    must(fresh || entry->second == content, "two ranks committed different things as step " + std::to_string(version));
    newest_decided_ = std::max(newest_decided_, version);
  }
  // Ranks that a restart gives up may continue until the kill arrives; what they do does not count.
  void restarted(Identity given_up) {
    given_up_ = given_up;
    newest_decided_ = 0;
    content_.clear();
  }
  Version newest_decided() const { return newest_decided_; }
  const Content* content(Version version) const {
    const auto found = content_.find(version);
    return found == content_.end() ? nullptr : &found->second;
  }

 private:
  Identity given_up_;
  Version newest_decided_ = 0;
  std::map<Version, Content> content_;
};

}  // namespace keepstep::brain::simulation
