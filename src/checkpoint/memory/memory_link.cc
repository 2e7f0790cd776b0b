#include "checkpoint/memory/memory_link.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/runtime_folder.h"
#include "base/socket/local_socket.h"

namespace keepstep::checkpoint::memory {
namespace {

constexpr int kTries = 20;  // one fails only if the server ended between its start and our connection

Status gone(const Status& why) {
  return absl::UnavailableError(absl::StrFormat(
      "this machine's memory server (keepstep memory) has ended: %s. What only it held is lost; the next save starts "
      "another one",
      why.message()));
}

Status start(const std::string& command) {
  std::string words[] = {command, "memory", "serve", "--background"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, command.c_str(), nullptr, nullptr, argv, environ);
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("cannot start the memory server: %s: %s. Is the command keepstep installed? KEEPSTEP_COMMAND "
                        "may hold its path",
                        command, strerror(error)));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the memory server could not start: `%s memory serve --background` ended with status %d, and said why above",
        command, WIFEXITED(status) ? WEXITSTATUS(status) : status));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<MemoryLink>> MemoryLink::connect(const DestinationSettings& settings) {
  StatusOr<PacketSocket> socket = absl::NotFoundError("no memory server runs on this machine");
  for (const std::string& folder : runtime_folders()) {
    socket = connect_local(folder + "/" + server_name());
    if (!absl::IsNotFound(socket.status())) {
      break;
    }
  }
  KEEPSTEP_RETURN_IF_ERROR(socket.status());
  std::unique_ptr<MemoryLink> link(new MemoryLink(*std::move(socket)));
  Json hello = {{"do", "hello"}, {"version", kProtocolVersion}, {"destination", settings.name}};
  if (!settings.drain.empty()) {
    hello["drain"] = settings.drain;
    hello["drain_keep"] = settings.drain_keep;
    hello["environment"] = settings.environment;
  }
  KEEPSTEP_RETURN_IF_ERROR(link->send(hello));
  StatusOr<Packet> packet = link->socket_.receive();
  if (!packet.ok()) {
    return absl::NotFoundError("the memory server is just ending");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(const Json answer, parse_message(packet->bytes));
  KEEPSTEP_RETURN_IF_ERROR(status_of(answer));
  if (packet->fds.size() != 1) {
    return absl::ResourceExhaustedError(packet->fds_lost ? Packet::kFdsLost : "the memory server sent no memory");
  }
  link->memory_ = std::move(packet->fds[0]);
  return link;
}

StatusOr<std::unique_ptr<MemoryLink>> MemoryLink::connect_or_start(const DestinationSettings& settings,
                                                                   const std::string& command) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    StatusOr<std::unique_ptr<MemoryLink>> link = connect(settings);
    if (!absl::IsNotFound(link.status())) {
      return link;
    }
    KEEPSTEP_RETURN_IF_ERROR(start(command));
  }
  return absl::UnavailableError("the memory server ends as soon as it starts");
}

Status MemoryLink::send(const Json& request) {
  const Status sent = socket_.send(request.dump());
  return absl::IsUnavailable(sent) ? gone(sent) : sent;
}

StatusOr<Json> MemoryLink::receive() {
  const StatusOr<Packet> packet = socket_.receive();
  if (!packet.ok()) {
    return gone(packet.status());
  }
  KEEPSTEP_ASSIGN_OR_RETURN(Json answer, parse_message(packet->bytes));
  KEEPSTEP_RETURN_IF_ERROR(status_of(answer));
  return answer;
}

StatusOr<Json> MemoryLink::ask(const Json& request) {
  KEEPSTEP_RETURN_IF_ERROR(send(request));
  return receive();
}

StatusOr<std::byte*> MemoryLink::arena() {
  if (!arena_.valid()) {
    KEEPSTEP_ASSIGN_OR_RETURN(SharedMemory made, SharedMemory::create("keepstep-memory-writer", kArenaBytes));
    const int fd = made.fd();
    if (const Status sent = socket_.send(Json({{"do", "arena"}}).dump(), std::span(&fd, 1)); !sent.ok()) {
      return absl::IsUnavailable(sent) ? gone(sent) : sent;
    }
    KEEPSTEP_RETURN_IF_ERROR(receive().status());
    arena_ = std::move(made);
  }
  return arena_.data();
}

Status MemoryLink::read_memory(uint64_t at, std::span<std::byte> into) const {
  while (!into.empty()) {
    const ssize_t got = pread(memory_.get(), into.data(), into.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return got < 0 ? errno_status("read the memory server's memory")
                     : absl::DataLossError("the memory server's memory ends before what it said is there");
    }
    at += static_cast<uint64_t>(got);
    into = into.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

}  // namespace keepstep::checkpoint::memory
