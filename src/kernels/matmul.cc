// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "base/check.h"
#include "kernels/int16_strip.h"
#include "kernels/strip.h"

namespace npumoe {
namespace {

// Below this many tasks per thread the strips are cut finer, up to so many times by two, so that the threads end
// together. assumed.
constexpr size_t kTasksPerThread = 16;
constexpr size_t kFinest = 2;

// Where a thread stands in the list of jobs. Tasks come to a thread in ascending order, so it only moves forward.
struct alignas(64) Cursor {
  size_t job = 0;
  size_t first_task = 0;  // of that job
};

// Weight rows of one task. On the 16-bit path a task prepares its activations once for all its rows, so it takes many.
size_t StripRows(const MatMulJob& job, size_t fineness) {
  if (!HasInt16Strip(job.w.dtype)) return kStripRows >> fineness;
  const size_t most = kMaxInt16StripRows >> fineness;
  const size_t n_strips = std::max<size_t>(1, (job.y.cols + most - 1) / most);
  const size_t even = (job.y.cols + n_strips - 1) / n_strips;
  return (even + kInt16StripStep - 1) / kInt16StripStep * kInt16StripStep;
}

size_t Strips(const MatMulJob& job, size_t fineness) {
  if (job.x.rows == 0 || job.y.cols == 0) return 0;
  const size_t strip_rows = StripRows(job, fineness);
  return (job.y.cols + strip_rows - 1) / strip_rows;
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
  size_t scratch_floats;         // per thread, for either path
  std::vector<Scratch> scratch;  // [n_threads]
  std::vector<Cursor> cursors;   // [n_threads]
};

MatMul::MatMul(ThreadPool& pool, size_t max_inner) : impl_(new Impl{pool, max_inner, 0, {}, {}}) {
  impl_->scratch_floats = std::max(kStripScratchFloats, Int16ScratchFloats(max_inner));
  for (size_t thread = 0; thread < pool.n_threads(); ++thread) {
    impl_->scratch.push_back(MakeScratch(impl_->scratch_floats));
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
  size_t fineness = 0;
  size_t n_tasks = 0;
  while (true) {
    n_tasks = 0;
    for (const MatMulJob& job : jobs) n_tasks += Strips(job, fineness);
    if (n_tasks >= kTasksPerThread * impl.pool.n_threads() || fineness == kFinest) break;
    ++fineness;
  }
  std::fill(impl.cursors.begin(), impl.cursors.end(), Cursor{});
  impl.pool.ParallelFor(n_tasks, [&](size_t task, size_t thread) {
    Cursor& cursor = impl.cursors[thread];
    while (task - cursor.first_task >= Strips(jobs[cursor.job], fineness)) {
      cursor.first_task += Strips(jobs[cursor.job], fineness);
      ++cursor.job;
    }
    const MatMulJob& job = jobs[cursor.job];
    const DTypeInfo& info = Info(job.w.dtype);
    const size_t strip_rows = StripRows(job, fineness);
    const size_t first = (task - cursor.first_task) * strip_rows;
    const StripArgs args = {.x = job.x,
                            .w = job.w,
                            .row_bytes = job.x.cols / info.block_elems * info.block_bytes,
                            .first = first,
                            .n_rows = std::min(strip_rows, job.y.cols - first),
                            .y = job.y,
                            .scratch = impl.scratch[thread].get()};
    if (HasInt16Strip(job.w.dtype)) {
      RunInt16Strip(args);
    } else {
      RunStrip(args);
    }
  });
}

size_t MatMul::scratch_bytes() const { return impl_->scratch.size() * impl_->scratch_floats * sizeof(float); }

}  // namespace npumoe
