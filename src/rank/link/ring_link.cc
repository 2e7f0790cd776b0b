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
  if (getpid() == pid_) {  // in a forked child the place is its parent's
    (void)socket_.send(nlohmann::json{{"op", "leave"}}.dump());
  }
  socket_ = PacketSocket();
}

StatusOr<RingLink::Answer> RingLink::request(const nlohmann::json& body) {
  if (!socket_.valid()) {
    return absl::FailedPreconditionError("this process has left the ring of batches");
  }
  KEEPSTEP_RETURN_IF_ERROR(socket_.send(body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  KEEPSTEP_ASSIGN_OR_RETURN(Packet packet, socket_.receive());
  Answer answer{nlohmann::json::parse(packet.bytes, nullptr, false), std::move(packet.fds)};
  if (!answer.body.is_object() || !answer.body.contains("ok") || !answer.body.at("ok").is_boolean()) {
    return absl::InternalError("no agent of this version of keepstep answers like that");
  }
  if (!answer.body.at("ok").get<bool>()) {
    return absl::FailedPreconditionError(answer.body.value("error", "the agent refused and did not say why"));
  }
  return answer;
}

StatusOr<std::unique_ptr<data::RingReader>> RingLink::open(const std::string& name, const data::RingSpec& spec,
                                                           uint64_t position) {
  KEEPSTEP_ASSIGN_OR_RETURN(Answer answer, request({{"op", "open"},
                                                    {"name", name},
                                                    {"round", spec.round},
                                                    {"ahead", spec.ahead},
                                                    {"behind", spec.behind},
                                                    {"limit_bytes", spec.limit_bytes},
                                                    {"position", position}}));
  if (answer.fds.size() != 2 || !answer.body.contains("row") || !answer.body.at("row").is_number_unsigned()) {
    return absl::InternalError("the agent's answer lacks the ring");
  }
  KEEPSTEP_ASSIGN_OR_RETURN(memory_, data::RingMemory::attach(std::move(answer.fds[0]), std::move(answer.fds[1])));
  return data::RingReader::create(memory_, answer.body.at("row").get<uint32_t>());
}

StatusOr<Fd> RingLink::ask_for_loader() {
  KEEPSTEP_ASSIGN_OR_RETURN(Answer answer, request({{"op", "loader"}}));
  return answer.fds.empty() ? Fd() : std::move(answer.fds[0]);
}

}  // namespace keepstep::rank
