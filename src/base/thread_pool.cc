// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"

namespace npumoe {
namespace {

// Spins before sleeping: decode launches a loop every few tens of microseconds, and a sleep costs more than
// that. assumed: 2000 pauses are about 30 microseconds on current x86 cores.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct ThreadPool::Impl {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  // The loop's number in the upper half, its tasks not yet taken in the lower. Whoever takes a task does so by lowering
  // this very value, so that a worker that wakes late finds nothing, and cannot take a task of one loop with the data
  // of another. (A loop's number comes back after 2^32 loops; a worker would have to sleep between two instructions
  // through all of them.)
  std::atomic<uint64_t> ticket{0};
  std::atomic<size_t> n_done{0};  // tasks of this loop
  std::atomic<bool> stop{false};
  // Of this loop. Written only between loops, when no task is being run; read only by who holds a task.
  size_t n_tasks = 0;
  const void* context = nullptr;
  Call call = nullptr;

  static uint64_t LoopOf(uint64_t value) { return value >> 32; }
  static uint64_t LeftOf(uint64_t value) { return value & 0xffffffffu; }

  // Takes tasks in ascending order until none are left. Returns the number of the loop that had none.
  uint64_t Drain(size_t thread) {
    size_t n = 0;
    uint64_t now = ticket.load();
    while (LeftOf(now) > 0) {
      if (!ticket.compare_exchange_weak(now, now - 1)) continue;
      call(context, n_tasks - LeftOf(now), thread);
      ++n;
      now = ticket.load();
    }
    // Until this is added the loop cannot end; afterwards nothing of it is touched.
    if (n > 0) n_done.fetch_add(n);
    return LoopOf(now);
  }

  void Work(size_t thread) {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && LoopOf(ticket.load()) == seen; ++spin) Pause();
      if (LoopOf(ticket.load()) == seen) {
        std::unique_lock lock(mutex);
        // A worker that came late to the last loop may have seen the destructor's number already: `stop` too must wake.
        wake.wait(lock, [&] { return stop.load() || LoopOf(ticket.load()) != seen; });
      }
      if (stop.load()) return;
      seen = Drain(thread);
    }
  }
};

ThreadPool::ThreadPool(size_t n_threads) : impl_(std::make_unique<Impl>()) {
  impl_->workers.reserve(n_threads);
  for (size_t thread = 1; thread < n_threads; ++thread) {
    // The system may refuse a thread (ulimit -u, -v, cgroup pids.max): go on with those it gave.
    try {
      impl_->workers.emplace_back([impl = impl_.get(), thread] { impl->Work(thread); });
    } catch (const std::system_error&) {
      break;
    }
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop.store(true);
    impl_->ticket.fetch_add(uint64_t{1} << 32);
  }
  impl_->wake.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

size_t ThreadPool::n_threads() const { return impl_->workers.size() + 1; }

void ThreadPool::Run(size_t n_tasks, const void* context, Call call) {
  if (impl_->workers.empty() || n_tasks <= 1) {
    for (size_t task = 0; task < n_tasks; ++task) call(context, task, 0);
    return;
  }
  NM_CHECK(n_tasks <= UINT32_MAX);
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->n_tasks = n_tasks;
    impl_->context = context;
    impl_->call = call;
    impl_->n_done.store(0);
    impl_->ticket.store(((Impl::LoopOf(impl_->ticket.load()) + 1) << 32) | n_tasks);
  }
  impl_->wake.notify_all();
  impl_->Drain(0);
  // Only tasks are waited for: a worker that has not woken yet holds none.
  for (int spin = 0; impl_->n_done.load() != n_tasks; ++spin) {
    // More threads than cores: let the others run instead of burning their time slice.
    if (spin < kSpins)
      Pause();
    else
      std::this_thread::yield();
  }
}

}  // namespace npumoe
