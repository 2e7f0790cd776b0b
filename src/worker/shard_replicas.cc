#include "worker/shard_replicas.h"

#include <memory>
#include <utility>

#include "base/clock.h"
#include "worker/reserved_tags.h"

namespace keepstep::worker {

using comm::Outcome;
using comm::Rank;

namespace {

constexpr int64_t kLookNs = 50'000'000;  // how often a wait for another rank looks whether to stop
constexpr brain::Version kOver = ~brain::Version{0};
constexpr int kTries = 3;  // of a copy that arrives broken

// From an owner to its keeper; version kOver: there will be no more.
struct Head {
  state::VaultSeal seal;
  uint64_t data_bytes = 0;
  uint64_t text_room = 0;
};

enum class Answer : uint32_t { kSend, kHave, kBroken, kFailed };

}  // namespace

// Of the thread that keeps for one owner; and of the one that copies.
struct ShardReplicas::Buffers {
  Rank owner = 0;
  Head head;
  Answer answer = Answer::kSend;
};

ShardReplicas::ShardReplicas(comm::Communicator& comm, Rank self, std::vector<Rank> keepers, std::vector<Rank> kept,
                             VaultOf vault_of, state::DeviceCopy& copy)
    : comm_(comm), self_(self), keepers_(std::move(keepers)), vault_of_(std::move(vault_of)), copy_(copy) {
  for (const Rank owner : kept) {
    Buffers& of = *buffers_.emplace_back(std::make_unique<Buffers>());
    of.owner = owner;
    threads_.emplace_back([this, &of] { keep(of); });
  }
  mine_ = std::make_unique<Buffers>();
  threads_.emplace_back([this] { run(); });
}

ShardReplicas::~ShardReplicas() { stop(); }

void ShardReplicas::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

void ShardReplicas::start(brain::Version version, std::vector<state::Region> tensors, std::string text) {
  const std::lock_guard lock(mutex_);
  job_ = Job{version, std::move(tensors), std::move(text)};
  changed_.notify_all();
}

Status ShardReplicas::wait(brain::Version version) {
  std::unique_lock lock(mutex_);
  const auto done = [&] { return protected_ == version || !status_.ok() || stop_; };
  if (!done()) {
    const int64_t began_ns = monotonic_ns();
    changed_.wait(lock, done);
    ++counts_.waits;
    counts_.waited_ns += monotonic_ns() - began_ns;
  }
  if (protected_ == version) {
    return absl::OkStatus();
  }
  return status_.ok() ? absl::AbortedError("the generation ended") : status_;
}

ShardReplicas::Counts ShardReplicas::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void ShardReplicas::finish() {
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();  // keepers' threads at the owners' last word
    }
  }
}

void ShardReplicas::run() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || job_.has_value() || finishing_; });
    if (stop_) {
      return;
    }
    if (!job_.has_value()) {
      break;
    }
    const Job job = *std::exchange(job_, std::nullopt);
    lock.unlock();
    const int64_t began_ns = monotonic_ns();
    int64_t given_ns = 0;
    const Status status = copy(job.version, job.tensors, job.text, &given_ns);
    lock.lock();
    if (status.ok()) {
      protected_ = job.version;
      ++counts_.versions;
      counts_.copied_ns = monotonic_ns() - began_ns;
      counts_.given_ns = given_ns;
      counts_.bytes = 0;
      for (const state::Region& tensor : job.tensors) {
        counts_.bytes += tensor.bytes;
      }
    } else {
      status_ = status;
    }
    changed_.notify_all();
    if (!status.ok()) {
      return;
    }
  }
  for (const Rank keeper : keepers_) {
    Head& head = mine_->head;
    head = Head{};
    head.seal.version = kOver;
    (void)send(keeper, &head, sizeof(head), kTagShardHead);
  }
}

Status ShardReplicas::copy(brain::Version version, const std::vector<state::Region>& tensors, const std::string& text,
                           int64_t* given_ns) {
  KEEPSTEP_ASSIGN_OR_RETURN(const state::TensorSpace space, state::TensorSpace::create(tensors));
  KEEPSTEP_RETURN_IF_ERROR(space.open_devices(copy_));
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault,
                            vault_of_(self_, space.total_bytes(), shard_text_room(text.size())));
  // A rank that was just filled from this version finds it here already.
  if (!vault.has(version)) {
    KEEPSTEP_ASSIGN_OR_RETURN(const bool whole, vault.write(version, space, copy_, text, [this] {
      return stop_.load(std::memory_order_relaxed) || comm_.interrupted();
    }));
    if (!whole) {
      return absl::AbortedError("the generation was interrupted");
    }
  }
  const int64_t began_ns = monotonic_ns();
  for (const Rank keeper : keepers_) {
    KEEPSTEP_RETURN_IF_ERROR(give(keeper, vault, version));
  }
  *given_ns = monotonic_ns() - began_ns;
  return absl::OkStatus();
}

Status ShardReplicas::give(Rank keeper, state::ShardVault& vault, brain::Version version) {
  Buffers& mine = *mine_;
  mine.head = Head{*vault.seal_of(version), vault.data_bytes(), vault.text_room()};
  for (int tries = 0; tries < kTries; ++tries) {
    KEEPSTEP_RETURN_IF_ERROR(send(keeper, &mine.head, sizeof(mine.head), kTagShardHead));
    KEEPSTEP_RETURN_IF_ERROR(receive(keeper, &mine.answer, sizeof(mine.answer), kTagShardAnswer));
    if (mine.answer == Answer::kSend) {
      KEEPSTEP_RETURN_IF_ERROR(
          send(keeper, vault.text_slot(version).data(), mine.head.seal.text_bytes, kTagShardBytes));
      KEEPSTEP_RETURN_IF_ERROR(send(keeper, vault.data(version).data(), vault.data_bytes(), kTagShardBytes));
      KEEPSTEP_RETURN_IF_ERROR(receive(keeper, &mine.answer, sizeof(mine.answer), kTagShardAnswer));
    }
    if (mine.answer == Answer::kHave) {
      return absl::OkStatus();
    }
    if (mine.answer == Answer::kFailed) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "rank %d cannot keep a copy of %d bytes of the shard of rank %d: its node has no memory for it", keeper,
          vault.data_bytes(), self_));
    }
  }
  return absl::DataLossError(
      absl::StrFormat("the copy of the shard of rank %d at version %d arrived broken at rank %d, %d "
                      "times",
                      self_, version, keeper, kTries));
}

void ShardReplicas::keep(Buffers& of) {
  for (bool over = false; !over;) {
    if (!take(of, &over).ok()) {
      return;  // the owner learns of it by itself: of an interruption, of a link that broke
    }
  }
}

Status ShardReplicas::take(Buffers& of, bool* over) {
  const Rank owner = of.owner;
  Head& head = of.head;
  Answer& answer = of.answer;
  KEEPSTEP_RETURN_IF_ERROR(receive(owner, &head, sizeof(head), kTagShardHead));
  if (head.seal.version == kOver) {
    *over = true;
    return absl::OkStatus();
  }
  StatusOr<state::ShardVault> vault = vault_of_(owner, head.data_bytes, head.text_room);
  if (!vault.ok() || head.seal.text_bytes > vault->text_room()) {
    answer = Answer::kFailed;
    return send(owner, &answer, sizeof(answer), kTagShardAnswer);
  }
  const std::optional<state::VaultSeal> known = vault->seal_of(head.seal.version);
  const bool have = known.has_value() && known->data_checksum == head.seal.data_checksum &&
                    known->text_checksum == head.seal.text_checksum;
  answer = have ? Answer::kHave : Answer::kSend;
  KEEPSTEP_RETURN_IF_ERROR(send(owner, &answer, sizeof(answer), kTagShardAnswer));
  if (have) {
    return absl::OkStatus();
  }
  const brain::Version version = head.seal.version;
  vault->begin(version);
  KEEPSTEP_RETURN_IF_ERROR(receive(owner, vault->text_slot(version).data(), head.seal.text_bytes, kTagShardBytes));
  KEEPSTEP_RETURN_IF_ERROR(receive(owner, vault->data(version).data(), vault->data_bytes(), kTagShardBytes));
  vault->finish(head.seal);
  const bool broken = !vault->verify(version).ok();
  if (broken) {
    vault->begin(version);
  }
  answer = broken ? Answer::kBroken : Answer::kHave;
  return send(owner, &answer, sizeof(answer), kTagShardAnswer);
}

Status ShardReplicas::receive(Rank from, void* data, size_t bytes, uint32_t tag) {
  return end(comm_.receive(comm::kWorld, data, bytes, from, tag));
}

Status ShardReplicas::send(Rank to, const void* data, size_t bytes, uint32_t tag) {
  return end(comm_.send(comm::kWorld, data, bytes, to, tag));
}

// An operation whose wait was given up stays behind until the communicator ends.
Status ShardReplicas::end(comm::OpId op) {
  while (!stop_.load(std::memory_order_relaxed)) {
    const comm::Completion completion = comm_.wait_for(op, kLookNs);
    if (completion.outcome == Outcome::kPending) {
      continue;
    }
    comm_.forget(op);
    if (completion.outcome == Outcome::kInterrupted) {
      return absl::AbortedError("the generation was interrupted");
    }
    return completion.outcome == Outcome::kDone ? absl::OkStatus() : absl::UnavailableError(completion.error);
  }
  return absl::AbortedError("the generation ended");
}

}  // namespace keepstep::worker
