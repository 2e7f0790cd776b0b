#include "agent/publications/publication_service.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <string>
#include <thread>

#include "agent/workers/temp_folder.h"
#include "base/socket/local_socket.h"

namespace keepstep::agent {
namespace {

using messages::NextPublication;
using messages::PublicationRefusal;
using messages::Publish;
using messages::Published;
using testing::HasSubstr;

constexpr int kAllSeals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW;

Fd memory(const std::string& text, int seals = kAllSeals) {
  Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

std::string contents(const Fd& fd) {
  struct stat info{};
  EXPECT_EQ(fstat(fd.get(), &info), 0);
  std::string text(static_cast<size_t>(info.st_size), '\0');
  EXPECT_EQ(pread(fd.get(), text.data(), text.size(), 0), info.st_size);
  return text;
}

std::string next(const std::string& name, uint64_t after) {
  return messages::write(NextPublication{name, after, true});
}

// A real service, in its own thread.
class PublicationServiceTest : public testing::Test {
 protected:
  void SetUp() override { open(30'000'000'000); }
  void TearDown() override { end(); }
  void open(int64_t read_ns) {
    loop_ = *EventLoop::create();
    auto service = PublicationService::open(*loop_, path_, read_ns);
    ASSERT_TRUE(service.ok()) << service.status();
    service_ = *std::move(service);
    thread_ = std::thread([this] { loop_->run(); });
  }
  void end() {
    if (thread_.joinable()) {
      loop_->post([this] { loop_->stop(); });
      thread_.join();
      service_.reset();
      unlink(path_.c_str());
    }
  }

  // Runs on the service's thread, between two turns of its loop.
  template <typename Asked>
  auto ask(Asked asked) {
    std::promise<decltype(asked())> answer;
    loop_->post([&] { answer.set_value(asked()); });
    return answer.get_future().get();
  }
  Status publish(const std::string& name, uint64_t version, const std::string& text) {
    return publish(name, version, memory(text));
  }
  Status publish(const std::string& name, uint64_t version, Fd memory) {
    return ask([&] { return service_->publish(Publish{name, version}, std::move(memory)); });
  }
  auto read(const std::string& name, uint64_t serial, uint64_t offset) {
    return ask([&, this] { return service_->read(name, serial, offset); });
  }
  PacketSocket connect() const { return *connect_local(path_); }
  static bool let_go(const PacketSocket& socket) { return absl::IsUnavailable(socket.receive().status()); }
  static std::pair<Published, std::string> answer_of(const PacketSocket& socket) {
    StatusOr<Packet> packet = socket.receive();
    EXPECT_TRUE(packet.ok()) << packet.status();
    const auto message = messages::read<messages::ToSubscriber>(packet->bytes);
    EXPECT_TRUE(message.ok()) << message.status();
    EXPECT_EQ(packet->fds.size(), 1u) << packet->bytes;
    return {std::get<Published>(*message), contents(packet->fds.at(0))};
  }

  const TempFolder folder_ = *TempFolder::create();
  const std::string path_ = folder_.path() / "publications";
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<PublicationService> service_;
  std::thread thread_;
};

TEST_F(PublicationServiceTest, a_subscriber_gets_the_newest_version_and_waits_for_the_next_one) {
  ASSERT_TRUE(publish("weights", 10, "ten").ok());
  ASSERT_TRUE(publish("weights", 20, "twenty").ok());
  const PacketSocket reader = connect();
  ASSERT_TRUE(reader.send(next("weights", 0)).ok());
  const auto [first, text] = answer_of(reader);
  EXPECT_EQ(first.version, 20u);
  EXPECT_EQ(first.bytes, 6u);
  EXPECT_EQ(text, "twenty");

  ASSERT_TRUE(reader.send(next("weights", first.serial)).ok());
  ASSERT_TRUE(publish("other", 21, "another name").ok());
  ASSERT_TRUE(publish("weights", 30, "thirty").ok());
  const auto [second, later] = answer_of(reader);
  EXPECT_EQ(second.version, 30u);
  EXPECT_GT(second.serial, first.serial);
  EXPECT_EQ(later, "thirty");
}

TEST_F(PublicationServiceTest, a_version_that_is_published_again_is_no_news) {
  ASSERT_TRUE(publish("weights", 10, "ten").ok());
  const uint64_t serial = ask([this] { return service_->newest(); }).at(0).serial;
  ASSERT_TRUE(publish("weights", 10, "ten").ok());
  EXPECT_EQ(ask([this] { return service_->newest(); }).at(0).serial, serial);
}

TEST_F(PublicationServiceTest, a_subscriber_that_does_not_wait_is_answered_at_once) {
  const PacketSocket reader = connect();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(reader.send(messages::write(NextPublication{"weights", 0, false})).ok());
    EXPECT_EQ(reader.receive()->bytes, messages::write(messages::NothingNewer{}));
  }
  ASSERT_TRUE(publish("weights", 1, "one").ok());
  ASSERT_TRUE(reader.send(messages::write(NextPublication{"weights", 0, false})).ok());
  EXPECT_EQ(answer_of(reader).second, "one");
}

TEST_F(PublicationServiceTest, what_a_restart_or_the_next_function_takes_back_is_gone) {
  const auto begin = [this](uint64_t version) {
    ask([this, version] {
      service_->begin(version);
      return true;
    });
  };
  ASSERT_TRUE(publish("weights", 10, "ten").ok());
  ASSERT_TRUE(publish("other", 7, "seven").ok());
  const PacketSocket reader = connect();
  ASSERT_TRUE(reader.send(next("weights", 0)).ok());
  const uint64_t serial = answer_of(reader).first.serial;
  begin(10);
  EXPECT_EQ(read("weights", 0, 0)->bytes, "ten");
  begin(7);
  EXPECT_TRUE(absl::IsNotFound(read("weights", 0, 0).status()));
  EXPECT_EQ(read("other", 0, 0)->bytes, "seven");
  ASSERT_TRUE(publish("weights", 10, "TEN").ok()) << "computed again, perhaps differently";
  ASSERT_TRUE(reader.send(next("weights", serial)).ok());
  EXPECT_EQ(answer_of(reader).second, "TEN");
  begin(0);
  EXPECT_TRUE(ask([this] { return service_->newest(); }).empty());
}

TEST_F(PublicationServiceTest, memory_that_could_change_and_bad_names_are_refused) {
  EXPECT_THAT(publish("weights", 1, memory("x", F_SEAL_SHRINK | F_SEAL_GROW)).message(), HasSubstr("sealed against"));
  EXPECT_THAT(publish("weights", 1, memory("x", F_SEAL_WRITE | F_SEAL_GROW)).message(), HasSubstr("sealed against"));
  EXPECT_THAT(publish("weights", 1, memory("")).message(), HasSubstr("sealed against"));
  EXPECT_THAT(publish("weights", 1, Fd(::open("/dev/null", O_RDONLY))).message(), HasSubstr("sealed against"));
  EXPECT_THAT(publish("", 1, "x").message(), HasSubstr("1 to 100 bytes"));
  EXPECT_THAT(publish(std::string(101, 'n'), 1, "x").message(), HasSubstr("this one 101"));
  for (size_t i = 0; i < kMaxPublications; ++i) {
    ASSERT_TRUE(publish(std::to_string(i), 1, "x").ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(publish("one more", 1, "x")));
  EXPECT_TRUE(publish("0", 2, "x").ok()) << "one that is there";
}

TEST_F(PublicationServiceTest, a_reader_over_the_network_finishes_the_version_it_began) {
  std::string large(kMaxPieceBytes, 'a');
  large.append("the end");
  ASSERT_TRUE(publish("weights", 1, large).ok());
  const auto first = read("weights", 0, 0);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->of.bytes, large.size());
  EXPECT_EQ(first->bytes.size(), kMaxPieceBytes);
  ASSERT_TRUE(publish("weights", 2, "newer").ok());
  EXPECT_EQ(read("weights", first->of.serial, kMaxPieceBytes)->bytes, "the end");
  EXPECT_EQ(read("weights", 0, 0)->of.version, 2u);
  EXPECT_TRUE(absl::IsOutOfRange(read("weights", 0, 6).status()));
  EXPECT_TRUE(absl::IsNotFound(read("weights", first->of.serial, 0).status())) << "its end was sent";
  EXPECT_THAT(read("nothing", 0, 0).status().message(), HasSubstr("yet"));
}

TEST_F(PublicationServiceTest, a_version_that_nobody_reads_is_gone) {
  end();
  open(0);
  ASSERT_TRUE(publish("weights", 1, "one").ok());
  ASSERT_TRUE(publish("weights", 2, "two").ok());
  EXPECT_THAT(read("weights", 1, 0).status().message(), HasSubstr("newest one is of version 2")) << "never read";
  const std::string large(kMaxPieceBytes + 1, 'l');
  ASSERT_TRUE(publish("weights", 3, large).ok());
  const uint64_t serial = read("weights", 0, 0)->of.serial;
  ASSERT_TRUE(publish("weights", 4, "four").ok());
  EXPECT_TRUE(absl::IsNotFound(read("weights", serial, kMaxPieceBytes).status())) << "read too long ago";
}

TEST_F(PublicationServiceTest, no_more_than_two_that_are_read_are_held_beside_the_newest) {
  const std::string large(kMaxPieceBytes + 1, 'l');
  std::vector<uint64_t> serials;
  for (uint64_t version = 1; version <= 4; ++version) {
    ASSERT_TRUE(publish("weights", version, large).ok());
    serials.push_back(read("weights", 0, 0)->of.serial);
  }
  EXPECT_TRUE(absl::IsNotFound(read("weights", serials[0], kMaxPieceBytes).status()));
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(read("weights", serials[i], kMaxPieceBytes)->bytes, "l");
  }
}

TEST_F(PublicationServiceTest, who_sends_nonsense_is_let_go_and_others_are_served) {
  ASSERT_TRUE(publish("weights", 1, "one").ok());
  const PacketSocket other = connect();
  ASSERT_TRUE(other.send(next("weights", 1)).ok());
  for (const std::string& bad :
       {std::string("next_publication"), std::string("next_publication []"),
        std::string(R"(next_publication {"name":"weights"})"),
        std::string(R"(next_publication {"name":1,"after":0,"wait":true})"),
        std::string(R"(next_publication {"name":"weights","after":-1,"wait":true})"), std::string("open_ring {}"),
        std::string(messages::kMaxSubscriberMessageBytes + 1, ' '), std::string("\xff\x00", 2)}) {
    const PacketSocket stranger = connect();
    ASSERT_TRUE(stranger.send(bad).ok());
    EXPECT_THAT(stranger.receive()->bytes, HasSubstr("publication_refusal")) << bad.substr(0, 60);
    EXPECT_TRUE(let_go(stranger));
  }
  const PacketSocket with_fd = connect();
  const int fds[] = {0};
  ASSERT_TRUE(with_fd.send(next("weights", 0), fds).ok());
  EXPECT_THAT(with_fd.receive()->bytes, HasSubstr("1 descriptors"));
  const PacketSocket hasty = connect();
  ASSERT_TRUE(hasty.send(next("weights", 1)).ok() && hasty.send(next("weights", 1)).ok());
  EXPECT_THAT(hasty.receive()->bytes, HasSubstr("a second request"));

  ASSERT_TRUE(publish("weights", 2, "two").ok());
  EXPECT_EQ(answer_of(other).second, "two");
}

TEST_F(PublicationServiceTest, too_many_subscribers_are_refused_and_places_come_free) {
  ASSERT_TRUE(publish("weights", 1, "one").ok());
  std::vector<PacketSocket> readers;
  for (size_t i = 0; i < kMaxSubscribers; ++i) {
    readers.push_back(connect());
  }
  EXPECT_THAT(connect().receive()->bytes, HasSubstr("no more can"));
  readers.pop_back();
  ASSERT_TRUE(readers.at(0).send(next("weights", 0)).ok());
  EXPECT_EQ(answer_of(readers.at(0)).second, "one");  // the loop has seen the end of the other by now, or will
  for (bool served = false; !served;) {
    const PacketSocket again = connect();
    served = again.send(next("weights", 0)).ok() && again.receive()->bytes.starts_with("published");
  }
}

}  // namespace
}  // namespace keepstep::agent
