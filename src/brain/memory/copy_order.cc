#include "brain/memory/copy_order.h"

#include <algorithm>
#include <string_view>

namespace keepstep::brain {

bool makes_exist(const std::string& key) {
  constexpr std::string_view kManifest = "manifest.json";
  return key == kManifest || std::string_view(key).ends_with("/manifest.json");
}

void CopyOrder::connected(const std::vector<Object>& ours, const std::map<Key, std::string>& theirs) {
  disconnected();
  connected_ = true;
  std::map<Key, const Object*> here;
  for (const Object& object : ours) {
    here[object.key] = &object;
  }
  std::vector<Key> gone;
  for (const auto& [key, etag] : theirs) {
    if (!here.contains(key)) {
      gone.push_back(key);
    }
  }
  std::vector<const Object*> lacking;
  for (const auto& [key, object] : here) {
    const auto there = theirs.find(key);
    if (there == theirs.end() || there->second != object->etag) {
      lacking.push_back(object);
    }
  }
  std::sort(lacking.begin(), lacking.end(), [](const Object* a, const Object* b) { return a->sequence < b->sequence; });
  for (const Key& key : gone) {
    if (makes_exist(key.second)) {
      changed(key);
    }
  }
  for (const Object* object : lacking) {
    changed(object->key);
  }
  for (const Key& key : gone) {
    if (!makes_exist(key.second)) {
      changed(key);
    }
  }
}

void CopyOrder::disconnected() {
  connected_ = false;
  turns_.clear();
  of_.clear();
}

void CopyOrder::changed(const Key& key) {
  if (!connected_) {
    return;
  }
  Turns& turns = of_[key];
  if (turns.last != 0) {
    if (turns.first == 0) {
      turns.first = turns.last;
      turns_[turns.first].drop = makes_exist(key.second);
    } else {
      turns_.erase(turns.last);  // between the first and the new one nothing of it reaches the peer
    }
  }
  turns.last = ++turn_;
  turns_[turns.last] = {key, false};
}

std::optional<CopyOrder::Turn> CopyOrder::next() {
  if (turns_.empty()) {
    return std::nullopt;
  }
  const auto [number, turn] = *turns_.begin();
  turns_.erase(turns_.begin());
  Turns& turns = of_[turn.key];
  if (number == turns.first) {
    turns.first = 0;
  } else {
    of_.erase(turn.key);
  }
  return turn;
}

}  // namespace keepstep::brain
