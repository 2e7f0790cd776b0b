#include "agent/store/shared_store.h"

#include <charconv>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"

namespace keepstep::agent {
namespace {

messages::KeyQuestion question(const StoreRequest& request) {
  return {request.worker, request.id, request.op, {request.key}, {request.value}, request.round};
}

}  // namespace

SharedStore::Replies SharedStore::set_homes(std::vector<brain::NodeId> homes) {
  KEEPSTEP_CHECK(!homes.empty(), "a generation without nodes");
  homes_ = std::move(homes);
  ++round_;
  Replies replies;
  for (const auto& [asked, before] : std::exchange(counts_, {})) {
    ask_all({.worker = asked.first, .id = asked.second, .op = "count", .node = self_}, replies);
  }
  return replies;
}

brain::NodeId SharedStore::home_of(const std::string& key) const {
  if (homes_.size() == 1) {
    return homes_.front();
  }
  return generation_of(key).has_value() ? homes_[checksum(key.data(), key.size()) % homes_.size()] : kJobsHome;
}

SharedStore::Replies SharedStore::ask(StoreRequest request) {
  Replies replies;
  request.node = self_;
  if (request.op == "count" && homes_.size() > 1) {
    ask_all(request, replies);
    return replies;
  }
  if (const brain::NodeId home = home_of(request.key); home != self_) {
    replies.messages.emplace_back(home, question(request));
  } else {
    answer(store_.handle(request), replies);
  }
  return replies;
}

void SharedStore::ask_all(const StoreRequest& request, Replies& replies) {
  StoreRequest asked = request;
  asked.round = round_;
  counts_[{asked.worker, asked.id}] = {homes_.size(), 0};
  for (const brain::NodeId home : homes_) {
    if (home == self_) {
      answer(store_.handle(asked), replies);
    } else {
      replies.messages.emplace_back(home, question(asked));
    }
  }
}

SharedStore::Replies SharedStore::on_message(brain::NodeId from, const messages::KeyQuestion& question) {
  Replies replies;
  answer(store_.handle({question.worker, question.id, question.op, question.key.bytes, question.value.bytes, from,
                        question.round}),
         replies);
  return replies;
}

SharedStore::Replies SharedStore::on_message(brain::NodeId, const messages::KeyAnswer& answer) {
  Replies replies;
  deliver({answer.worker, answer.id, answer.ok, answer.value.bytes, self_, answer.round}, replies);
  return replies;
}

SharedStore::Replies SharedStore::on_message(brain::NodeId, const messages::ForgetQuestions& forget) {
  store_.forget(forget.worker);
  return {};
}

SharedStore::Replies SharedStore::forget(brain::WorkerId worker) {
  Replies replies;
  store_.forget(worker);
  std::erase_if(counts_, [&](const auto& entry) { return entry.first.first == worker; });
  for (const brain::NodeId home : homes_) {
    if (home != self_) {
      replies.messages.emplace_back(home, messages::ForgetQuestions{worker});
    }
  }
  return replies;
}

void SharedStore::answer(const std::vector<StoreAnswer>& answers, Replies& replies) {
  for (const StoreAnswer& each : answers) {
    if (each.node == self_) {
      deliver(each, replies);
    } else {
      replies.messages.emplace_back(each.node,
                                    messages::KeyAnswer{each.worker, each.id, each.ok, {each.value}, each.round});
    }
  }
}

void SharedStore::deliver(const StoreAnswer& answer, Replies& replies) {
  if (answer.round == 0) {
    replies.answers.push_back(answer);
    return;
  }
  const auto count = counts_.find({answer.worker, answer.id});
  if (count == counts_.end() || answer.round != round_) {
    return;  // part of a count that was requested again or is not pending
  }
  int64_t keys = 0;
  std::from_chars(answer.value.data(), answer.value.data() + answer.value.size(), keys);
  count->second.sum += keys;
  if (--count->second.awaited == 0) {
    replies.answers.push_back({answer.worker, answer.id, true, std::to_string(count->second.sum), self_});
    counts_.erase(count);
  }
}

}  // namespace keepstep::agent
