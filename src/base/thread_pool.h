// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads for loops whose tasks write disjoint outputs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace npumoe {

// ParallelFor is called by one thread at a time (the owner); it allocates nothing.
class ThreadPool {
 public:
  // `n_threads` counts the caller: 1 runs everything inline.
  explicit ThreadPool(size_t n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t n_threads() const;

  // Calls body(task, thread) for every task in [0, n_tasks), thread in [0, n_threads()), and returns when
  // all are done. Which thread takes which task varies; results must not depend on it. Not reentrant.
  template <typename Body>
  void ParallelFor(size_t n_tasks, const Body& body) {
    Run(n_tasks, &body,
        [](const void* context, size_t task, size_t thread) { (*static_cast<const Body*>(context))(task, thread); });
  }

 private:
  using Call = void (*)(const void* context, size_t task, size_t thread);
  void Run(size_t n_tasks, const void* context, Call call);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe
