// The MAC for the frames of one connection (Protection::kMac), with a key derived from its TLS handshake.
#pragma once

#include <array>

#include "net/mac.h"
#include "net/tls_stream.h"

namespace keepstep::comm::tcp {

inline net::Mac frame_mac(const net::TlsStream& connection) {
  std::array<unsigned char, net::Mac::kKeyBytes> key;
  connection.export_key("EXPORTER-keepstep-frames", key);
  return net::Mac(key);
}

}  // namespace keepstep::comm::tcp
