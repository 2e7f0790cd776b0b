#include "agent/store/store.h"

#include <charconv>

namespace keepstep::agent {
namespace {

int64_t number(const std::string& text) {
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// compare_set: "<length of expected>:<expected><desired>".
bool split_pair(const std::string& text, std::string& expected, std::string& desired) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    return false;
  }
  const int64_t length = number(text.substr(0, colon));
  if (length < 0 || static_cast<size_t>(length) > text.size() - colon - 1) {
    return false;
  }
  expected = text.substr(colon + 1, static_cast<size_t>(length));
  desired = text.substr(colon + 1 + static_cast<size_t>(length));
  return true;
}

}  // namespace

std::optional<uint32_t> generation_of(const std::string& key) {
  uint32_t generation = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), generation);
  return error == std::errc() && end != key.data() + key.size() && *end == '/' ? std::optional(generation)
                                                                               : std::nullopt;
}

std::vector<StoreAnswer> Store::wake(const std::string& key) {
  std::vector<StoreAnswer> answers;
  const auto [first, last] = waiting_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    const StoreRequest& asked = it->second;
    answers.push_back({asked.worker, asked.id, true, asked.op == "get" ? values_[key] : "", asked.node});
  }
  waiting_.erase(first, last);
  return answers;
}

std::vector<StoreAnswer> Store::handle(const StoreRequest& request) {
  const auto found = values_.find(request.key);
  StoreAnswer answer{request.worker, request.id, true, "", request.node, request.round};
  std::vector<StoreAnswer> answers;
  if (request.op == "set") {
    values_[request.key] = request.value;
    answers = wake(request.key);
  } else if (request.op == "add") {
    answer.value = std::to_string((found == values_.end() ? 0 : number(found->second)) + number(request.value));
    values_[request.key] = answer.value;
    answers = wake(request.key);
  } else if (request.op == "get" || request.op == "wait") {
    if (found == values_.end()) {
      waiting_.emplace(request.key, request);
      return {};
    }
    answer.value = request.op == "get" ? found->second : "";
  } else if (request.op == "check") {
    answer.ok = found != values_.end();
  } else if (request.op == "delete") {
    answer.ok = values_.erase(request.key) != 0;
  } else if (request.op == "count") {
    answer.value = std::to_string(values_.size());
  } else if (request.op == "compare_set") {
    std::string expected;
    std::string desired;
    answer.ok = split_pair(request.value, expected, desired);
    if (answer.ok && found == values_.end()) {
      // As c10d does: an absent key is set if nothing was expected; otherwise the expected value is returned.
      if (expected.empty()) {
        values_[request.key] = desired;
        answers = wake(request.key);
        answer.value = desired;
      } else {
        answer.value = expected;
      }
    } else if (answer.ok) {
      if (found->second == expected) {
        found->second = desired;
      }
      answer.value = found->second;
    }
  } else {
    answer.ok = false;
  }
  answers.push_back(std::move(answer));
  return answers;
}

void Store::forget(brain::WorkerId worker) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.worker == worker; });
}

void Store::forget_node(brain::NodeId node) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.node == node; });
}

void Store::drop_before(uint32_t generation) {
  const auto over = [&](const auto& entry) {
    const std::optional<uint32_t> of = generation_of(entry.first);
    return of.has_value() && *of < generation;
  };
  std::erase_if(values_, over);
  std::erase_if(waiting_, over);
}

}  // namespace keepstep::agent
