#include "net/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "net/net_testing.h"

namespace keepstep::net {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using testing::HasSubstr;

// What a link received, in order; a test waits for what it expects.
class Mailbox : public Receiver {
 public:
  void received(std::string message) override {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.notify_all();
  }
  void closed(const Status& why) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(closed_.has_value());
    closed_ = Status(why.code(), why.message());  // TSan does not see abseil's reference counting
    changed_.notify_all();
  }

  // The next message; "(none)" if none came.
  std::string next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kLong, [this] { return !messages_.empty(); })) {
      return "(none)";
    }
    std::string message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  Status wait_until_closed() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kLong, [this] { return closed_.has_value(); });
    return closed_.value_or(absl::InternalError("still open"));
  }
  bool is_closed() {
    const std::lock_guard lock(mutex_);
    return closed_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> messages_;
  std::optional<Status> closed_;
};

// A hub whose listener passes it every member that connects, and another hub that connects to it.
class HubTest : public testing::Test {
 protected:
  struct End {
    ~End() {
      link->abort();
      (void)box.wait_until_closed();  // the hub no longer uses the box
    }
    Mailbox box;
    std::shared_ptr<Link> link;
  };

  // The accepting end of the connection that connect() makes, already started.
  std::unique_ptr<End> accept(const LinkOptions& options = {}) {
    auto end = std::make_unique<End>();
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kLong, [this] { return !accepted_.empty(); }));
    end->link = near_->add(std::move(accepted_.front()), options);
    accepted_.pop_front();
    near_->start(end->link, &end->box);
    return end;
  }
  std::unique_ptr<End> connect(const LinkOptions& options = {}) {
    auto end = std::make_unique<End>();
    end->link = far_->add(connect_tls(listener_->address(), context_, soon()).value(), options);
    far_->start(end->link, &end->box);
    return end;
  }
  std::unique_ptr<Connection> connect_plainly() {
    return Connection::connect(listener_->address(), context_, {}, soon()).value();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TlsStream> accepted_;
  std::shared_ptr<const TlsContext> context_ = context_of();
  std::unique_ptr<Hub> near_ = Hub::start("near").value();
  std::unique_ptr<Hub> far_ = Hub::start("far").value();
  std::unique_ptr<Listener> listener_ =
      Listener::start(parse_address("127.0.0.1:0").value(), context_, {}, [this](TlsStream stream) {
        const std::lock_guard lock(mutex_);
        accepted_.push_back(std::move(stream));
        changed_.notify_all();
      }).value();
};

std::string text_of_size(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) {
    text[i] = static_cast<char>('a' + (i * 7 + bytes) % 26);
  }
  return text;
}

TEST_F(HubTest, messages_of_every_size_arrive_whole_and_in_order_in_both_directions) {
  const auto there = connect();
  const auto here = accept();
  constexpr size_t kRecord = TlsStream::kRecordBytes;
  const size_t sizes[] = {1,           100,         kRecord - 5,     kRecord - 4, kRecord - 3, kRecord,
                          kRecord + 1, 4 * kRecord, 5 * kRecord - 4, 3u << 20,    4u << 20,    7};
  for (const size_t size : sizes) {
    there->link->send(text_of_size(size));
    here->link->send("head of ", std::make_shared<const std::string>(text_of_size(size - std::min<size_t>(size, 8))));
  }
  for (const size_t size : sizes) {
    EXPECT_TRUE(here->box.next() == text_of_size(size)) << size;
    EXPECT_TRUE(there->box.next() == "head of " + text_of_size(size - std::min<size_t>(size, 8))) << size;
  }
}

TEST_F(HubTest, what_is_sent_before_the_start_arrives) {
  End there;
  there.link = far_->add(connect_tls(listener_->address(), context_, soon()).value(), {});
  there.link->send("early");
  far_->start(there.link, &there.box);
  const auto here = accept();
  EXPECT_EQ(here->box.next(), "early");
}

TEST_F(HubTest, a_hundred_links_and_eight_threads_lose_and_mix_up_nothing) {
  constexpr int kLinks = 100;
  constexpr int kThreads = 8;
  constexpr int kMessages = 50;
  std::vector<std::unique_ptr<End>> there;
  std::vector<std::unique_ptr<End>> here;
  for (int i = 0; i < kLinks; ++i) {
    there.push_back(connect());
    here.push_back(accept());
  }
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int message = 0; message < kMessages; ++message) {
        for (int link = 0; link < kLinks; ++link) {
          there[static_cast<size_t>(link)]->link->send(absl::StrFormat("%d %d %d", link, thread, message));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (int link = 0; link < kLinks; ++link) {
    std::vector<int> next(kThreads, 0);
    for (int i = 0; i < kThreads * kMessages; ++i) {
      int from = -1;
      int thread = -1;
      int message = -1;
      const std::string came = here[static_cast<size_t>(link)]->box.next();
      ASSERT_EQ(sscanf(came.c_str(), "%d %d %d", &from, &thread, &message), 3) << came;
      EXPECT_EQ(from, link);
      EXPECT_EQ(message, next.at(static_cast<size_t>(thread))++);
    }
  }
}

TEST_F(HubTest, all_that_was_sent_comes_before_the_end) {
  const auto there = connect();
  const auto here = accept();
  for (int i = 0; i < 20; ++i) {
    there->link->send(text_of_size(1 << 20));
  }
  there->link->end();
  there->link->send("too late");
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(here->box.next().size(), size_t{1} << 20);
  }
  EXPECT_EQ(here->box.wait_until_closed().code(), StatusCode::kOutOfRange);
  EXPECT_EQ(there->box.wait_until_closed().code(), StatusCode::kOutOfRange) << "the other side ended, too";
}

// The hub's thread may be at the end of its queue when the last message and the end arrive.
TEST_F(HubTest, a_last_word_is_not_overtaken_by_the_end) {
  for (int i = 0; i < 200; ++i) {
    const auto there = connect();
    const auto here = accept();
    there->link->send("first");
    for (int wait = 0; wait < 50 * (i % 40); ++wait) {
      std::atomic_signal_fence(std::memory_order_seq_cst);  // keeps the compiler from removing the loop
    }
    there->link->send("last");
    there->link->end();
    EXPECT_EQ(here->box.next(), "first");
    ASSERT_EQ(here->box.next(), "last") << i;
    ASSERT_EQ(here->box.wait_until_closed().code(), StatusCode::kOutOfRange) << i;
  }
}

TEST_F(HubTest, a_peer_that_sends_without_a_pause_leaves_others_their_turn) {
  const auto flood = connect_plainly();
  const auto flooded = accept();
  const auto there = connect();
  const auto here = accept();
  std::atomic<bool> stop = false;
  std::thread sender([&] {
    const std::string message = text_of_size(1000);
    while (!stop.load() && flood->send(message, soon()).ok()) {
    }
  });
  for (int i = 0; i < 50; ++i) {
    there->link->send(std::to_string(i));
    EXPECT_EQ(here->box.next(), std::to_string(i));
  }
  stop.store(true);
  sender.join();
}

TEST_F(HubTest, an_aborted_link_is_closed_at_once_and_the_peer_sees_it_broken) {
  const auto there = connect();
  const auto here = accept();
  there->link->abort();
  EXPECT_EQ(there->box.wait_until_closed().code(), StatusCode::kCancelled);
  EXPECT_EQ(here->box.wait_until_closed().code(), StatusCode::kUnavailable);
  there->link->send("to nobody");
  there->link->end();
}

TEST_F(HubTest, a_message_over_the_limit_closes_the_link) {
  const auto there = connect();
  const auto here = accept({.max_message_bytes = 1000});
  there->link->send(text_of_size(1000));
  there->link->send(text_of_size(1001));
  EXPECT_EQ(here->box.next().size(), 1000u);
  const Status why = here->box.wait_until_closed();
  EXPECT_EQ(why.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(why.message()), HasSubstr("announced a message of 1001 bytes; at most 1000 are allowed"));
}

TEST_F(HubTest, a_peer_that_does_not_read_is_given_up_and_takes_no_more_memory) {
  const auto there = connect_plainly();
  const auto here = accept({.max_queued_bytes = size_t{8} << 20});
  const auto tail = std::make_shared<const std::string>(text_of_size(1 << 20));
  for (int i = 0; i < 200 && !here->box.is_closed(); ++i) {  // the kernel itself buffers a few MiB
    here->link->send("", tail);
  }
  const Status why = here->box.wait_until_closed();
  EXPECT_EQ(why.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(why.message()), HasSubstr("has stopped reading"));
}

TEST_F(HubTest, a_link_that_ends_waits_for_a_peer_only_for_so_long) {
  const auto there = connect_plainly();
  const auto here = accept({.linger = milliseconds(100)});
  here->link->end();
  EXPECT_EQ(here->box.wait_until_closed().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(HubTest, a_peer_that_says_nothing_is_taken_for_dead_and_one_that_gives_signs_of_life_is_not) {
  const LinkOptions asks{.ask_after = milliseconds(1000)};
  const auto there = connect(asks);
  const auto here = accept(asks);
  const auto silent = connect_plainly();
  const auto lonely = accept(asks);
  const Status why = lonely->box.wait_until_closed();
  EXPECT_EQ(why.code(), StatusCode::kUnavailable);
  EXPECT_THAT(std::string(why.message()), HasSubstr("has said nothing for"));
  EXPECT_FALSE(here->box.is_closed());
  EXPECT_FALSE(there->box.is_closed());
  here->link->send("still there?");
  EXPECT_EQ(there->box.next(), "still there?") << "signs of life are not delivered";
  for (int i = 0; i < 2; ++i) {  // one or more were already on the way
    const StatusOr<std::string> sign = silent->receive(soon());
    ASSERT_TRUE(sign.ok()) << sign.status();
    EXPECT_EQ(*sign, "");
  }
}

// Sends back every message.
class Echo : public Mailbox {
 public:
  explicit Echo(std::shared_ptr<Link>* link) : link_(link) {}
  void received(std::string message) override { (*link_)->send(std::move(message)); }

 private:
  std::shared_ptr<Link>* link_;
};

TEST_F(HubTest, a_receiver_may_answer_from_within) {
  const auto there = connect();
  std::shared_ptr<Link> link;
  Echo echo(&link);
  {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kLong, [this] { return !accepted_.empty(); }));
    link = near_->add(std::move(accepted_.front()), {});
  }
  near_->start(link, &echo);
  for (int i = 0; i < 100; ++i) {
    there->link->send(std::to_string(i));
    EXPECT_EQ(there->box.next(), std::to_string(i));
  }
  near_.reset();
}

TEST_F(HubTest, the_end_of_a_hub_closes_its_links) {
  const auto there = connect();
  const auto here = accept();
  far_.reset();
  EXPECT_EQ(there->box.wait_until_closed().code(), StatusCode::kCancelled);
  EXPECT_EQ(here->box.wait_until_closed().code(), StatusCode::kUnavailable);
  there->link->send("to nobody");
}

}  // namespace
}  // namespace keepstep::net
