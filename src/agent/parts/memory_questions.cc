#include "agent/parts/memory_questions.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_join.h"
#include "agent/workers/message_parts.h"
#include "base/clock.h"
#include "base/log.h"

namespace keepstep::agent {
namespace {

constexpr int64_t kHoldNs = 5'000'000'000;    // for an answer without reading a vault
constexpr int64_t kReadNs = 600'000'000'000;  // for one that reads: a vault may have hundreds of gigabytes
constexpr size_t kMaxQuestions = 32;          // open at once

messages::Json as_text(const nlohmann::json& body) {
  return {body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

}  // namespace

void MemoryQuestions::ask(const nlohmann::json& request, const ControlDoor::Answer& answer) {
  if (core_.config.node != 0) {
    answer(error_answer(absl::StrFormat(
        "this is the launcher of node %d; node 0's knows what the agents of all nodes hold. Give the command on its "
        "machine, or give HOST:PORT, the job's --rdzv-endpoint",
        core_.config.node)));
    return;
  }
  if (core_.end.has_value() || questions_.size() >= kMaxQuestions) {
    answer(error_answer(
        core_.end.has_value()
            ? "the job is ending"
            : absl::StrFormat("%d such questions wait for their answers already; try again", kMaxQuestions)));
    return;
  }
  const std::string what = request.at("do");
  const std::vector<brain::NodeId> attending = core_.attending_nodes();
  std::set<brain::NodeId> nodes(attending.begin(), attending.end());
  if (what != "hold") {
    const brain::NodeId node = request.at("node");
    if (!nodes.contains(node)) {
      answer(error_answer(
          absl::StrFormat("node %d is not in the job; its nodes are %s", node, absl::StrJoin(nodes, ", "))));
      return;
    }
    nodes = {node};
  }
  const uint64_t id = ++asked_;
  questions_[id] = {what == "hold", answer, nodes, {}, monotonic_ns() + (what == "check" ? kReadNs : kHoldNs)};
  for (const brain::NodeId node : nodes) {
    if (node != core_.config.node) {
      core_.route(node, messages::MemoryQuestion{id, as_text(request)});
    }
  }
  if (nodes.contains(core_.config.node)) {
    try {
      tier_.ask(request, [this, id](const nlohmann::json& said) { on_answer(core_.config.node, {id, as_text(said)}); });
    } catch (const nlohmann::json::exception& error) {
      on_answer(core_.config.node, {id, as_text(lacking_answer(error))});
    }
  }
}

void MemoryQuestions::on_question(const messages::MemoryQuestion& question) {
  const auto reply = [this, id = question.id](const nlohmann::json& said) {
    std::string text = messages::write(messages::MemoryAnswer{id, as_text(said)});
    if (text.size() > kMaxPartedBytes) {
      const std::string because =
          absl::StrFormat("an answer of %d bytes, %d are the most", text.size(), kMaxPartedBytes);
      text = messages::write(messages::MemoryAnswer{id, as_text(error_answer(because))});
    }
    core_.route_text(0, std::move(text));
  };
  try {
    tier_.ask(nlohmann::json::parse(question.question.text), reply);
  } catch (const nlohmann::json::exception& error) {
    reply(lacking_answer(error));
  }
}

void MemoryQuestions::on_answer(brain::NodeId from, const messages::MemoryAnswer& answer) {
  const auto it = questions_.find(answer.id);
  if (it == questions_.end() || it->second.awaited.erase(from) == 0) {
    return;  // too late
  }
  it->second.answers[from] = answer.answer;
  if (it->second.awaited.empty()) {
    conclude(answer.id);
  }
}

// Stops waiting for nodes that are gone or do not answer.
void MemoryQuestions::give_up_the_silent() {
  if (questions_.empty()) {
    return;
  }
  const std::vector<brain::NodeId> attending = core_.attending_nodes();
  std::vector<uint64_t> over;
  for (auto& [id, question] : questions_) {
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
    conclude(id);
  }
}

void MemoryQuestions::conclude(uint64_t id) {
  const auto it = questions_.find(id);
  const Question question = std::move(it->second);
  questions_.erase(it);
  if (question.of_all) {
    question.answer(answer_of(question));
  } else if (question.answers.empty()) {
    question.answer(error_answer(absl::StrFormat("node %d does not answer, or was lost", *question.silent.begin())));
  } else {
    question.answer(nlohmann::json::parse(question.answers.begin()->second.text));
  }
}

nlohmann::json MemoryQuestions::answer_of(const Question& question) const {
  std::vector<brain::Holding> holdings;
  nlohmann::json nodes = nlohmann::json::array(), held = nlohmann::json::array();
  std::set<brain::NodeId> silent = question.silent;
  for (const auto& [node, text] : question.answers) {
    try {
      const nlohmann::json said = nlohmann::json::parse(text.text);
      StatusOr<std::vector<brain::Holding>> found = holdings_from(node, said);
      if (!found.ok()) {
        throw nlohmann::json::other_error::create(0, std::string(found.status().message()), nullptr);
      }
      nodes.push_back({{"node", node}, {"name", core_.name_of(node)}, {"memory", said.at("memory").get<uint64_t>()}});
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
  if (core_.brain.prepared() != nullptr) {
    shardings = {core_.brain.prepared()->sharding, core_.brain.prepared()->from};
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
  return {{"ok", true},
          {"job", core_.job},
          {"step", core_.metrics.last_step()},
          {"nodes", std::move(nodes)},
          {"silent", silent},
          {"saves_to", saves_.destinations()},
          {"versions", std::move(versions)},
          {"held", std::move(held)}};
}

}  // namespace keepstep::agent
