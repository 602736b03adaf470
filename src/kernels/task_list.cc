// SPDX-License-Identifier: Apache-2.0
#include "kernels/task_list.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "kernels/bf16_strip.h"
#include "kernels/blas_strip.h"
#include "kernels/integer_strip.h"

namespace npumoe {
namespace {

// Below this many tasks per thread the strips are cut finer, up to so many times by two, so that the threads end
// together. assumed.
constexpr size_t kTasksPerThread = 4;
constexpr size_t kFinest = 4;
constexpr size_t kFinestInteger = 3;
constexpr size_t kFinestF32 = 2;

// A list this long is reserved: twice the experts that the largest known layers have. assumed.
constexpr size_t kReserved = 1024;

// How many of the first jobs are done strip by strip together: all that read the same activations with weights of one
// shape and type, so that activations are rounded once for all; floats, where nothing is gained, only for SwiGLU.
size_t TogetherWithFirst(std::span<const MatMulJob> jobs, Path path) {
  const bool floats = path == Path::kF32 || path == Path::kBlas;
  size_t n = 1;
  while (n < jobs.size() && (!floats || jobs[n - 1].swiglu) && SameWork(jobs[0], jobs[n])) {
    if (jobs[n].swiglu && !jobs[0].swiglu) break;  // they are cut differently
    ++n;
  }
  return n;
}

// Parts of n of at most `most`, nearly equal, multiples of `step` but for the last.
size_t EvenPart(size_t n, size_t most, size_t step) { return CeilDiv(CeilDiv(n, CeilDiv(n, most)), step) * step; }

// Rows of x and of the weights that a task has.
struct Sizes {
  size_t panel_rows, strip_rows;
};

Sizes SizesOf(const MatMulJob& job, Path path, Activations activations, size_t fineness) {
  const size_t m = job.x.rows, n = job.y.cols;
  const auto strip = [&](size_t times, size_t most, size_t step) {
    most >>= times;
    return EvenPart(n, job.swiglu ? std::min(most, kMaxSwiGluStripRows) : most, step);
  };
  switch (path) {
    case Path::kInteger:
      return {EvenPart(m, IntegerPanelRows(activations), kIntegerPanelStep),
              strip(std::min(fineness, kFinestInteger), kMaxIntegerStripRows, kIntegerStripStep)};
    case Path::kBf16:
      return {EvenPart(m, kBf16PanelRows, kBf16PanelStep), strip(fineness, kMaxBf16StripRows, kBf16StripStep)};
    case Path::kBlas:  // cut by the job alone: so its bits depend on nothing else
      return {m, kBlasStripRows};
    case Path::kF32:  // a strip of decoded weights is kept for all activations
      return {m, kStripRows >> std::min(fineness, kFinestF32)};
  }
  NM_CHECK(false && "all paths are above");
}

}  // namespace

Path PathOf(const MatMulJob& job, Activations activations) {
  if (HasIntegerStrip(job.w.dtype)) return Path::kInteger;
  if (HasBf16Strip(job.w.dtype, activations)) return Path::kBf16;
  return job.blas && HasBlasStrip(job.x.rows) ? Path::kBlas : Path::kF32;
}

bool SameWork(const MatMulJob& a, const MatMulJob& b) {
  return a.x.data == b.x.data && a.x.rows == b.x.rows && a.x.cols == b.x.cols && a.x.stride == b.x.stride &&
         a.rows == b.rows && a.w.dtype == b.w.dtype && a.y.cols == b.y.cols && a.blas == b.blas;
}

void PutTogether(std::span<const MatMulJob> jobs, std::span<Panel> panels) {
  const auto alike = [&](const Panel& a, const Panel& b) {
    const MatMulJob &x = jobs[a.job], &y = jobs[b.job];
    return a.path == b.path && a.n_jobs == b.n_jobs && x.swiglu == y.swiglu && x.x.cols == y.x.cols &&
           x.y.cols == y.y.cols;
  };
  for (uint32_t i = 0; Panel & panel : panels) {
    panel.group = i++;
    panel.n_group = 1;
    panel.group_rows = panel.n_rows;
  }
  bool any = false;
  for (Panel& few : panels) {
    if (few.path != Path::kBf16 || few.n_rows > kBf16FewRows) continue;
    Panel* best = nullptr;
    for (Panel& many : panels) {
      const bool fits = many.n_group < kMaxBf16Group && many.group_rows + few.n_rows <= kBf16GroupRows;
      if (many.n_rows <= kBf16FewRows || !fits || !alike(many, few)) continue;
      // The fewest weights per row of x.
      if (best == nullptr || many.n_group * best->group_rows < best->n_group * many.group_rows) best = &many;
    }
    if (best == nullptr) continue;
    few.group = best->group;
    few.n_group = 0;
    best->group_rows += few.n_rows;
    ++best->n_group;
    any = true;
  }
  if (!any) return;
  std::sort(panels.begin(), panels.end(), [](const Panel& a, const Panel& b) {
    return std::tuple(a.group, a.n_group == 0, a.job) < std::tuple(b.group, b.n_group == 0, b.job);
  });
}

TaskList::TaskList() { panels_.reserve(kReserved); }

void TaskList::Build(std::span<const MatMulJob> jobs, Activations activations, size_t n_threads) {
  for (size_t fineness = 0; fineness <= kFinest; ++fineness) {
    Cut(jobs, activations, fineness);
    PutTogether(jobs, panels_);
    n_tasks_ = 0;
    for (size_t i = 0; i < panels_.size(); i += panels_[i].n_group) {
      panels_[i].first_task = static_cast<uint32_t>(n_tasks_);
      n_tasks_ += panels_[i].n_strips;
    }
    if (n_tasks_ >= kTasksPerThread * n_threads) break;
  }
}

void TaskList::Cut(std::span<const MatMulJob> jobs, Activations activations, size_t fineness) {
  panels_.clear();
  for (size_t job = 0, n_jobs = 0; job < jobs.size(); job += n_jobs) {
    const Path path = PathOf(jobs[job], activations);
    n_jobs = TogetherWithFirst(jobs.subspan(job), path);
    const size_t m = jobs[job].x.rows, n = jobs[job].y.cols;
    if (m == 0 || n == 0) continue;
    const Sizes sizes = SizesOf(jobs[job], path, activations, fineness);
    for (size_t row = 0; row < m; row += sizes.panel_rows) {
      const auto u32 = [](size_t v) { return static_cast<uint32_t>(v); };
      const size_t n_rows = std::min(sizes.panel_rows, m - row);
      panels_.push_back({.path = path,
                         .job = u32(job),
                         .n_jobs = u32(n_jobs),
                         .first_row = u32(row),
                         .n_rows = u32(n_rows),
                         .strip_rows = u32(sizes.strip_rows),
                         .n_strips = u32(CeilDiv(n, sizes.strip_rows))});
    }
  }
}

StripArgs TaskList::StripOf(std::span<const MatMulJob> jobs, const Panel& panel, size_t i, size_t strip) {
  const MatMulJob& job = jobs[panel.job + i];
  const DTypeInfo& info = Info(job.w.dtype);
  const size_t row = panel.first_row, first = strip * panel.strip_rows;
  return {.x = ConstMatView(job.rows != nullptr ? job.x.data : job.x.Row(row), panel.n_rows, job.x.cols, job.x.stride),
          .rows = job.rows != nullptr ? job.rows + row : nullptr,
          .w = job.w,
          .row_bytes = job.x.cols / info.block_elems * info.block_bytes,
          .first = first,
          .n_rows = std::min<size_t>(panel.strip_rows, job.y.cols - first),
          .y = MatView{job.y.Row(row), panel.n_rows, job.y.cols, job.y.stride}};
}

}  // namespace npumoe
