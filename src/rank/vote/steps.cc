#include "rank/vote/steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "comm/wait_clock.h"
#include "rank/vote/node_tree.h"

namespace keepstep::rank {

using brain::StateKind;
using brain::StateWord;
using brain::Step;
using brain::Version;

void Steps::leave_generation() {
  vote_.reset();
  node_vote_.reset();
}

void Steps::enter(std::function<std::string()> broken_link) {
  // Reported, not raised: a rank that voted stays where it is until the verdict.
  const auto differ = [this](Step step) {
    (void)agent_.send(
        messages::Faulted{.step = step,
                          .what = absl::StrFormat("all ranks voted on step %d, but for different things", step),
                          .digests = true});
  };
  std::vector<const WorkerPage*> pages = generation_.member_pages();
  if (generation_.across()) {
    if (NodeTree tree(generation_.nodes, generation_.self()); tree.leads) {
      const auto broken = [this, broken_link = std::move(broken_link)](Step step, const std::string& what) {
        (void)agent_.send(messages::Faulted{.step = step, .what = what, .link = !broken_link().empty()});
      };
      node_vote_ = std::make_unique<NodeVote>(*generation_.communicator, std::move(tree), pages, broken, differ);
    }
  }
  vote_ = std::make_unique<StepVote>(generation_.own_page(), *generation_.page.load(), generation_.assignment.identity,
                                     node_vote_.get(), std::move(pages), differ);
  updating_ = false;
  committed_here_ = false;
  committed_ns_ = 0;
  generation_.progress().committed.store(0, std::memory_order_relaxed);  // before open(), which publishes it
  for (DigestSlot& slot : generation_.own_page().digest) {
    slot.step = 0;  // of an attempt that did not count; its sealed words have been read
  }
}

Status Steps::open() {
  vote_->open(generation_.assignment.version);
  if (generation_.page.load()->sealing.load() != 0) {
    // The agent may have sealed the old word just before we opened the new one: seal it ourselves.
    generation_.own_page().word.fetch_or(brain::kSealedBit);
    return absl::AbortedError("the generation was interrupted before it formed");
  }
  return absl::OkStatus();
}

Status Steps::form() {
  GenerationPage& gen = *generation_.page.load();
  const bool last_here = gen.formed.fetch_add(1) + 1 == gen.world;
  ring(gen);
  const auto all_here = [&] { return gen.formed.load() == gen.world; };
  bool tell = last_here && gen.across == 0;
  if (node_vote_ != nullptr) {
    if (wait_until(gen, all_here) && node_vote_->form()) {
      gen.formed_everywhere.store(1);
      ring(gen);
      tell = node_vote_->root();
    }
  }
  if (tell) {
    (void)agent_.send(messages::Formed{});
  }
  const bool formed =
      gen.across == 0 ? wait_until(gen, all_here) : wait_until(gen, [&] { return gen.formed_everywhere.load() != 0; });
  return formed ? absl::OkStatus() : absl::AbortedError("the generation was interrupted while it formed");
}

VoteResult Steps::vote(Step step, uint32_t flags) {
  comm::WaitClock& waits = generation_.communicator->waits();
  waits.begin(0, monotonic_ns());
  flags |= agent_.notice_came() ? uint32_t{kFlagDrain} : 0U;
  flags |= agent_.pause_asked() ? uint32_t{kFlagPause} : 0U;
  last_vote_ = vote_->vote(step, flags);
  waits.end(monotonic_ns());
  return last_vote_;
}

StatusOr<Version> Steps::wait_verdict() {
  GenerationPage& gen = *generation_.page.load();
  while (true) {
    const uint32_t seen = gen.bell.load();
    switch (gen.verdict_ready.load()) {
      case 1:
        return gen.verdict_version.load();
      case 2:
        return absl::CancelledError("the job ended");
      default:
        wait_bell(gen, seen);
    }
  }
}

void Steps::begin_update(Step step) {
  generation_.progress().place.store(pack_place(step, 0, brain::StepPhase::kUpdate), std::memory_order_relaxed);
  set_state(generation_.own_page(), StateWord{StateKind::kUpdating, step - 1});
  updating_ = true;
}

bool Steps::end_update(Step step) {
  updating_ = false;
  set_state(generation_.own_page(), StateWord{StateKind::kClean, step});
  const bool open = vote_->close(step);
  CommitRecord record{.step = step, .identity = generation_.assignment.identity, .committed_ns = monotonic_ns()};
  const int64_t waited_ns = generation_.communicator->waits().total_ns();
  if (committed_ns_ != 0) {
    record.computed_ns = std::max<int64_t>(record.committed_ns - committed_ns_ - (waited_ns - waited_ns_), 1);
  }
  committed_ns_ = record.committed_ns;
  waited_ns_ = waited_ns;
  record.digest = load_digest(generation_.own_page(), step);
  generation_.progress().committed_ns.store(record.committed_ns, std::memory_order_relaxed);
  generation_.progress().committed.store(step, std::memory_order_release);
  at(step + 1, 0);
  const LossSlot& slot = generation_.own_page().loss[step % 2];
  if (slot.step.load() == step) {
    record.has_loss = true;
    record.loss_sum = slot.sum.load();
    record.micro_batches = slot.micro_batches.load();
  }
  if (generation_.across()) {
    // An agent has only the losses of its own ranks.
    record.mean = mean_loss(step);
    record.has_mean = !std::isnan(record.mean);
  }
  make_room();
  log_.commit(record);
  if (!std::exchange(committed_here_, true)) {
    (void)agent_.send(messages::Collect{});  // the others wait for news that this generation continues
  }
  return open;
}

Status Steps::log(Step step, std::string_view values) {
  if (values.size() > kMaxLogTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the values logged for step %d take %d bytes as JSON, %d is the "
                        "most; log less at once",
                        step, values.size(), kMaxLogTextBytes));
  }
  make_room();
  log_.log(step, values);
  return absl::OkStatus();
}

void Steps::make_room() {
  while (!log_.has_room()) {
    (void)agent_.send(messages::Collect{});
    log_.wait_for_room();
  }
}

void Steps::record_loss(Step step, double sum, uint64_t micro_batches) {
  LossSlot& slot = generation_.own_page().loss[step % 2];
  slot.step = 0;  // a reader never combines halves of two steps
  slot.sum = sum;
  slot.micro_batches = micro_batches;
  slot.step = step;
}

double Steps::mean_loss(Step step) const {
  if (generation_.across()) {
    return load_mean(*generation_.page.load(), step);
  }
  double sum = 0;
  uint64_t count = 0;
  for (const std::byte* member : generation_.members) {
    const LossSlot& slot = reinterpret_cast<const WorkerPage*>(member)->loss[step % 2];
    if (slot.step.load() == step) {
      sum += slot.sum.load();
      count += slot.micro_batches.load();
    }
  }
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

void Steps::at(Step step, uint64_t micro_batch) {
  const brain::StepPhase phase = micro_batch == 0 ? brain::StepPhase::kBetween : brain::StepPhase::kMicroBatch;
  generation_.progress().place.store(pack_place(step, micro_batch, phase), std::memory_order_relaxed);
}

void Steps::leave_loop() {
  generation_.progress().place.store(pack_place(0, 0, brain::StepPhase::kOutside), std::memory_order_relaxed);
}

void Steps::slow(int change) {
  std::atomic<uint32_t>& depth = generation_.progress().slow;
  depth.store(depth.load(std::memory_order_relaxed) + static_cast<uint32_t>(change), std::memory_order_relaxed);
}

}  // namespace keepstep::rank
