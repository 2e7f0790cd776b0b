#include "agent/memory/memory_tier.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "agent/control/control_door.h"
#include "base/clock.h"
#include "brain/table/rank_table.h"

namespace keepstep::agent {
namespace {

using What = std::variant<brain::Rank, brain::ParityBlock>;

constexpr uint64_t kMaxBytes = uint64_t{1} << 46;  // the largest shard size we believe
constexpr int kReaderNiceness = 10;                // ranks come first
constexpr int kTries = 5;                          // at a vault that is overwritten while we read

void put(nlohmann::json& into, const What& what) {
  if (const auto* const rank = std::get_if<brain::Rank>(&what)) {
    into["rank"] = *rank;
  } else {
    into["members"] = std::get<brain::ParityBlock>(what).members;
    into["row"] = std::get<brain::ParityBlock>(what).row;
  }
}

// A vault for the reading thread, which maps it itself, so that the agent may drop it meanwhile.
struct Open {
  uint64_t number = 0;
  uint32_t sharding = 0;
  What what;
  uint64_t data_bytes = 0;
  SharedMemory memory;
};

const char* name(state::VaultCheck result) {
  return result == state::VaultCheck::kGood ? "good" : result == state::VaultCheck::kCorrupt ? "corrupt" : "gone";
}

// Checks one vault: each version once, including versions that replaced an overwritten one.
void check_vault(const Open& open, std::optional<brain::Version> only, const std::function<bool()>& give_up,
                 nlohmann::json& checked) {
  const StatusOr<state::ShardVault> vault = state::ShardVault::open(open.memory.data(), open.memory.size());
  std::set<brain::Version> seen;
  for (int tries = 0; tries < kTries; ++tries) {
    bool gone = false;
    std::vector<brain::Version> versions =
        vault.ok() ? vault->versions() : std::vector<brain::Version>{only.value_or(0)};
    std::reverse(versions.begin(), versions.end());  // newest first: it stays longest
    for (const brain::Version version : versions) {
      if ((only.has_value() && version != *only) || seen.contains(version)) {
        continue;
      }
      const state::VaultCheck result = vault.ok() ? vault->check(version, give_up) : state::VaultCheck::kCorrupt;
      if (result == state::VaultCheck::kGivenUp) {
        return;
      }
      seen.insert(version);
      gone = gone || result == state::VaultCheck::kOverwritten;
      nlohmann::json line = {
          {"sharding", open.sharding}, {"version", version}, {"bytes", open.data_bytes}, {"result", name(result)}};
      put(line, open.what);
      checked.push_back(std::move(line));
    }
    if (!gone || !vault.ok()) {
      return;
    }
  }
}

}  // namespace

MemoryTier::MemoryTier(std::shared_ptr<EventLoop> loop, const ShardVaults& vaults)
    : loop_(std::move(loop)), vaults_(vaults) {}

MemoryTier::~MemoryTier() {
  stop_ = true;
  if (reader_.joinable()) {
    reader_.join();
  }
}

void MemoryTier::ask(const nlohmann::json& question, const Answer& answer) {
  const std::string what = question.at("do");
  if (what == "hold") {
    answer(hold());
  } else if (what == "texts") {
    answer(texts(question));
  } else if (what == "check") {
    check(question, answer);
  } else {
    answer(error_answer(absl::StrFormat("this version of keepstep does not support the memory request '%s'", what)));
  }
}

nlohmann::json MemoryTier::hold() const {
  const int64_t now_ns = monotonic_ns();
  nlohmann::json held = nlohmann::json::array();
  for (const ShardVaults::Held& each : vaults_.held()) {
    for (const brain::Version version : each.view.versions()) {
      nlohmann::json line = {{"sharding", each.sharding},
                             {"version", version},
                             {"bytes", each.data_bytes},
                             {"age_ns", std::max<int64_t>(0, now_ns - each.view.whole_since_ns(version))}};
      put(line, each.what);
      held.push_back(std::move(line));
    }
  }
  return {{"ok", true}, {"held", std::move(held)}, {"memory", vaults_.bytes()}};
}

nlohmann::json MemoryTier::texts(const nlohmann::json& question) const {
  const brain::Version version = question.at("version");
  const uint32_t sharding = question.at("sharding");
  const std::vector<brain::Rank> ranks = question.at("ranks");
  const std::vector<ShardVaults::Held> held = vaults_.held();
  nlohmann::json texts = nlohmann::json::array();
  size_t bytes = 0;
  for (const brain::Rank rank : ranks) {
    nlohmann::json line = {{"rank", rank}, {"result", "gone"}};
    for (const ShardVaults::Held& each : held) {
      const auto* const of = std::get_if<brain::Rank>(&each.what);
      const std::optional<state::VaultSeal> seal = each.view.seal_of(version);
      if (of == nullptr || *of != rank || each.sharding != sharding || !seal.has_value()) {
        continue;
      }
      if (seal->text_bytes > kMaxTextBytes) {
        return error_answer(
            absl::StrFormat("what describes the shard of rank %d takes %d bytes, %d can be shown at most", rank,
                            seal->text_bytes, kMaxTextBytes));
      }
      if (bytes != 0 && bytes + seal->text_bytes > kMemoryTextBytes) {
        return {{"ok", true}, {"texts", std::move(texts)}};  // the caller will ask for the rest
      }
      const StatusOr<std::string> text = each.view.text(version);
      if (each.view.seal_of(version) == seal) {
        line["result"] = text.ok() ? "good" : "corrupt";
        if (text.ok()) {
          line["text"] = *text;
          bytes += text->size();
        }
        break;
      }
    }
    texts.push_back(std::move(line));
  }
  return {{"ok", true}, {"texts", std::move(texts)}};
}

void MemoryTier::check(const nlohmann::json& question, const Answer& answer) {
  const uint64_t after = question.value("after", uint64_t{0});
  const std::optional<brain::Version> only =
      question.contains("version") ? std::optional(question.at("version").get<brain::Version>()) : std::nullopt;
  if (busy_) {
    answer(error_answer("another check of this node's memory is under way; try again when it is done"));
    return;
  }
  std::vector<Open> open;
  uint64_t bytes = 0;
  bool over = true;
  for (const ShardVaults::Held& each : vaults_.held()) {
    if (each.number <= after) {
      continue;
    }
    if (bytes >= kMemoryCheckBytes) {
      over = false;
      break;
    }
    bytes += each.data_bytes * (only.has_value() ? 1 : 2);
    StatusOr<SharedMemory> memory =
        SharedMemory::attach(Fd(fcntl(each.memory->fd(), F_DUPFD_CLOEXEC, 0)), each.memory->size());
    if (!memory.ok()) {
      answer(error_answer(std::string(memory.status().message())));
      return;
    }
    open.push_back({each.number, each.sharding, each.what, each.data_bytes, *std::move(memory)});
  }
  if (reader_.joinable()) {
    reader_.join();  // it has answered
  }
  busy_ = true;
  reader_ = std::thread([this, open = std::move(open), only, after, over, answer, alive = std::weak_ptr<bool>(alive_)] {
    (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kReaderNiceness);
    nlohmann::json checked = nlohmann::json::array();
    for (const Open& each : open) {
      check_vault(each, only, [this] { return stop_.load(); }, checked);
    }
    nlohmann::json body = {{"ok", true},
                           {"checked", std::move(checked)},
                           {"last", open.empty() ? after : open.back().number},
                           {"over", over}};
    loop_->post([this, answer, alive, body = std::move(body)] {
      if (alive.lock() != nullptr) {
        busy_ = false;
        answer(body);
      }
    });
  });
}

StatusOr<std::vector<brain::Holding>> holdings_from(brain::NodeId node, const nlohmann::json& answer) {
  std::vector<brain::Holding> holdings;
  for (const nlohmann::json& line : answer.at("held")) {
    brain::Holding holding{.node = node,
                           .sharding = line.at("sharding"),
                           .version = line.at("version"),
                           .bytes = line.at("bytes"),
                           .age_ns = line.at("age_ns")};
    if (line.contains("members")) {
      holding.what = brain::ParityBlock{line.at("members"), line.at("row")};
    } else {
      holding.what = line.at("rank").get<brain::Rank>();
    }
    const auto* const block = std::get_if<brain::ParityBlock>(&holding.what);
    const bool possible =
        block == nullptr ? std::get<brain::Rank>(holding.what) < brain::kMaxWorldSize : brain::is_possible(*block);
    if (!possible || holding.bytes > kMaxBytes || holding.age_ns < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("node %d reported impossible holdings: %s", node,
                          line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
    }
    holdings.push_back(std::move(holding));
  }
  return holdings;
}

}  // namespace keepstep::agent
