// Copies on a peer are whole at every moment: random writers, removals, broken connections and lost answers.
#include "brain/memory/copy_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace keepstep::brain {
namespace {

using Key = CopyOrder::Key;

Key key(const std::string& name) { return {"run", name}; }

std::vector<std::string> all(CopyOrder& order) {
  std::vector<std::string> names;
  while (const auto next = order.next()) {
    names.push_back((next->drop ? "drop " : "") + next->key.second);
  }
  return names;
}

TEST(CopyOrderTest, changes_come_in_their_order_and_a_manifest_that_changes_again_is_dropped_first) {
  CopyOrder order;
  order.changed(key("too early"));
  EXPECT_THAT(all(order), testing::IsEmpty());
  order.connected({}, {});
  for (const char* name : {"1/a", "1/b", "1/manifest.json", "1/a", "1/manifest.json", "1/manifest.json"}) {
    order.changed(key(name));
  }
  EXPECT_THAT(all(order), testing::ElementsAre("1/a", "1/b", "drop 1/manifest.json", "1/a", "1/manifest.json"));
  EXPECT_EQ(order.waiting(), 0);
}

TEST(CopyOrderTest, a_new_connection_removes_manifests_first_and_other_things_last) {
  CopyOrder order;
  order.connected(
      {{key("2/b"), "new", 7}, {key("2/a"), "same", 5}, {key("2/manifest.json"), "m", 8}, {key("2/c"), "c", 6}},
      {{key("1/a"), "x"}, {key("1/manifest.json"), "x"}, {key("2/a"), "same"}, {key("2/b"), "old"}});
  EXPECT_THAT(all(order), testing::ElementsAre("1/manifest.json", "2/c", "2/b", "2/manifest.json", "1/a"));
}

// A writer in miniature. A version has data files, whose names are new in each attempt, and a manifest that lists them.
class Server {
 public:
  explicit Server(uint64_t seed) : random_(seed) {}

  void act() {
    const std::string step = std::to_string(random_() % 4);
    switch (random_() % 4) {
      case 0:
      case 1: {  // a save, perhaps in the place of an earlier one, perhaps cut short
        std::string listed;
        const std::string attempt = std::to_string(++attempt_);
        for (uint64_t file = 0; file < 1 + random_() % 3; ++file) {
          const std::string name = step + "/" + std::to_string(file) + "." + attempt;
          put(name, attempt);
          listed += name + " ";
        }
        if (random_() % 4 != 0) {
          const std::string before =
              objects_.contains(step + "/manifest.json") ? objects_[step + "/manifest.json"] : "";
          put(step + "/manifest.json", listed);
          remove_listed(before);
        }
        break;
      }
      case 2: {  // removal, perhaps cut short after the manifest
        const auto manifest = objects_.find(step + "/manifest.json");
        if (manifest != objects_.end()) {
          const std::string listed = manifest->second;
          remove(manifest->first);
          if (random_() % 4 != 0) {
            remove_listed(listed);
          }
        }
        break;
      }
      default: {  // somebody cleans up what no manifest lists
        std::vector<std::string> left;
        for (const auto& [name, content] : objects_) {
          bool listed = false;
          for (const auto& [manifest, files] : objects_) {
            listed |= makes_exist(manifest) && (manifest == name || files.find(name + " ") != std::string::npos);
          }
          if (!listed && random_() % 2 == 0) {
            left.push_back(name);
          }
        }
        for (const std::string& name : left) {
          remove(name);
        }
      }
    }
  }

  // Sends up to `most` changes to the peer; the last one may be lost with the connection, before or after it arrived.
  template <typename Check>
  void copy(uint64_t most, std::map<std::string, std::string>& peer, const Check& check) {
    while (most-- > 0) {
      const auto next = order.next();
      if (!next) {
        return;
      }
      const bool breaks = random_() % 20 == 0;
      if (!breaks || random_() % 2 == 0) {
        const auto here = objects_.find(next->key.second);
        if (here == objects_.end() || next->drop) {
          peer.erase(next->key.second);
        } else {
          peer[next->key.second] = here->second;
        }
        check(peer);
      }
      if (breaks) {
        order.disconnected();
        return;
      }
    }
  }

  void connect(const std::map<std::string, std::string>& peer) {
    std::vector<CopyOrder::Object> ours;
    for (const auto& [name, content] : objects_) {
      ours.push_back({key(name), content, sequence_of_[name]});
    }
    std::map<Key, std::string> theirs;
    for (const auto& [name, content] : peer) {
      theirs[key(name)] = content;
    }
    order.connected(ours, theirs);
  }

  const std::map<std::string, std::string>& objects() const { return objects_; }
  std::mt19937_64& random() { return random_; }
  CopyOrder order;

 private:
  void put(const std::string& name, const std::string& content) {
    objects_[name] = content;
    sequence_of_[name] = ++sequence_;
    order.changed(key(name));
  }
  void remove(std::string name) {  // a copy: it may be the key that goes
    objects_.erase(name);
    order.changed(key(name));
  }
  void remove_listed(const std::string& listed) {
    for (size_t at = 0; at < listed.size();) {
      const size_t end = listed.find(' ', at);
      remove(listed.substr(at, end - at));
      at = end + 1;
    }
  }

  std::mt19937_64 random_;
  std::map<std::string, std::string> objects_;  // name and content, which is its etag too
  std::map<std::string, uint64_t> sequence_of_;
  uint64_t sequence_ = 0;
  uint64_t attempt_ = 0;
};

void expect_whole(const std::map<std::string, std::string>& peer) {
  for (const auto& [name, listed] : peer) {
    if (!makes_exist(name)) {
      continue;
    }
    for (size_t at = 0; at < listed.size();) {
      const size_t end = listed.find(' ', at);
      ASSERT_TRUE(peer.contains(listed.substr(at, end - at))) << name << " lists " << listed;
      at = end + 1;
    }
  }
}

TEST(CopyOrderTest, a_copy_is_whole_at_every_moment_of_random_schedules) {
  int breaks = 0;
  int versions = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Server server(seed);
    std::map<std::string, std::string> peer;
    server.connect(peer);
    bool connected = true;
    for (int i = 0; i < 60; ++i) {
      server.act();
      if (server.random()() % 30 == 0) {
        server.order.disconnected();
        connected = false;
      }
      if (!connected && server.random()() % 2 == 0) {
        server.connect(peer);
        connected = true;
        ++breaks;
      }
      server.copy(server.random()() % 6, peer, expect_whole);
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    }
    server.connect(peer);
    while (server.order.waiting() > 0 || peer != server.objects()) {  // in the end the peer has all of it
      server.copy(1000, peer, expect_whole);
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
      if (peer != server.objects()) {
        server.connect(peer);
      }
    }
    for (const auto& [name, content] : peer) {
      versions += makes_exist(name) ? 1 : 0;
    }
  }
  EXPECT_GT(breaks, 1000);
  EXPECT_GT(versions, 1000);
}

}  // namespace
}  // namespace keepstep::brain
