// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "base/check.h"
#include "kernels/strip.h"

namespace npumoe {
namespace {

// Below this many tasks per thread the strips are cut finer, so that the threads end together. assumed.
constexpr size_t kTasksPerThread = 16;
constexpr size_t kFinestStrip = 12;

// Where a thread stands in the list of jobs. Tasks come to a thread in ascending order, so it only moves forward.
struct alignas(64) Cursor {
  size_t job = 0;
  size_t first_task = 0;  // of that job
};

size_t Strips(const MatMulJob& job, size_t strip_rows) {
  return job.x.rows == 0 ? 0 : (job.y.cols + strip_rows - 1) / strip_rows;
}

struct FreeAligned {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using Scratch = std::unique_ptr<float[], FreeAligned>;

Scratch MakeScratch(size_t n) { return Scratch(new (std::align_val_t{64}) float[n]); }

}  // namespace

struct MatMul::Impl {
  ThreadPool& pool;  // borrowed from the caller of the constructor
  size_t max_inner;
  std::vector<Scratch> scratch;  // [n_threads]
  std::vector<Cursor> cursors;   // [n_threads]
};

MatMul::MatMul(ThreadPool& pool, size_t max_inner) : impl_(new Impl{pool, max_inner, {}, {}}) {
  for (size_t thread = 0; thread < pool.n_threads(); ++thread) {
    impl_->scratch.push_back(MakeScratch(kStripScratchFloats));
  }
  impl_->cursors.resize(pool.n_threads());
}

MatMul::~MatMul() = default;

void MatMul::Run(std::span<const MatMulJob> jobs) {
  Impl& impl = *impl_;
  for (const MatMulJob& job : jobs) {
    NM_CHECK(job.w.shape.rank == 2 && job.w.shape[0] == job.y.cols && job.w.shape[1] == job.x.cols);
    NM_CHECK(job.x.rows == job.y.rows && job.x.cols <= impl.max_inner);
    NM_CHECK(job.x.cols % Info(job.w.dtype).block_elems == 0);
  }
  size_t strip_rows = kStripRows;
  size_t n_tasks = 0;
  while (true) {
    n_tasks = 0;
    for (const MatMulJob& job : jobs) n_tasks += Strips(job, strip_rows);
    if (n_tasks >= kTasksPerThread * impl.pool.n_threads() || strip_rows <= kFinestStrip) break;
    strip_rows /= 2;
  }
  std::fill(impl.cursors.begin(), impl.cursors.end(), Cursor{});
  impl.pool.ParallelFor(n_tasks, [&](size_t task, size_t thread) {
    Cursor& cursor = impl.cursors[thread];
    while (task - cursor.first_task >= Strips(jobs[cursor.job], strip_rows)) {
      cursor.first_task += Strips(jobs[cursor.job], strip_rows);
      ++cursor.job;
    }
    const MatMulJob& job = jobs[cursor.job];
    const DTypeInfo& info = Info(job.w.dtype);
    const size_t first = (task - cursor.first_task) * strip_rows;
    RunStrip({.x = job.x,
              .w = job.w,
              .row_bytes = job.x.cols / info.block_elems * info.block_bytes,
              .first = first,
              .n_rows = std::min(strip_rows, job.y.cols - first),
              .y = job.y,
              .scratch = impl.scratch[thread].get()});
  });
}

size_t MatMul::scratch_bytes() const { return impl_->scratch.size() * kStripScratchFloats * sizeof(float); }

}  // namespace npumoe
