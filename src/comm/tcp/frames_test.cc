// Frames over a connection, both ways of protecting them: what a writer takes a reader gives, and what somebody changed
// on the way is never taken for a frame.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/tcp/frame_reader.h"
#include "comm/tcp/frame_writer.h"
#include "comm/tcp/part_streams.h"

namespace keepstep::comm::tcp {
namespace {

std::pair<Fd, Fd> sockets() {
  int fds[2];
  KEEPSTEP_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0, "a socket pair");
  return {Fd(fds[0]), Fd(fds[1])};
}

std::string take(const Fd& fd) {
  std::string bytes(1 << 20, '\0');
  const ssize_t count = recv(fd.get(), bytes.data(), bytes.size(), 0);
  bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return bytes;
}

// A writer, a reader, and between them this test, which sees and may change every byte after the handshake.
class Frames : public testing::TestWithParam<Protection> {
 protected:
  Frames() {
    const auto context = *net::TlsContext::create(*net::SharedKey::data_of(std::string(32, 's'), 1, 1));
    auto [near, from] = sockets();
    auto [far, to] = sockets();
    from_ = std::move(from);
    to_ = std::move(to);
    net::TlsStream here = *net::TlsStream::create(context, net::Role::kConnects, std::move(near), "rank 1");
    net::TlsStream there = *net::TlsStream::create(context, net::Role::kAccepts, std::move(far), "rank 0");
    for (bool done = false; !done;) {
      const auto a = *here.handshake();
      deliver(take(from_));
      const auto b = *there.handshake();
      const std::string back = take(to_);
      KEEPSTEP_CHECK(send(from_.get(), back.data(), back.size(), MSG_NOSIGNAL) >= 0, "the way back");
      done = a == 0 && b == 0;
    }
    writer_ = std::make_unique<FrameWriter>(std::move(here), GetParam());
    reader_ = std::make_unique<FrameReader>(std::move(there), GetParam(), 1);
  }

  void deliver(const std::string& bytes) {
    ASSERT_EQ(send(to_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static Frame part(uint32_t number, size_t bytes) {
    return {.kind = FrameKind::kPart, .part = number, .bytes = static_cast<uint32_t>(bytes), .total = bytes};
  }
  // What the writer sends of `payloads`, a frame each.
  std::vector<std::string> written(const std::vector<std::string>& payloads) {
    std::vector<std::string> records;
    for (size_t i = 0; i < payloads.size(); ++i) {
      std::deque<OutgoingFrame> queue;
      queue.emplace_back(part(static_cast<uint32_t>(i), payloads[i].size()),
                         reinterpret_cast<const std::byte*>(payloads[i].data()), nullptr);
      EXPECT_TRUE(*writer_->write(queue));
      EXPECT_TRUE(queue.empty());
      records.push_back(take(from_));
    }
    return records;
  }
  // Payloads of the frames that came whole, until nothing more comes.
  std::vector<std::string> read(FrameReader::Came& last) {
    std::vector<std::string> whole;
    while (true) {
      last = reader_->advance();
      if (last == FrameReader::Came::kHeader) {
        under_way_.assign(reader_->frame().bytes, '?');
        reader_->place(reinterpret_cast<std::byte*>(under_way_.data()));
      } else if (last == FrameReader::Came::kFrame) {
        whole.push_back(under_way_);
      } else {
        return whole;
      }
    }
  }

  Fd from_;  // the writer's other end
  Fd to_;    // the reader's
  std::unique_ptr<FrameWriter> writer_;
  std::unique_ptr<FrameReader> reader_;
  std::string under_way_;
};

const std::vector<std::string> kPayloads = {"one", std::string(60'000, '2'), "", "four", std::string(10'000, '5')};

TEST_P(Frames, come_as_they_were_sent_however_the_bytes_are_cut) {
  std::mt19937 random(7);
  std::vector<std::string> got;
  for (const std::string& record : written(kPayloads)) {
    for (size_t at = 0, some = 0; at < record.size(); at += some) {
      some = std::min<size_t>(record.size() - at, 1 + random() % 9'000);
      deliver(record.substr(at, some));
      FrameReader::Came last;
      std::ranges::move(read(last), std::back_inserter(got));
      ASSERT_EQ(last, FrameReader::Came::kNothing);
    }
  }
  EXPECT_EQ(got, kPayloads);
}

TEST_P(Frames, that_were_changed_on_the_way_end_the_connection) {
  const std::vector<std::string> records = written(kPayloads);
  std::mt19937 random(std::random_device{}());
  std::string all;
  for (const std::string& record : records) {
    all += record;
  }
  const size_t at = random() % all.size();
  SCOPED_TRACE(at);
  all[at] = static_cast<char>(all[at] ^ (1 << random() % 8));
  deliver(all);
  FrameReader::Came last;
  const std::vector<std::string> got = read(last);
  if (last == FrameReader::Came::kNothing) {
    // A length of TLS that was made longer: it waits for bytes that never come.
    ASSERT_EQ(GetParam(), Protection::kTls);
  } else {
    EXPECT_NE(last, FrameReader::Came::kFrame);
  }
  ASSERT_LT(got.size(), kPayloads.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i], kPayloads[i]);
  }
}

TEST_P(Frames, that_were_reordered_or_left_out_end_the_connection) {
  const std::vector<std::string> records = written(kPayloads);
  deliver(records[0]);
  FrameReader::Came last;
  EXPECT_THAT(read(last), testing::ElementsAre(kPayloads[0]));
  deliver(records[3]);  // 1 and 2 are left out
  EXPECT_THAT(read(last), testing::IsEmpty());
  EXPECT_EQ(last, FrameReader::Came::kMalformed);
  EXPECT_THAT(reader_->why(), testing::HasSubstr("is not what it sent"));
  EXPECT_LT(send(to_.get(), records[1].data(), records[1].size(), MSG_NOSIGNAL), 0) << "the sender does not hear of it";
  EXPECT_THAT(read(last), testing::IsEmpty());
  EXPECT_EQ(last, FrameReader::Came::kLost) << "nothing comes after that";
}

TEST_P(Frames, that_were_repeated_end_the_connection) {
  const std::vector<std::string> records = written(kPayloads);
  deliver(records[0] + records[0]);
  FrameReader::Came last;
  EXPECT_THAT(read(last), testing::ElementsAre(kPayloads[0]));
  EXPECT_EQ(last, FrameReader::Came::kMalformed);
}

TEST_P(Frames, can_be_read_on_the_way_only_where_they_are_not_encrypted) {
  const std::string secret = "a gradient that nobody else should see";
  const std::vector<std::string> records = written({secret});
  EXPECT_EQ(records[0].find(secret) != std::string::npos, GetParam() == Protection::kMac);
}

INSTANTIATE_TEST_SUITE_P(, Frames, testing::Values(Protection::kTls, Protection::kMac),
                         [](const auto& info) { return info.param == Protection::kTls ? "tls" : "mac"; });

// What no honest end says: the same bytes of a part on two streams, of which the first is still under way.
TEST(ReceiveStreams, a_part_that_comes_twice_breaks_the_stream_and_touches_no_request) {
  Inbox inbox;
  PartRequest request{.peer = 1, .key = {0, 7, 0}};
  std::string buffer(64, '?');
  inbox.posted.push_back({&request, std::as_writable_bytes(std::span(buffer))});
  Frame frame{.kind = FrameKind::kPart, .bytes = 64, .operation = 7, .total = 64};
  std::byte header[kFrameHeaderBytes];
  encode(frame, header);
  auto [first_end, first_peer] = sockets();
  auto [second_end, second_peer] = sockets();
  ReceiveStream first(FrameReader::unprotected(std::move(first_end), 1));
  ReceiveStream second(FrameReader::unprotected(std::move(second_end), 2));
  std::optional<GivenUp> told;

  const std::string half(32, 'a');
  ASSERT_EQ(send(first_peer.get(), header, sizeof header, 0), ssize_t{sizeof header});
  ASSERT_EQ(send(first_peer.get(), half.data(), half.size(), 0), ssize_t{32});
  first.advance(inbox, told);
  ASSERT_EQ(send(second_peer.get(), header, sizeof header, 0), ssize_t{sizeof header});
  second.advance(inbox, told);
  EXPECT_TRUE(second.malformed()) << second.lost();

  ASSERT_EQ(send(first_peer.get(), half.data(), half.size(), 0), ssize_t{32});
  first.advance(inbox, told);
  EXPECT_TRUE(request.done);
  EXPECT_EQ(buffer, std::string(64, 'a'));
}

}  // namespace
}  // namespace keepstep::comm::tcp
