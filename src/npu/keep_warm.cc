// SPDX-License-Identifier: Apache-2.0
#include "npu/keep_warm.h"

#include <utility>

namespace npumoe {
namespace {

auto Duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

KeepWarm::KeepWarm(double idle_seconds, double keep_seconds, std::function<void()> touch)
    : idle_(Duration(idle_seconds)), keep_(Duration(keep_seconds)), touch_(std::move(touch)) {
  if (keep_seconds > 0) thread_ = std::jthread([this](std::stop_token stop) { Loop(std::move(stop)); });
}

KeepWarm::~KeepWarm() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void KeepWarm::Used() {
  used_ = busy_ = Clock::now();
  was_used_ = true;
  changed_.notify_one();
}

void KeepWarm::Loop(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (!was_used_ || Clock::now() - used_ >= keep_) {  // nobody is waiting for anything
      was_used_ = false;
      changed_.wait(lock, stop, [&] { return was_used_; });
      continue;
    }
    const Clock::time_point due = busy_ + idle_;
    if (Clock::now() < due) {
      changed_.wait_until(lock, stop, due, [] { return false; });
      continue;
    }
    touch_();
    busy_ = Clock::now();
    // Whoever came meanwhile goes first.
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(1));
    lock.lock();
  }
}

}  // namespace npumoe
