#include "agent/loop/event_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <vector>

namespace keepstep::agent {
namespace {

Fd readable() { return Fd(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)); }

// Both descriptors are readable at once, so both events arrive in one batch. The handler that runs first closes the
// other's descriptor and watches a new one, to which the kernel gives the same number.
TEST(EventLoopTest, an_event_of_a_closed_descriptor_is_none_of_the_next_with_its_number) {
  const auto loop = *EventLoop::create();
  Fd fds[2] = {readable(), readable()};
  int stale = 0;
  int handled = 0;
  Fd next;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(loop->watch(fds[i].get(),
                            [&, i] {
                              ++handled;
                              Fd& other = fds[1 - i];
                              const int number = other.get();
                              loop->unwatch(number);
                              other.reset();
                              next = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
                              ASSERT_EQ(next.get(), number);
                              ASSERT_TRUE(loop->watch(number, [&] { ++stale; }).ok());
                              loop->unwatch(fds[i].get());
                              loop->post([&] { loop->stop(); });
                            })
                    .ok());
  }
  loop->run();
  EXPECT_EQ(handled, 1);
  EXPECT_EQ(stale, 0);
}

}  // namespace
}  // namespace keepstep::agent
