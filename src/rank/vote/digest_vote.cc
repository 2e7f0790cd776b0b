#include "rank/vote/digest_vote.h"

namespace keepstep::rank {

void DigestSum::add(const DigestSum& other) {
  if (other.kind == Kind::kNone || kind == Kind::kDiffer) {
    return;
  }
  const bool differ = other.kind == Kind::kDiffer || (kind == Kind::kSame && digest != other.digest);
  kind = differ ? Kind::kDiffer : Kind::kSame;
  digest = differ ? brain::StepDigest{} : other.digest;
}

DigestSum digests_of(const std::vector<const WorkerPage*>& members, brain::Step step) {
  DigestSum sum;
  for (const WorkerPage* member : members) {
    if (member == nullptr) {
      continue;
    }
    if (const std::optional<brain::StepDigest> digest = load_digest(*member, step)) {
      sum.add({DigestSum::Kind::kSame, *digest});
    }
  }
  return sum;
}

}  // namespace keepstep::rank
