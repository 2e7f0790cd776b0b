// Carries out a plan over several sources at once: one thread per source (the caller's is the first), each asking ahead
// while it consumes the last reply. The ranges of a lost source are distributed over the others, and a range whose
// reply was bad is requested elsewhere, at most kMaxTries times. Internal to src/state.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "brain/reshard/hydration_plan.h"
#include "state/link.h"

namespace keepstep::state {

inline constexpr int kMaxTries = 3;

class Transfer {
 public:
  // What to do with ranges. Called by several threads at once, for different ranges.
  struct Work {
    // Called once for each source when its state was found, before the first request: any error ends the whole
    // transfer.
    std::function<Status(Link&)> check_source;
    std::function<Request(const brain::PlanRange&)> request;
    // False: the bytes are bad.
    std::function<bool(const brain::PlanRange&, const Reply&)> consume;
    // For errors: "bytes 0 to 4095 of entry 3".
    std::function<std::string(const brain::PlanRange&)> describe;
  };

  // The links must outlive this and have no other user meanwhile.
  Transfer(const std::vector<Link*>& links, brain::Identity identity, brain::Version version);

  // Can be called again: lost sources stay lost. OK, ABORTED, DATA_LOSS (no source left, or a range that stays bad), or
  // the error of check_source. After an error the last ranges of some threads may or may not have been consumed.
  Status run(const std::vector<brain::PlanRange>& plan, const Work& work);

  size_t sources() const { return sources_.size(); }
  // Of all runs together.
  const std::vector<uint64_t>& bytes_by_source() const { return bytes_by_source_; }
  uint64_t repeated() const { return repeated_; }

 private:
  struct Source {
    Link* link = nullptr;
    std::deque<brain::PlanRange> queue;  // not requested yet
    bool found = false;                  // its state was seen and checked
    bool lost = false;
    std::string why;
  };

  void drive(uint32_t source, const Work& work);
  Status find(uint32_t source, const Work& work);
  Status keep_asking(uint32_t source, const Work& work, std::deque<brain::PlanRange>& outstanding);
  bool wait_for_work(uint32_t source);
  bool take(uint32_t source, brain::PlanRange* range);
  void finish(uint32_t source, const brain::PlanRange& range, bool good, const Work& work);
  void lose(uint32_t source, const std::string& why, const std::deque<brain::PlanRange>& outstanding);
  // With mutex_ held.
  void deal_out(std::vector<brain::PlanRange> owed, uint32_t lost);
  void stop(Status status);
  bool is_near(uint32_t source) const { return sources_[source].link->is_near(); }

  const brain::Identity identity_;
  const brain::Version version_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Source> sources_;
  std::map<std::pair<uint32_t, uint64_t>, int> bad_tries_;  // by entry and offset
  size_t remaining_ = 0;
  Status status_;
  std::vector<uint64_t> bytes_by_source_;
  uint64_t repeated_ = 0;
};

}  // namespace keepstep::state
