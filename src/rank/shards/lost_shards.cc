#include "rank/shards/lost_shards.h"

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rank/link/reserved_tags.h"
#include "rank/shards/word_gather.h"
#include "state/vault/parity_vault.h"

namespace keepstep::rank {

using brain::ParityBlock;
using brain::Rebuild;
using comm::OpId;
using comm::Rank;

namespace {

constexpr size_t kAhead = 2;                       // chunks of one block in progress
constexpr uint64_t kMaxText = uint64_t{1} << 34;   // of all members of a group
constexpr uint32_t kMaxWords = uint32_t{1} << 28;  // for a node's list of blocks

constexpr uint32_t kNoRank = ~Rank{0};

// Blocks as numbers: for each its row, its number of members, and the members.
std::vector<uint32_t> as_words(const std::vector<ParityBlock>& blocks) {
  std::vector<uint32_t> words;
  for (const ParityBlock& block : blocks) {
    words.push_back(block.row);
    words.push_back(static_cast<uint32_t>(block.members.size()));
    words.insert(words.end(), block.members.begin(), block.members.end());
  }
  return words;
}

StatusOr<std::vector<ParityBlock>> from_words(std::span<const uint32_t> words) {
  std::vector<ParityBlock> blocks;
  while (!words.empty()) {
    if (words.size() < 2 || words[1] > words.size() - 2) {
      return absl::InternalError("what a rank told of parity blocks ends in the middle of one");
    }
    ParityBlock block{{words.begin() + 2, words.begin() + 2 + words[1]}, words[0]};
    if (!brain::is_possible(block)) {
      return absl::InternalError("a rank told of a parity block that no code has");
    }
    words = words.subspan(2 + block.members.size());
    blocks.push_back(std::move(block));
  }
  return blocks;
}

// "the shards of ranks 3, 5 and parity 0 of ranks 1, 3, 5"
std::string names_of(const Rebuild& plan) {
  std::vector<Rank> shards;
  std::vector<uint32_t> rows;
  for (const Rebuild::Source& source : plan.sources) {
    if (source.block < plan.members.size()) {
      shards.push_back(plan.members[source.block]);
    } else {
      rows.push_back(source.block - static_cast<uint32_t>(plan.members.size()));
    }
  }
  return absl::StrCat(shards.empty() ? "" : absl::StrCat("the shards of ranks ", absl::StrJoin(shards, ", "), " and "),
                      "parity ", absl::StrJoin(rows, ", "), " of ranks ", absl::StrJoin(plan.members, ", "));
}

bool is_of(const ParityBlock& block, const std::vector<Rank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(), [&](Rank rank) {
    return std::find(block.members.begin(), block.members.end(), rank) != block.members.end();
  });
}

}  // namespace

// The lists of all ranks, by rank.
StatusOr<std::vector<std::vector<uint32_t>>> LostShards::gather_words(const std::vector<uint32_t>& mine) {
  WordGather gather(*generation_.communicator, generation_.world(),
                    [this](OpId op) { return generation_.exchange(op); });
  return gather.gather(mine, kMaxWords);
}

// Blocks of the groups of `lost`, on all nodes, each with the lowest rank that can give it. The lowest rank of a node
// lists its blocks.
StatusOr<std::map<ParityBlock, Rank>> LostShards::share_parity(const std::vector<ParityBlock>& here,
                                                               const std::vector<Rank>& lost) {
  std::vector<ParityBlock> told;
  if (generation_.speaks_for_node()) {
    std::copy_if(here.begin(), here.end(), std::back_inserter(told),
                 [&](const ParityBlock& block) { return is_of(block, lost); });
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const auto words, gather_words(as_words(told)));
  std::map<ParityBlock, Rank> parity;
  for (Rank rank = 0; rank < words.size(); ++rank) {
    KEEPSTEP_ASSIGN_OR_RETURN(std::vector<ParityBlock> blocks, from_words(words[rank]));
    for (ParityBlock& block : blocks) {
      parity.emplace(std::move(block), rank);
    }
  }
  return parity;
}

// Repeats the plan until all blocks it uses are sound: a corrupt one is discarded where it is, and treated as lost.
Status LostShards::rebuild(const Activation& activation, const std::vector<Rank>& lost,
                           const std::function<std::optional<Rank>(Rank)>& giver_of) {
  const brain::Version version = activation.version;
  std::vector<ParityBlock> here = activation.parity;
  std::set<Rank> corrupt;  // shards
  std::map<Rank, Rebuild> plans;
  for (bool sound = false; !sound;) {
    KEEPSTEP_ASSIGN_OR_RETURN(const auto parity, share_parity(here, lost));
    std::map<Rank, Rank> shards;  // those of these groups
    for (const auto& [block, giver] : parity) {
      for (const Rank member : block.members) {
        if (const std::optional<Rank> from = giver_of(member); from.has_value() && !corrupt.contains(member)) {
          shards.emplace(member, *from);
        }
      }
    }
    plans.clear();
    for (const Rank rank : lost) {
      if (std::optional<Rebuild> plan = brain::plan_rebuild(rank, shards, parity)) {
        plans.emplace(rank, *std::move(plan));
      }  // otherwise the lost shard's rank reports it
    }
    KEEPSTEP_ASSIGN_OR_RETURN(const auto found, take_corrupt_away(plans, version, here));
    KEEPSTEP_ASSIGN_OR_RETURN(const auto words, gather_words(found));
    sound = true;
    for (const std::vector<uint32_t>& of_rank : words) {
      sound = sound && of_rank.empty();
      corrupt.insert(of_rank.begin(), of_rank.end());
    }
  }
  for (const auto& [rank, plan] : plans) {
    if (rank == generation_.self()) {
      KEEPSTEP_RETURN_IF_ERROR(rebuild_own(plan, version));
    } else {
      KEEPSTEP_RETURN_IF_ERROR(give_blocks(plan, rank, version));
    }
  }
  return absl::OkStatus();
}

// Checks the blocks that the plans want from this rank. Returns the ranks whose shards are corrupt; for corrupt parity,
// which is removed from `here`, kNoRank.
StatusOr<std::vector<uint32_t>> LostShards::take_corrupt_away(const std::map<Rank, Rebuild>& plans,
                                                              brain::Version version, std::vector<ParityBlock>& here) {
  std::set<std::pair<std::vector<Rank>, uint32_t>> looked_at;
  std::vector<uint32_t> found;
  for (const auto& [rank, plan] : plans) {
    const auto members = static_cast<uint32_t>(plan.members.size());
    for (const Rebuild::Source& source : plan.sources) {
      if (source.giver != generation_.self() || !looked_at.emplace(plan.members, source.block).second) {
        continue;
      }
      KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault vault, block_of(plan, source.block, version));
      if (memory_.keep_if_sound(vault, version, vault.verify(version)).ok()) {
        continue;
      }
      if (source.block < members) {
        found.push_back(plan.members[source.block]);
      } else {
        std::erase(here, ParityBlock{plan.members, source.block - members});
        found.push_back(kNoRank);
      }
    }
  }
  return found;
}

StatusOr<state::ShardVault> LostShards::block_of(const Rebuild& plan, uint32_t block, brain::Version version) {
  const auto members = static_cast<uint32_t>(plan.members.size());
  return block < members ? memory_.holding(plan.members[block], version)
                         : memory_.holding({plan.members, block - members}, version);
}

// The blocks that the plan wants from this rank: chunk by chunk, and block by block within each chunk.
Status LostShards::give_blocks(const Rebuild& plan, Rank to, brain::Version version) {
  std::vector<state::ShardVault> vaults;
  uint64_t chunks = 0;
  for (const Rebuild::Source& source : plan.sources) {
    if (source.giver == generation_.self()) {
      KEEPSTEP_ASSIGN_OR_RETURN(const state::ShardVault vault, block_of(plan, source.block, version));
      chunks = std::max(chunks, state::chunks_of(vault.data_bytes()));
      vaults.push_back(vault);
    }
  }
  if (plan.sources.back().giver == generation_.self()) {
    state::ShardVault& vault = vaults.back();
    const uint64_t bytes = vault.seal_of(version)->text_bytes;
    KEEPSTEP_RETURN_IF_ERROR(generation_.exchange(
        generation_.communicator->send(comm::kWorld, &bytes, sizeof(bytes), to, kTagShardHandover)));
    KEEPSTEP_RETURN_IF_ERROR(generation_.exchange(
        generation_.communicator->send(comm::kWorld, vault.text_slot(version).data(), bytes, to, kTagShardHandover)));
  }
  std::deque<OpId> under_way;
  for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
    for (state::ShardVault& vault : vaults) {
      if (const uint64_t bytes = state::chunk_bytes(vault.data_bytes(), chunk); bytes > 0) {
        under_way.push_back(generation_.communicator->send(
            comm::kWorld, vault.data(version).data() + chunk * state::kVaultChunk, bytes, to, kTagShardBlock));
      }
    }
    for (; under_way.size() > kAhead * vaults.size(); under_way.pop_front()) {
      KEEPSTEP_RETURN_IF_ERROR(generation_.exchange(under_way.front()));
    }
  }
  for (const OpId op : under_way) {
    KEEPSTEP_RETURN_IF_ERROR(generation_.exchange(op));
  }
  return absl::OkStatus();
}

// The text saved with the last source, which is parity. `here`: that block, if it is on this node.
StatusOr<std::string> LostShards::parity_text(const Rebuild& plan, std::optional<state::ShardVault>& here,
                                              brain::Version version) {
  if (here.has_value()) {
    return here->text(version);
  }
  comm::Communicator& comm = *generation_.communicator;
  const Rank from = plan.sources.back().giver;
  uint64_t bytes = 0;
  KEEPSTEP_RETURN_IF_ERROR(
      generation_.exchange(comm.receive(comm::kWorld, &bytes, sizeof(bytes), from, kTagShardHandover)));
  if (bytes > kMaxText) {
    return absl::InternalError(absl::StrFormat("rank %d has a text of %d bytes with its parity", from, bytes));
  }
  std::string told(bytes, '\0');
  KEEPSTEP_RETURN_IF_ERROR(
      generation_.exchange(comm.receive(comm::kWorld, told.data(), bytes, from, kTagShardHandover)));
  return told;
}

Status LostShards::rebuild_own(const Rebuild& plan, brain::Version version) {
  const Rank self = generation_.self();
  const size_t count = plan.sources.size();
  std::vector<std::optional<state::ShardVault>> here(count);  // blocks on this node
  std::vector<uint32_t> numbers;
  for (size_t source = 0; source < count; ++source) {
    numbers.push_back(plan.sources[source].block);
    if (plan.sources[source].giver == self) {
      KEEPSTEP_ASSIGN_OR_RETURN(here[source], block_of(plan, numbers.back(), version));
    }
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::string told, parity_text(plan, here.back(), version));
  KEEPSTEP_ASSIGN_OR_RETURN(const state::ParityText text,
                            state::ParityText::parse(std::move(told), plan.members.size()));
  const auto lost =
      static_cast<uint32_t>(std::find(plan.members.begin(), plan.members.end(), self) - plan.members.begin());
  const state::MemberShard& was = text.members().at(lost);
  if (was.seal.version != version) {
    return absl::InternalError(
        absl::StrFormat("parity of version %d was given where version %d was due", was.seal.version, version));
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const state::ShardVault own, memory_.of(self, was.data_bytes, was.text_room));
  KEEPSTEP_ASSIGN_OR_RETURN(state::ShardRebuild rebuild, state::ShardRebuild::begin(own, text, lost, numbers));
  incoming_.assign(count * kAhead, {});
  std::deque<OpId> asked;
  const auto place = [&](size_t source, uint64_t chunk) -> std::span<std::byte> {
    const uint64_t bytes = rebuild.bytes_of(source, chunk);
    if (bytes == 0) {
      return {};
    }
    if (here[source].has_value()) {
      return here[source]->data(version).subspan(chunk * state::kVaultChunk, bytes);
    }
    std::vector<std::byte>& memory = incoming_[source * kAhead + chunk % kAhead];
    memory.resize(std::max<size_t>(memory.size(), bytes));
    return std::span(memory).first(bytes);
  };
  const auto ask = [&](uint64_t chunk) {
    for (size_t source = 0; source < count; ++source) {
      if (const auto into = place(source, chunk); !into.empty() && !here[source].has_value()) {
        asked.push_back(generation_.communicator->receive(comm::kWorld, into.data(), into.size(),
                                                          plan.sources[source].giver, kTagShardBlock));
      }
    }
  };
  for (uint64_t chunk = 0; chunk < kAhead; ++chunk) {
    ask(chunk);
  }
  for (uint64_t chunk = 0; chunk < rebuild.chunks(); ++chunk) {
    std::vector<state::ReedSolomon::ConstBlock> came;
    for (size_t source = 0; source < count; ++source) {
      came.emplace_back(place(source, chunk));
      if (!came.back().empty() && !here[source].has_value()) {
        KEEPSTEP_RETURN_IF_ERROR(generation_.exchange(asked.front()));
        asked.pop_front();
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(rebuild.add(came));
    ask(chunk + kAhead);
  }
  KEEPSTEP_RETURN_IF_ERROR(rebuild.finish());
  memory_.note("shard_rebuilt", version, absl::StrCat("no node has its shard: it was made again of ", names_of(plan)));
  return absl::OkStatus();
}

}  // namespace keepstep::rank
