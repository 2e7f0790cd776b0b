// How many replicas a job should have, and when that changes (docs/design/elastic.md). Pure.
//
// The membership defines what a replica is: a rank, a node, or several nodes. It describes what there is in an
// ElasticView (the current situation, not what happened; passing the same view again is harmless) and calls `step` a
// few times a second and whenever something changes. It carries out the decision and reports it with `on_changed` once
// a generation has formed because of it. Until then `step` returns the same decision again, or another one if the world
// has changed meanwhile.
//
// There are two kinds of decisions. Forced ones do not wait: nodes leave or are lost, or the user asked for it.
// Unforced ones are mostly growth: they wait until capacity has proved to last, and longer after growth that did not
// last.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// The names that users of training operators know are in brackets. The times suit jobs whose resizes take a second at
// most. docs/design/elastic.md explains their effect and gives others for jobs whose resizes cost more.
struct ElasticConfig {
  static constexpr uint32_t kMaxReplicas = 65536;
  static constexpr Time kMaxTime = std::chrono::hours(24 * 30);

  uint32_t min_replicas = 1;                       // [minReplicas] at least 1
  uint32_t max_replicas = 1;                       // [maxReplicas] at most kMaxReplicas
  uint32_t increment_step = 1;                     // [replicaIncrementStep] min, min + step, min + 2 step ... max
  std::vector<uint32_t> discrete_values;           // [replicaDiscreteValues] these sizes instead, in any order
  Time scaling_timeout = std::chrono::seconds(2);  // [scalingTimeoutInSeconds] how long capacity must
                                                   // have been there before the job grows into it
  Time graceful_shutdown_timeout = std::chrono::seconds(120);  // [gracefulShutdownTimeoutInSeconds] what a node that
                                                               // is to leave gets; sets ElasticView::leave_by
  Time faulty_scale_down_timeout = std::chrono::seconds(2);    // [faultyScaleDownTimeoutInSeconds] wait this long
                                                               // for a replacement of what was lost, then shrink
  Time scale_up_snooze = std::chrono::seconds(5);              // [scaleUpSnoozeTimeInSeconds] no growth after a forced
                                                               // scale-down
  Time min_between_changes = std::chrono::seconds(10);         // from any change to an unforced one
  double backoff_factor = 2;                                   // 1 to 100: multiplies the wait after each growth
                                                               // that was undone within `min_between_changes` ...
  Time max_backoff = std::chrono::minutes(30);  // ... up to this; growth that lasts takes back one factor,
                                                // and so does each quiet time as long as the wait, after it
};

// Empty if there are none; otherwise one sentence per mistake: what is wrong, and what to do.
std::vector<std::string> mistakes(const ElasticConfig& config);

struct ElasticView {
  uint32_t replicas = 0;  // of the running generation; 0: nothing runs yet
  uint32_t ready = 0;     // could run right now: those of `replicas` that stay (all of them: a worker that is being
                          // replaced on its node does not concern this policy), and newcomers that are parked
  uint32_t coming = 0;    // newcomers beyond `ready` that are still starting
  uint32_t missing = 0;   // of `replicas`: their node is lost, and training is stopped
  uint32_t leaving = 0;   // of `replicas`: their node was asked to leave; none of them is missing
  std::optional<Time> leave_by;  // the earliest of their deadlines
  uint32_t useful = 0;           // the global batch cannot feed more replicas than this; 0: not known
};

struct ElasticDecision {
  enum class Kind { kStay, kGrow, kShrink, kSwap };
  Kind kind = Kind::kStay;
  // The size to go to. Its members are first those that neither leave nor are missing, then ready newcomers. kSwap: as
  // many as before, with newcomers in place of those that leave or are missing. kStay: the current size.
  uint32_t replicas = 0;
  bool forced = false;  // to be carried out without delay, and passed on to `on_changed`
  // One line. kStay: what keeps the size as it is, if something is asked for, is unused, or is lacking; otherwise
  // empty. It names no time that keeps running, so it stays the same until something changes.
  std::string because;
  std::vector<Field> considered;  // for the journal: the view, sizes, and how long it waits
};
const char* name(ElasticDecision::Kind kind);

class ElasticPolicy {
 public:
  // The most swaps within `min_between_changes`; beyond that, the job shrinks to those that stay, if it may. So nodes
  // that are drained one by one get replacements, but flapping capacity does not keep a job busy with swaps.
  static constexpr size_t kMaxSwaps = 3;

  // `config` must have no mistakes.
  explicit ElasticPolicy(ElasticConfig config);

  // `now` never goes back.
  ElasticDecision step(const ElasticView& view, Time now);

  // A generation formed because of a decision of step(): it has another size, or newcomers in place of others (from ==
  // to). `forced`: as in the decision. The start of the job (from == 0) is not a change.
  void on_changed(uint32_t from, uint32_t to, bool forced, Time now);

  // Changes the configuration while the job runs. Returns mistakes, as above; sizes that exclude what the user asked
  // for are one. If there are any, nothing changes.
  std::vector<std::string> configure(ElasticConfig config);

  // `keepstep scale JOB --to N`: go to that size at once, as far as replicas are ready, and hold it; std::nullopt:
  // decide by capacity again. Returns "" or one sentence that says what is wrong (then nothing changes).
  std::string scale_to(std::optional<uint32_t> replicas);
  std::optional<uint32_t> asked_for() const { return asked_; }

  // Allows only these of the configured sizes, ascending; empty: all of them. For what else the batches require.
  void only(std::vector<uint32_t> sizes) { only_ = std::move(sizes); }

  bool allows(uint32_t replicas) const;                // whether the job may have this size
  uint32_t largest_allowed(uint32_t at_most) const;    // 0: none
  uint32_t smallest_allowed(uint32_t at_least) const;  // 0: none

  const ElasticConfig& config() const { return config_; }
  // From any change to an unforced one, as of now: with backoff.
  Time wait() const { return wait_at(backoff_); }

 private:
  struct Sizes {          // what follows from a view
    uint32_t stay = 0;    // neither leave nor are missing
    uint32_t hold = 0;    // could run: `ready`, and at least `stay`
    uint32_t wanted = 0;  // the largest size that limits, user and batch allow
  };
  // Since when at least `level` replicas have been able to run, without a break.
  struct Level {
    uint32_t level = 0;
    Time since{};
  };

  void note(const ElasticView& view, const Sizes& sizes, Time now);
  ElasticDecision decide(const ElasticView& view, const Sizes& sizes, Time now);
  ElasticDecision leave_a_size_not_allowed(const ElasticView& view, const Sizes& sizes);
  ElasticDecision on_leaving(const ElasticView& view, const Sizes& sizes, Time now);
  ElasticDecision on_missing(const ElasticView& view, const Sizes& sizes, Time now);
  ElasticDecision on_request(const ElasticView& view, const Sizes& sizes);
  ElasticDecision shrink_to_useful(const ElasticView& view, const Sizes& sizes, Time now);
  ElasticDecision grow(const ElasticView& view, const Sizes& sizes, Time now);
  ElasticDecision replace(const ElasticView& view, const Sizes& sizes, uint32_t replicas, Time now);

  uint32_t room(const Sizes& sizes, Time now) const;
  bool too_many_swaps(Time now) const;
  std::string nothing_to_grow_into(const ElasticView& view, const Sizes& sizes) const;
  std::string asked_text() const;
  std::string apart_text() const;
  std::optional<Time> unforced_from() const;
  Time wait_at(int backoff) const;

  uint32_t largest_configured(uint32_t at_most) const;
  uint32_t smallest_configured(uint32_t at_least) const;

  ElasticConfig config_;
  std::vector<uint32_t> only_;
  std::optional<uint32_t> asked_;
  bool asked_open_ = false;  // not reached yet, and no change was made for it

  std::vector<Level> there_;  // both members ascend
  std::optional<Time> missing_since_;
  std::optional<Time> could_grow_since_;
  std::optional<Time> waits_until_;  // of the current decision, for `considered`

  std::optional<Time> last_change_;
  std::optional<Time> last_forced_down_;
  struct Growth {
    uint32_t from = 0;
    Time at{};
  };
  std::optional<Growth> growth_;  // the newest unforced one, until it is known whether it lasts
  int backoff_ = 0;
  std::deque<Time> swaps_;  // the newest kMaxSwaps

  // Of the newest decision to change, for on_changed.
  bool decided_newcomers_ = false;               // in place of others
  std::optional<uint32_t> decided_for_request_;  // what was asked for
};

}  // namespace keepstep::brain
