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

// A member without a word from its node is dead there, and the notice is on its way. Without waiting for it, the last
// survivor's death could be mistaken for a verdict at the floor. Before Activate nobody can have voted, and a node that
// missed Prepare knows nothing of its newcomers, so it is enough that it answered. After Activate, a node whose members
// are all dead is awaited too, as long as others are alive: it may know that one of its members had not voted.
void Phases::conclude_if_sealed() {
  if (job_.round.awaits_words()) {
    return;
  }
  // A lost node never answers, and neither does one that came back under the same id: it has another agent.
  const bool all_answered = (!job_.round.activated() && !job_.holdings.sharded()) || job_.round.all_nodes_answered();
  // If state is sharded, nodes without a living member are awaited too: they hold copies.
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
    remember_formed();  // ranks that committed a step had formed, even if that step is redone
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

// If ranks voted for different things, the verdict is already a redo. False: the job cannot continue like this, or has
// ended.
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

// A member without a word died, or its node missed Prepare. In the latter case it is still where it was sealed before.
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

// See Job::kept. std::nullopt: there is none, and this is recorded as a found fault.
std::optional<Holdings::Kept> Phases::kept_or_found(const Verdict& verdict, bool resharded,
                                                    const std::set<NodeId>* only) {
  std::string missing;
  std::optional<Holdings::Kept> found = job_.kept(verdict, resharded, only, &missing);
  if (!found) {
    find(Fault{FaultKind::kNoSource, 0, job_.current_step(), 1, missing, ""});
  }
  return found;
}

// Sharded state may have to go back to a version that is whole. std::nullopt if there is none.
std::optional<Verdict> Phases::whole(const Verdict& verdict) {
  if (!job_.holdings.sharded()) {
    return verdict;
  }
  const std::optional<Holdings::Kept> found = kept_or_found(verdict, false, nullptr);
  return found ? std::optional(found->verdict) : std::nullopt;
}

// Those the verdict relied on may have died since, or have lost their ranks. False: no version is whole any more.
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

// `reached`: the version decided before it was known which parts are left.
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
