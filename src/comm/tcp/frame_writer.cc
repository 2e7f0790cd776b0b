#include "comm/tcp/frame_writer.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "comm/tcp/frame_key.h"

namespace keepstep::comm::tcp {
namespace {

constexpr size_t kRecordBytes = net::TlsStream::kRecordBytes;
constexpr size_t kMaxParts = 16;                  // small frames leave together
constexpr size_t kMaxSealed = size_t{512} << 10;  // and not gone: it is in the cache, and must leave all the same

}  // namespace

OutgoingFrame::OutgoingFrame(const Frame& frame, const std::byte* payload, PartRequest* request)
    : payload_(payload), bytes_(frame.bytes), request_(request) {
  encode(frame, std::span(header_).first<kFrameHeaderBytes>());
}

void OutgoingFrame::copy() {
  if (own_ == nullptr && bytes_ > 0) {
    own_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    std::memcpy(own_.get(), payload_, bytes_);
    payload_ = own_.get();
  }
}

void OutgoingFrame::left() {
  if (request_ != nullptr) {
    request_->left -= bytes_;
    request_->done = request_->left == 0;
  }
}

FrameWriter::FrameWriter(net::TlsStream connection, Protection protection) {
  if (protection == Protection::kTls) {
    tls_ = std::move(connection);
    record_ = std::make_unique_for_overwrite<char[]>(kRecordBytes);
    return;
  }
  mac_ = frame_mac(connection);
  if (StatusOr<Fd> fd = connection.take_socket(); fd.ok()) {
    fd_ = *std::move(fd);
  } else {
    broken_ = fd.status();
  }
}

std::array<std::span<const std::byte>, 3> FrameWriter::parts(const OutgoingFrame& frame) const {
  const std::span<const std::byte> header = frame.header_;
  const std::span payload(frame.payload_, frame.bytes_);
  if (!mac_.has_value()) {
    return {header.first(kFrameHeaderBytes), payload, {}};
  }
  return {header, payload, std::span<const std::byte>(frame.tag_).first(payload.empty() ? 0 : net::Mac::kTagBytes)};
}

size_t FrameWriter::size_of(const OutgoingFrame& frame) const {
  size_t bytes = 0;
  for (const auto& part : parts(frame)) {
    bytes += part.size();
  }
  return bytes;
}

// Whole records, where the pieces are long enough straight from where they lie.
Status FrameWriter::encrypt(std::deque<OutgoingFrame>& queue) {
  size_t gathered = 0;
  const auto write_record = [&]() -> Status { return tls_->write({record_.get(), std::exchange(gathered, 0)}); };
  size_t budget = kBatchBytes;
  for (OutgoingFrame& frame : queue) {
    size_t skip = frame.gone_;
    for (std::span<const std::byte> part : parts(frame)) {
      const size_t skipped = std::min(skip, part.size());
      skip -= skipped;
      part = part.subspan(skipped, std::min(part.size() - skipped, budget));
      budget -= part.size();
      frame.gone_ += part.size();
      frame.begun_ = frame.begun_ || !part.empty();
      while (!part.empty()) {
        if (gathered == 0 && part.size() >= kRecordBytes) {
          const std::string_view whole(reinterpret_cast<const char*>(part.data()),
                                       part.size() / kRecordBytes * kRecordBytes);
          KEEPSTEP_RETURN_IF_ERROR(tls_->write(whole));
          part = part.subspan(whole.size());
          continue;
        }
        const size_t some = std::min(part.size(), kRecordBytes - gathered);
        std::memcpy(record_.get() + gathered, part.data(), some);
        gathered += some;
        part = part.subspan(some);
        if (gathered == kRecordBytes) {
          KEEPSTEP_RETURN_IF_ERROR(write_record());
        }
      }
    }
    if (budget == 0) {
      break;
    }
  }
  return gathered > 0 ? write_record() : absl::OkStatus();
}

StatusOr<bool> FrameWriter::write_tls(std::deque<OutgoingFrame>& queue) {
  const size_t waiting = tls_->unsent_bytes();
  if (waiting == 0) {
    KEEPSTEP_RETURN_IF_ERROR(encrypt(queue));
  }
  const size_t before = tls_->unsent_bytes();
  KEEPSTEP_ASSIGN_OR_RETURN(const net::TlsStream::Wait wait, tls_->flush());
  if (wait != 0) {
    return false;  // wait for the socket
  }
  while (!queue.empty() && queue.front().gone_ == size_of(queue.front())) {
    queue.front().left();
    queue.pop_front();
  }
  return before > 0;
}

void FrameWriter::seal(OutgoingFrame& frame) {
  const std::span<std::byte> header = frame.header_;
  mac_->add(header.first(kFrameHeaderBytes));
  std::ranges::copy(mac_->finish(), header.begin() + kFrameHeaderBytes);
  if (frame.bytes_ > 0) {
    mac_->add({frame.payload_, frame.bytes_});
    frame.tag_ = mac_->finish();
  }
  frame.begun_ = true;
}

StatusOr<bool> FrameWriter::write_plain(std::deque<OutgoingFrame>& queue) {
  iovec pieces[kMaxParts];
  size_t count = 0;
  size_t sealed = 0;
  for (OutgoingFrame& frame : queue) {
    if (count + 3 > kMaxParts || sealed >= kMaxSealed) {
      break;
    }
    if (!frame.begun_) {
      seal(frame);
    }
    sealed += frame.bytes_;
    size_t skip = frame.gone_;
    for (const auto& part : parts(frame)) {
      const size_t skipped = std::min(skip, part.size());
      skip -= skipped;
      if (part.size() > skipped) {
        pieces[count++] = {const_cast<std::byte*>(part.data()) + skipped, part.size() - skipped};
      }
    }
  }
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) {
      return errno == EINTR;
    }
    return absl::UnavailableError(std::strerror(errno));
  }
  auto gone = static_cast<size_t>(n);
  while (gone > 0) {
    OutgoingFrame& frame = queue.front();
    const size_t some = std::min(gone, size_of(frame) - frame.gone_);
    frame.gone_ += some;
    gone -= some;
    if (frame.gone_ < size_of(frame)) {
      break;
    }
    frame.left();
    queue.pop_front();
  }
  return true;
}

StatusOr<bool> FrameWriter::write(std::deque<OutgoingFrame>& queue) {
  KEEPSTEP_RETURN_IF_ERROR(broken_);
  return tls_.has_value() ? write_tls(queue) : write_plain(queue);
}

}  // namespace keepstep::comm::tcp
