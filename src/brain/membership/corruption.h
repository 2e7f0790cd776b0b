// Who is corrupt: what follows if ranks voted for different things (docs/design/corruption.md). Pure.
//
// If other ranks are alive, the odd ones are retired and fenced once they are found: their state is no longer a source.
#pragma once

#include "brain/commit/digests.h"
#include "brain/membership/job.h"

namespace keepstep::brain {

class Corruption {
 public:
  explicit Corruption(Job& job) : job_(job) {}

  struct Judgement {
    enum class What {
      kNothing,    // the recovery continues from here
      kDismissed,  // it continues, without the odd ones
      kNoSource,   // all that hold the state are odd
      kUnknown,    // it is impossible to tell who is right
    };
    What what = What::kNothing;
    std::string because = "";
    std::vector<RankDigest> odd = {};
  };
  // The verdict over the sealed words is already a redo; this decides which ranks take part.
  Judgement judge(const std::vector<SealedWord>& words);
  // Two differed and the redo went well: the one whose first digest the redo produced again was right. The others are
  // retired and fenced. Returns the lowest of them that was alive, if any, and why.
  struct Dismissed {
    Rank rank = 0;
    std::string because;
  };
  std::optional<Dismissed> judge_by_redo(const Progress& event);
  bool suspects(WorkerId worker) const;
  void forget() { suspected_.reset(); }

 private:
  void note(const Disagreement& found, const std::vector<RankDigest>& odd, const std::string& because);
  std::optional<Rank> dismiss(const std::vector<RankDigest>& odd, const std::string& because);

  Job& job_;
  std::optional<Disagreement> suspected_;  // no majority: the redo will tell
};

}  // namespace keepstep::brain
