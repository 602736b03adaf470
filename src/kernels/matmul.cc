// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/huge_pages.h"
#include "kernels/bf16_strip.h"
#include "kernels/blas_strip.h"
#include "kernels/integer_strip.h"
#include "kernels/strip.h"
#include "kernels/vector_ops.h"

namespace npumoe {
namespace {

// Below this many tasks per thread the strips are cut finer, up to so many times by two, so that the threads end
// together. assumed.
constexpr size_t kTasksPerThread = 4;
constexpr size_t kFinest = 4;
constexpr size_t kFinestInteger = 3;
constexpr size_t kFinestF32 = 2;

// Weight rows of a task that ends in SwiGLU, at most, where what it multiplies by stays in the thread's own buffer:
// with the widest panel 400 KiB, for a second-level cache of 1 MiB.
constexpr size_t kMaxSwiGluStripRows = 1024;
constexpr size_t kSwiGluPitch = kMaxSwiGluStripRows + 16;  // rows of a power of two apart would share a cache set

// Which kernel computes a product.
enum class Path { kF32, kBlas, kBf16, kInteger };

Path PathOf(const MatMulJob& job, Activations activations) {
  if (HasIntegerStrip(job.w.dtype)) return Path::kInteger;
  if (HasBf16Strip(job.w.dtype, activations)) return Path::kBf16;
  return job.blas && HasBlasStrip(job.x.rows) ? Path::kBlas : Path::kF32;
}

// Whether b is done strip by strip with a: gate and up, keys and values.
bool SameWork(const MatMulJob& a, const MatMulJob& b) {
  return a.x.data == b.x.data && a.x.rows == b.x.rows && a.x.cols == b.x.cols && a.x.stride == b.x.stride &&
         a.rows == b.rows && a.w.dtype == b.w.dtype && a.y.cols == b.y.cols && a.blas == b.blas;
}

// How many of the first jobs are done strip by strip together: all that read the same activations with weights of one
// shape and type, so that activations are rounded once for all; floats, where nothing is gained, only for SwiGLU.
size_t TogetherWithFirst(std::span<const MatMulJob> jobs, Activations activations) {
  const Path path = PathOf(jobs[0], activations);
  const bool floats = path == Path::kF32 || path == Path::kBlas;
  size_t n = 1;
  while (n < jobs.size() && (!floats || jobs[n - 1].swiglu) && SameWork(jobs[0], jobs[n])) {
    if (jobs[n].swiglu && !jobs[0].swiglu) break;  // they are cut differently
    ++n;
  }
  return n;
}

// Where a thread stands in the list of jobs. Tasks come to a thread in ascending order, so it only moves forward.
struct alignas(64) Cursor {
  size_t job = 0;
  size_t first_task = 0;  // of that job
};

// How a job is cut into tasks: panels of activations times strips of weight rows.
struct Cut {
  size_t panel_rows, strip_rows;
  size_t n_panels, n_strips;
  size_t n_tasks() const { return n_panels * n_strips; }
};

// Parts of n of at most `most`, nearly equal, multiples of `step` but for the last.
size_t EvenPart(size_t n, size_t most, size_t step) { return CeilDiv(CeilDiv(n, CeilDiv(n, most)), step) * step; }

Cut CutJob(const MatMulJob& job, Activations activations, size_t fineness) {
  const size_t m = job.x.rows, n = job.y.cols;
  if (m == 0 || n == 0) return {};
  const auto strip = [&](size_t times, size_t most, size_t step) {
    most >>= times;
    return EvenPart(n, job.swiglu ? std::min(most, kMaxSwiGluStripRows) : most, step);
  };
  Cut cut = {};
  switch (PathOf(job, activations)) {
    case Path::kInteger:
      cut.panel_rows = EvenPart(m, IntegerPanelRows(activations), kIntegerPanelStep);
      cut.strip_rows = strip(std::min(fineness, kFinestInteger), kMaxIntegerStripRows, kIntegerStripStep);
      break;
    case Path::kBf16:
      cut.panel_rows = EvenPart(m, kBf16PanelRows, kBf16PanelStep);
      cut.strip_rows = strip(fineness, kMaxBf16StripRows, kBf16StripStep);
      break;
    case Path::kBlas:  // cut by the job alone: so its bits depend on nothing else
      cut.panel_rows = m;
      cut.strip_rows = kBlasStripRows;
      break;
    case Path::kF32:  // a strip of decoded weights is kept for all activations
      cut.panel_rows = m;
      cut.strip_rows = kStripRows >> std::min(fineness, kFinestF32);
      break;
  }
  cut.n_panels = CeilDiv(m, cut.panel_rows);
  cut.n_strips = CeilDiv(n, cut.strip_rows);
  return cut;
}

// Task `task` of the job, without its scratch.
StripArgs TaskOf(const MatMulJob& job, const Cut& cut, size_t task) {
  const DTypeInfo& info = Info(job.w.dtype);
  const size_t row = task / cut.n_strips * cut.panel_rows;
  const size_t rows = std::min(cut.panel_rows, job.x.rows - row);
  const size_t first = task % cut.n_strips * cut.strip_rows;
  return {.x = ConstMatView(job.rows != nullptr ? job.x.data : job.x.Row(row), rows, job.x.cols, job.x.stride),
          .rows = job.rows != nullptr ? job.rows + row : nullptr,
          .w = job.w,
          .row_bytes = job.x.cols / info.block_elems * info.block_bytes,
          .first = first,
          .n_rows = std::min(cut.strip_rows, job.y.cols - first),
          .y = MatView{job.y.Row(row), rows, job.y.cols, job.y.stride}};
}

// Where the second of two tasks that end in SwiGLU writes: not to memory that others share, for nobody reads it later.
// Plain floats, whose panels have no limit, use what the job says.
void UseBuffer(Path path, float* buffer, StripArgs& up) {
  if (path == Path::kF32 || path == Path::kBlas) return;
  up.w.data += up.first * up.row_bytes;
  up.first = 0;
  up.y = {buffer, up.y.rows, up.n_rows, kSwiGluPitch};
}

// What two tasks of the same rows and columns have written.
void ApplySwiGlu(const StripArgs& gate, const StripArgs& up) {
  for (size_t row = 0; row < gate.y.rows; ++row) {
    SiluMul({gate.y.Row(row) + gate.first, gate.n_rows}, {up.y.Row(row) + up.first, up.n_rows});
  }
}

struct FreeAligned {
  void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
};
using Scratch = std::unique_ptr<float[], FreeAligned>;

Scratch MakeScratch(size_t n) {
  Scratch scratch(new (std::align_val_t{64}) float[n]);
  PreferHugePages(scratch.get(), n * sizeof(float));
  return scratch;
}

}  // namespace

struct MatMul::Impl {
  ThreadPool& pool;  // borrowed from the caller of the constructor
  size_t max_inner;
  Activations activations;
  size_t scratch_floats;         // per thread, for any path; a multiple of 16
  std::vector<Scratch> scratch;  // [n_threads] that, and behind it [panel rows, kSwiGluPitch]
  std::vector<Cursor> cursors;   // [n_threads]

  size_t all_floats() const {
    return scratch_floats + std::max(IntegerPanelRows(activations), kBf16PanelRows) * kSwiGluPitch;
  }
};

MatMul::MatMul(ThreadPool& pool, size_t max_inner, Activations activations)
    : impl_(new Impl{pool, max_inner, activations, 0, {}, {}}) {
  const size_t floats = std::max({kStripScratchFloats, BlasScratchFloats(),
                                  IntegerScratchFloats(max_inner, activations), Bf16ScratchFloats(max_inner)});
  impl_->scratch_floats = CeilDiv(floats, 16) * 16;
  for (size_t thread = 0; thread < pool.n_threads(); ++thread) {
    impl_->scratch.push_back(MakeScratch(impl_->all_floats()));
  }
  impl_->cursors.resize(pool.n_threads());
}

MatMul::~MatMul() = default;

void MatMul::Run(std::span<const MatMulJob> jobs) {
  Impl& impl = *impl_;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatMulJob& job = jobs[i];
    NM_CHECK(!job.swiglu || (i + 1 < jobs.size() && SameWork(job, jobs[i + 1]) && !jobs[i + 1].swiglu));
    NM_CHECK(job.w.shape.rank == 2 && job.w.shape[0] == job.y.cols && job.w.shape[1] == job.x.cols);
    NM_CHECK(job.x.rows == job.y.rows && job.x.cols <= impl.max_inner);
    NM_CHECK(job.x.cols % Info(job.w.dtype).block_elems == 0);
  }
  size_t fineness = 0;
  size_t n_tasks = 0;
  while (true) {
    n_tasks = 0;
    for (size_t job = 0; job < jobs.size(); job += TogetherWithFirst(jobs.subspan(job), impl.activations)) {
      n_tasks += CutJob(jobs[job], impl.activations, fineness).n_tasks();
    }
    if (n_tasks >= kTasksPerThread * impl.pool.n_threads() || fineness == kFinest) break;
    ++fineness;
  }
  std::fill(impl.cursors.begin(), impl.cursors.end(), Cursor{});
  impl.pool.ParallelFor(n_tasks, [&](size_t task, size_t thread) {
    Cursor& cursor = impl.cursors[thread];
    Cut cut = CutJob(jobs[cursor.job], impl.activations, fineness);
    while (task - cursor.first_task >= cut.n_tasks()) {
      cursor.first_task += cut.n_tasks();
      cursor.job += TogetherWithFirst(jobs.subspan(cursor.job), impl.activations);
      cut = CutJob(jobs[cursor.job], impl.activations, fineness);
    }
    const size_t n_together = TogetherWithFirst(jobs.subspan(cursor.job), impl.activations);
    const Path path = PathOf(jobs[cursor.job], impl.activations);
    for (size_t i = 0; i < n_together; ++i) {
      StripArgs args = TaskOf(jobs[cursor.job + i], cut, task - cursor.first_task);
      args.scratch = impl.scratch[thread].get();
      const bool ends_swiglu = i > 0 && jobs[cursor.job + i - 1].swiglu;
      if (ends_swiglu) UseBuffer(path, args.scratch + impl.scratch_floats, args);
      switch (path) {
        case Path::kInteger:
          RunIntegerStrip(args, impl.activations, /*prepared=*/i > 0);
          break;
        case Path::kBf16:
          RunBf16Strip(args, /*prepared=*/i > 0);
          break;
        case Path::kBlas:
          RunBlasStrip(args);
          break;
        case Path::kF32:
          RunStrip(args);
          break;
      }
      if (ends_swiglu) ApplySwiGlu(TaskOf(jobs[cursor.job + i - 1], cut, task - cursor.first_task), args);
    }
  });
}

size_t MatMul::scratch_bytes() const { return impl_->scratch.size() * impl_->all_floats() * sizeof(float); }

}  // namespace npumoe
