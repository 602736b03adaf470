// SPDX-License-Identifier: Apache-2.0
#include "kernels/half_product.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/cache_lines.h"
#include "kernels/half_product_task.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/half_product.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/highway.h"
#include "kernels/columns-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;

// The register tile: rows times two vectors of columns. 24 accumulators, 2 vectors of b and a value of a fit 32
// registers; 12, 2 and 1 fit 16.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || HWY_ARCH_ARM_A64
constexpr size_t kTileRows = 12;
#else
constexpr size_t kTileRows = 6;
#endif
static_assert(kLeftRows % kTileRows == 0);

// y[r, 0..2 vectors) += sum over i < k of a[r, i] * b[i, ...].
template <size_t... kR>
HWY_INLINE void TileColumns(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t k, float* HWY_RESTRICT y,
                            std::index_sequence<kR...>) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  V32 left[] = {hn::Load(d, y + kR * kPanelColumns)...};
  V32 right[] = {hn::Load(d, y + kR * kPanelColumns + lanes)...};
  for (size_t i = 0; i < k; ++i) {
    const V32 b0 = hn::Load(d, b + i * kPanelColumns), b1 = hn::Load(d, b + i * kPanelColumns + lanes);
    const auto step = [&](V32 w, V32& l, V32& r) HWY_ATTR {
      l = hn::MulAdd(w, b0, l);
      r = hn::MulAdd(w, b1, r);
    };
    (step(hn::Set(d, a[kR * kInnerPiece + i]), left[kR], right[kR]), ...);
  }
  (hn::Store(left[kR], d, y + kR * kPanelColumns), ...);
  (hn::Store(right[kR], d, y + kR * kPanelColumns + lanes), ...);
}

HWY_NOINLINE void Tile(const float* a, const float* b, size_t k, float* y) {
  const size_t lanes = hn::Lanes(F32());
  for (size_t column = 0; column < kPanelColumns; column += 2 * lanes) {
    TileColumns(a, b + column, k, y + column, std::make_index_sequence<kTileRows>());
  }
}

// Bytes of one row as the fp16 values they stand for.
HWY_INLINE void BytesToFloat(const int8_t* HWY_RESTRICT from, size_t n, float scale, float* HWY_RESTRICT to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<int32_t, decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float exact[kInnerPiece];
  HWY_ALIGN uint16_t rounded[kInnerPiece];
  const auto vscale = hn::Set(d, scale);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto q = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, from + i)));
    hn::StoreU(hn::Mul(vscale, q), d, exact + i);
  }
  for (; i < n; ++i) exact[i] = scale * static_cast<float>(from[i]);
  ExactFloatToHalf(exact, n, rounded);
  HalfToFloat(rounded, n, to);
}

// Elements [k0, k0 + k) of the task's rows; rows that fill the last tile are zero.
void WidenStrip(const HalfTask& task, size_t k0, size_t k, float* to) {
  const HalfLeft& a = task.job.a;
  for (size_t row = 0; row < task.rows; ++row) {
    const size_t at = (task.row + row) * task.job.k + k0;
    if (a.halves != nullptr) {
      HalfToFloat(a.halves + at, k, to + row * kInnerPiece);
    } else {
      BytesToFloat(a.bytes + at, k, F16ToF32(a.scales[task.row + row]), to + row * kInnerPiece);
    }
  }
  for (size_t row = task.rows; row % kTileRows != 0; ++row) std::fill_n(to + row * kInnerPiece, k, 0.0f);
}

// Elements [k0, k0 + k) of up to kPanelColumns columns; columns beyond are zero.
void WidenPanel(const uint16_t* b, size_t stride, size_t columns, size_t k, float* to) {
  for (size_t i = 0; i < k; ++i) {
    float* const row = to + i * kPanelColumns;
    if (HWY_LIKELY(columns == kPanelColumns)) {
      HalfToFloat(b + i * stride, kPanelColumns, row);
    } else {
      HalfToFloat(b + i * stride, columns, row);
      std::fill(row + columns, row + kPanelColumns, 0.0f);
    }
  }
}

void RunTask(const HalfTask& task, HalfScratch& scratch) {
  const HalfProductJob& job = task.job;
  const size_t n_panels = (task.columns + kPanelColumns - 1) / kPanelColumns;
  std::fill_n(scratch.y, n_panels * kLeftRows * kPanelColumns, 0.0f);
  for (size_t k0 = 0; k0 < job.k; k0 += kInnerPiece) {
    const size_t k = std::min(kInnerPiece, job.k - k0);
    WidenStrip(task, k0, k, scratch.a);
    for (size_t panel = 0; panel < n_panels; ++panel) {
      const size_t column = panel * kPanelColumns;
      WidenPanel(job.b + k0 * job.n + task.column + column, job.n, std::min(kPanelColumns, task.columns - column), k,
                 scratch.b);
      float* const y = scratch.y + panel * kLeftRows * kPanelColumns;
      for (size_t row = 0; row < task.rows; row += kTileRows) {
        Tile(scratch.a + row * kInnerPiece, scratch.b, k, y + row * kPanelColumns);
      }
    }
  }
  for (size_t row = 0; row < task.rows; ++row) {
    uint16_t* const out = job.y + (task.row + row) * job.n + task.column;
    for (size_t panel = 0; panel < n_panels; ++panel) {
      ExactFloatToHalf(scratch.y + (panel * kLeftRows + row) * kPanelColumns,
                       std::min(kPanelColumns, task.columns - panel * kPanelColumns), out + panel * kPanelColumns);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {
namespace {

size_t CeilDiv(size_t a, size_t b) { return (a + b - 1) / b; }

size_t Strips(const HalfProductJob& job) { return CeilDiv(job.m, kLeftRows); }
size_t ColumnBlocks(const HalfProductJob& job) { return CeilDiv(job.n, kTaskColumns); }

}  // namespace

HWY_EXPORT(RunTask);

struct HalfProduct::Impl {
  ThreadPool& pool;                 // borrowed from the caller of the constructor
  CacheLines<HalfScratch> scratch;  // [n_threads]
  std::vector<size_t> ends;         // [jobs], tasks up to and with a job
};

HalfProduct::HalfProduct(ThreadPool& pool) : impl_(new Impl{pool, CacheLines<HalfScratch>(pool.n_threads()), {}}) {}
HalfProduct::~HalfProduct() = default;

void HalfProduct::Run(std::span<const HalfProductJob> jobs) {
  Impl& impl = *impl_;
  impl.ends.clear();
  size_t n_tasks = 0;
  for (const HalfProductJob& job : jobs) impl.ends.push_back(n_tasks += Strips(job) * ColumnBlocks(job));
  impl.pool.ParallelFor(n_tasks, [&](size_t task, size_t thread) {
    const auto end = std::upper_bound(impl.ends.begin(), impl.ends.end(), task);
    const HalfProductJob& job = jobs[static_cast<size_t>(end - impl.ends.begin())];
    const size_t strip = Strips(job) - 1 - (*end - 1 - task) % Strips(job);
    const size_t block = ColumnBlocks(job) - 1 - (*end - 1 - task) / Strips(job);
    const size_t row = strip * kLeftRows, column = block * kTaskColumns;
    const HalfTask part{job, row, std::min(kLeftRows, job.m - row), column, std::min(kTaskColumns, job.n - column)};
    HWY_DYNAMIC_DISPATCH(RunTask)(part, impl.scratch[thread]);
  });
}

size_t HalfProduct::scratch_bytes() const { return impl_->scratch.size() * sizeof(HalfScratch); }

}  // namespace npumoe
#endif  // HWY_ONCE
