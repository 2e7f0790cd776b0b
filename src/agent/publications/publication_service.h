// What ranks of this node published by run.publish (docs/design/publications.md): the newest version of each name, for
// processes that are no ranks of the job.
//
// A publication is a safetensors file in sealed memory. It is complete and cannot change when it arrives, so a reader
// sees whole versions only. The memory is passed on by descriptor, never copied. A version lives as long as it is the
// newest one, or some process maps it, or somebody reads it over the network. What a restart takes back is dropped.
//
// The service listens on its own socket, which only processes of the same user can reach (base/socket/local_socket.h).
// A subscriber that sends invalid messages is disconnected, and the others go on. Loop thread only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/loop/event_loop.h"
#include "base/fd.h"
#include "base/socket/packet_socket.h"
#include "base/status.h"
#include "brain/types.h"
#include "messages/publication_messages.h"
#include "messages/rank_messages.h"

namespace keepstep::agent {

inline constexpr size_t kMaxPublications = 64;  // names
inline constexpr size_t kMaxSubscribers = 256;
inline constexpr size_t kMaxPieceBytes = size_t{2} << 20;  // of one read(): it holds up the loop for some milliseconds
inline constexpr size_t kMaxReplaced = 2;                  // of a name, held for those who read them over the network

struct Publication {
  std::string name;
  brain::Version version = 0;
  uint64_t serial = 0;
  uint64_t bytes = 0;
  int64_t arrived_ns = 0;
};

class PublicationService {
 public:
  // Listens at `path`. The loop must outlive the service. `read_ns`: how long a reader over the network may take from
  // one read() to the next.
  static StatusOr<std::unique_ptr<PublicationService>> open(EventLoop& loop, const std::string& path,
                                                            int64_t read_ns = 30'000'000'000);
  ~PublicationService();

  // From now on this is the newest publication of its name, and the answer to those who wait for one. The version that
  // is the newest already (a replacement publishes it again) changes nothing. INVALID_ARGUMENT: the name is empty or
  // too long, or the memory is empty or not sealed against writing and resizing. RESOURCE_EXHAUSTED: there are too many
  // names.
  Status publish(const messages::Publish& message, Fd memory);

  // A generation begins with `version`: newer ones do not count any more. 0: a function begins, and none counts.
  void begin(brain::Version version);

  std::vector<Publication> newest() const;  // sorted by name
  // Of this service: serial numbers of another one mean nothing.
  const std::string& id() const { return id_; }

  struct Piece {
    Publication of;
    std::string bytes;
  };
  // Up to kMaxPieceBytes of publication `serial` of `name` from `offset` on; `serial` 0: of the newest one. A reader
  // that goes on within `read_ns` finds the same publication even if there is a newer one, unless kMaxReplaced others
  // are read, too. NOT_FOUND: nothing of this name was published, or that publication is gone. OUT_OF_RANGE: `offset`
  // is beyond its end.
  StatusOr<Piece> read(const std::string& name, uint64_t serial, uint64_t offset);
  // Frees publications that are not the newest and that nobody reads any more. Call it from time to time.
  void forget_unread();
  const std::string& path() const { return path_; }

 private:
  struct Held {
    Publication what;
    Fd memory;
    int64_t readers = 0;  // over the network: that began it and did not get its end
    int64_t read_ns = 0;  // of the last read()
  };
  struct Subscriber {
    PacketSocket socket;
    std::unique_ptr<messages::NextPublication> waits_for;
  };

  PublicationService(EventLoop& loop, Fd listener, std::string path, int64_t read_ns);
  void on_connection();
  void on_packet(uint64_t id);
  void answer(uint64_t id);  // if what it waits for is there
  void refuse(const PacketSocket& socket, const std::string& because);
  void let_go(uint64_t id);

  EventLoop& loop_;
  Fd listener_;
  std::string path_;
  const int64_t read_ns_;
  std::map<std::string, Held> newest_;
  std::vector<Held> replaced_;  // which somebody reads
  std::map<uint64_t, Subscriber> subscribers_;
  uint64_t next_subscriber_ = 1;
  uint64_t serial_ = 0;
  const std::string id_;
  uint64_t refusals_ = 0;
};

}  // namespace keepstep::agent
