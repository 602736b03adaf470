// SPDX-License-Identifier: Apache-2.0
// The CPU's means of computing: threads and kernels, shared by every part of a forward pass.
#pragma once

#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"

namespace npumoe {

// One thread at a time.
struct Compute {
  Compute(size_t n_threads, size_t max_inner, size_t head_dim, Activations activations)
      : pool(n_threads), matmul(pool, max_inner, activations), attention(pool, head_dim) {}

  // body(row) for every row, a few rows per task; few rows run inline, where waking threads costs more than it saves.
  template <typename Body>
  void ForRows(size_t n_rows, const Body& body) {
    constexpr size_t kRowsPerTask = 8;
    const size_t n_tasks = (n_rows + kRowsPerTask - 1) / kRowsPerTask;
    pool.ParallelFor(n_tasks, [&](size_t task, size_t) {
      const size_t end = std::min(n_rows, (task + 1) * kRowsPerTask);
      for (size_t row = task * kRowsPerTask; row < end; ++row) body(row);
    });
  }

  ThreadPool pool;
  MatMul matmul;
  Attention attention;
};

}  // namespace npumoe
