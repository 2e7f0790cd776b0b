#include "rank/shards/shard_exchange.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/checksum.h"
#include "brain/reshard/reshard_plan.h"
#include "brain/reshard/strided_copy.h"
#include "rank/link/reserved_tags.h"

namespace keepstep::rank {

using brain::StridedCopy;
using comm::Rank;

namespace {

constexpr size_t kPieceBytes = 1 << 20;
constexpr size_t kMaxRequest = size_t{64} << 20;

// Walks the contiguous memory of many copies, piece by piece, on one side of them.
class Cursor {
 public:
  struct Part {
    std::byte* base = nullptr;
    const StridedCopy* copy = nullptr;
    bool source = false;
  };
  explicit Cursor(std::vector<Part> parts) : parts_(std::move(parts)) { enter(); }

  // At most `most` bytes; empty at the end.
  std::span<std::byte> next(uint64_t most) {
    if (part_ == parts_.size()) {
      return {};
    }
    const Part& part = parts_[part_];
    const uint64_t bytes = std::min(most, part.copy->run_bytes - in_run_);
    const std::span<std::byte> piece(part.base + at_ + in_run_, bytes);
    in_run_ += bytes;
    if (in_run_ == part.copy->run_bytes) {
      advance();
    }
    return piece;
  }

 private:
  void enter() {
    while (part_ < parts_.size() && parts_[part_].copy->bytes() == 0) {
      ++part_;
    }
    in_run_ = 0;
    if (part_ < parts_.size()) {
      const StridedCopy& copy = *parts_[part_].copy;
      at_ = parts_[part_].source ? copy.source_offset : copy.target_offset;
      index_.assign(copy.loops.size(), 0);
    }
  }

  void advance() {
    in_run_ = 0;
    const Part& part = parts_[part_];
    for (size_t loop = index_.size(); loop > 0; --loop) {
      const StridedCopy::Loop& at = part.copy->loops[loop - 1];
      const uint64_t stride = part.source ? at.source_stride : at.target_stride;
      at_ += stride;
      if (++index_[loop - 1] < at.count) {
        return;
      }
      index_[loop - 1] = 0;
      at_ -= at.count * stride;
    }
    ++part_;
    enter();
  }

  std::vector<Part> parts_;
  size_t part_ = 0;
  uint64_t at_ = 0;
  uint64_t in_run_ = 0;
  std::vector<uint64_t> index_;
};

uint64_t total_of(const auto& asks) {
  uint64_t bytes = 0;
  for (const auto& ask : asks) {
    bytes += ask.copy.bytes();
  }
  return bytes;
}

void put(std::string* out, uint64_t number) { out->append(reinterpret_cast<const char*>(&number), sizeof(number)); }

class Decoder {
 public:
  explicit Decoder(std::string_view text) : text_(text) {}
  std::optional<uint64_t> number() {
    uint64_t value = 0;
    if (text_.size() < sizeof(value)) {
      return std::nullopt;
    }
    std::memcpy(&value, text_.data(), sizeof(value));
    text_.remove_prefix(sizeof(value));
    return value;
  }
  bool done() const { return text_.empty(); }

 private:
  std::string_view text_;
};

}  // namespace

// What this rank needs from a shard on another node, and where it goes.
struct ShardExchange::Ask {
  Rank shard = 0;
  StridedCopy copy;
};

// The same on the server's side; of the copy, only the source part.
struct ShardExchange::Asked {
  Rank shard = 0;
  StridedCopy copy;
  state::ShardVault vault;
};

ShardExchange::ShardExchange(comm::Communicator& comm, Rank self, std::vector<uint32_t> nodes, Rank shards,
                             brain::Version version, VaultOf vault_of)
    : comm_(comm),
      self_(self),
      nodes_(std::move(nodes)),
      shards_(shards),
      version_(version),
      vault_of_(std::move(vault_of)),
      world_(static_cast<Rank>(nodes_.size())),
      table_(world_, shards_) {}

std::vector<Rank> ShardExchange::ranks_of(uint32_t node) const {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < world_; ++rank) {
    if (nodes_[rank] == node) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

StatusOr<bool> ShardExchange::find(const std::vector<Rank>& here, bool need) {
  need_ = need;
  const std::vector<Rank> mates = ranks_of(nodes_[self_]);
  const size_t place = static_cast<size_t>(std::find(mates.begin(), mates.end(), self_) - mates.begin());
  table_ = CopyTable(world_, shards_);
  if (need) {
    table_.set_needs(self_);
  }
  for (const Rank shard : here) {
    if (shard >= shards_ || shard % mates.size() != place) {
      continue;
    }
    const StatusOr<state::ShardVault> vault = vault_of_(shard);
    if (vault.ok() && vault->verify(version_).ok()) {
      table_.set_gives(shard, self_);
    }
  }
  KEEPSTEP_RETURN_IF_ERROR(line_.end(
      comm_.all_reduce(comm::kWorld, table_.data(), table_.size(), comm::DataType::kInt32, comm::ReduceOp::kMin)));
  for (Rank shard = 0; shard < shards_; ++shard) {
    if (!table_.giver(shard)) {
      return false;
    }
  }
  return true;
}

// All ranks go through the same pairs in the same order, so no two ranks wait for each other.
StatusOr<std::vector<std::string>> ShardExchange::texts() {
  texts_.assign(shards_, "");
  for (Rank shard = 0; shard < shards_; ++shard) {
    const std::vector<Rank> servers = table_.givers(shard);
    for (Rank needer = 0; needer < world_; ++needer) {
      if (!table_.needs(needer)) {
        continue;
      }
      const bool there = std::ranges::any_of(servers, [&](Rank each) { return nodes_[each] == nodes_[needer]; });
      const Rank from = there ? needer : servers.front();
      if (from != self_ && needer != self_) {
        continue;
      }
      if (from == self_) {
        KEEPSTEP_ASSIGN_OR_RETURN(const state::ShardVault vault, vault_of_(shard));
        KEEPSTEP_ASSIGN_OR_RETURN(texts_[shard], vault.text(version_));
      }
      if (there) {
        continue;
      }
      if (from == self_) {
        text_bytes_ = texts_[shard].size();
        KEEPSTEP_RETURN_IF_ERROR(line_.send(needer, &text_bytes_, sizeof(text_bytes_), kTagShardTexts));
        KEEPSTEP_RETURN_IF_ERROR(line_.send(needer, texts_[shard].data(), text_bytes_, kTagShardTexts));
      } else {
        KEEPSTEP_RETURN_IF_ERROR(line_.receive(from, &text_bytes_, sizeof(text_bytes_), kTagShardTexts));
        if (text_bytes_ > state::kMaxManifestText) {
          return absl::UnavailableError(absl::StrFormat("rank %d announced a text of %d bytes", from, text_bytes_));
        }
        texts_[shard].resize(text_bytes_);
        KEEPSTEP_RETURN_IF_ERROR(line_.receive(from, texts_[shard].data(), text_bytes_, kTagShardTexts));
      }
    }
  }
  return need_ ? std::move(texts_) : std::vector<std::string>();
}

Status ShardExchange::fill(const std::vector<state::ShardManifest>& shards, const state::ShardManifest& needs,
                           std::span<std::byte> target) {
  std::vector<std::vector<Ask>> asks(world_);
  if (need_) {
    KEEPSTEP_RETURN_IF_ERROR(plan(shards, needs, target, &asks));
  }
  KEEPSTEP_RETURN_IF_ERROR(swap_requests(asks));
  // In round d each rank serves the rank d places after it and takes from the one d places before it. A rank in the
  // lowest round always has a partner who arrives, so nobody waits forever.
  Status served;
  std::thread server([&] {
    for (Rank away = 1; away < world_ && served.ok(); ++away) {
      served = serve((self_ + away) % world_);
    }
    if (!served.ok()) {
      stop_ = true;
    }
  });
  Status taken;
  for (Rank away = 1; away < world_ && taken.ok(); ++away) {
    const Rank from = (self_ + world_ - away) % world_;
    bytes_from_elsewhere_ += total_of(asks[from]);
    taken = take(from, asks[from], target);
  }
  if (!taken.ok()) {
    stop_ = true;
  }
  server.join();
  // A side that stopped because the other failed does not know why.
  return taken.ok() || (absl::IsAborted(taken) && !served.ok()) ? served : taken;
}

Status ShardExchange::plan(const std::vector<state::ShardManifest>& shards, const state::ShardManifest& needs,
                           std::span<std::byte> target, std::vector<std::vector<Ask>>* asks) {
  struct Copy {
    Rank shard = 0;
    Rank server = 0;
  };
  std::vector<Copy> copies;
  std::vector<brain::ShardSource> sources;
  std::vector<std::vector<uint64_t>> starts;
  for (Rank shard = 0; shard < shards_; ++shard) {
    starts.push_back(state::shard_starts(shards[shard].shards));
    for (const Rank server : table_.givers(shard)) {
      copies.push_back({shard, server});
      sources.push_back({nodes_[server] == nodes_[self_] ? 0U : 1U, version_, shards[shard].shards});
    }
  }
  std::string why;
  const auto pulls = brain::plan_reshard(needs.shards, sources, {.version = version_, .first_source = self_}, &why);
  if (!pulls) {
    return absl::FailedPreconditionError(why);
  }
  const std::vector<uint64_t> target_starts = state::shard_starts(needs.shards);
  if (target_starts.back() > target.size()) {
    return absl::InvalidArgumentError("what is needed is larger than the room for it");
  }
  std::map<Rank, state::ShardVault> open;
  for (const brain::Pull& pull : *pulls) {
    const Copy& held = copies[pull.source];
    const brain::ShardEntry& need = needs.shards[pull.need];
    StridedCopy copy =
        strided_copy(sources[pull.source].entries[pull.entry].box, need.box, pull.box, need.element_bytes);
    copy.source_offset += starts[held.shard][pull.entry];
    copy.target_offset += target_starts[pull.need];
    if (nodes_[held.server] != nodes_[self_]) {
      (*asks)[held.server].push_back({held.shard, std::move(copy)});
      continue;
    }
    auto vault = open.find(held.shard);
    if (vault == open.end()) {
      KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault found, vault_of_(held.shard));
      if (found.data_bytes() != starts[held.shard].back()) {
        return absl::DataLossError(absl::StrFormat("shard %d has %d bytes, and says that it has %d", held.shard,
                                                   found.data_bytes(), starts[held.shard].back()));
      }
      vault = open.emplace(held.shard, found).first;
    }
    const std::byte* from = vault->second.data(version_).data();
    each_run(copy, [&](uint64_t source, uint64_t to, uint64_t bytes) {
      std::memcpy(target.data() + to, from + source, bytes);
    });
  }
  return absl::OkStatus();
}

// For each copy: the shard, the offset of its first run, the length of a run, and the loops: their number, then count
// and stride of each.
Status ShardExchange::swap_requests(const std::vector<std::vector<Ask>>& asks) {
  requests_.assign(world_, "");
  orders_.assign(world_, "");
  std::vector<uint32_t> lengths;  // the ranks asked, and the bytes of each request; few ranks are asked
  for (Rank rank = 0; rank < world_; ++rank) {
    for (const Ask& ask : asks[rank]) {
      std::string* out = &requests_[rank];
      put(out, ask.shard);
      put(out, ask.copy.source_offset);
      put(out, ask.copy.run_bytes);
      put(out, ask.copy.loops.size());
      for (const StridedCopy::Loop& loop : ask.copy.loops) {
        put(out, loop.count);
        put(out, loop.source_stride);
      }
    }
    if (requests_[rank].size() > kMaxRequest) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("what this rank needs of rank %d takes a request of %d bytes, %d are the most", rank,
                          requests_[rank].size(), kMaxRequest));
    }
    if (!requests_[rank].empty()) {
      lengths.insert(lengths.end(), {rank, static_cast<uint32_t>(requests_[rank].size())});
    }
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const auto all_lengths, gather_.gather(lengths, size_t{2} * world_));
  for (Rank needer = 0; needer < world_; ++needer) {
    for (size_t i = 0; i + 1 < all_lengths[needer].size(); i += 2) {
      const Rank giver = all_lengths[needer][i];
      const uint32_t bytes = all_lengths[needer][i + 1];
      if (needer != self_ && giver != self_) {
        continue;
      }
      if (needer == self_) {
        KEEPSTEP_RETURN_IF_ERROR(line_.send(giver, requests_[giver].data(), bytes, kTagShardRequest));
        continue;
      }
      if (bytes > kMaxRequest) {
        return absl::UnavailableError(absl::StrFormat("rank %d announced a request of %d bytes", needer, bytes));
      }
      orders_[needer].resize(bytes);
      KEEPSTEP_RETURN_IF_ERROR(line_.receive(needer, orders_[needer].data(), bytes, kTagShardRequest));
    }
  }
  return absl::OkStatus();
}

// A request is not trusted: all of it must lie within the shard.
StatusOr<std::vector<ShardExchange::Asked>> ShardExchange::asked_by(Rank to) const {
  Status bad = absl::UnavailableError(absl::StrFormat("rank %d asked for what is not there", to));
  std::vector<Asked> asked;
  std::map<Rank, state::ShardVault> open;
  for (Decoder reader(orders_[to]); !reader.done();) {
    const auto shard = reader.number();
    const auto offset = reader.number();
    const auto run = reader.number();
    const auto loops = reader.number();
    if (!loops || *shard >= shards_ || *loops > state::kMaxShardDimensions) {
      return bad;
    }
    auto vault = open.find(static_cast<Rank>(*shard));
    if (vault == open.end()) {
      KEEPSTEP_ASSIGN_OR_RETURN(state::ShardVault found, vault_of_(static_cast<Rank>(*shard)));
      vault = open.emplace(static_cast<Rank>(*shard), found).first;
    }
    Asked each{static_cast<Rank>(*shard), {.source_offset = *offset, .run_bytes = *run}, vault->second};
    const uint64_t room = vault->second.data_bytes();
    unsigned __int128 end = static_cast<unsigned __int128>(*offset) + *run;
    unsigned __int128 bytes = *run;
    for (uint64_t loop = 0; loop < *loops; ++loop) {
      const auto count = reader.number();
      const auto stride = reader.number();
      if (!stride || *count == 0) {
        return bad;
      }
      end += static_cast<unsigned __int128>(*count - 1) * *stride;
      bytes *= *count;
      if (end > room || bytes > room) {
        return bad;
      }
      each.copy.loops.push_back({*count, *stride, 0});
    }
    if (end > room) {
      return bad;
    }
    asked.push_back(std::move(each));
  }
  return asked;
}

Status ShardExchange::serve(Rank to) {
  if (orders_[to].empty()) {
    return absl::OkStatus();
  }
  KEEPSTEP_ASSIGN_OR_RETURN(std::vector<Asked> asked, asked_by(to));
  std::vector<Cursor::Part> parts;
  for (Asked& each : asked) {
    parts.push_back({each.vault.data(version_).data(), &each.copy, true});
  }
  Cursor cursor(std::move(parts));
  uint64_t left = total_of(asked);
  std::optional<comm::OpId> under_way;
  for (size_t piece = 0; left > 0; ++piece) {
    std::vector<std::byte>& buffer = sending_[piece % 2];
    const uint64_t bytes = std::min<uint64_t>(left, kPieceBytes);
    buffer.resize(bytes + sizeof(uint64_t));
    for (uint64_t done = 0; done < bytes;) {
      const std::span<std::byte> run = cursor.next(bytes - done);
      std::memcpy(buffer.data() + done, run.data(), run.size());
      done += run.size();
    }
    const uint64_t sum = checksum(buffer.data(), bytes);
    std::memcpy(buffer.data() + bytes, &sum, sizeof(sum));
    if (under_way) {
      KEEPSTEP_RETURN_IF_ERROR(line_.end(*under_way));
    }
    under_way = line_.begin_send(to, buffer, kTagShardPieces);
    left -= bytes;
  }
  return under_way ? line_.end(*under_way) : absl::OkStatus();
}

Status ShardExchange::take(Rank from, const std::vector<Ask>& asks, std::span<std::byte> target) {
  std::vector<Cursor::Part> parts;
  for (const Ask& ask : asks) {
    parts.push_back({target.data(), &ask.copy, false});
  }
  Cursor cursor(std::move(parts));
  const uint64_t total = total_of(asks);
  const auto bytes_of = [&](uint64_t piece) { return std::min<uint64_t>(kPieceBytes, total - piece * kPieceBytes); };
  const auto post = [&](uint64_t piece) {
    std::vector<std::byte>& buffer = receiving_[piece % 2];
    buffer.resize(bytes_of(piece) + sizeof(uint64_t));
    return line_.begin_receive(from, buffer, kTagShardPieces);
  };
  const uint64_t pieces = (total + kPieceBytes - 1) / kPieceBytes;
  comm::OpId next = pieces > 0 ? post(0) : 0;
  for (uint64_t piece = 0; piece < pieces; ++piece) {
    const comm::OpId op = next;
    KEEPSTEP_RETURN_IF_ERROR(line_.end(op));
    if (piece + 1 < pieces) {
      next = post(piece + 1);
    }
    const std::vector<std::byte>& buffer = receiving_[piece % 2];
    const uint64_t bytes = bytes_of(piece);
    uint64_t sum = 0;
    std::memcpy(&sum, buffer.data() + bytes, sizeof(sum));
    if (checksum(buffer.data(), bytes) != sum) {
      return absl::UnavailableError(
          absl::StrFormat("the shards that rank %d sent to rank %d arrived damaged", from, self_));
    }
    for (uint64_t done = 0; done < bytes;) {
      const std::span<std::byte> run = cursor.next(bytes - done);
      std::memcpy(run.data(), buffer.data() + done, run.size());
      done += run.size();
    }
  }
  return absl::OkStatus();
}

}  // namespace keepstep::rank
