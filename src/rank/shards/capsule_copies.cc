#include "rank/shards/capsule_copies.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "rank/link/rank_generation.h"
#include "rank/link/reserved_tags.h"

namespace keepstep::rank {

using brain::Version;
using comm::Rank;

namespace {

struct Head {  // of a message; the capsule follows
  uint64_t version = 0;
  uint64_t bytes = 0;
};

// Sent by each rank to all others while a generation forms: two flags, then a bit for each rank whose copy it has.
constexpr uint8_t kWanted = 1;
constexpr uint8_t kHasOwn = 2;

class Record {
 public:
  explicit Record(size_t world) : bytes_(1 + (world + 7) / 8) {}
  uint8_t* data() { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }
  void set(uint8_t flag) { bytes_[0] |= flag; }
  bool has(uint8_t flag) const { return (bytes_[0] & flag) != 0; }
  void set_keeps(Rank rank) { bytes_[1 + rank / 8] |= static_cast<uint8_t>(1U << rank % 8); }
  bool keeps(Rank rank) const { return (bytes_[1 + rank / 8] >> rank % 8 & 1) != 0; }

 private:
  std::vector<uint8_t> bytes_;
};

}  // namespace

std::vector<Rank> keepers_of(const std::vector<uint32_t>& nodes) {
  std::vector<uint32_t> order;  // of the nodes, by their first rank
  std::map<uint32_t, std::vector<Rank>> ranks;
  for (Rank rank = 0; rank < nodes.size(); ++rank) {
    if (!ranks.contains(nodes[rank])) {
      order.push_back(nodes[rank]);
    }
    ranks[nodes[rank]].push_back(rank);
  }
  if (order.size() < 2) {
    return {};
  }
  std::vector<Rank> keepers(nodes.size());
  for (size_t node = 0; node < order.size(); ++node) {
    const std::vector<Rank>& next = ranks[order[(node + 1) % order.size()]];
    const std::vector<Rank>& here = ranks[order[node]];
    for (size_t place = 0; place < here.size(); ++place) {
      keepers[here[place]] = next[place % next.size()];
    }
  }
  return keepers;
}

class CapsuleCopies::Exchange {
 public:
  explicit Exchange(CapsuleCopies& copies) : copies_(copies) {}
  ~Exchange() { (void)wait(); }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void send(Rank to, Version version, std::string_view capsule) {
    const Head head{version, capsule.size()};
    std::string& message = messages_.emplace_back(sizeof(head) + capsule.size(), '\0');
    std::memcpy(message.data(), &head, sizeof(head));
    std::memcpy(message.data() + sizeof(head), capsule.data(), capsule.size());
    ops_.push_back(copies_.comm_->send(comm::kWorld, message.data(), message.size(), to, kTagCapsule));
  }

  // `taken` receives the capsule, if it is of `version`, once wait() has returned OK.
  void receive(Rank from, Version version, std::optional<std::string>& taken) {
    std::string& message = messages_.emplace_back(sizeof(Head) + copies_.max_bytes_, '\0');
    ops_.push_back(copies_.comm_->receive(comm::kWorld, message.data(), message.size(), from, kTagCapsule));
    coming_.push_back({from, version, &message, &taken});
  }

  Status wait() {
    Status status;
    for (const comm::OpId op : std::exchange(ops_, {})) {
      const Status one = status_of(copies_.comm_->wait(op));
      copies_.comm_->forget(op);
      if (!one.ok() && !absl::IsAborted(status)) {
        status = one;
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(status);
    for (const Coming& came : std::exchange(coming_, {})) {
      Head head;
      std::memcpy(&head, came.message->data(), sizeof(head));
      if (head.version != came.version || head.bytes > copies_.max_bytes_) {
        return absl::InternalError(
            absl::StrFormat("rank %d gave a capsule of version %d with %d bytes; version %d "
                            "was due; do all ranks run the same version of keepstep?",
                            came.from, head.version, head.bytes, came.version));
      }
      *came.taken = came.message->substr(sizeof(head), head.bytes);
    }
    return absl::OkStatus();
  }

 private:
  struct Coming {
    Rank from;
    Version version;
    const std::string* message;
    std::optional<std::string>* taken;
  };
  CapsuleCopies& copies_;
  std::deque<std::string> messages_;  // their addresses must not change
  std::vector<comm::OpId> ops_;
  std::vector<Coming> coming_;
};

void CapsuleCopies::enter(comm::Communicator& comm, Rank self, const std::vector<uint32_t>& nodes) {
  comm_ = &comm;
  self_ = self;
  keepers_ = keepers_of(nodes);
  wanted_.assign(nodes.size(), false);
}

// Makes room for the capsules that this rank keeps. `version`: the one that is kept if the memory must grow.
Status CapsuleCopies::make_room(Version version) {
  std::vector<Rank> ranks;
  for (Rank rank = 0; rank < keepers_.size(); ++rank) {
    if (keepers_[rank] == self_ && wanted_[rank]) {
      ranks.push_back(rank);
    }
  }
  kept_.drop_unless([this](Rank rank) { return rank < keepers_.size() && keepers_[rank] == self_; });
  if (ranks.size() <= kept_.room()) {
    return absl::OkStatus();
  }
  KEEPSTEP_ASSIGN_OR_RETURN(KeptCapsules more, KeptCapsules::create(ranks.size(), max_bytes_));
  for (const Rank rank : ranks) {
    if (const std::optional<std::string> had = kept_.find(rank, version)) {
      KEEPSTEP_RETURN_IF_ERROR(more.put(rank, version, *had));
    }
  }
  kept_ = std::move(more);
  if (on_memory_ != nullptr) {
    on_memory_(kept_.fd());
  }
  return absl::OkStatus();
}

std::optional<std::string> CapsuleCopies::copy_of(Rank rank, Version version) const {
  return kept_.find(rank, version);
}

StatusOr<std::optional<std::string>> CapsuleCopies::share(Version version, bool wanted,
                                                          const std::optional<std::string>& own,
                                                          bool allow_substitute) {
  std::optional<std::string> got;
  if (!across()) {
    return got;
  }
  const auto world = static_cast<Rank>(keepers_.size());
  std::vector<Record> records(world, Record(world));
  Record mine(world);
  mine.set((wanted ? kWanted : 0) | (own.has_value() ? kHasOwn : 0));
  for (Rank rank = 0; rank < world; ++rank) {
    if (copy_of(rank, version).has_value()) {
      mine.set_keeps(rank);
    }
  }
  std::vector<void*> outputs;
  for (Record& record : records) {
    outputs.push_back(record.data());
  }
  const comm::OpId gather = comm_->all_gather(comm::kWorld, mine.data(), outputs, mine.size());
  const Status gathered = status_of(comm_->wait(gather));
  comm_->forget(gather);
  KEEPSTEP_RETURN_IF_ERROR(gathered);
  std::vector<bool> there(world);  // the rank has its capsule, or is about to get it
  // All ranks know the same and compute the same plan. First every rank gets its own capsule.
  {
    Exchange exchange(*this);
    for (Rank rank = 0; rank < world; ++rank) {
      wanted_[rank] = records[rank].has(kWanted);
      there[rank] = wanted_[rank] && records[rank].has(kHasOwn);
      if (!wanted_[rank] || there[rank]) {
        continue;
      }
      auto giver =
          std::find_if(records.begin(), records.end(), [&](const Record& record) { return record.keeps(rank); });
      const bool kept_one = giver != records.end();
      if (!kept_one && allow_substitute) {
        giver = std::find_if(records.begin(), records.end(), [](const Record& record) { return record.has(kHasOwn); });
      }
      if (giver == records.end()) {
        continue;
      }
      there[rank] = true;
      const auto from = static_cast<Rank>(giver - records.begin());
      if (from == self_) {
        exchange.send(rank, version, kept_one ? *copy_of(rank, version) : *own);
      }
      if (rank == self_) {
        exchange.receive(from, version, got);
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(exchange.wait());
  }
  // Then keepers get the copies they lack.
  KEEPSTEP_RETURN_IF_ERROR(make_room(version));
  std::map<Rank, std::optional<std::string>> kept;
  {
    Exchange exchange(*this);
    for (Rank rank = 0; rank < world; ++rank) {
      const Rank keeper = keepers_[rank];
      if (!there[rank] || records[keeper].keeps(rank)) {
        continue;
      }
      if (rank == self_) {
        exchange.send(keeper, version, own.has_value() ? *own : *got);
      }
      if (keeper == self_) {
        exchange.receive(rank, version, kept[rank]);
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(exchange.wait());
  }
  for (const auto& [rank, bytes] : kept) {
    KEEPSTEP_RETURN_IF_ERROR(kept_.put(rank, version, *bytes));
  }
  return got;
}

Status CapsuleCopies::copy(Version version, std::string_view own) {
  if (!across()) {
    return absl::OkStatus();
  }
  std::map<Rank, std::optional<std::string>> kept;
  {
    Exchange exchange(*this);
    if (wanted_[self_]) {
      exchange.send(keepers_[self_], version, own);
    }
    for (Rank rank = 0; rank < keepers_.size(); ++rank) {
      if (keepers_[rank] == self_ && wanted_[rank]) {
        exchange.receive(rank, version, kept[rank]);
      }
    }
    KEEPSTEP_RETURN_IF_ERROR(exchange.wait());
  }
  for (const auto& [rank, bytes] : kept) {
    KEEPSTEP_RETURN_IF_ERROR(kept_.put(rank, version, *bytes));
  }
  return absl::OkStatus();
}

}  // namespace keepstep::rank
