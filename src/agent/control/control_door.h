// The launcher's control door: where `keepstep stacks`, `inject` and `jobs` of the same user knock.
//
// A socket in a folder that nobody else can enter (base/runtime_folder.h), and the kernel says who connects
// (base/socket/local_socket.h). No token is asked for: whoever may knock may signal the launcher and read its memory
// anyway.
//
// A packet is one request, a JSON object of at most kMaxRequestBytes; each is answered by one packet, also a JSON
// object, with the request's "id" if it had one. A large answer is {"bytes": N} with a sealed memfd that holds it.
// A client that talks rubbish, asks too much at once, or does not read its answers is let go; one that says nothing
// makes room when others come. None of it disturbs the job.
//
// Loop thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "agent/loop/event_loop.h"
#include "base/fd.h"
#include "base/runtime_folder.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "proto/convert.h"

namespace keepstep::agent {

inline constexpr size_t kMaxRequestBytes = proto::kMaxAskBytes;  // the same for those who come over the network
inline constexpr size_t kMaxAnswerBytes = proto::kMaxAnswerBytes;
inline constexpr size_t kMaxClients = 16;           // at once
inline constexpr size_t kMaxRequestsPerClient = 8;  // unanswered

// `job` as names of doors have it: what is not fit for a name becomes '-', and it is cut at 48 bytes.
std::string job_in_names(std::string_view job);

// Where somebody listens.
struct DoorName {
  std::string job;
  std::string path;
};
// The doors of all running jobs of this user, whose names say which job it is.
std::vector<DoorName> find_doors();

class ControlDoor {
 public:
  // Answers one request; call it once, now or later. Nothing happens if the client has gone.
  using Answer = std::function<void(nlohmann::json)>;
  // A nlohmann exception thrown by it (a request without what it needs) is answered as an error.
  using Handler = std::function<void(const nlohmann::json& request, const Answer& answer)>;
  // Something was refused; `because` names the process. Counted by the door; called for the 1st, 2nd, 4th, ... time.
  using Refused = std::function<void(const std::string& because, uint64_t count)>;

  // Of a job by the name that job_in_names() made. The loop must outlive the door.
  static StatusOr<std::unique_ptr<ControlDoor>> open(EventLoop& loop, const std::string& job, Handler handler,
                                                     Refused refused);
  ~ControlDoor();

  // Makes its file again if somebody removed it (HeldName::found). Clients stay.
  Status keep_open();
  size_t clients() const { return clients_.size(); }
  const std::string& path() const { return name_.path(); }

 private:
  struct Client {
    uint64_t id = 0;
    PacketSocket socket;
    pid_t pid = 0;
    size_t unanswered = 0;
  };

  ControlDoor(EventLoop& loop, const std::string& job, Handler handler, Refused refused)
      : loop_(loop), job_(job), handler_(std::move(handler)), refused_(std::move(refused)) {}
  Status listen();
  void on_connection();
  void on_packet(uint64_t id);
  void answer(uint64_t id, const nlohmann::json& request_id, nlohmann::json body);
  void refuse(const std::string& because);
  void let_go(uint64_t id);
  void make_room();

  EventLoop& loop_;
  const std::string job_;
  HeldName name_;
  Fd listener_;
  Handler handler_;
  Refused refused_;
  std::map<uint64_t, Client> clients_;  // by number: the first is the oldest
  uint64_t next_client_ = 1;
  uint64_t refusals_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for answers that come after us
};

// {"ok": false, "error": message}
nlohmann::json error_answer(const std::string& message);
// The same, for a request without what it needs.
nlohmann::json lacking_answer(const std::exception& error);
// What travels: at most kMaxAnswerBytes, or an error that says so.
std::string answer_text(const nlohmann::json& body);

}  // namespace keepstep::agent
