// Phases: from the seal to the next gathering.

#include <algorithm>
#include <utility>

#include "brain/membership/membership_text.h"
#include "brain/membership/phases.h"

namespace keepstep::brain {

void Phases::seal(const std::string& because) {
  job_.phase = Phase::kSealing;
  job_.because = because;
  if (sizing_) {
    sizing_->stop_pausing();
  }
  std::set<Rank> awaited;
  for (const Member& member : job_.round.members()) {
    if (job_.alive(member)) {
      awaited.insert(awaited.end(), member.rank);
    }
  }
  job_.round.seal(std::move(awaited));
  job_.holdings.forget_copies();
  sent_at_ = job_.now;
  job_.emit(Seal{job_.round.identity(), because});
  conclude_if_sealed();
}

// A member whose node sent no word of it is dead there, and the notice is on its way: without waiting for it, the last
// survivor's death could pass for a verdict at the floor. Before Activate nobody can have voted, and a node that missed
// Prepare knows nothing of its newcomers: that it answered is enough. Afterwards a node whose members are all dead is
// awaited too, as long as others live: it may know that one of them had not voted.
void Phases::conclude_if_sealed() {
  if (job_.round.awaits_words()) {
    return;
  }
  // A lost node never answers, nor does one of the same name that came back: its agent is another.
  const bool all_answered = (!job_.round.activated() && !job_.holdings.sharded()) || job_.round.all_nodes_answered();
  // Where state is sharded, nodes without a living member are awaited too: they hold copies.
  const bool nobody = !job_.holdings.sharded() && !job_.anybody_alive();
  if (all_answered || nobody) {
    conclude();
  }
}

// The word of a member that died after it was sealed still counts: what it proves stays true.
void Phases::conclude() {
  const std::vector<SealedWord> words = job_.round.all_words();
  job_.journal("sealed", job_.because,
               {{"words", words_text(words)}, {"nodes", static_cast<int64_t>(job_.round.nodes_answered())}});
  if (!job_.anybody_alive() && !job_.holdings.sharded() && (job_.version > 0 || job_.round.activated())) {
    find(Fault{FaultKind::kNoSource, 0, job_.current_step(), 1, "no worker that holds the state is left", ""});
    return;
  }
  const Verdict reached = decide(job_.round.identity(), job_.version, words, job_.round.has_several_nodes());
  const std::optional<Verdict> found = whole(reached);
  if (!found) {
    return;
  }
  const Verdict& verdict = *found;
  if (reached.version > job_.version) {
    remember_formed();  // who committed a step had formed, also where that step is done again
  }
  if (verdict.version > job_.version) {
    job_.roster.forget_lost_starts();
    ladder_.on_progress(verdict.version);
    replacement_.forget_reports();
  }
  job_.version = verdict.version;
  job_.progress = std::max(job_.progress, job_.version);
  note_what_they_hold();
  journal_verdict(verdict, reached.version);
  job_.decided = Decide{job_.round.identity(), verdict};
  if (const auto outcome = job_.round.outcome(job_.version); verdict.forward && outcome) {
    job_.decided->mean_loss = outcome->mean_loss;
    job_.decided->flags = outcome->flags;
  }
  job_.emit(*job_.decided);
  if (!judge(words)) {
    return;
  }
  job_.placement.survive();
  job_.cause = Cause::kReplace;
  job_.phase = Phase::kGathering;
  replacement_.vacate();
  renewal_.renew();
  if (resize()) {
    gather();
  }
}

// The verdict is a redo already where ranks voted for different things. False: it cannot go on so, or the job ended.
bool Phases::judge(const std::vector<SealedWord>& words) {
  using What = Corruption::Judgement::What;
  const Corruption::Judgement judged = corruption_.judge(words);
  switch (judged.what) {
    case What::kNothing:
      return true;
    case What::kDismissed:
      replacement_.count_lies(judged.odd, judged.because);
      return true;
    case What::kNoSource:
      find(Fault{FaultKind::kNoSource, 0, job_.current_step(), 1, judged.because, ""});
      return false;
    case What::kUnknown:
      end(1, judged.because, "");
      return false;
  }
  return true;
}

// Without a word of one: it died. Or its node missed Prepare; then it still stands where it was sealed before.
void Phases::note_what_they_hold() {
  for (const Member& member : job_.round.members()) {
    const auto found = job_.round.words().find(member.rank);
    if (found != job_.round.words().end()) {
      job_.holdings.note(member.worker, version_once_told(found->second, job_.version));
    } else if (job_.round.activated()) {
      job_.holdings.note(member.worker, std::nullopt);
    }
  }
}

// See Job::kept. Nothing: there is none, which is found.
std::optional<Holdings::Kept> Phases::kept_or_found(const Verdict& verdict, bool resharded,
                                                    const std::set<NodeId>* only) {
  std::string missing;
  std::optional<Holdings::Kept> found = job_.kept(verdict, resharded, only, &missing);
  if (!found) {
    find(Fault{FaultKind::kNoSource, 0, job_.current_step(), 1, missing, ""});
  }
  return found;
}

// Sharded state may have to go back to a version that is whole. Nothing: there is none.
std::optional<Verdict> Phases::whole(const Verdict& verdict) {
  if (!job_.holdings.sharded()) {
    return verdict;
  }
  const std::optional<Holdings::Kept> found = kept_or_found(verdict, false, nullptr);
  return found ? std::optional(found->verdict) : std::nullopt;
}

// Whom the verdict counted on may have died since, or have no ranks any more. False: no version is whole any more.
bool Phases::still_whole() {
  if (!job_.holdings.sharded() || !job_.decided || job_.decided->identity != job_.round.identity()) {
    return true;
  }
  const std::set<NodeId> nodes = job_.placement.nodes();
  const std::optional<Holdings::Kept> found = kept_or_found(job_.decided->verdict, job_.holdings.resharded(), &nodes);
  if (!found) {
    return false;
  }
  job_.holdings.keep(*found);
  if (found->verdict.version != job_.version) {
    journal_verdict(found->verdict, std::exchange(job_.version, found->verdict.version));
  }
  return true;
}

// `reached`: the version before it turned out that not all of it is left.
void Phases::journal_verdict(const Verdict& verdict, Version reached) {
  std::vector<Field> fields = {{"step", static_cast<int64_t>(verdict.forward ? job_.version : job_.version + 1)},
                               {"version", static_cast<int64_t>(job_.version)},
                               {"verdict", std::string(verdict.forward ? "forward" : "redo")}};
  if (reached > job_.version) {
    fields.push_back({"redone_steps", static_cast<int64_t>(reached - job_.version)});
  }
  job_.journal("verdict", verdict.because, std::move(fields));
}

}  // namespace keepstep::brain
