#include "agent/store/rootless_store.h"

#include <numeric>

#include "base/overloaded.h"

namespace keepstep::agent {

using brain::NodeId;
using brain::WorkerId;

RootlessStore::RootlessStore(std::vector<std::string> names, NodeId self, uint64_t origin)
    : names_(std::move(names)),
      self_(self),
      origin_(origin),
      store_(new_store()),
      others_(names_.size()),
      last_client_(self) {}

SharedStore RootlessStore::new_store() const {
  SharedStore store(self_);
  std::vector<NodeId> homes(names_.size());
  std::iota(homes.begin(), homes.end(), NodeId{0});
  store.set_homes(std::move(homes));
  return store;
}

WorkerId RootlessStore::new_client() { return last_client_ += static_cast<WorkerId>(names_.size()); }

RootlessStore::Replies RootlessStore::ask(StoreRequest request) {
  used_ = true;
  return carry(store_.ask(std::move(request)));
}

void RootlessStore::cancel(WorkerId client, uint64_t id) {
  for (Other& other : others_) {
    std::erase_if(other.queued, [&](const messages::KeyQuestion& question) {
      return question.worker == client && question.id == id;
    });
    other.asked.erase({client, id});
  }
}

RootlessStore::Replies RootlessStore::forget(WorkerId client) {
  for (Other& other : others_) {
    std::erase_if(other.queued, [&](const messages::KeyQuestion& question) { return question.worker == client; });
    std::erase_if(other.asked, [&](const auto& asked) { return asked.first == client; });
  }
  return carry(store_.forget(client));
}

RootlessStore::Replies RootlessStore::set_busy(bool busy) {
  Replies replies;
  if (busy == busy_) {
    return replies;
  }
  busy_ = busy;
  for (NodeId node = 0; node < others_.size(); ++node) {
    if (others_[node].connected) {
      replies.messages.emplace_back(node, messages::StoreBusy{busy_});
    }
  }
  start_over_if_idle(replies);
  return replies;
}

RootlessStore::Replies RootlessStore::connected(NodeId node) {
  Replies replies;
  others_[node].connected = true;
  replies.messages.emplace_back(node, messages::StoreHello{origin_, busy_});
  return replies;
}

RootlessStore::Replies RootlessStore::on_message(NodeId from, const messages::ToRootlessStore& message) {
  Replies replies;
  Other& other = others_[from];
  if (!other.connected || (!other.greeted && !std::holds_alternative<messages::StoreHello>(message))) {
    return replies;
  }
  std::visit(Overloaded{
                 [&](const messages::StoreHello& said) { hello(from, said, replies); },
                 [&](const messages::StoreBusy& said) { other.busy = said.busy; },
                 [&](const messages::KeyQuestion& question) {
                   used_ = true;
                   add(store_.on_message(from, question), replies);
                 },
                 [&](const messages::KeyAnswer& answer) {
                   if (other.asked.erase({answer.worker, answer.id}) != 0) {
                     add(store_.on_message(from, answer), replies);
                   }
                 },
                 [&](const messages::ForgetQuestions& forget) { add(store_.on_message(from, forget), replies); },
             },
             message);
  start_over_if_idle(replies);
  return replies;
}

void RootlessStore::hello(NodeId from, const messages::StoreHello& hello, Replies& replies) {
  Other& other = others_[from];
  if (other.origin != hello.origin) {
    other.busy = false;  // the clients of its predecessor are gone
    start_over_if_idle(replies);
  }
  other.greeted = true;
  other.busy = hello.busy;
  other.lost_at_ns.reset();
  other.origin = hello.origin;
  if (!other.relied_on || other.relied_on == hello.origin) {
    other.gone.clear();
    for (const messages::KeyQuestion& queued : std::exchange(other.queued, {})) {
      question(from, queued, replies);
    }
  } else {
    give_up(other, absl::StrFormat("the agent of %s was started again, and its keys are gone", names_[from]), replies);
  }
}

RootlessStore::Replies RootlessStore::disconnected(NodeId node, int64_t now_ns) {
  Replies replies;
  Other& other = others_[node];
  other.connected = false;
  other.greeted = false;
  other.lost_at_ns = now_ns;
  for (const auto& [client, id] : std::exchange(other.asked, {})) {
    replies.failures.push_back({client, id, absl::StrFormat("the connection to the agent of %s broke", names_[node])});
  }
  store_.forget_node(node);
  return replies;
}

RootlessStore::Replies RootlessStore::tick(int64_t now_ns) {
  Replies replies;
  for (NodeId node = 0; node < others_.size(); ++node) {
    Other& other = others_[node];
    if (!other.lost_at_ns || now_ns - *other.lost_at_ns <= kReturnNs) {
      continue;
    }
    other.lost_at_ns.reset();
    other.busy = false;
    if (other.relied_on) {
      give_up(other, absl::StrFormat("the agent of %s is gone, and its keys with it", names_[node]), replies);
    }
    start_over_if_idle(replies);
  }
  return replies;
}

bool RootlessStore::idle() const {
  return !busy_ && std::none_of(others_.begin(), others_.end(), [](const Other& other) { return other.busy; });
}

void RootlessStore::start_over_if_idle(Replies& replies) {
  if (!idle() || !used_) {
    return;
  }
  store_ = new_store();
  used_ = false;
  ++origin_;
  for (Other& other : others_) {
    other.relied_on.reset();
    other.gone.clear();
    other.queued.clear();
    other.asked.clear();
  }
  for (NodeId node = 0; node < others_.size(); ++node) {
    if (others_[node].connected) {
      replies.messages.emplace_back(node, messages::StoreHello{origin_, busy_});
    }
  }
}

RootlessStore::Replies RootlessStore::carry(const SharedStore::Replies& replies) {
  Replies carried;
  add(replies, carried);
  return carried;
}

void RootlessStore::add(const SharedStore::Replies& more, Replies& replies) {
  replies.answers.insert(replies.answers.end(), more.answers.begin(), more.answers.end());
  for (const auto& [to, message] : more.messages) {
    std::visit(Overloaded{
                   [&, to = to](const messages::KeyQuestion& asked) { question(to, asked, replies); },
                   [&, to = to](const auto& other) {
                     if (others_[to].greeted) {
                       replies.messages.emplace_back(to, other);
                     }
                   },
               },
               message);
  }
}

void RootlessStore::question(NodeId to, const messages::KeyQuestion& question, Replies& replies) {
  Other& other = others_[to];
  if (!other.gone.empty()) {
    replies.failures.push_back({question.worker, question.id, other.gone});
  } else if (other.greeted) {
    other.relied_on = other.origin;
    other.asked.emplace(question.worker, question.id);
    replies.messages.emplace_back(to, question);
  } else {
    other.queued.push_back(question);
  }
}

void RootlessStore::give_up(Other& other, const std::string& because, Replies& replies) {
  other.gone = because;
  for (const messages::KeyQuestion& queued : std::exchange(other.queued, {})) {
    replies.failures.push_back({queued.worker, queued.id, because});
  }
}

}  // namespace keepstep::agent
