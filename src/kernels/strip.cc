// SPDX-License-Identifier: Apache-2.0
#include "kernels/strip.h"

#include <algorithm>

#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/strip.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/decode-inl.h"
#include "kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

// Activations that one group of weight rows meets before the next group: they stay in the second-level cache.
// assumed: 64 rows * 512 floats = 128 KiB.
constexpr size_t kPanelRows = 64;

template <size_t kRows>
void TileToOutput(const float* const* x, const float* const* w, size_t k, size_t n_cols, bool add, MatView y,
                  size_t row, size_t col) {
  float sums[kRows * kTileCols];
  Tile<kRows, kTileCols>(x, w, k, sums);
  for (size_t r = 0; r < kRows; ++r) {
    float* out = y.Row(row + r) + col;
    const float* sum = sums + r * kTileCols;
    for (size_t c = 0; c < n_cols; ++c) out[c] = add ? out[c] + sum[c] : sum[c];
  }
}

// Rows [row, end) of x against one group of weight rows, over the piece [k0, k0 + k) of K.
void GroupOverPanel(const StripArgs& args, const float* const* w, size_t row, size_t end, size_t k0, size_t k,
                    size_t n_cols, size_t col) {
  const bool add = k0 != 0;
  while (row < end) {
    const size_t rows = std::min(end - row, kTileRows);
    const float* x[kTileRows];
    for (size_t r = 0; r < kTileRows; ++r) x[r] = args.x.Row(row + std::min(r, rows - 1)) + k0;
    switch (rows) {
      case 1:
        TileToOutput<1>(x, w, k, n_cols, add, args.y, row, col);
        break;
      case 2:
        TileToOutput<2>(x, w, k, n_cols, add, args.y, row, col);
        break;
#if HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_SCALAR
      case 3:
        TileToOutput<3>(x, w, k, n_cols, add, args.y, row, col);
        break;
      default:
        TileToOutput<4>(x, w, k, n_cols, add, args.y, row, col);
        break;
#endif
    }
    row += rows;
  }
}

void RunStripTarget(const StripArgs& args) {
  const size_t k_all = args.x.cols;
  const DTypeInfo& info = Info(args.w.dtype);
  const size_t block = InnerBlock(k_all);
  const float* rows[kStripRows];
  for (size_t k0 = 0; k0 == 0 || k0 < k_all; k0 += block) {  // K = 0 still writes zeros
    const size_t k = std::min(block, k_all - k0);
    for (size_t n = 0; n < args.n_rows; ++n) {
      const std::byte* row = args.w.data + (args.first + n) * args.row_bytes + k0 / info.block_elems * info.block_bytes;
      if (args.w.dtype == DType::kF32) {
        rows[n] = reinterpret_cast<const float*>(row);
      } else {
        DecodeRowSimd(args.w.dtype, row, k, args.scratch + n * block);
        rows[n] = args.scratch + n * block;
      }
    }
    for (size_t m = 0; m < args.x.rows; m += kPanelRows) {
      const size_t m_end = std::min(args.x.rows, m + kPanelRows);
      for (size_t n = 0; n < args.n_rows; n += kTileCols) {
        const size_t n_cols = std::min(args.n_rows - n, kTileCols);
        const float* w[kTileCols];
        for (size_t c = 0; c < kTileCols; ++c) w[c] = rows[n + std::min(c, n_cols - 1)];
        GroupOverPanel(args, w, m, m_end, k0, k, n_cols, args.first + n);
      }
    }
  }
}

void DecodeRowTarget(DType dtype, const std::byte* row, size_t n, float* out) { DecodeRowSimd(dtype, row, n, out); }

const char* TargetNameTarget() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(RunStripTarget);
HWY_EXPORT(DecodeRowTarget);
HWY_EXPORT(TargetNameTarget);

size_t InnerBlock(size_t k) {
  constexpr size_t kSuper = 256;
  const size_t pieces = std::max<size_t>(1, (k + kMaxInnerBlock - 1) / kMaxInnerBlock);
  const size_t piece = (k + pieces - 1) / pieces;
  return std::max(kSuper, (piece + kSuper - 1) / kSuper * kSuper);
}

void RunStrip(const StripArgs& args) { HWY_DYNAMIC_DISPATCH(RunStripTarget)(args); }

void DecodeRow(DType dtype, const std::byte* row, size_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodeRowTarget)(dtype, row, n, out);
}

const char* SimdTargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameTarget)(); }

}  // namespace npumoe
#endif  // HWY_ONCE
