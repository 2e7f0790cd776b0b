#include "rank/shards/parity_keeper.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"
#include "rank/link/reserved_tags.h"

namespace keepstep::rank {

using comm::OpId;
using comm::Rank;

namespace {

std::span<std::byte> bytes_of(auto& value) { return std::as_writable_bytes(std::span(&value, 1)); }

}  // namespace

// ---- keeping --------------------------------------------------------------------------------------------------------

ParityKeeper::ParityKeeper(ShardLine line, brain::ParityBlock block, ParityVaultOf vault_of)
    : line_(line),
      block_(std::move(block)),
      vault_of_(std::move(vault_of)),
      code_(state::code_of(block_).value()),  // it comes from a placement
      heads_(block_.members.size()),
      chunks_(block_.members.size() * kAhead) {}

void ParityKeeper::run() {
  for (bool over = false; !over;) {
    if (!take(&over).ok()) {
      return;  // the members find out themselves about an interruption or a broken link
    }
  }
}

Status ParityKeeper::take(bool* over) {
  std::vector<OpId> ops;
  for (size_t member = 0; member < heads_.size(); ++member) {
    ops.push_back(line_.begin_receive(block_.members[member], bytes_of(heads_[member]), kTagShardHead));
  }
  KEEPSTEP_RETURN_IF_ERROR(line_.end_all(ops));
  if (heads_.front().seal.version == kNoMoreVersions) {
    *over = true;  // for all members: they end the job together
    return absl::OkStatus();
  }
  const state::ParityRoom room = state::parity_room(heads_);
  StatusOr<state::ShardVault> vault = vault_of_(block_, room.data_bytes, room.text_room);
  if (!vault.ok()) {
    return answer(ShardAnswer::kFailed);
  }
  if (has(*vault)) {
    return answer(ShardAnswer::kHave);
  }
  StatusOr<state::ParityMaker> maker = state::ParityMaker::begin(*vault, code_, heads_);
  if (!maker.ok()) {
    return answer(ShardAnswer::kFailed);
  }
  KEEPSTEP_RETURN_IF_ERROR(answer(ShardAnswer::kSend));
  KEEPSTEP_RETURN_IF_ERROR(take_chunks(*maker));
  return answer(maker->finish() ? ShardAnswer::kHave : ShardAnswer::kBroken);
}

Status ParityKeeper::take_chunks(state::ParityMaker& maker) {
  const size_t members = heads_.size();
  std::vector<OpId> texts;
  for (size_t member = 0; member < members; ++member) {
    texts.push_back(line_.begin_receive(block_.members[member], maker.text_of(member), kTagShardBytes));
  }
  std::deque<OpId> asked;  // chunk by chunk; for each, the members that have it
  std::vector<state::ReedSolomon::ConstBlock> came(members);
  const auto place = [&](size_t member, uint64_t chunk) {
    return std::span(chunks_[member * kAhead + chunk % kAhead])
        .first(state::chunk_bytes(heads_[member].data_bytes, chunk));
  };
  const auto ask = [&](uint64_t chunk) {
    for (size_t member = 0; member < members; ++member) {
      const uint64_t bytes = state::chunk_bytes(heads_[member].data_bytes, chunk);
      std::vector<std::byte>& memory = chunks_[member * kAhead + chunk % kAhead];
      if (memory.size() < bytes) {
        memory.resize(bytes);  // nobody writes to it: its chunk has arrived, or it has none
      }
      if (bytes > 0) {
        asked.push_back(line_.begin_receive(block_.members[member], place(member, chunk), kTagShardBytes));
      }
    }
  };
  for (uint64_t chunk = 0; chunk < kAhead; ++chunk) {
    ask(chunk);
  }
  KEEPSTEP_RETURN_IF_ERROR(line_.end_all(texts));
  for (uint64_t chunk = 0; chunk < maker.chunks(); ++chunk) {
    for (size_t member = 0; member < members; ++member) {
      came[member] = place(member, chunk);
      if (!came[member].empty()) {
        KEEPSTEP_RETURN_IF_ERROR(line_.end(asked.front()));
        asked.pop_front();
      }
    }
    const Status coded = maker.add(came);
    KEEPSTEP_CHECK(coded.ok(), "chunks of the lengths that their heads say cannot be coded");
    ask(chunk + kAhead);
  }
  return absl::OkStatus();
}

Status ParityKeeper::answer(ShardAnswer answer) {
  answer_ = answer;
  std::vector<OpId> ops;
  for (const Rank member : block_.members) {
    ops.push_back(line_.begin_send(member, bytes_of(answer_), kTagShardAnswer));
  }
  return line_.end_all(ops);
}

bool ParityKeeper::has(const state::ShardVault& vault) const {
  const brain::Version version = heads_.front().seal.version;
  if (!vault.has(version)) {
    return false;
  }
  StatusOr<std::string> text = vault.text(version);
  if (!text.ok()) {
    return false;
  }
  const StatusOr<state::ParityText> known = state::ParityText::parse(*std::move(text), heads_.size());
  return known.ok() && std::equal(heads_.begin(), heads_.end(), known->members().begin(), known->members().end(),
                                  [](const ShardHead& a, const ShardHead& b) {
                                    return a.seal.data_checksum == b.seal.data_checksum &&
                                           a.seal.text_checksum == b.seal.text_checksum &&
                                           a.data_bytes == b.data_bytes && a.seal.version == b.seal.version;
                                  });
}

// ---- giving ---------------------------------------------------------------------------------------------------------

ParityGiver::ParityGiver(ShardLine line, Rank self, std::vector<Rank> keepers)
    : line_(line), self_(self), keepers_(std::move(keepers)), answers_(keepers_.size()) {}

Status ParityGiver::give(state::ShardVault& vault, brain::Version version) {
  head_ = {*vault.seal_of(version), vault.data_bytes(), vault.text_room()};
  std::vector<size_t> to;  // keepers that do not have all of it yet, by place
  for (size_t keeper = 0; keeper < keepers_.size(); ++keeper) {
    to.push_back(keeper);
  }
  const auto answered = [&](std::span<const size_t> by) -> Status {
    std::vector<OpId> ops;
    for (const size_t keeper : by) {
      ops.push_back(line_.begin_receive(keepers_[keeper], bytes_of(answers_[keeper]), kTagShardAnswer));
    }
    return line_.end_all(ops);
  };
  // The same chunks go to all keepers at the same time: keepers of one group wait for the same members.
  for (int tries = 0; tries < kShardTries && !to.empty(); ++tries) {
    std::vector<OpId> ops;
    for (const size_t keeper : to) {
      ops.push_back(line_.begin_send(keepers_[keeper], bytes_of(head_), kTagShardHead));
    }
    KEEPSTEP_RETURN_IF_ERROR(line_.end_all(ops));
    KEEPSTEP_RETURN_IF_ERROR(answered(to));
    std::vector<size_t> wanted;
    std::copy_if(to.begin(), to.end(), std::back_inserter(wanted),
                 [&](size_t keeper) { return answers_[keeper] == ShardAnswer::kSend; });
    KEEPSTEP_RETURN_IF_ERROR(give_bytes(vault, version, wanted));
    KEEPSTEP_RETURN_IF_ERROR(answered(wanted));
    for (const size_t keeper : to) {
      if (answers_[keeper] == ShardAnswer::kFailed) {
        return absl::ResourceExhaustedError(absl::StrFormat(
            "rank %d cannot keep parity of the shard of rank %d (%d bytes): its node has no memory for it",
            keepers_[keeper], self_, vault.data_bytes()));
      }
    }
    std::erase_if(to, [&](size_t keeper) { return answers_[keeper] == ShardAnswer::kHave; });
  }
  if (!to.empty()) {
    return absl::DataLossError(
        absl::StrFormat("the blocks that parity is computed from, at version %d, arrived damaged at rank %d, %d times",
                        version, keepers_[to.front()], kShardTries));
  }
  return absl::OkStatus();
}

Status ParityGiver::give_bytes(state::ShardVault& vault, brain::Version version, std::span<const size_t> to) {
  std::vector<std::vector<OpId>> under_way;  // by chunk; the text precedes the first
  const auto begin = [&](std::span<const std::byte> bytes) {
    std::vector<OpId>& ops = under_way.emplace_back();
    for (const size_t keeper : to) {
      ops.push_back(line_.begin_send(keepers_[keeper], bytes, kTagShardBytes));
    }
  };
  begin(vault.text_slot(version).first(head_.seal.text_bytes));
  size_t ended = 0;
  for (uint64_t chunk = 0; chunk < state::chunks_of(head_.data_bytes); ++chunk) {
    begin(vault.data(version).subspan(chunk * state::kVaultChunk, state::chunk_bytes(head_.data_bytes, chunk)));
    if (under_way.size() - ended > kAhead) {
      KEEPSTEP_RETURN_IF_ERROR(line_.end_all(under_way[ended++]));
    }
  }
  while (ended < under_way.size()) {
    KEEPSTEP_RETURN_IF_ERROR(line_.end_all(under_way[ended++]));
  }
  return absl::OkStatus();
}

void ParityGiver::finish() {
  head_ = {};
  head_.seal.version = kNoMoreVersions;
  std::vector<OpId> ops;
  for (const Rank keeper : keepers_) {
    ops.push_back(line_.begin_send(keeper, bytes_of(head_), kTagShardHead));
  }
  (void)line_.end_all(ops);
}

}  // namespace keepstep::rank
