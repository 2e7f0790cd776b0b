// What becomes of an interrupted step. Pure.
//
// Follows docs/design/step_commit.md. The vote itself is a handful of compare-and-swaps in shared memory
// (rank/vote/step_vote.h); this is the rule that reads the words afterwards.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "brain/commit/digests.h"
#include "brain/types.h"

namespace keepstep::brain {

// What the agent read when it sealed one survivor's word, and the state word next to it.
struct SealedWord {
  Rank rank = 0;
  WorkerId worker = kNoWorker;
  StepWord word;  // as it was before the seal: `word.sealed` is ignored
  StateWord state;
  std::optional<StepDigest> digest = std::nullopt;  // of the step that the word voted on, if the rank reported one
};

struct Verdict {
  Version version = 0;   // every rank of the next generation starts clean at this version
  bool forward = false;  // true: the step that was voted on counts; survivors that had voted apply it now
  std::string because;   // "rank 3 had not voted on step 118"
};

// The verdict over the survivors of generation `identity`:
// - The base k is what any survivor recorded as decided: its vote is kDecided on step k, or it already votes on k+1.
// - The verdict is forward to k+1 if every word is kYes on k+1. Otherwise it is a redo: a rank that had not voted
//   proves that nobody decided.
// - Votes for different things are no agreement, and nobody decided on them: if digests on k+1 differ, redo.
// - `across`: the generation spans several nodes. Then rank 0, whose page is never lost while the job lives, records a
//   decision before anybody else can learn of it. So if no word says decided, nobody decided, not even a rank whose
//   word was lost with its node: redo, whatever the votes.
// `floor` is the version the generation started at, or an earlier verdict that was already announced. A verdict never
// goes below it. Words of another identity belong to workers that never entered this generation: they count as being at
// `floor` without a vote. A dead rank is absent from `survivors` unless its page could still be read; then its word
// counts like any other. Without any survivors the result is `floor`, redo.
Verdict decide(Identity identity, Version floor, const std::vector<SealedWord>& survivors, bool across = false);

// The version of a sealed process's state once it has been told that the job continues from `told`; std::nullopt if it
// holds no whole version. An update that was decided is always completed. With communicates=True the update comes
// before the vote: such a process is `updating` with an open or a yes word, and restores what it overwrote if the step
// does not count.
std::optional<Version> version_once_told(const SealedWord& rank, Version told);

// The disagreement, if any, among those that had voted on `step` in generation `identity` but not decided.
std::optional<Disagreement> disagreement(Identity identity, Step step, const std::vector<SealedWord>& survivors);

}  // namespace keepstep::brain
