// The key-value Store that c10d needs, kept by the agent. Each generation has a name space (the worker puts it into the
// key). Pure bookkeeping: answers are returned as values for the shell to send.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "brain/types.h"

namespace keepstep::agent {

struct StoreRequest {
  brain::WorkerId worker = brain::kNoWorker;
  uint64_t id = 0;
  std::string op;  // set, get, add, check, compare_set, delete, wait, count
  std::string key;
  std::string value;       // set: bytes; add: decimal; compare_set: see store.cc
  brain::NodeId node = 0;  // the worker's
  uint64_t round = 0;      // of a count over several nodes (shared_store.h); copied to the answer
};

struct StoreAnswer {
  brain::WorkerId worker = brain::kNoWorker;
  uint64_t id = 0;
  bool ok = false;
  std::string value;
  brain::NodeId node = 0;  // the worker's
  uint64_t round = 0;
};

// The generation that a key belongs to ("7/..."); std::nullopt for a key of the whole job ("job/...").
std::optional<uint32_t> generation_of(const std::string& key);

class Store {
 public:
  // Carries out the request and returns all answers that are due now (a `set` may wake several waiting `get`s).
  std::vector<StoreAnswer> handle(const StoreRequest& request);
  // Drops the requests of a worker that is gone.
  void forget(brain::WorkerId worker);
  // Drops the requests of a node that is gone.
  void forget_node(brain::NodeId node);
  // Drops the keys (and requests) of generations before this one: they are over.
  void drop_before(uint32_t generation);
  size_t size() const { return values_.size(); }

 private:
  std::vector<StoreAnswer> wake(const std::string& key);
  std::map<std::string, std::string> values_;
  std::multimap<std::string, StoreRequest> waiting_;
};

}  // namespace keepstep::agent
