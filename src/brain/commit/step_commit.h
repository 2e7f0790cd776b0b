// What an interrupted step comes to. Pure.
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

// What one survivor's agent read when it sealed the word, and the state word beside it.
struct SealedWord {
  Rank rank = 0;
  WorkerId worker = kNoWorker;
  StepWord word;  // as it was: `word.sealed` is not looked at
  StateWord state;
  std::optional<StepDigest> digest = std::nullopt;  // of the step that the word voted on, if it said one
};

struct Verdict {
  Version version = 0;   // every rank of the next generation starts clean at this version
  bool forward = false;  // true: the step that was voted on counts; survivors that had voted apply it now
  std::string because;   // "rank 3 had not voted on step 118"
};

// The verdict over the survivors of generation `identity`:
// - what any survivor recorded as decided (its vote is kDecided on step k, or it votes on k+1 already) is the base k;
// - then forward to k+1 if every word is kYes on k+1; else redo: a rank that had not voted proves that nobody decided.
// - votes for different things are no agreement, and nobody decided on them: where digests on k+1 differ, redo.
// - `across`: the generation has several nodes. There rank 0, whose page is never lost while the job lives, records a
//   decision before anybody else may learn of it. So what no word calls decided was decided by nobody, also not by a
//   rank whose word went down with its node: redo, whatever the votes.
// `floor` is the version the generation started at, or an earlier verdict that was already announced: a verdict never
// goes below it. Words of another identity belong to workers that never entered this generation: they stand at
// `floor` and count as not voted. A dead rank is absent from `survivors`, unless its page could
// still be read: then its word counts like any other. With none at all the result is `floor`, redo.
Verdict decide(Identity identity, Version floor, const std::vector<SealedWord>& survivors, bool across = false);

// The version that the state of a sealed process is at once it was told that the job goes on from `told`; nothing: it
// holds no whole one. What was decided is applied to the end. With communicates=True the update comes before the vote:
// there a process is `updating` with an open or a yes word, and puts back what it overwrote if the step does not count.
std::optional<Version> version_once_told(const SealedWord& rank, Version told);

// Whether those that had voted on `step` in generation `identity`, and not decided, had voted for different things.
std::optional<Disagreement> disagreement(Identity identity, Step step, const std::vector<SealedWord>& survivors);

}  // namespace keepstep::brain
