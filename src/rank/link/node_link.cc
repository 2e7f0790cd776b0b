#include "rank/link/node_link.h"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "absl/strings/str_join.h"
#include "base/checksum.h"
#include "base/overloaded.h"
#include "base/runtime_folder.h"
#include "base/socket/local_socket.h"
#include "rank/link/page.h"

namespace keepstep::rank {

std::string node_name(const std::string& job) {
  return absl::StrFormat("node-%016x-%s", checksum(job.data(), job.size()), this_machine());
}

std::string job_on_node(const std::string& job, const std::string& nodes, uint32_t self) {
  return absl::StrFormat("%s/node %d of %s", job, self, nodes);
}

StatusOr<std::unique_ptr<NodeLink>> NodeLink::connect(const std::string& job) {
  StatusOr<PacketSocket> socket = absl::NotFoundError("the job has no agent on this machine");
  std::string path;
  for (const std::string& folder : runtime_folders()) {
    path = folder + "/" + node_name(job);
    socket = connect_local(path);
    if (!absl::IsNotFound(socket.status())) {
      break;
    }
  }
  KEEPSTEP_RETURN_IF_ERROR(socket.status());
  std::unique_ptr<NodeLink> link(new NodeLink(*std::move(socket), path));
  link->pid_ = getpid();
  link->send(messages::Attach{});
  link->thread_ = std::thread([raw = link.get()] { raw->run(); });
  std::unique_lock lock(link->mutex_);
  link->changed_.wait(lock, [&] { return link->welcomed_ || link->lost_; });
  if (!link->welcomed_) {
    return absl::NotFoundError("the agent of this node is just ending");
  }
  return link;
}

NodeLink::~NodeLink() { close(); }

void NodeLink::close() {
  if (!thread_.joinable()) {
    return;
  }
  if (getpid() != pid_) {
    thread_.detach();  // a forked child: thread, socket and membership belong to its parent
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  communicator_.reset();
  send(messages::Leave{});
  shutdown(socket_.fd(), SHUT_RDWR);
  thread_.join();
}

void NodeLink::run() {
  while (true) {
    StatusOr<Packet> packet = socket_.receive();
    if (!packet.ok()) {
      break;
    }
    const StatusOr<messages::Envelope> envelope = messages::decode(*packet);
    if (!envelope.ok()) {
      continue;
    }
    const auto message = messages::read<messages::FromService>(envelope->text);
    if (!message.ok()) {
      break;  // no agent of this version sends that
    }
    handle(*message, std::move(packet->fds));
  }
  const std::lock_guard lock(mutex_);
  lost_ = true;
  if (generation_.valid() && !leaving_ && !because_.has_value()) {
    // Without the agent nobody would notice the death of a member.
    because_ = "the agent of this node is gone";
    auto* page = reinterpret_cast<GenerationPage*>(generation_.data());
    page->interrupted.store(1);
    comm::wake_all(config_, generation_.data() + kHeaderBytes);
  }
  changed_.notify_all();
}

void NodeLink::handle(const messages::FromService& message, std::vector<Fd> fds) {
  const std::lock_guard lock(mutex_);
  std::visit(Overloaded{
                 [&](const messages::Attached&) { welcomed_ = true; },
                 [&](const messages::Waiting& waiting) { missing_ = waiting.missing; },
                 [&](const messages::Members& members) {
                   if (const Status status = enter(members, std::move(fds)); !status.ok()) {
                     refused_ = std::string(status.message());
                   }
                 },
                 [&](const messages::Refused& refused) { refused_ = refused.because; },
                 [&](const messages::Interrupt& interrupt) { because_ = interrupt.because; },
                 [&](const messages::StoreAnswer& answer) {
                   if (const auto it = replies_.find(answer.id); it != replies_.end()) {
                     it->second = store_reply(answer, std::move(fds));
                   }
                 },
             },
             message);
  changed_.notify_all();
}

Status NodeLink::enter(const messages::Members& members, std::vector<Fd> fds) {
  config_ = members.comm;
  if (fds.size() != size_t{world_} + 1) {
    return absl::InvalidArgumentError("the agent sent descriptors that do not match the world");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory generation,
                            SharedMemory::attach(std::move(fds[0]), generation_page_bytes(config_)));
  for (uint32_t rank = 0; rank < world_; ++rank) {
    KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory arena,
                              SharedMemory::attach(std::move(fds[rank + 1]), comm::arena_bytes(config_)));
    arenas_.push_back(std::move(arena));
  }
  comm::Endpoint endpoint;
  endpoint.self = rank_;
  for (const SharedMemory& arena : arenas_) {
    endpoint.arenas.push_back(arena.data());
  }
  auto* page = reinterpret_cast<GenerationPage*>(generation.data());
  endpoint.generation = generation.data() + kHeaderBytes;
  endpoint.interrupted = &page->interrupted;
  generation_ = std::move(generation);
  communicator_ = std::make_shared<comm::Communicator>(config_, std::move(endpoint));
  return absl::OkStatus();
}

Status NodeLink::join(const std::string& key, uint32_t rank, uint32_t world, int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  rank_ = rank;
  world_ = world;
  lock.unlock();
  send(messages::Join{key, rank, world});
  lock.lock();
  const auto done = [&] { return communicator_ != nullptr || refused_.has_value() || lost_; };
  if (timeout_ms < 0) {
    changed_.wait(lock, done);
  } else {
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), done);
  }
  if (communicator_ != nullptr) {
    return absl::OkStatus();
  }
  if (refused_.has_value()) {
    return absl::FailedPreconditionError(*refused_);
  }
  if (lost_) {
    return absl::UnavailableError("the agent of this node is gone");
  }
  return absl::DeadlineExceededError(absl::StrFormat("%d of %d ranks did not join within %g s: rank %s",
                                                     missing_.size(), world, static_cast<double>(timeout_ms) * 1e-3,
                                                     absl::StrJoin(missing_, ", ")));
}

void NodeLink::abort(const std::string& because) {
  {
    const std::lock_guard lock(mutex_);
    if (!generation_.valid()) {
      return;
    }
    // All ranks share the word, so they return before the agent could even read a message. The agent then tells them
    // why.
    auto* page = reinterpret_cast<GenerationPage*>(generation_.data());
    page->interrupted.store(1);
    comm::wake_all(config_, generation_.data() + kHeaderBytes);
  }
  send(messages::Abort{because});
}

bool NodeLink::interrupted() const {
  const std::lock_guard lock(mutex_);
  return generation_.valid() && reinterpret_cast<const GenerationPage*>(generation_.data())->interrupted.load() != 0;
}

std::string NodeLink::why_interrupted() const {
  if (!interrupted()) {
    return {};
  }
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::seconds(1), [&] { return because_.has_value() || lost_; });
  return because_.value_or("it was interrupted");
}

StatusOr<StoreReply> NodeLink::store(const std::string& op, const std::string& key, const std::string& value,
                                     int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const uint64_t id = next_request_++;
  lock.unlock();
  KEEPSTEP_ASSIGN_OR_RETURN(const auto question, messages::store_question(id, op, key, value));
  lock.lock();
  replies_[id] = StoreReply{};
  lock.unlock();
  send(question.message, question.fds());
  lock.lock();
  const auto done = [&] { return replies_[id].answered || lost_; };
  if (timeout_ms < 0) {
    changed_.wait(lock, done);
  } else {
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), done);
  }
  StoreReply reply = std::move(replies_[id]);
  replies_.erase(id);
  if (!reply.answered && !lost_) {
    lock.unlock();
    send(messages::StoreCancel{id});
    lock.lock();
  }
  if (!reply.error.empty()) {
    return absl::ResourceExhaustedError(reply.error);
  }
  reply.interrupted = !reply.answered && lost_;
  return reply;
}

}  // namespace keepstep::rank
