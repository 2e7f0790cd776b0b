#include "rank/link/ring_link.h"

#include <unistd.h>

#include <utility>

#include "base/socket/local_socket.h"

namespace keepstep::rank {

RingLink::RingLink(PacketSocket socket) : socket_(std::move(socket)), pid_(getpid()) {}

StatusOr<std::unique_ptr<RingLink>> RingLink::connect(const std::string& path) {
  KEEPSTEP_ASSIGN_OR_RETURN(PacketSocket socket, connect_local(path));
  return std::unique_ptr<RingLink>(new RingLink(std::move(socket)));
}

RingLink::~RingLink() { leave(); }

void RingLink::leave() {
  if (!socket_.valid()) {
    return;
  }
  if (getpid() == pid_) {  // in a forked child the place belongs to its parent
    (void)socket_.send(messages::write(messages::LeaveRing{}));
  }
  socket_ = PacketSocket();
}

StatusOr<RingLink::Answer> RingLink::request(const std::string& message) {
  if (!socket_.valid()) {
    return absl::FailedPreconditionError("this process has left the ring of batches");
  }
  KEEPSTEP_RETURN_IF_ERROR(socket_.send(message));
  KEEPSTEP_ASSIGN_OR_RETURN(Packet packet, socket_.receive());
  const auto answer = messages::read<messages::ToReader>(packet.bytes);
  if (!answer.ok()) {
    return absl::InternalError("no agent of this version of keepstep answers like that");
  }
  if (const auto* refusal = std::get_if<messages::RingRefusal>(&*answer)) {
    return absl::FailedPreconditionError(refusal->because);
  }
  return Answer{std::get<messages::RingAnswer>(*answer).row, std::move(packet.fds)};
}

StatusOr<std::unique_ptr<data::RingReader>> RingLink::open(const std::string& name, const data::RingSpec& spec,
                                                           uint64_t position) {
  KEEPSTEP_ASSIGN_OR_RETURN(
      Answer answer, request(messages::write(
                         messages::OpenRing{name, spec.round, spec.ahead, spec.behind, spec.limit_bytes, position})));
  if (answer.fds.size() != 2) {
    return absl::InternalError("the agent's answer lacks the ring");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(memory_, data::RingMemory::attach(std::move(answer.fds[0]), std::move(answer.fds[1])));
  return data::RingReader::create(memory_, answer.row);
}

StatusOr<Fd> RingLink::ask_for_loader() {
  KEEPSTEP_ASSIGN_OR_RETURN(Answer answer, request(messages::write(messages::AskForLoader{})));
  return answer.fds.empty() ? Fd() : std::move(answer.fds[0]);
}

}  // namespace keepstep::rank
