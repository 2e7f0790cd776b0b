#include "agent/workers/background_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "agent/workers/start_process.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/shared_memory.h"
#include "base/socket/local_socket.h"

namespace keepstep::agent {
namespace {

constexpr int kMaxEarlyEnds = 3;
constexpr int64_t kEarlyNs = 10'000'000'000;
constexpr uint64_t kMaxMessageBytes = uint64_t{16} << 20;  // within what agents pass on (message_parts.h)

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? absl::StrFormat("ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)))
                             : absl::StrFormat("exited with code %d", WEXITSTATUS(status));
}

bool is_whole(const nlohmann::json& message, const char* name) {
  return message.is_object() && message.contains(name) && message[name].is_number_unsigned();
}

}  // namespace

StatusOr<std::unique_ptr<BackgroundWriter>> BackgroundWriter::open(EventLoop& loop, const std::string& path,
                                                                   const std::string& python, brain::NodeId node,
                                                                   Callbacks callbacks) {
  KEEPSTEP_ASSIGN_OR_RETURN(Fd listener, listen_local(path));
  std::unique_ptr<BackgroundWriter> writer(
      new BackgroundWriter(loop, std::move(listener), python, node, std::move(callbacks)));
  KEEPSTEP_RETURN_IF_ERROR(loop.watch(writer->listener_.get(), [raw = writer.get()] { raw->on_call(); }));
  return writer;
}

BackgroundWriter::~BackgroundWriter() {
  if (pid_ != 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    forget();
  }
  if (listener_.valid()) {
    loop_.unwatch(listener_.get());
  }
}

StatusOr<pid_t> BackgroundWriter::start() {
  KEEPSTEP_ASSIGN_OR_RETURN(auto sockets, PacketSocket::pair());
  // Its number is above anything that the dup2 calls in the new process could overwrite.
  const Fd listener(fcntl(listener_.get(), F_DUPFD_CLOEXEC, 100));
  const Fd theirs(fcntl(sockets.second.fd(), F_DUPFD_CLOEXEC, 100));
  socket_ = std::move(sockets.first);
  return start_process({python_, "-m", "keepstep.checkpoint.background", "3", "4", std::to_string(node_)},
                       {{listener.get(), 3}, {theirs.get(), 4}}, {}, {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2});
}

void BackgroundWriter::on_call() {
  loop_.unwatch(listener_.get());  // from now on the process answers
  const StatusOr<pid_t> pid = start();
  if (!pid.ok()) {
    callbacks_.on_note("background_writer_ended", absl::StrFormat("it cannot be started: %s", pid.status().message()));
    listener_ = Fd();  // ranks are refused
    return;
  }
  pid_ = *pid;
  pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  started_ns_ = monotonic_ns();
  (void)loop_.watch(socket_.fd(), [this] { on_packet(); });
  (void)loop_.watch(pidfd_.get(), [this] { on_exit(); });
  callbacks_.on_note("background_writer_started",
                     absl::StrFormat("process %d writes the checkpoints of this node's ranks", pid_));
}

void BackgroundWriter::on_packet() {
  StatusOr<Packet> packet = socket_.receive();
  if (!packet.ok()) {
    loop_.unwatch(socket_.fd());  // the pidfd will show how it ended
    return;
  }
  const nlohmann::json message = nlohmann::json::parse(packet->bytes, nullptr, false);
  if (is_whole(message, "saved") && is_whole(message, "generation")) {
    return callbacks_.on_saved(message["saved"].get<brain::Version>(), message["generation"].get<uint32_t>());
  }
  if (!is_whole(message, "to") || !is_whole(message, "bytes") || packet->fds.size() != 1) {
    return;
  }
  const auto bytes = message["bytes"].get<uint64_t>();
  if (bytes == 0 || bytes > kMaxMessageBytes) {
    spdlog::warn("a message of {} bytes about a checkpoint was dropped; {} is the most", bytes, kMaxMessageBytes);
    return;
  }
  const StatusOr<SharedMemory> memory = SharedMemory::attach(std::move(packet->fds[0]), bytes);
  if (memory.ok()) {
    callbacks_.on_message(message["to"].get<brain::NodeId>(),
                          std::string(reinterpret_cast<const char*>(memory->data()), bytes));
  }
}

void BackgroundWriter::hand(brain::NodeId from, const std::string& message) {
  if (pid_ == 0 || message.empty() || message.size() > kMaxMessageBytes) {
    return;
  }
  const StatusOr<SharedMemory> memory = SharedMemory::create("keepstep-writer", message.size());
  if (!memory.ok()) {
    return;
  }
  std::memcpy(memory->data(), message.data(), message.size());
  (void)socket_.try_send(nlohmann::json{{"from", from}, {"bytes", message.size()}}.dump(), std::vector{memory->fd()});
}

void BackgroundWriter::without(brain::NodeId node) {
  if (pid_ != 0) {
    (void)socket_.try_send(nlohmann::json{{"gone", node}}.dump());
  }
}

void BackgroundWriter::on_exit() {
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) {
    return;
  }
  early_ends_ = monotonic_ns() - started_ns_ < kEarlyNs ? early_ends_ + 1 : 0;
  const bool given_up = early_ends_ >= kMaxEarlyEnds;
  callbacks_.on_note(
      "background_writer_ended",
      absl::StrFormat("process %d, which wrote checkpoints, %s; %s", pid_, how_it_ended(status),
                      given_up ? "it did so soon after each start: no more are started, and saves fail from here on"
                               : "the next save starts another one"));
  forget();
  if (given_up) {
    listener_ = Fd();
  } else {
    (void)loop_.watch(listener_.get(), [this] { on_call(); });
  }
}

void BackgroundWriter::forget() {
  loop_.unwatch(pidfd_.get());
  loop_.unwatch(socket_.fd());
  pidfd_ = Fd();
  socket_ = PacketSocket();
  pid_ = 0;
}

void BackgroundWriter::end(std::chrono::milliseconds limit, int hurry) {
  if (pid_ == 0) {
    return;
  }
  (void)socket_.try_send(nlohmann::json{{"end", true}}.dump());
  pollfd gone[] = {{.fd = pidfd_.get(), .events = POLLIN, .revents = 0}, {.fd = hurry, .events = POLLIN, .revents = 0}};
  (void)poll(gone, 2, static_cast<int>(limit.count()));
  kill(pid_, SIGKILL);  // has no effect if it has ended
  waitpid(pid_, nullptr, 0);
  forget();
}

}  // namespace keepstep::agent
