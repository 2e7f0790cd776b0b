#include "agent/store/shared_store.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/check.h"
#include "base/checksum.h"

namespace keepstep::agent {
namespace {

// Values travel as hexadecimal, as between worker and agent.
std::string question(const StoreRequest& request) {
  return nlohmann::json{{"kind", "ask"},
                        {"worker", request.worker},
                        {"id", request.id},
                        {"op", request.op},
                        {"key", absl::BytesToHexString(request.key)},
                        {"value", absl::BytesToHexString(request.value)},
                        {"round", request.round}}
      .dump();
}

std::string reply(const StoreAnswer& answer) {
  return nlohmann::json{{"kind", "answer"},
                        {"worker", answer.worker},
                        {"id", answer.id},
                        {"ok", answer.ok},
                        {"value", absl::BytesToHexString(answer.value)},
                        {"round", answer.round}}
      .dump();
}

std::string bytes_of(const nlohmann::json& body, const char* name) {
  const auto& text = body.at(name).get_ref<const std::string&>();
  if (text.size() % 2 != 0 || !std::ranges::all_of(text, absl::ascii_isxdigit)) {
    throw nlohmann::json::other_error::create(599, "a value that is not hexadecimal", nullptr);
  }
  return absl::HexStringToBytes(text);
}

}  // namespace

SharedStore::Outcome SharedStore::set_homes(std::vector<brain::NodeId> homes) {
  KEEPSTEP_CHECK(!homes.empty(), "a generation without nodes");
  homes_ = std::move(homes);
  ++round_;
  Outcome outcome;
  for (const auto& [asked, before] : std::exchange(counts_, {})) {
    ask_all({.worker = asked.first, .id = asked.second, .op = "count", .node = self_}, outcome);
  }
  return outcome;
}

brain::NodeId SharedStore::home_of(const std::string& key) const {
  if (homes_.size() == 1) {
    return homes_.front();
  }
  return generation_of(key).has_value() ? homes_[checksum(key.data(), key.size()) % homes_.size()] : kJobsHome;
}

SharedStore::Outcome SharedStore::ask(StoreRequest request) {
  Outcome outcome;
  request.node = self_;
  if (request.op == "count" && homes_.size() > 1) {
    ask_all(request, outcome);
    return outcome;
  }
  if (const brain::NodeId home = home_of(request.key); home != self_) {
    outcome.messages.emplace_back(home, question(request));
  } else {
    answer(store_.handle(request), outcome);
  }
  return outcome;
}

void SharedStore::ask_all(const StoreRequest& request, Outcome& outcome) {
  StoreRequest asked = request;
  asked.round = round_;
  counts_[{asked.worker, asked.id}] = {homes_.size(), 0};
  for (const brain::NodeId home : homes_) {
    if (home == self_) {
      answer(store_.handle(asked), outcome);
    } else {
      outcome.messages.emplace_back(home, question(asked));
    }
  }
}

StatusOr<SharedStore::Outcome> SharedStore::on_message(brain::NodeId from, const std::string& message) {
  Outcome outcome;
  try {
    const nlohmann::json body = nlohmann::json::parse(message);
    const std::string kind = body.at("kind");
    if (kind == "ask") {
      answer(store_.handle({body.at("worker"), body.at("id"), body.at("op"), bytes_of(body, "key"),
                            bytes_of(body, "value"), from, body.at("round")}),
             outcome);
    } else if (kind == "answer") {
      deliver({body.at("worker"), body.at("id"), body.at("ok"), bytes_of(body, "value"), self_, body.at("round")},
              outcome);
    } else if (kind == "forget") {
      store_.forget(body.at("worker"));
    } else {
      return absl::InvalidArgumentError(absl::StrFormat("a message about the store of the unknown kind '%s'", kind));
    }
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrFormat("a message about the store: %s", error.what()));
  }
  return outcome;
}

SharedStore::Outcome SharedStore::forget(brain::WorkerId worker) {
  Outcome outcome;
  store_.forget(worker);
  std::erase_if(counts_, [&](const auto& entry) { return entry.first.first == worker; });
  for (const brain::NodeId home : homes_) {
    if (home != self_) {
      outcome.messages.emplace_back(home, nlohmann::json{{"kind", "forget"}, {"worker", worker}}.dump());
    }
  }
  return outcome;
}

void SharedStore::answer(std::vector<StoreAnswer> answers, Outcome& outcome) {
  for (const StoreAnswer& each : answers) {
    if (each.node == self_) {
      deliver(each, outcome);
    } else {
      outcome.messages.emplace_back(each.node, reply(each));
    }
  }
}

void SharedStore::deliver(const StoreAnswer& answer, Outcome& outcome) {
  if (answer.round == 0) {
    outcome.answers.push_back(answer);
    return;
  }
  const auto count = counts_.find({answer.worker, answer.id});
  if (count == counts_.end() || answer.round != round_) {
    return;  // a part of a count that was asked anew, or that nobody waits for any more
  }
  int64_t keys = 0;
  std::from_chars(answer.value.data(), answer.value.data() + answer.value.size(), keys);
  count->second.sum += keys;
  if (--count->second.awaited == 0) {
    outcome.answers.push_back({answer.worker, answer.id, true, std::to_string(count->second.sum), self_});
    counts_.erase(count);
  }
}

}  // namespace keepstep::agent
