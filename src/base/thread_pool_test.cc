// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace npumoe {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceOnAThreadOfItsOwn) {
  for (const size_t n_threads : {1, 2, 3, 8}) {
    ThreadPool pool(n_threads);
    EXPECT_EQ(pool.n_threads(), n_threads);
    for (const size_t n_tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(n_tasks, 0);  // written without locks: tasks are disjoint
      std::vector<std::atomic<int>> inside(n_threads);
      std::atomic<int> worst{0};
      pool.ParallelFor(n_tasks, [&](size_t task, size_t thread) {
        ASSERT_LT(thread, n_threads);
        if (inside[thread].fetch_add(1) != 0) worst = 1;  // two tasks at once under one thread index
        ++runs[task];
        inside[thread].fetch_sub(1);
      });
      EXPECT_EQ(runs, std::vector<int>(n_tasks, 1)) << n_threads << " threads";
      EXPECT_EQ(worst.load(), 0);
    }
  }
}

TEST(ThreadPool, OneLoopSeesWhatTheLastOneWrote) {
  ThreadPool pool(4);
  std::vector<size_t> values(64, 0);
  for (size_t round = 1; round <= 2000; ++round) {
    // Each task reads a value that another thread may have written a moment ago.
    std::vector<size_t> next(values.size());
    pool.ParallelFor(values.size(), [&](size_t task, size_t) { next[task] = values[(task + 1) % values.size()] + 1; });
    values.swap(next);
    ASSERT_EQ(values, std::vector<size_t>(values.size(), round));
  }
}

TEST(ThreadPool, WorkersThatWentToSleepWakeUp) {
  ThreadPool pool(3);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // far longer than a worker spins
    std::atomic<size_t> sum{0};
    pool.ParallelFor(100, [&](size_t task, size_t) { sum += task; });
    EXPECT_EQ(sum.load(), 4950u);
  }
}

TEST(ThreadPool, LoopsInQuickSuccessionNeverMixTheirTasks) {
  // More threads than cores, loops shorter than a wake-up: workers arrive in later loops than they were woken for.
  ThreadPool pool(12);
  for (size_t round = 0; round < 4000; ++round) {
    const size_t n_tasks = 2 + round % 5;
    std::vector<std::atomic<size_t>> runs(n_tasks);
    pool.ParallelFor(n_tasks, [&, round](size_t task, size_t) {
      ASSERT_LT(task, n_tasks);
      runs[task].fetch_add(round + 1);
    });
    for (size_t task = 0; task < n_tasks; ++task) ASSERT_EQ(runs[task].load(), round + 1) << round << " " << task;
  }
}

#if defined(__linux__)
// All threads on one core, the workers at a priority at which they get next to nothing of it: what a busy machine does
// to them, only surely. The caller can do all the work itself and must not wait for anyone.
TEST(ThreadPool, DoesNotWaitForWorkersThatHoldNoTask) {
  constexpr size_t kThreads = 4;
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // workers inherit it
  std::atomic<bool> refused{false};
  std::chrono::duration<double> seconds{};
  {
    ThreadPool pool(kThreads);
    std::atomic<size_t> n_started{0};
    pool.ParallelFor(kThreads, [&](size_t, size_t thread) {
      ++n_started;
      while (n_started < kThreads) std::this_thread::yield();  // so that every thread has one
      const sched_param none{};
      if (thread != 0 && sched_setscheduler(0, SCHED_IDLE, &none) != 0) refused = true;
    });
    const auto start = std::chrono::steady_clock::now();
    constexpr int kRounds = 200;
    for (int round = 0; round < kRounds; ++round) pool.ParallelFor(4, [](size_t, size_t) {});
    seconds = std::chrono::steady_clock::now() - start;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  if (refused) GTEST_SKIP() << "the system refuses the idle priority";
  // Waiting for all workers took them a turn of the scheduler each: many milliseconds in every round.
  EXPECT_LT(seconds.count(), 1.0);
}
#endif

// A worker that wakes for the last loop while the pool is being destroyed must not sleep for ever.
TEST(ThreadPool, EndsRightAfterALoop) {
  for (int i = 0; i < 5000; ++i) {
    ThreadPool pool(3);
    pool.ParallelFor(2, [](size_t, size_t) {});
  }
}

TEST(ThreadPool, EndsWithoutEverWorking) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace npumoe
