// The launcher's control door, where `keepstep stacks`, `inject` and `jobs` of the same user connect.
//
// It is a socket in a folder that no other user can enter (base/runtime_folder.h), and the kernel identifies each
// client (base/socket/local_socket.h). No token is needed: a process that may connect could also signal the launcher
// and read its memory.
//
// Each packet is one request, a JSON object of at most kMaxRequestBytes. It is answered by one packet, also a JSON
// object, with the request's "id" if it had one. A large answer is {"bytes": N} with a sealed memfd that holds it. A
// client that sends malformed requests, has too many of them unanswered, or does not read its answers is disconnected;
// an idle client is dropped to make room for new ones. None of this disturbs the job.
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

inline constexpr size_t kMaxRequestBytes = proto::kMaxAskBytes;  // the same for clients on the network
inline constexpr size_t kMaxAnswerBytes = proto::kMaxAnswerBytes;
inline constexpr size_t kMaxClients = 16;           // connected at once
inline constexpr size_t kMaxRequestsPerClient = 8;  // unanswered

// `job` as it appears in the names of doors: characters not fit for a name become '-', and it is cut at 48 bytes.
std::string job_in_names(std::string_view job);

// A door that somebody listens at.
struct DoorName {
  std::string job;
  std::string path;
};
// The doors of all running jobs of this user. The name of a door identifies its job.
std::vector<DoorName> find_doors();

class ControlDoor {
 public:
  // Answers one request. Call it once, now or later. Does nothing if the client is gone.
  using Answer = std::function<void(nlohmann::json)>;
  // A nlohmann exception thrown by it (for a request that lacks a field) is answered as an error.
  using Handler = std::function<void(const nlohmann::json& request, const Answer& answer)>;
  // Something was refused; `because` names the process. The door counts refusals and calls this for the 1st, 2nd, 4th,
  // ... one.
  using Refused = std::function<void(const std::string& because, uint64_t count)>;

  // Opens the door of the job that job_in_names() named `job`. The loop must outlive the door.
  static StatusOr<std::unique_ptr<ControlDoor>> open(EventLoop& loop, const std::string& job, Handler handler,
                                                     Refused refused);
  ~ControlDoor();

  // Makes its file again if somebody removed it (HeldName::found). Clients stay connected.
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
  std::map<uint64_t, Client> clients_;  // by number, so the first is the oldest
  uint64_t next_client_ = 1;
  uint64_t refusals_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for answers that outlive the door
};

// {"ok": false, "error": message}
nlohmann::json error_answer(const std::string& message);
// The same, for a request that lacks a field.
nlohmann::json lacking_answer(const std::exception& error);
// The text to send: at most kMaxAnswerBytes, or else an error that says it is too long.
std::string answer_text(const nlohmann::json& body);

}  // namespace keepstep::agent
