#include "memory_server/peer_links.h"

#include <pthread.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "net/connection.h"

namespace keepstep::memory_server {
namespace {

using checkpoint::ObjectInfo;
using checkpoint::memory::Json;

constexpr std::chrono::seconds kConnectLimit{3};
constexpr std::chrono::seconds kQuestionLimit{20};
constexpr std::chrono::seconds kCopyLimit{60};
constexpr std::chrono::seconds kAgain{2};     // after a peer could not be reached
constexpr std::chrono::seconds kRemember{5};  // where an object was found
constexpr size_t kMaxRemembered = 100;

}  // namespace

PeerLinks::PeerLinks(Library& library, std::string origin, std::shared_ptr<const net::TlsContext> context,
                     std::vector<SocketAddress> peers)
    : library_(library), origin_(std::move(origin)), context_(std::move(context)) {
  for (SocketAddress& address : peers) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->address = std::move(address);
  }
}

PeerLinks::~PeerLinks() {
  for (const auto& peer : peers_) {
    peer->thread.request_stop();
    const std::lock_guard lock(peer->mutex);
    peer->changes.notify_all();
  }
  for (const auto& peer : peers_) {
    if (peer->thread.joinable()) {
      peer->thread.join();
    }
  }
}

void PeerLinks::start() {
  for (const auto& peer : peers_) {
    peer->thread = std::jthread([this, raw = peer.get()](const std::stop_token& stop) {
      pthread_setname_np(pthread_self(), "copies");
      run(*raw, stop);
    });
  }
}

void PeerLinks::changed(const Shelves::Key& key) {
  for (const auto& peer : peers_) {
    const std::lock_guard lock(peer->mutex);
    peer->order.changed(key);
    peer->changes.notify_all();
  }
}

StatusOr<std::unique_ptr<net::Connection>> PeerLinks::connect(Peer& peer) {
  KEEPSTEP_ASSIGN_OR_RETURN(std::unique_ptr<net::Connection> connection,
                            net::Connection::connect(peer.address, context_, {.max_message_bytes = kMaxPeerMessage},
                                                     net::Deadline::after(kConnectLimit)));
  KEEPSTEP_ASSIGN_OR_RETURN(
      const PeerMessage answer,
      ask(*connection, {{"do", "hello"}, {"version", kPeerVersion}, {"origin", origin_}}, {}, kConnectLimit));
  if (answer.head.value("origin", "") == origin_) {
    const std::lock_guard lock(peer.mutex);
    peer.is_self = true;
    return absl::NotFoundError("it is this server itself");
  }
  return connection;
}

// ---- questions ----

StatusOr<PeerMessage> PeerLinks::question(Peer& peer, const Json& head) {
  const std::lock_guard lock(peer.asking);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const bool is_new = peer.questions == nullptr;
    if (is_new) {
      if (Clock::now() < peer.ask_again) {
        return absl::NotFoundError("the peer cannot be reached");
      }
      StatusOr<std::unique_ptr<net::Connection>> made = connect(peer);
      if (!made.ok()) {
        const std::lock_guard facts(peer.mutex);
        peer.ask_again = peer.is_self ? Clock::time_point::max() : Clock::now() + kAgain;
        return absl::NotFoundError("the peer cannot be reached");
      }
      peer.questions = *std::move(made);
    }
    StatusOr<PeerMessage> answer = ask(*peer.questions, head, {}, kQuestionLimit);
    const absl::StatusCode code = answer.status().code();
    if (code != absl::StatusCode::kUnavailable && code != absl::StatusCode::kDataLoss &&
        code != absl::StatusCode::kDeadlineExceeded && code != absl::StatusCode::kOutOfRange &&
        code != absl::StatusCode::kCancelled) {
      return answer;
    }
    peer.questions.reset();
    if (is_new) {
      break;  // otherwise it may have been started again
    }
  }
  peer.ask_again = Clock::now() + kAgain;
  return absl::NotFoundError("the peer cannot be reached");
}

ObjectPointer PeerLinks::find(const Shelves::Key& key) {
  const bool fixed = step_of_key(key.second).has_value();
  if (fixed) {
    const std::lock_guard lock(found_mutex_);
    if (const auto known = found_.find(key); known != found_.end() && Clock::now() < known->second.until) {
      return known->second.object;
    }
  }
  ObjectPointer newest;
  for (const auto& peer : peers_) {
    const StatusOr<PeerMessage> answer =
        question(*peer, {{"do", "find"}, {"destination", key.first}, {"key", key.second}});
    if (!answer.ok()) {
      continue;
    }
    const auto modified = answer->head.find("modified");
    StatusOr<std::vector<Piece>> pieces = decode_pieces(answer->bytes);
    if (!pieces.ok() || modified == answer->head.end() || !modified->is_number_integer()) {
      continue;
    }
    StoredObject object = object_of(*std::move(pieces));
    object.modified_ns = modified->get<int64_t>();
    if (newest == nullptr || object.modified_ns > newest->modified_ns) {
      newest = std::make_shared<const StoredObject>(std::move(object));
    }
  }
  if (fixed && newest != nullptr) {
    const std::lock_guard lock(found_mutex_);
    if (found_.size() >= kMaxRemembered) {
      found_.clear();
    }
    found_[key] = {newest, Clock::now() + kRemember};
  }
  return newest;
}

std::vector<ObjectInfo> PeerLinks::list(const std::string& destination, std::string_view prefix) {
  std::map<std::string, ObjectInfo> all;
  for (const auto& peer : peers_) {
    std::string after;
    for (bool more = true; more;) {
      const StatusOr<PeerMessage> answer = question(
          *peer, {{"do", "list"}, {"destination", destination}, {"prefix", std::string(prefix)}, {"after", after}});
      const Json objects = answer.ok() ? answer->head.value("objects", Json::array()) : Json::array();
      for (const Json& each : objects) {
        if (!each.is_array() || each.size() != 4 || !each[0].is_string() || !each[1].is_number_unsigned() ||
            !each[2].is_string() || !each[3].is_number_integer()) {
          break;
        }
        ObjectInfo info{each[0], each[1], each[2], each[3]};
        after = info.key;
        const auto [place, is_new] = all.try_emplace(info.key, info);
        if (!is_new && info.modified_ns > place->second.modified_ns) {
          place->second = std::move(info);
        }
      }
      more = objects.size() == kMaxListed && all.size() < checkpoint::kMaxListed;
    }
  }
  std::vector<ObjectInfo> listed;
  for (auto& [key, info] : all) {
    listed.push_back(std::move(info));
  }
  return listed;
}

StatusOr<ChunkPointer> PeerLinks::fetch(const Digest& digest, uint64_t bytes) {
  for (const auto& peer : peers_) {
    const StatusOr<PeerMessage> answer = question(*peer, {{"do", "fetch"}, {"digest", to_hex(digest)}});
    if (!answer.ok() || answer->bytes.size() != bytes || bytes == 0) {
      continue;
    }
    KEEPSTEP_ASSIGN_OR_RETURN(ChunkPointer chunk, library_.add(std::as_bytes(std::span(answer->bytes))));
    if (chunk->digest() == digest) {
      return chunk;
    }
  }
  return absl::NotFoundError("no memory server that can be reached has a part of it (any more)");
}

void PeerLinks::remove(const Shelves::Key& key) {
  {
    const std::lock_guard lock(found_mutex_);
    found_.erase(key);
  }
  for (const auto& peer : peers_) {
    (void)question(*peer, {{"do", "remove"}, {"destination", key.first}, {"key", key.second}});
  }
}

// ---- copies ----

void PeerLinks::run(Peer& peer, const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    StatusOr<std::unique_ptr<net::Connection>> connection = connect(peer);
    Status ended = connection.status();
    if (connection.ok()) {
      // Whoever waits for an answer when this server ends must not wait for the peer.
      const std::stop_callback abort(stop, [&] { (*connection)->abort(); });
      ended = copy_all(peer, **connection, stop);
    }
    std::unique_lock lock(peer.mutex);
    peer.order.disconnected();
    peer.connected = false;
    if (peer.is_self) {
      return;
    }
    if (!stop.stop_requested()) {
      peer.failure = std::string(ended.message());
      spdlog::info("no copies to {}: {}", peer.address.text(), peer.failure);
      const auto again = std::chrono::steady_clock::now() + kAgain;
      while (!stop.stop_requested() && peer.changes.wait_until(lock, again) != std::cv_status::timeout) {
      }
    }
  }
}

Status PeerLinks::copy_all(Peer& peer, net::Connection& connection, const std::stop_token& stop) {
  std::map<Shelves::Key, std::string> theirs;
  for (bool more = true; more;) {
    const Shelves::Key last = theirs.empty() ? Shelves::Key() : theirs.rbegin()->first;
    KEEPSTEP_ASSIGN_OR_RETURN(
        const PeerMessage answer,
        ask(connection, {{"do", "copies"}, {"destination", last.first}, {"key", last.second}}, {}, kQuestionLimit));
    const Json listed = answer.head.value("copies", Json::array());
    for (const Json& each : listed) {
      if (!each.is_array() || each.size() != 3 || !each[0].is_string() || !each[1].is_string() ||
          !each[2].is_string()) {
        return absl::InvalidArgumentError("a list of copies that is none");
      }
      theirs[{each[0], each[1]}] = each[2];
    }
    more = listed.size() == kMaxListed;
  }
  {
    const std::lock_guard lock(peer.mutex);
    peer.order.connected(library_.shelves().own(), theirs);  // changes from here on are told by changed()
    peer.connected = true;
    peer.failure.clear();
  }
  while (!stop.stop_requested()) {
    std::optional<brain::CopyOrder::Turn> turn;
    {
      std::unique_lock lock(peer.mutex);
      turn = peer.order.next();
      if (!turn) {
        peer.changes.wait_for(lock, stop, kQuestionLimit, [&] { return peer.order.waiting() > 0; });
        turn = peer.order.next();
      }
    }
    // Without news: whether the peer is still there.
    KEEPSTEP_RETURN_IF_ERROR(turn ? copy_one(peer, connection, *turn)
                                  : ask(connection, {{"do", "have"}}, {}, kQuestionLimit).status());
  }
  return absl::CancelledError("this server ends");
}

Status PeerLinks::copy_one(Peer& peer, net::Connection& connection, const brain::CopyOrder::Turn& turn) {
  const ObjectPointer object = turn.drop ? nullptr : library_.shelves().find_own(turn.key);
  const Json place = {{"destination", turn.key.first}, {"key", turn.key.second}};
  if (object == nullptr) {
    Json drop = place;
    drop["do"] = "drop";
    return ask(connection, drop, {}, kCopyLimit).status();
  }
  std::set<Digest> sent;
  for (size_t begin = 0; begin < object->pieces.size(); begin += kMaxOffered) {
    const size_t count = std::min(kMaxOffered, object->pieces.size() - begin);
    const auto part = std::span(object->pieces).subspan(begin, count);
    std::string digests;
    for (const Piece& piece : part) {
      digests.append(reinterpret_cast<const char*>(piece.digest.data()), piece.digest.size());
    }
    KEEPSTEP_ASSIGN_OR_RETURN(const PeerMessage has, ask(connection, {{"do", "have"}}, digests, kCopyLimit));
    if (has.bytes.size() != count) {
      return absl::InvalidArgumentError("an answer for other pieces than those asked for");
    }
    for (size_t i = 0; i < count; ++i) {
      if (has.bytes[i] == '1' || !sent.insert(part[i].digest).second) {
        continue;
      }
      std::string bytes(part[i].bytes, '\0');
      KEEPSTEP_RETURN_IF_ERROR(part[i].chunk->read(std::as_writable_bytes(std::span(bytes))));
      KEEPSTEP_RETURN_IF_ERROR(ask(connection, {{"do", "chunk"}}, bytes, kCopyLimit).status());
      const std::lock_guard lock(peer.mutex);
      peer.sent_bytes += bytes.size();
    }
  }
  Json copy = place;
  copy["do"] = "copy";
  copy["etag"] = object->etag;
  copy["modified"] = object->modified_ns;
  KEEPSTEP_RETURN_IF_ERROR(ask(connection, copy, encode_pieces(object->pieces), kCopyLimit).status());
  const std::lock_guard lock(peer.mutex);
  ++peer.copied;
  return absl::OkStatus();
}

Json PeerLinks::describe() {
  Json peers = Json::array();
  for (const auto& peer : peers_) {
    const std::lock_guard lock(peer->mutex);
    peers.push_back({{"address", peer->address.text()},
                     {"self", peer->is_self},
                     {"connected", peer->connected},
                     {"waiting", peer->order.waiting()},
                     {"copied", peer->copied},
                     {"sent_bytes", peer->sent_bytes},
                     {"failure", peer->failure}});
  }
  return peers;
}

}  // namespace keepstep::memory_server
