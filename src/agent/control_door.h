// The launcher's control door: where `keepstep stacks`, `inject` and `jobs` of the same user knock.
//
// An abstract Unix socket, so nothing stays behind whatever ends the launcher, and no other machine can reach it. The
// kernel says who connects (base/local_socket.h): another user is refused before a byte is read. No token is asked
// for: whoever may knock may signal the launcher and read its memory anyway.
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
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "agent/event_loop.h"
#include "base/fd.h"
#include "base/packet_socket.h"
#include "base/status.h"
#include "proto/convert.h"

namespace keepstep::agent {

inline constexpr size_t kMaxRequestBytes = proto::kMaxAskBytes;  // the same for those who come over the network
inline constexpr size_t kMaxAnswerBytes = proto::kMaxAnswerBytes;
inline constexpr size_t kMostClients = 16;           // at once
inline constexpr size_t kMostRequestsPerClient = 8;  // unanswered

// The socket's name says whose job it is, so that a look at /proc/net/unix is a list of jobs.
struct DoorName {
  uid_t uid = 0;
  std::string job;
  std::string text;  // the whole name, without the leading NUL
};
// "keepstep/job/UID/JOB/RANDOM"; what is not fit for a name in `job` becomes '-', and it is cut at 48 bytes.
DoorName make_door_name(std::string_view job);
// nullopt: not the name of a control door.
std::optional<DoorName> parse_door_name(std::string_view text);

class ControlDoor {
 public:
  // Answers one request; call it once, now or later. Nothing happens if the client has gone.
  using Answer = std::function<void(nlohmann::json)>;
  // A nlohmann exception thrown by it (a request without what it needs) is answered as an error.
  using Handler = std::function<void(const nlohmann::json& request, const Answer& answer)>;
  // Something was refused; `because` names the process. Counted by the door; called for the 1st, 2nd, 4th, ... time.
  using Refused = std::function<void(const std::string& because, uint64_t count)>;

  // ALREADY_EXISTS when somebody has the name. The loop must outlive the door.
  static StatusOr<std::unique_ptr<ControlDoor>> open(EventLoop& loop, const std::string& name, Handler handler,
                                                     Refused refused);
  ~ControlDoor();

  size_t clients() const { return clients_.size(); }

 private:
  struct Client {
    uint64_t id = 0;
    PacketSocket socket;
    pid_t pid = 0;
    size_t unanswered = 0;
  };

  ControlDoor(EventLoop& loop, Fd listener, Handler handler, Refused refused)
      : loop_(loop), listener_(std::move(listener)), handler_(std::move(handler)), refused_(std::move(refused)) {}
  void on_connection();
  void on_packet(uint64_t id);
  void answer(uint64_t id, const nlohmann::json& request_id, nlohmann::json body);
  void refuse(const std::string& because);
  void let_go(uint64_t id);
  void make_room();

  EventLoop& loop_;
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
nlohmann::json lacking_answer(const nlohmann::json::exception& error);
// What travels: at most kMaxAnswerBytes, or an error that says so.
std::string answer_text(const nlohmann::json& body);

}  // namespace keepstep::agent
