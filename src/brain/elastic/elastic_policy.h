// How many replicas a job should have, and when that changes (docs/design/elastic.md). Pure.
//
// A replica is what the membership takes for one: a rank, a node, several nodes. The membership says what there is (an
// ElasticView: how things stand, not what happened; the same view again is harmless) and asks `step`, a few times a
// second and whenever something changed. It carries out what it is told and says so with `on_changed` once a generation
// formed by it. Until then the same decision comes again, or another one if the world has changed meanwhile.
//
// Two kinds of decisions. What is forced does not wait: nodes leave or are lost, or the user said so. What nobody
// forced is growth, for the most part: it waits until capacity has proved to stay, and longer after growth that did not
// last.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brain/types.h"

namespace keepstep::brain {

// In brackets the names that users of training operators know. The times are for jobs that a change of size costs a
// second at most; docs/design/elastic.md has what they come to, and others for what costs more.
struct ElasticConfig {
  static constexpr uint32_t kMaxReplicas = 65536;
  static constexpr Time kMaxTime = std::chrono::hours(24 * 30);

  uint32_t min_replicas = 1;                       // [minReplicas] at least 1
  uint32_t max_replicas = 1;                       // [maxReplicas] at most kMaxReplicas
  uint32_t increment_step = 1;                     // [replicaIncrementStep] min, min + step, min + 2 step ... max
  std::vector<uint32_t> discrete_values;           // [replicaDiscreteValues] these sizes instead, in any order
  Time scaling_timeout = std::chrono::seconds(2);  // [scalingTimeoutInSeconds] so long must capacity have
                                                   // been there before the job grows into it
  Time graceful_shutdown_timeout = std::chrono::seconds(120);  // [gracefulShutdownTimeoutInSeconds] what a node gets
                                                               // that is to leave; it makes ElasticView::leave_by
  Time faulty_scale_down_timeout = std::chrono::seconds(2);    // [faultyScaleDownTimeoutInSeconds] wait so long for the
                                                               // replacement of what was lost, then go on smaller
  Time scale_up_snooze = std::chrono::seconds(5);  // [scaleUpSnoozeTimeInSeconds] no growth after a scale-down that
                                                   // was forced
  Time min_between_changes = std::chrono::seconds(10);  // from any change to one that nobody forced
  double backoff_factor = 2;                     // 1 to 100: the wait is so many times as long after a growth that
                                                 // was undone before `min_between_changes` were over ...
  Time backoff_most = std::chrono::minutes(30);  // ... up to this; growth that lasts takes back one such time, and
                                                 // so does each quiet time as long as the wait, after the wait
};

// Empty if fine; else one sentence for each mistake: what, and what to do.
std::vector<std::string> mistakes(const ElasticConfig& config);

struct ElasticView {
  uint32_t replicas = 0;  // of the running generation; 0: nothing runs yet
  uint32_t ready = 0;     // could run right now: those of `replicas` that stay (all of them: a worker that is being
                          // replaced on its node is none of this policy's business), and newcomers that are parked
  uint32_t coming = 0;    // newcomers beyond `ready` that are still starting
  uint32_t missing = 0;   // of `replicas`: their node is lost, and training stands still
  uint32_t leaving = 0;   // of `replicas`: their node was asked to leave; none of them is missing
  std::optional<Time> leave_by;  // the earliest deadline of those
  uint32_t useful = 0;           // the global batch feeds no more replicas than this; 0: not known
};

struct ElasticDecision {
  enum class Kind { kStay, kGrow, kShrink, kSwap };
  Kind kind = Kind::kStay;
  // The size to go to. Its members: first those that neither leave nor are missing, then ready newcomers. kSwap: as
  // many as before, with newcomers in the places of those that leave or are missing. kStay: the size as it is.
  uint32_t replicas = 0;
  bool forced = false;  // to be carried out without delay, and said to `on_changed`
  // One line. kStay: what keeps it, where something is asked for or there that is not used, or lacks; else empty. It
  // names no time that passes by itself, so it stays the same until something changes.
  std::string because;
  std::vector<Field> considered;  // for the journal: the view, sizes, and until when it waits
};
const char* name(ElasticDecision::Kind kind);

class ElasticPolicy {
 public:
  // Swaps within `min_between_changes`; with more, the job shrinks to those that stay, if it may. Nodes that are
  // drained one after the other get their replacements; capacity that flaps does not keep a job busy with swaps.
  static constexpr size_t kMaxSwaps = 3;

  // `config` has no mistakes.
  explicit ElasticPolicy(ElasticConfig config);

  // `now` does not go back.
  ElasticDecision step(const ElasticView& view, Time now);

  // A generation formed because of a decision of step(): of another size, or with newcomers in the place of others
  // (from == to). `forced`: as the decision said. The start of the job (from == 0) is no change.
  void on_changed(uint32_t from, uint32_t to, bool forced, Time now);

  // While the job runs. Mistakes, as above, or sizes that leave out what the user asked for: nothing changes.
  std::vector<std::string> configure(ElasticConfig config);

  // `keepstep scale JOB --to N`: go there at once, as far as replicas are ready, and hold that size; nothing: decide by
  // capacity again. "", or what is wrong with it in one sentence (then nothing changes).
  std::string scale_to(std::optional<uint32_t> replicas);
  std::optional<uint32_t> asked_for() const { return asked_; }

  // Of the sizes that the configuration allows only these, ascending; empty: all of them. What else the batches need.
  void only(std::vector<uint32_t> sizes) { only_ = std::move(sizes); }

  bool allows(uint32_t replicas) const;                // a size that the job may have
  uint32_t largest_allowed(uint32_t at_most) const;    // 0: none
  uint32_t smallest_allowed(uint32_t at_least) const;  // 0: none

  const ElasticConfig& config() const { return config_; }
  // From any change to one that nobody forced, as it stands: with backoff.
  Time wait() const { return wait_at(backoff_); }

 private:
  struct Sizes {          // what follows from a view
    uint32_t stay = 0;    // neither leave nor are missing
    uint32_t hold = 0;    // could run: `ready`, and at least `stay`
    uint32_t wanted = 0;  // the largest size that bounds, user and batch let the job have
  };
  // Since when at least `level` replicas could run, without a break.
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

  std::vector<Level> there_;  // rising in both
  std::optional<Time> missing_since_;
  std::optional<Time> could_grow_since_;
  std::optional<Time> waits_until_;  // of the decision under way, for `considered`

  std::optional<Time> last_change_;
  std::optional<Time> last_forced_down_;
  struct Growth {
    uint32_t from = 0;
    Time at{};
  };
  std::optional<Growth> growth_;  // the newest that nobody forced, until it is known whether it lasts
  int backoff_ = 0;
  std::deque<Time> swaps_;  // the newest kMaxSwaps

  // Of the newest decision to change, for on_changed.
  bool decided_newcomers_ = false;               // in the places of others
  std::optional<uint32_t> decided_for_request_;  // what was asked for
};

}  // namespace keepstep::brain
