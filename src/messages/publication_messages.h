// Messages between processes that read what ranks publish and the agent of their node
// (agent/publications/publication_service.h), without an envelope: docs/formats/wire_worker.md#publications.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "brain/types.h"
#include "messages/schema.h"

namespace keepstep::messages {

inline constexpr size_t kMaxPublicationNameBytes = 100;
inline constexpr size_t kMaxSubscriberMessageBytes = 4096;

// Asks for the newest publication of this name with a larger serial number than `after`: as soon as there is one, or,
// if not `wait`, at once.
struct NextPublication {
  static constexpr std::string_view kName = "next_publication";
  std::string name;
  uint64_t after = 0;  // 0: any
  bool wait = true;
  KEEPSTEP_FIELDS(name, after, wait)
};
using FromSubscriber = std::variant<NextPublication>;

// Answers it, with the memory.
struct Published {
  static constexpr std::string_view kName = "published";
  brain::Version version = 0;
  uint64_t serial = 0;  // grows with each publication on this node, also where versions go back
  uint64_t bytes = 0;
  KEEPSTEP_FIELDS(version, serial, bytes)
};
struct NothingNewer {  // for one that does not wait
  static constexpr std::string_view kName = "nothing_newer";
};
// The connection is closed after it.
struct PublicationRefusal {
  static constexpr std::string_view kName = "publication_refusal";
  std::string because;
  KEEPSTEP_FIELDS(because)
};
using ToSubscriber = std::variant<Published, NothingNewer, PublicationRefusal>;

}  // namespace keepstep::messages
