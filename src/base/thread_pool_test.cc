// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>

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

TEST(ThreadPool, EndsWithoutEverWorking) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace npumoe
