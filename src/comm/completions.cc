#include "comm/completions.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace keepstep::comm {
namespace {

Completion unknown(OpId op) {
  return {op, Outcome::kFailed, absl::StrCat("operation ", op, " is not known: never started, or taken before")};
}

}  // namespace

std::shared_ptr<Completions::Record> Completions::find(OpId op) const {
  const auto it = records_.find(op);
  return it == records_.end() ? nullptr : it->second;
}

OpId Completions::open() {
  const std::lock_guard lock(mutex_);
  auto record = std::make_shared<Record>();
  record->completion.op = ++last_;
  records_.emplace(last_, std::move(record));
  return last_;
}

void Completions::complete(OpId op, Outcome outcome, std::string error, Rank source, std::vector<Rank> missing) {
  bool wake_waiters = false;
  bool wake_watcher = false;
  {
    const std::lock_guard lock(mutex_);
    const auto record = find(op);
    if (record == nullptr) {
      return;  // forgotten before it was done
    }
    KEEPSTEP_CHECK(record->completion.outcome == Outcome::kPending, "an operation completed twice");
    record->completion.outcome = outcome;
    record->completion.error = std::move(error);
    record->completion.source = source;
    record->completion.missing = std::move(missing);
    if (record->watched) {
      ready_.push_back(record->completion);
      wake_watcher = true;
    }
    wake_waiters = waiting_ > 0;
  }
  if (wake_waiters) {
    completed_.notify_all();
  }
  if (wake_watcher) {
    reported_.notify_one();
  }
}

void Completions::note_broken_link(const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (broken_link_.empty()) {
    broken_link_ = what;
  }
}

std::string Completions::broken_link() const {
  const std::lock_guard lock(mutex_);
  return broken_link_;
}

Completion Completions::test(OpId op) const {
  const std::lock_guard lock(mutex_);
  const auto record = find(op);
  return record == nullptr ? unknown(op) : record->completion;
}

Completion Completions::wait(OpId op) {
  std::unique_lock lock(mutex_);
  const auto record = find(op);  // keeps the record alive if a watcher takes the operation meanwhile
  if (record == nullptr) {
    return unknown(op);
  }
  ++waiting_;
  completed_.wait(lock, [&] { return record->completion.outcome != Outcome::kPending; });
  --waiting_;
  return record->completion;
}

Completion Completions::wait_for(OpId op, int64_t limit_ns) {
  std::unique_lock lock(mutex_);
  const auto record = find(op);
  if (record == nullptr) {
    return unknown(op);
  }
  ++waiting_;
  completed_.wait_for(lock, std::chrono::nanoseconds(limit_ns),
                      [&] { return record->completion.outcome != Outcome::kPending; });
  --waiting_;
  return record->completion;
}

void Completions::wait_all() {
  std::unique_lock lock(mutex_);
  ++waiting_;
  completed_.wait(lock, [&] {
    return std::none_of(records_.begin(), records_.end(),
                        [](const auto& entry) { return entry.second->completion.outcome == Outcome::kPending; });
  });
  --waiting_;
}

void Completions::forget(OpId op) {
  const std::lock_guard lock(mutex_);
  records_.erase(op);
}

void Completions::watch(OpId op) {
  {
    const std::lock_guard lock(mutex_);
    const auto record = find(op);
    if (record == nullptr || std::exchange(record->watched, true)) {
      return;
    }
    if (record->completion.outcome == Outcome::kPending) {
      return;
    }
    ready_.push_back(record->completion);
  }
  reported_.notify_one();
}

std::vector<Completion> Completions::next() {
  std::unique_lock lock(mutex_);
  reported_.wait(lock, [&] { return closed_ || !ready_.empty(); });
  if (closed_) {
    return {};
  }
  for (const Completion& completion : ready_) {
    records_.erase(completion.op);
  }
  return std::exchange(ready_, {});
}

void Completions::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  reported_.notify_all();
}

}  // namespace keepstep::comm
