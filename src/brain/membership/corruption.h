// Who is lying: what follows where ranks voted for different things (docs/design/corruption.md). Pure.
//
// Where others live, the odd ones are retired and fenced once they are found: their state is no source any more.
#pragma once

#include "brain/commit/digests.h"
#include "brain/membership/job.h"

namespace keepstep::brain {

class Corruption {
 public:
  explicit Corruption(Job& job) : job_(job) {}

  struct Judgement {
    enum class What {
      kNothing,    // the recovery goes on from here
      kDismissed,  // so it does, without the odd ones
      kNoSource,   // all who hold the state are odd
      kUnknown,    // there is no telling who is right
    };
    What what = What::kNothing;
    std::string because = "";
    std::vector<RankDigest> odd = {};
  };
  // The verdict over the sealed words is a redo already; this decides with whom.
  Judgement judge(const std::vector<SealedWord>& words);
  // Two differed and the redo went well: the one whose first digest the redo gave again was right. The others are
  // retired and fenced; returns the lowest of them that lived, if there is one, and why.
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
  std::optional<Disagreement> suspected_;  // without a majority: the redo will tell
};

}  // namespace keepstep::brain
