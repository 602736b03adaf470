// SPDX-License-Identifier: Apache-2.0
#include "kernels/blas_strip.h"

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/blas.h"

namespace npumoe {
namespace {

constexpr size_t kGatheredRows = 64;  // a third of the strip's size

// Weights as f32.
struct Floats {
  const float* first;
  size_t stride;
};

// Elements [k0, k0 + k) of the strip's weight rows. Plain floats are used where they are.
Floats DecodeWeights(const StripArgs& args, size_t k0, size_t k) {
  const DTypeInfo& info = Info(args.w.dtype);
  const std::byte* row = args.w.data + args.first * args.row_bytes + k0 / info.block_elems * info.block_bytes;
  const bool aligned = reinterpret_cast<uintptr_t>(row) % alignof(float) == 0;
  if (args.w.dtype == DType::kF32 && aligned) {
    return {reinterpret_cast<const float*>(row), args.row_bytes / sizeof(float)};
  }
  for (size_t n = 0; n < args.n_rows; ++n) {
    DecodeRow(args.w.dtype, row + n * args.row_bytes, k, args.scratch + n * kMaxBlasInner);
  }
  return {args.scratch, kMaxBlasInner};
}

// A BLAS wants rows that lie at one distance: a copy of [k0, k0 + k) of the chosen ones.
ConstMatView Gather(const StripArgs& args, size_t first, size_t n, size_t k0, size_t k) {
  float* const rows = args.scratch + kBlasStripRows * kMaxBlasInner;
  for (size_t row = 0; row < n; ++row) std::copy_n(args.XRow(first + row) + k0, k, rows + row * kMaxBlasInner);
  return {rows, n, k, kMaxBlasInner};
}

}  // namespace

bool HasBlasStrip(size_t n_rows) { return n_rows >= kBlasRows && HasBlas(); }

size_t BlasScratchFloats() {
  return !BlasName().empty() ? (kBlasStripRows + kGatheredRows) * kMaxBlasInner : 0;
}

void RunBlasStrip(const StripArgs& args) {
  NM_DCHECK(args.n_rows <= kBlasStripRows);
  const size_t k_all = args.x.cols;
  const MatView y = {args.y.data + args.first, args.y.rows, args.n_rows, args.y.stride};
  if (k_all == 0) {
    for (size_t row = 0; row < y.rows; ++row) std::fill_n(y.Row(row), y.cols, 0.0f);
  }
  for (size_t k0 = 0; k0 < k_all; k0 += kMaxBlasInner) {
    const size_t k = std::min(kMaxBlasInner, k_all - k0);
    const Floats w = DecodeWeights(args, k0, k);
    if (args.rows == nullptr) {
      BlasMultiply({args.x.data + k0, args.x.rows, k, args.x.stride}, w.first, w.stride, /*add=*/k0 != 0, y);
      continue;
    }
    for (size_t first = 0; first < args.x.rows; first += kGatheredRows) {
      const size_t n = std::min(kGatheredRows, args.x.rows - first);
      BlasMultiply(Gather(args, first, n, k0, k), w.first, w.stride, /*add=*/k0 != 0, {y.Row(first), n, y.cols, y.stride});
    }
  }
}

}  // namespace npumoe
