// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/huge_pages.h"
#include "kernels/bf16_strip.h"
#include "kernels/blas_strip.h"
#include "kernels/integer_strip.h"
#include "kernels/strip.h"
#include "kernels/task_list.h"
#include "kernels/vector_ops.h"

namespace npumoe {
namespace {

constexpr size_t kSwiGluPitch = kMaxSwiGluStripRows + 16;  // rows of a power of two apart would share a cache set

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

// What a thread works with.
struct alignas(64) Worker {
  Scratch scratch;                              // of RunTask
  size_t panel = 0;                             // where it stands in the list: tasks come to it in ascending order
  std::array<StripArgs, kMaxBf16Group> strips;  // of its task
};

}  // namespace

struct MatMul::Impl {
  ThreadPool& pool;  // borrowed from the caller of the constructor
  size_t max_inner;
  Activations activations;
  size_t scratch_floats;        // of any path; a multiple of 16
  std::vector<Worker> workers;  // [n_threads]
  TaskList tasks;

  // Of a thread: a path's, and behind it [rows of a task, kSwiGluPitch].
  size_t all_floats() const {
    return scratch_floats + std::max(IntegerPanelRows(activations), kBf16GroupRows) * kSwiGluPitch;
  }

  // One strip of each panel of the group, job after job.
  void RunTask(std::span<const MatMulJob> jobs, std::span<const Panel> group, size_t strip, Worker& worker) const;
};

MatMul::MatMul(ThreadPool& pool, size_t max_inner, Activations activations)
    : impl_(new Impl{pool, max_inner, activations, 0, {}, {}}) {
  const size_t floats = std::max({kStripScratchFloats, BlasScratchFloats(),
                                  IntegerScratchFloats(max_inner, activations), Bf16ScratchFloats(max_inner)});
  impl_->scratch_floats = CeilDiv(floats, 16) * 16;
  impl_->workers.resize(pool.n_threads());
  for (Worker& worker : impl_->workers) worker.scratch = MakeScratch(impl_->all_floats());
}

MatMul::~MatMul() = default;

void MatMul::Impl::RunTask(std::span<const MatMulJob> jobs, std::span<const Panel> group, size_t strip,
                           Worker& worker) const {
  const Path path = group[0].path;
  const std::span<StripArgs> strips(worker.strips.data(), group.size());
  for (size_t i = 0; i < group[0].n_jobs; ++i) {
    const bool ends_swiglu = i > 0 && jobs[group[0].job + i - 1].swiglu;
    float* up = worker.scratch.get() + scratch_floats;
    for (size_t p = 0; p < group.size(); ++p) {
      strips[p] = TaskList::StripOf(jobs, group[p], i, strip);
      strips[p].scratch = worker.scratch.get();
      if (!ends_swiglu) continue;
      UseBuffer(path, up, strips[p]);
      up += group[p].n_rows * kSwiGluPitch;
    }
    const bool prepared = i > 0;
    switch (path) {
      case Path::kInteger:
        RunIntegerStrip(strips[0], activations, prepared);
        break;
      case Path::kBf16:
        RunBf16Strips(strips, prepared);
        break;
      case Path::kBlas:
        RunBlasStrip(strips[0]);
        break;
      case Path::kF32:
        RunStrip(strips[0]);
        break;
    }
    if (!ends_swiglu) continue;
    for (size_t p = 0; p < group.size(); ++p) {
      ApplySwiGlu(TaskList::StripOf(jobs, group[p], i - 1, strip), strips[p]);
    }
  }
}

void MatMul::Run(std::span<const MatMulJob> jobs) {
  Impl& impl = *impl_;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const MatMulJob& job = jobs[i];
    NM_CHECK(!job.swiglu || (i + 1 < jobs.size() && SameWork(job, jobs[i + 1]) && !jobs[i + 1].swiglu));
    NM_CHECK(job.w.shape.rank == 2 && job.w.shape[0] == job.y.cols && job.w.shape[1] == job.x.cols);
    NM_CHECK(job.x.rows == job.y.rows && job.x.cols <= impl.max_inner);
    NM_CHECK(job.x.cols % Info(job.w.dtype).block_elems == 0);
  }
  impl.tasks.Build(jobs, impl.activations, impl.pool.n_threads());
  for (Worker& worker : impl.workers) worker.panel = 0;
  impl.pool.ParallelFor(impl.tasks.n_tasks(), [&](size_t task, size_t thread) {
    Worker& worker = impl.workers[thread];
    std::span<const Panel> group = impl.tasks.Group(worker.panel);
    while (task - group[0].first_task >= group[0].n_strips) group = impl.tasks.Group(worker.panel += group.size());
    impl.RunTask(jobs, group, task - group[0].first_task, worker);
  });
}

size_t MatMul::scratch_bytes() const { return impl_->workers.size() * impl_->all_floats() * sizeof(float); }

}  // namespace npumoe
