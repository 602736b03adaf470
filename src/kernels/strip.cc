// SPDX-License-Identifier: Apache-2.0
#include "kernels/strip.h"

#include <algorithm>

#define HWY_WANT_AVX3_DL
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

// Weight rows that stay in the first-level cache while a panel of activations passes by: 8 rows * 768 floats = 24 KiB.
constexpr size_t kGroupRows = 8;

// Activations that one group of weight rows meets before the next group: they stay in the second-level cache.
// 63 rows * 768 floats = 189 KiB. A multiple of the tile's rows.
constexpr size_t kPanelRows = 63;
static_assert(kPanelRows % kTileRows == 0 && kGroupRows % kTileCols == 0);

// Up to this many activations a group of weight rows is finished before the next is decoded, so that the weights are
// read from memory in their order; above, decoded weights are worth keeping for the next panel. assumed.
constexpr size_t kFewRows = 8;

template <size_t kRows>
HWY_NOINLINE void TileToOutput(const float* const* x, const float* const* w, size_t k, size_t ahead, size_t n_cols,
                               bool add, MatView y, size_t row, size_t col) {
  const hn::CappedTag<float, kTileCols> d;
  alignas(64) float sums[kRows * kTileCols];
  Tile<kRows>(x, w, k, ahead, sums);
  for (size_t r = 0; r < kRows; ++r) {
    float* out = y.Row(row + r) + col;
    const float* sum = sums + r * kTileCols;
    if (n_cols == kTileCols) {
      for (size_t c = 0; c < kTileCols; c += hn::Lanes(d)) {
        const auto fresh = hn::LoadU(d, sum + c);
        hn::StoreU(add ? hn::Add(hn::LoadU(d, out + c), fresh) : fresh, d, out + c);
      }
    } else {
      for (size_t c = 0; c < n_cols; ++c) out[c] = add ? out[c] + sum[c] : sum[c];
    }
  }
}

// Rows [row, end) of x against n_cols <= kGroupRows weight rows, over the piece [k0, k0 + k) of K.
void GroupOverPanel(const StripArgs& args, const float* const* w, size_t row, size_t end, size_t k0, size_t k,
                    size_t n_cols, size_t col) {
  const bool add = k0 != 0;
  while (row < end) {
    const size_t rows = std::min(end - row, kTileRows);
    const float* x[kTileRows];
    for (size_t r = 0; r < rows; ++r) x[r] = args.XRow(row + r) + k0;
    // The next tile's activations are fetched meanwhile; the last tile fetches its own again, and so do chosen rows.
    const size_t ahead = args.rows == nullptr && row + 2 * kTileRows <= end ? kTileRows * args.x.stride : 0;
    for (size_t c = 0; c < n_cols; c += kTileCols) {
      const size_t cols = std::min(n_cols - c, kTileCols);
      if (rows == 1) TileToOutput<1>(x, w + c, k, ahead, cols, add, args.y, row, col + c);
      if (rows == 2) TileToOutput<2>(x, w + c, k, ahead, cols, add, args.y, row, col + c);
      if (rows == 3) TileToOutput<3>(x, w + c, k, ahead, cols, add, args.y, row, col + c);
    }
    row += rows;
  }
}

// Weight rows [first, first + n_rows) of w, elements [k0, k0 + k) of each, as f32; rows[i] tells where.
void DecodeRows(const StripArgs& args, size_t first, size_t n_rows, size_t k0, size_t k, const float** rows) {
  const DTypeInfo& info = Info(args.w.dtype);
  // Plain floats are used where they are, unless copying pays: rows a power of two apart collide in the caches.
  const bool in_place = args.w.dtype == DType::kF32 && args.x.rows <= kFewRows;
  for (size_t n = 0; n < n_rows; ++n) {
    const std::byte* row = args.w.data + (first + n) * args.row_bytes + k0 / info.block_elems * info.block_bytes;
    float* decoded = args.scratch + n * kMaxInnerBlock;
    if (!in_place) DecodeRowSimd(args.w.dtype, row, k, decoded);
    rows[n] = in_place ? reinterpret_cast<const float*>(row) : decoded;
  }
  // A tile that hangs over the end reads the last row again.
  for (size_t c = 0; c < kTileCols; ++c) rows[n_rows + c] = rows[n_rows - 1];
}

void MultiplyRows(const StripArgs& args, size_t first, size_t n_rows) {
  const size_t k_all = args.x.cols;
  const size_t block = InnerBlock(k_all);
  const float* rows[kStripRows + kTileCols];
  for (size_t k0 = 0; k0 == 0 || k0 < k_all; k0 += block) {  // K = 0 still writes zeros
    const size_t k = std::min(block, k_all - k0);
    DecodeRows(args, first, n_rows, k0, k, rows);
    for (size_t m = 0; m < args.x.rows; m += kPanelRows) {
      const size_t m_end = std::min(args.x.rows, m + kPanelRows);
      for (size_t n = 0; n < n_rows; n += kGroupRows) {
        GroupOverPanel(args, rows + n, m, m_end, k0, k, std::min(n_rows - n, kGroupRows), first + n);
      }
    }
  }
}

void RunStripTarget(const StripArgs& args) {
  const size_t step = args.x.rows <= kFewRows ? kGroupRows : args.n_rows;
  for (size_t n = 0; n < args.n_rows; n += step) {
    MultiplyRows(args, args.first + n, std::min(step, args.n_rows - n));
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
