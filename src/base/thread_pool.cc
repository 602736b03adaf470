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
  std::atomic<uint64_t> generation{0};
  std::atomic<size_t> next_task{0};
  std::atomic<size_t> n_busy{0};
  std::atomic<bool> stop{false};
  size_t n_tasks = 0;
  const void* context = nullptr;
  Call call = nullptr;

  void Drain(size_t thread) {
    for (size_t task = next_task.fetch_add(1); task < n_tasks; task = next_task.fetch_add(1)) {
      call(context, task, thread);
    }
  }

  void Work(size_t thread) {
    uint64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation.load() == seen; ++spin) Pause();
      if (generation.load() == seen) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return generation.load() != seen; });
      }
      seen = generation.load();
      if (stop.load()) return;
      Drain(thread);
      n_busy.fetch_sub(1);
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
    impl_->generation.fetch_add(1);
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
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->n_tasks = n_tasks;
    impl_->context = context;
    impl_->call = call;
    impl_->next_task.store(0);
    impl_->n_busy.store(impl_->workers.size());
    impl_->generation.fetch_add(1);
  }
  impl_->wake.notify_all();
  impl_->Drain(0);
  for (int spin = 0; impl_->n_busy.load() != 0; ++spin) {
    // More threads than cores: let the others run instead of burning their time slice.
    if (spin < kSpins)
      Pause();
    else
      std::this_thread::yield();
  }
}

}  // namespace npumoe
