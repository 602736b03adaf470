// SPDX-License-Identifier: Apache-2.0
// Keeps a device awake between the dispatches of somebody who is not done yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace npumoe {

// Calls `touch` on a thread of its own whenever the device was idle for `idle_seconds`, for `keep_seconds` after the last
// Use. The work of a Use and `touch` never run at once.
class KeepWarm {
 public:
  KeepWarm(double idle_seconds, double keep_seconds, std::function<void()> touch);
  ~KeepWarm();  // waits for a touch that runs
  KeepWarm(const KeepWarm&) = delete;
  KeepWarm& operator=(const KeepWarm&) = delete;

  template <typename Work>
  auto Use(const Work& work) {
    const std::lock_guard lock(mutex_);
    auto result = work();
    Used();
    return result;
  }

 private:
  using Clock = std::chrono::steady_clock;
  void Used();
  void Loop(std::stop_token stop);

  const Clock::duration idle_, keep_;
  const std::function<void()> touch_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  Clock::time_point used_, busy_;  // ends of the last Use, and of the last Use or touch
  bool was_used_ = false;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace npumoe
