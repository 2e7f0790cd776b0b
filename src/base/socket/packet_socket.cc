#include "base/socket/packet_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

namespace keepstep {

StatusOr<std::pair<PacketSocket, PacketSocket>> PacketSocket::pair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return errno_status("create a socket pair (raise the limit on open files with `ulimit -n`?)");
  }
  for (int fd : fds) {
    const int room = 1 << 20;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  }
  return std::pair(PacketSocket(Fd(fds[0])), PacketSocket(Fd(fds[1])));
}

Status PacketSocket::send(std::string_view bytes, std::span<const int> fds) const {
  return send_flagged(bytes, fds, MSG_NOSIGNAL);
}

Status PacketSocket::try_send(std::string_view bytes, std::span<const int> fds) const {
  return send_flagged(bytes, fds, MSG_NOSIGNAL | MSG_DONTWAIT);
}

Status PacketSocket::send_flagged(std::string_view bytes, std::span<const int> fds, int flags) const {
  if (bytes.size() > kMaxPacketBytes || fds.size() > kMaxPacketFds) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a packet of %d bytes and %d descriptors is over the limit of %d and %d", bytes.size(),
                        fds.size(), kMaxPacketBytes, kMaxPacketFds));
  }
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    std::memset(control, 0, sizeof control);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  }
  while (true) {
    if (sendmsg(fd_.get(), &message, flags) >= 0) {
      return absl::OkStatus();
    }
    if (errno == EAGAIN) {
      return absl::ResourceExhaustedError("the other process does not read");
    }
    if (errno == ETOOMANYREFS || errno == ENOBUFS ||
        errno == ENOMEM) {  // the packets in transit will be read eventually
      return absl::ResourceExhaustedError(absl::StrFormat("send to the other process: %s", strerror(errno)));
    }
    if (errno != EINTR) {
      return absl::UnavailableError(absl::StrFormat("send to the other process: %s", strerror(errno)));
    }
  }
}

StatusOr<Packet> PacketSocket::receive() const {
  Packet packet;
  packet.bytes.resize(kMaxPacketBytes);
  iovec part{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxPacketFds)];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t count;
  do {
    count = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count <= 0) {
    return absl::UnavailableError(count == 0 ? "the other process closed the connection"
                                             : absl::StrFormat("receive: %s", strerror(errno)));
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      const size_t number = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < number; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof fd);
        packet.fds.emplace_back(fd);
      }
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat("refused a packet of more than %d bytes", kMaxPacketBytes));
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    packet.fds.clear();
    packet.fds_lost = true;
  }
  packet.bytes.resize(static_cast<size_t>(count));
  return packet;
}

}  // namespace keepstep
