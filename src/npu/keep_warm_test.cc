// SPDX-License-Identifier: Apache-2.0
#include "npu/keep_warm.h"

#include <gtest/gtest.h>

#include <atomic>

namespace npumoe {
namespace {

using namespace std::chrono_literals;

// Until `done` or for a minute: how long a machine takes is not what is tested.
template <typename Done>
bool Eventually(const Done& done) {
  for (int i = 0; i < 6000 && !done(); ++i) std::this_thread::sleep_for(10ms);
  return done();
}

TEST(KeepWarm, TouchesOnlyAfterUse) {
  std::atomic<int> touches{0};
  KeepWarm warm(0.001, 1e6, [&] { ++touches; });
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(touches, 0);
  EXPECT_EQ(warm.Use([] { return 7; }), 7);
  EXPECT_TRUE(Eventually([&] { return touches > 2; }));
}

TEST(KeepWarm, EndsSomeTimeAfterTheLastUse) {
  std::atomic<int> touches{0};
  KeepWarm warm(0.001, 0.05, [&] { ++touches; });
  warm.Use([] { return 0; });
  std::this_thread::sleep_for(200ms);
  // Whatever was late has come by now.
  int seen = -1;
  EXPECT_TRUE(Eventually([&] {
    const int before = std::exchange(seen, touches.load());
    std::this_thread::sleep_for(50ms);
    return before == touches;
  }));
  warm.Use([] { return 0; });
  EXPECT_TRUE(Eventually([&] { return touches > seen; })) << "a new use wakes it";
}

TEST(KeepWarm, NeverBesideAUse) {
  std::atomic<bool> inside{false};
  std::atomic<int> touches{0}, clashes{0};
  KeepWarm warm(0, 1e6, [&] {
    if (inside.exchange(true)) ++clashes;
    ++touches;
    inside = false;
  });
  for (int i = 0; i < 200 || touches == 0; ++i) {
    warm.Use([&] {
      if (inside.exchange(true)) ++clashes;
      std::this_thread::yield();
      inside = false;
      return 0;
    });
    if (i % 8 == 0) std::this_thread::sleep_for(1ms);  // a mutex that is taken again at once is never the other's
  }
  EXPECT_EQ(clashes, 0);
}

TEST(KeepWarm, OffWithoutTime) {
  std::atomic<int> touches{0};
  KeepWarm warm(0, 0, [&] { ++touches; });
  warm.Use([] { return 0; });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(touches, 0);
}

}  // namespace
}  // namespace npumoe
