#include "comm/tcp/frame_reader.h"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/tcp/frame_key.h"

namespace keepstep::comm::tcp {
namespace {

constexpr size_t kDroppedAtOnce = 16 << 10;

}  // namespace

FrameReader::FrameReader(net::TlsStream connection, Protection protection, uint32_t stream) : stream_(stream) {
  if (protection == Protection::kTls) {
    tls_ = std::move(connection);
    return;
  }
  mac_ = frame_mac(connection);
  if (StatusOr<Fd> fd = connection.take_socket(); fd.ok()) {
    fd_ = *std::move(fd);
  } else {
    why_ = std::string(fd.status().message());
  }
}

FrameReader FrameReader::unprotected(Fd fd, uint32_t stream) {
  FrameReader reader(stream);
  reader.fd_ = std::move(fd);
  return reader;
}

void FrameReader::close() {
  tls_.reset();
  fd_.reset();
}

FrameReader::Came FrameReader::ended(Came how, std::string why) {
  why_ = std::move(why);
  close();
  return how;
}
FrameReader::Came FrameReader::lost(std::string why) { return ended(Came::kLost, std::move(why)); }
FrameReader::Came FrameReader::malformed(std::string why) { return ended(Came::kMalformed, std::move(why)); }
FrameReader::Came FrameReader::changed_on_the_way() {
  return malformed("the data received is not what it sent: it was changed, repeated or lost on the way");
}

void FrameReader::place(std::byte* to) {
  to_ = to;
  placed_ = true;
}

void FrameReader::took(std::span<const std::byte> payload) {
  if (mac_.has_value()) {
    mac_->add(payload);
  }
  left_ -= payload.size();
  if (to_ != nullptr) {
    to_ += payload.size();
  }
}

// Straight into the payload under way, or as much as the next header takes: what follows it has a place elsewhere.
std::optional<FrameReader::Came> FrameReader::read_tls() {
  std::byte dropped[kDroppedAtOnce];
  const bool payload = placed_ && left_ > 0;
  std::span<std::byte> room = std::span(staging_).subspan(end_, kFrameHeaderBytes - staged().size());
  if (payload) {
    room = to_ != nullptr ? std::span(to_, left_) : std::span(dropped).first(std::min(left_, sizeof dropped));
  }
  const StatusOr<size_t> count = tls_->read({reinterpret_cast<char*>(room.data()), room.size()});
  if (absl::IsDataLoss(count.status())) {
    return malformed(std::string(count.status().message()));
  }
  if (!count.ok()) {
    return lost(std::string(count.status().message()));
  }
  if (*count == 0) {
    return Came::kNothing;
  }
  if (payload) {
    took(room.first(*count));
  } else {
    end_ += *count;
  }
  return std::nullopt;
}

// The payload under way, and whatever follows it into the staging area, which is empty then.
std::optional<FrameReader::Came> FrameReader::read_plain() {
  std::byte dropped[kDroppedAtOnce];
  iovec parts[2];
  int count = 0;
  std::span<std::byte> room;
  if (placed_ && left_ > 0) {
    room = to_ != nullptr ? std::span(to_, left_) : std::span(dropped).first(std::min(left_, sizeof dropped));
    parts[count++] = {room.data(), room.size()};
  }
  std::copy(staging_.begin() + begin_, staging_.begin() + end_, staging_.begin());
  end_ -= std::exchange(begin_, 0);
  if (!placed_ || room.size() == left_) {
    parts[count++] = {staging_.data() + end_, staging_.size() - end_};
  }
  const ssize_t n = readv(fd_.get(), parts, count);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    return Came::kNothing;
  }
  if (n <= 0) {
    return lost(n == 0 ? "it closed the connection" : absl::StrCat("the connection: ", std::strerror(errno)));
  }
  const size_t direct = std::min(static_cast<size_t>(n), room.size());
  took(room.first(direct));
  end_ += static_cast<size_t>(n) - direct;
  return std::nullopt;
}

void FrameReader::take_staged() {
  const std::span<const std::byte> some = staged().first(std::min(left_, staged().size()));
  if (to_ != nullptr && !some.empty()) {
    std::memcpy(to_, some.data(), some.size());
  }
  took(some);
  begin_ += some.size();
}

// Nothing: the header has not come yet.
std::optional<FrameReader::Came> FrameReader::begin() {
  const size_t bytes = kFrameHeaderBytes + (mac_.has_value() ? net::Mac::kTagBytes : 0);
  if (staged().size() < bytes) {
    return std::nullopt;
  }
  const auto header = staged().first<kFrameHeaderBytes>();
  if (mac_.has_value()) {
    mac_->add(header);
    if (!mac_->finish_with(staged().subspan<kFrameHeaderBytes, net::Mac::kTagBytes>())) {
      return changed_on_the_way();
    }
  }
  frame_ = parse_frame(header, stream_);
  if (!frame_.has_value()) {
    return malformed("it sent a malformed frame");
  }
  begin_ += bytes;
  if (begin_ == end_) {
    begin_ = end_ = 0;
  }
  left_ = frame_->bytes;
  placed_ = false;
  return Came::kHeader;
}

// Nothing: some of the frame has not come yet.
std::optional<FrameReader::Came> FrameReader::end() {
  if (left_ > 0) {
    return std::nullopt;
  }
  if (mac_.has_value() && frame_->bytes > 0) {
    if (staged().size() < net::Mac::kTagBytes) {
      return std::nullopt;
    }
    if (!mac_->finish_with(staged().first<net::Mac::kTagBytes>())) {
      return changed_on_the_way();
    }
    begin_ += net::Mac::kTagBytes;
  }
  whole_ = true;
  return Came::kFrame;
}

FrameReader::Came FrameReader::advance() {
  if (!why_.empty()) {
    return Came::kLost;
  }
  if (std::exchange(whole_, false)) {
    frame_.reset();
    placed_ = false;
    to_ = nullptr;
  }
  while (true) {
    if (!frame_.has_value()) {
      if (const auto came = begin(); came.has_value()) {
        return *came;
      }
    } else if (!placed_) {
      return Came::kHeader;
    } else {
      take_staged();
      if (const auto came = end(); came.has_value()) {
        return *came;
      }
    }
    if (const auto came = tls_.has_value() ? read_tls() : read_plain(); came.has_value()) {
      return *came;
    }
  }
}

}  // namespace keepstep::comm::tcp
