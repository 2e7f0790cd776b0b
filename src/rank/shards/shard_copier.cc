#include "rank/shards/shard_copier.h"

#include <sched.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/short_turns.h"
#include "rank/link/reserved_tags.h"

namespace keepstep::rank {

using comm::Rank;

namespace {

// While one exists, this thread, when it wakes, takes a free CPU or waits for the next turn. It does not preempt the
// thread that woke it, the training thread on its way into the next step. (On a busy machine with as many ranks as
// cores, the handover took 5 ms and more without this, and 1 ms with it.)
class WakesPolitely {
 public:
  WakesPolitely() : was_normal_(sched_getscheduler(0) == SCHED_OTHER) { set(SCHED_BATCH); }
  ~WakesPolitely() { set(SCHED_OTHER); }

 private:
  void set(int policy) const {
    const sched_param none{};
    if (was_normal_) {
      (void)sched_setscheduler(0, policy, &none);
    }
  }
  const bool was_normal_;
};

}  // namespace

// Of a thread that keeps copies for one owner, or of the copying thread.
struct ShardCopier::Buffers {
  Rank owner = 0;
  ShardHead head;
  ShardAnswer answer = ShardAnswer::kSend;
};

ShardCopier::ShardCopier(comm::Communicator& comm, Rank self, ShardDuties duties, VaultOf vault_of,
                         const ParityVaultOf& parity_vault_of, state::DeviceCopy& copy)
    : line_(comm, stop_),
      self_(self),
      keepers_(std::move(duties.keepers)),
      vault_of_(std::move(vault_of)),
      copy_(copy),
      parity_(line_, self, std::move(duties.parity_keepers)) {
  for (const Rank owner : duties.kept) {
    Buffers& of = *buffers_.emplace_back(std::make_unique<Buffers>());
    of.owner = owner;
    threads_.emplace_back([this, &of] { keep(of); });
  }
  for (brain::ParityBlock& block : duties.parity_kept) {
    ParityKeeper& keeper =
        *parity_keepers_.emplace_back(std::make_unique<ParityKeeper>(line_, std::move(block), parity_vault_of));
    threads_.emplace_back([&keeper] { keeper.run(); });
  }
  mine_ = std::make_unique<Buffers>();
  threads_.emplace_back([this] { run(); });
}

ShardCopier::~ShardCopier() { stop(); }

void ShardCopier::stop() {
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

void ShardCopier::start(brain::Version version, std::vector<state::Region> tensors, std::string text) {
  const std::lock_guard lock(mutex_);
  job_ = Job{version, std::move(tensors), std::move(text)};
  changed_.notify_all();
}

Status ShardCopier::wait(brain::Version version) {
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

ShardCopier::Counts ShardCopier::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void ShardCopier::finish() {
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();  // keepers' threads end with their owners' last message
    }
  }
}

void ShardCopier::run() {
  take_short_turns();
  while (true) {
    std::unique_lock lock(mutex_);
    {
      const WakesPolitely politely;
      changed_.wait(lock, [&] { return stop_ || job_.has_value() || finishing_; });
    }
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
    ShardHead& head = mine_->head;
    head = ShardHead{};
    head.seal.version = kNoMoreVersions;
    (void)line_.send(keeper, &head, sizeof(head), kTagShardHead);
  }
  parity_.finish();
}

Status ShardCopier::copy(brain::Version version, const std::vector<state::Region>& tensors, const std::string& text,
                         int64_t* given_ns) {
  KEEPSTEP_ASSIGN_OR_RETURN(const state::TensorSpace space, state::TensorSpace::create(tensors));
  KEEPSTEP_RETURN_IF_ERROR(space.open_devices(copy_));
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault,
                            vault_of_(self_, space.total_bytes(), shard_text_room(text.size())));
  // A rank that has just been filled from this version finds it here already.
  if (!vault.has(version)) {
    KEEPSTEP_ASSIGN_OR_RETURN(const bool whole,
                              vault.write(version, space, copy_, text, [this] { return line_.stopped(); }));
    if (!whole) {
      return absl::AbortedError("the generation was interrupted");
    }
  }
  const int64_t began_ns = monotonic_ns();
  for (const Rank keeper : keepers_) {
    KEEPSTEP_RETURN_IF_ERROR(give(keeper, vault, version));
  }
  KEEPSTEP_RETURN_IF_ERROR(parity_.give(vault, version));
  *given_ns = monotonic_ns() - began_ns;
  return absl::OkStatus();
}

Status ShardCopier::give(Rank keeper, state::ShardVault& vault, brain::Version version) {
  Buffers& mine = *mine_;
  mine.head = ShardHead{*vault.seal_of(version), vault.data_bytes(), vault.text_room()};
  for (int tries = 0; tries < kShardTries; ++tries) {
    KEEPSTEP_RETURN_IF_ERROR(line_.send(keeper, &mine.head, sizeof(mine.head), kTagShardHead));
    KEEPSTEP_RETURN_IF_ERROR(line_.receive(keeper, &mine.answer, sizeof(mine.answer), kTagShardAnswer));
    if (mine.answer == ShardAnswer::kSend) {
      KEEPSTEP_RETURN_IF_ERROR(
          line_.send(keeper, vault.text_slot(version).data(), mine.head.seal.text_bytes, kTagShardBytes));
      KEEPSTEP_RETURN_IF_ERROR(line_.send(keeper, vault.data(version).data(), vault.data_bytes(), kTagShardBytes));
      KEEPSTEP_RETURN_IF_ERROR(line_.receive(keeper, &mine.answer, sizeof(mine.answer), kTagShardAnswer));
    }
    if (mine.answer == ShardAnswer::kHave) {
      return absl::OkStatus();
    }
    if (mine.answer == ShardAnswer::kFailed) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "rank %d cannot keep a copy of %d bytes of the shard of rank %d: its node has no memory for it", keeper,
          vault.data_bytes(), self_));
    }
  }
  return absl::DataLossError(
      absl::StrFormat("the copy of the shard of rank %d at version %d arrived damaged at rank %d, %d "
                      "times",
                      self_, version, keeper, kShardTries));
}

void ShardCopier::keep(Buffers& of) {
  take_short_turns();
  for (bool over = false; !over;) {
    if (!take(of, &over).ok()) {
      return;  // the owner finds out itself about an interruption or a broken link
    }
  }
}

Status ShardCopier::take(Buffers& of, bool* over) {
  const Rank owner = of.owner;
  ShardHead& head = of.head;
  ShardAnswer& answer = of.answer;
  KEEPSTEP_RETURN_IF_ERROR(line_.receive(owner, &head, sizeof(head), kTagShardHead));
  if (head.seal.version == kNoMoreVersions) {
    *over = true;
    return absl::OkStatus();
  }
  StatusOr<state::ShardVault> vault = vault_of_(owner, head.data_bytes, head.text_room);
  if (!vault.ok() || head.seal.text_bytes > vault->text_room()) {
    answer = ShardAnswer::kFailed;
    return line_.send(owner, &answer, sizeof(answer), kTagShardAnswer);
  }
  const std::optional<state::VaultSeal> known = vault->seal_of(head.seal.version);
  const bool have = known.has_value() && known->data_checksum == head.seal.data_checksum &&
                    known->text_checksum == head.seal.text_checksum;
  answer = have ? ShardAnswer::kHave : ShardAnswer::kSend;
  KEEPSTEP_RETURN_IF_ERROR(line_.send(owner, &answer, sizeof(answer), kTagShardAnswer));
  if (have) {
    return absl::OkStatus();
  }
  const brain::Version version = head.seal.version;
  vault->begin(version);
  KEEPSTEP_RETURN_IF_ERROR(
      line_.receive(owner, vault->text_slot(version).data(), head.seal.text_bytes, kTagShardBytes));
  KEEPSTEP_RETURN_IF_ERROR(line_.receive(owner, vault->data(version).data(), vault->data_bytes(), kTagShardBytes));
  vault->finish(head.seal);
  const bool broken = !vault->verify(version).ok();
  if (broken) {
    vault->begin(version);
  }
  answer = broken ? ShardAnswer::kBroken : ShardAnswer::kHave;
  return line_.send(owner, &answer, sizeof(answer), kTagShardAnswer);
}

}  // namespace keepstep::rank
