// What the agents of all nodes hold of the job's state in their memory, for who asks node 0: `keepstep ckpt` of a place
// memory://JOB. Node 0's agent asks the others (memory_tier.h is each one's part); it waits for nobody who is gone.

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "agent/agent.h"
#include "base/clock.h"
#include "base/log.h"

namespace keepstep::agent {
namespace {

constexpr int64_t kHoldNs = 5'000'000'000;    // for an answer that takes no reading
constexpr int64_t kReadNs = 600'000'000'000;  // for one that does: a vault may have hundreds of gigabytes
constexpr size_t kMostQuestions = 32;         // at once

}  // namespace

void Agent::answer_memory(const nlohmann::json& request, const ControlDoor::Answer& answer) {
  if (config_.node != 0) {
    answer(error_answer(absl::StrFormat(
        "this is the launcher of node %d; node 0's knows what the agents of all nodes hold. Give the command on its "
        "machine, or give HOST:PORT, the job's --rdzv-endpoint",
        config_.node)));
    return;
  }
  if (end_.has_value() || memory_questions_.size() >= kMostQuestions) {
    answer(error_answer(
        end_.has_value()
            ? "the job is ending"
            : absl::StrFormat("%d such questions wait for their answers already; try again", kMostQuestions)));
    return;
  }
  const std::string what = request.at("do");
  const std::vector<brain::NodeId> attending = attending_nodes();
  std::set<brain::NodeId> nodes(attending.begin(), attending.end());
  if (what != "hold") {
    const brain::NodeId node = request.at("node");
    if (!nodes.contains(node)) {
      answer(error_answer(absl::StrFormat("node %d is not there; nodes are %s", node, absl::StrJoin(nodes, ", "))));
      return;
    }
    nodes = {node};
  }
  const uint64_t id = ++memory_asked_;
  memory_questions_[id] = {what == "hold", answer, nodes, {}, monotonic_ns() + (what == "check" ? kReadNs : kHoldNs)};
  for (const brain::NodeId node : nodes) {
    if (node != config_.node) {
      route(node, 'V', nlohmann::json{{"ask", id}, {"question", request}}.dump());
    }
  }
  if (nodes.contains(config_.node)) {
    try {
      memory_tier_->ask(request,
                        [this, id](nlohmann::json body) { on_memory_answer(config_.node, id, std::move(body)); });
    } catch (const nlohmann::json::exception& error) {
      on_memory_answer(config_.node, id, lacking_answer(error));
    }
  }
}

std::vector<brain::NodeId> Agent::attending_nodes() const {
  return config_.size_news ? config_.size_news().nodes : std::vector<brain::NodeId>{config_.node};
}

// 'V': a question of node 0's, or an answer to one.
void Agent::on_memory_message(brain::NodeId from, nlohmann::json body) {
  if (config_.node == 0) {
    on_memory_answer(from, body.at("answer"), std::move(body.at("body")));
    return;
  }
  if (from != 0) {
    throw nlohmann::json::other_error::create(0, "only node 0 asks what is in memory", nullptr);
  }
  const uint64_t id = body.at("ask");
  const auto reply = [this, id](const nlohmann::json& said) {
    const auto text = [&](const nlohmann::json& of) {
      return nlohmann::json{{"answer", id}, {"body", of}}.dump(-1, ' ', false,
                                                               nlohmann::json::error_handler_t::replace);
    };
    const std::string whole = text(said);
    route(0, 'V',
          whole.size() < kMaxPartedBytes ? whole
                                         : text(error_answer(absl::StrFormat("an answer of %d bytes, %d are the most",
                                                                             whole.size(), kMaxPartedBytes))));
  };
  try {
    memory_tier_->ask(body.at("question"), reply);
  } catch (const nlohmann::json::exception& error) {
    reply(lacking_answer(error));
  }
}

void Agent::on_memory_answer(brain::NodeId from, uint64_t id, nlohmann::json body) {
  const auto it = memory_questions_.find(id);
  if (it == memory_questions_.end() || it->second.awaited.erase(from) == 0) {
    return;  // too late
  }
  it->second.answers[from] = std::move(body);
  if (it->second.awaited.empty()) {
    conclude_memory(id);
  }
}

// Those that are gone, or say nothing, are waited for no longer.
void Agent::watch_memory_questions() {
  if (memory_questions_.empty()) {
    return;
  }
  const std::vector<brain::NodeId> attending = attending_nodes();
  std::vector<uint64_t> over;
  for (auto& [id, question] : memory_questions_) {
    const bool late = monotonic_ns() >= question.deadline_ns;
    std::erase_if(question.awaited, [&, &silent = question.silent](brain::NodeId node) {
      const bool given_up = late || std::find(attending.begin(), attending.end(), node) == attending.end();
      if (given_up) {
        silent.insert(node);
      }
      return given_up;
    });
    if (question.awaited.empty()) {
      over.push_back(id);
    }
  }
  for (const uint64_t id : over) {
    conclude_memory(id);
  }
}

void Agent::conclude_memory(uint64_t id) {
  const auto it = memory_questions_.find(id);
  const MemoryQuestion question = std::move(it->second);
  memory_questions_.erase(it);
  if (question.of_all) {
    question.answer(memory_answer(question));
  } else if (question.answers.empty()) {
    question.answer(error_answer(absl::StrFormat("node %d does not answer, or was lost", *question.silent.begin())));
  } else {
    question.answer(question.answers.begin()->second);
  }
}

nlohmann::json Agent::memory_answer(const MemoryQuestion& question) const {
  std::vector<brain::Holding> holdings;
  nlohmann::json nodes = nlohmann::json::array(), held = nlohmann::json::array();
  std::set<brain::NodeId> silent = question.silent;
  for (const auto& [node, said] : question.answers) {
    try {
      StatusOr<std::vector<brain::Holding>> found = holdings_from(node, said);
      if (!found.ok()) {
        throw nlohmann::json::other_error::create(0, std::string(found.status().message()), nullptr);
      }
      const auto name = joined_.find(node);
      nodes.push_back({{"node", node},
                       {"name", name == joined_.end() ? config_.node_name : name->second},
                       {"memory", said.at("memory").get<uint64_t>()}});
      for (nlohmann::json line : said.at("held")) {
        line["node"] = node;
        held.push_back(std::move(line));
      }
      holdings.insert(holdings.end(), found->begin(), found->end());
    } catch (const nlohmann::json::exception& error) {
      spdlog::warn("node {} does not say what it holds: {}", node, error.what());
      silent.insert(node);
    }
  }
  std::vector<brain::Sharding> shardings;
  if (brain_.prepared() != nullptr) {
    shardings = {brain_.prepared()->sharding, brain_.prepared()->from};
  }
  nlohmann::json versions = nlohmann::json::array();
  for (const brain::MemoryVersion& each : brain::versions_in_memory(holdings, shardings)) {
    versions.push_back({{"version", each.version},
                        {"sharding", each.sharding.number},
                        {"world", each.sharding.world},
                        {"lost", each.lost},
                        {"nodes", each.nodes},
                        {"bytes", each.bytes},
                        {"held_bytes", each.held_bytes},
                        {"copies", each.copies},
                        {"parity", each.parity},
                        {"age_ns", each.age_ns}});
  }
  return {{"ok", true},       {"job", job_},           {"step", metrics_.last_step()},    {"nodes", std::move(nodes)},
          {"silent", silent}, {"saves_to", saves_to_}, {"versions", std::move(versions)}, {"held", std::move(held)}};
}

}  // namespace keepstep::agent
