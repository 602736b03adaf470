// SPDX-License-Identifier: Apache-2.0
#include "kernels/bf16_strip.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"

#define HWY_WANT_AVX3_DL
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16_strip.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/slab-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace npumoe {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kPiece = 256;     // elements; 16 rows of them are 8 KiB, two slabs leave room in a first-level cache
constexpr size_t kStepElems = 32;  // of a row that are read at a time, 64 bytes; beyond the end of K they are zero
constexpr size_t kSlabs = 2;       // multiplied together: an activation is broadcast once for 32 weight rows
constexpr size_t kTileRows = kBf16PanelStep;
constexpr size_t kDirectRows = 4;  // most activations for which weights are not laid out first
static_assert(kSlabs * kSlabRows == kBf16StripStep);

// K with the zeros behind it.
size_t Padded(size_t k) { return CeilDiv(k, kStepElems) * kStepElems; }

// From one row of x to the next: rows of a power of two would share a cache set.
size_t Pitch(size_t k) { return Padded(k) + kStepElems; }

// Which of the next kStepElems elements exist.
__mmask32 Some(size_t left) { return left >= kStepElems ? ~__mmask32{0} : (__mmask32{1} << left) - 1; }

struct Scratch {
  std::byte* slabs;  // [kSlabs, kPiece / 2 words, 16 rows, 2]
  std::byte* tail;   // 16 rows of one piece
  uint16_t* x;       // [panel rows, Pitch(K)]
};
constexpr size_t kSlabBytes = kPiece * kSlabRows * sizeof(uint16_t);

Scratch LayOut(float* scratch) {
  auto* bytes = reinterpret_cast<std::byte*>(scratch);
  return {bytes, bytes + kSlabs * kSlabBytes, reinterpret_cast<uint16_t*>(bytes + (kSlabs + 1) * kSlabBytes)};
}

void RoundRow(const float* x, size_t k, uint16_t* out) {
  for (size_t i = 0; i < k; i += kStepElems) {
    const __mmask32 some = Some(k - i);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some), x + i);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), x + i + 16);
    const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(out + i, (__m512i)rounded);
  }
}

HWY_INLINE __m512 AddProducts(__m512 sum, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

// Two elements of x, for every weight row.
HWY_INLINE __m512i Word(const uint16_t* x) {
  int32_t word;
  std::memcpy(&word, x, sizeof(word));
  return _mm512_set1_epi32(word);
}

HWY_NOINLINE void LayOutSlab(const SlabRows& rows, size_t k, std::byte* slab) {
  for (size_t i = 0; i < k; i += kStepElems) {
    const Words words = TransposeLines(rows.first + 2 * i, rows.stride, Some(k - i));
    for (size_t j = 0; j < kSlabRows; ++j) _mm512_store_si512(slab + 32 * i + 64 * j, words.d[j]);
  }
}

// Addresses are a base and a distance: one pointer per row would not fit the registers.
struct Tile {
  const uint16_t* x;  // first row
  size_t pitch;
  const std::byte* slabs;  // one after the other; what a slab that does not exist holds reaches no output
  size_t k;                // a multiple of kStepElems
  float* y;                // first row
  size_t y_stride;
  __mmask16 columns[kSlabs];  // which of the 16 outputs exist
  bool add;                   // to what y holds: all but the first piece of K
  Ahead* ahead;               // one step for each kTileStep of k
};
constexpr size_t kTileStep = 8;

template <int kRows>
HWY_NOINLINE void MultiplyTile(const Tile& tile) {
  __m512 sums[2][kRows][kSlabs];
  for (auto& parity : sums) {
    for (auto& row : parity) row[0] = row[1] = _mm512_setzero_ps();
  }
  Ahead ahead = *tile.ahead;
  const std::byte* w = tile.slabs;
  const uint16_t* x = tile.x;
  for (size_t i = 0; i < tile.k; i += kTileStep) {
    ahead.Step();
#pragma GCC unroll 4
    for (size_t word = 0; word < kTileStep / 2; ++word) {
      const __m512i w0 = _mm512_load_si512(w + 64 * word), w1 = _mm512_load_si512(w + kSlabBytes + 64 * word);
#pragma GCC unroll 6
      for (size_t r = 0; r < kRows; ++r) {
        const __m512i both = Word(x + r * tile.pitch + 2 * word);
        sums[word % 2][r][0] = AddProducts(sums[word % 2][r][0], w0, both);
        sums[word % 2][r][1] = AddProducts(sums[word % 2][r][1], w1, both);
      }
    }
    w += 32 * kTileStep;
    x += kTileStep;
  }
  *tile.ahead = ahead;
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t s = 0; s < kSlabs; ++s) {
      __m512 sum = _mm512_add_ps(sums[0][r][s], sums[1][r][s]);
      float* y = tile.y + r * tile.y_stride + kSlabRows * s;
      if (tile.add) sum = _mm512_add_ps(_mm512_maskz_loadu_ps(tile.columns[s], y), sum);
      _mm512_mask_storeu_ps(y, tile.columns[s], sum);
    }
  }
}

void MultiplyTileOf(size_t n_rows, const Tile& tile) {
  switch (n_rows) {
    case 1:
      return MultiplyTile<1>(tile);
    case 2:
      return MultiplyTile<2>(tile);
    case 3:
      return MultiplyTile<3>(tile);
    case 4:
      return MultiplyTile<4>(tile);
    case 5:
      return MultiplyTile<5>(tile);
    default:
      return MultiplyTile<6>(tile);
  }
}

// What is multiplied after this piece of `first`'s rows: the next piece, or the first of the rows that follow.
Ahead NextPiece(const StripArgs& args, size_t first, size_t k0) {
  const size_t end = args.first + args.n_rows;
  const size_t n_steps = Padded(std::min(kPiece, args.x.cols - k0)) / kTileStep * CeilDiv(args.x.rows, kTileRows);
  k0 += kPiece;
  if (k0 >= args.x.cols) {
    k0 = 0;
    first += kBf16StripStep;
  }
  if (first >= end) return {};
  const SlabRows rows = {args.w.data + first * args.row_bytes + 2 * k0, args.row_bytes};
  return {rows, std::min(kBf16StripStep, end - first), 2 * std::min(kPiece, args.x.cols - k0), n_steps};
}

// n_cols <= kBf16StripStep weight rows from `first` on, times all of x.
void MultiplyColumns(const StripArgs& args, const Scratch& scratch, size_t first, size_t n_cols) {
  const size_t k_all = args.x.cols;
  Tile tile = {};
  tile.pitch = Pitch(k_all);
  tile.slabs = scratch.slabs;
  tile.y_stride = args.y.stride;
  for (size_t s = 0; s < kSlabs; ++s) {
    const size_t left = n_cols > kSlabRows * s ? n_cols - kSlabRows * s : 0;
    tile.columns[s] = static_cast<__mmask16>(left >= kSlabRows ? 0xffffu : (1u << left) - 1u);
  }
  for (size_t k0 = 0; k0 == 0 || k0 < k_all; k0 += kPiece) {  // K = 0 still writes zeros
    const size_t k = std::min(kPiece, k_all - k0);
    tile.k = Padded(k);
    tile.add = k0 != 0;
    for (size_t s = 0; s < kSlabs && kSlabRows * s < n_cols; ++s) {
      const size_t n = std::min(kSlabRows, n_cols - kSlabRows * s);
      SlabRows rows = {args.w.data + (first + kSlabRows * s) * args.row_bytes + 2 * k0, args.row_bytes};
      if (n < kSlabRows) rows = CopyRows(rows, n, 2 * k, scratch.tail);
      LayOutSlab(rows, k, scratch.slabs + s * kSlabBytes);
    }
    Ahead ahead = NextPiece(args, first, k0);
    tile.ahead = &ahead;
    for (size_t row = 0; row < args.x.rows;) {
      // Nearly equal tiles: one of few rows cannot fill the multipliers.
      const size_t left = args.x.rows - row, rows = CeilDiv(left, CeilDiv(left, kTileRows));
      tile.x = scratch.x + row * tile.pitch + k0;
      tile.y = args.y.Row(row) + first;
      MultiplyTileOf(rows, tile);
      row += rows;
    }
  }
}

// 16 weight rows from where they lie, times kRows activations.
template <int kRows>
HWY_NOINLINE void MultiplyDirect(const StripArgs& args, const uint16_t* x, size_t first, bool ahead_too) {
  const SlabRows rows = {args.w.data + first * args.row_bytes, args.row_bytes};
  const size_t k_all = args.x.cols;
  Ahead ahead;
  if (ahead_too) {
    const SlabRows next = {rows.first + kSlabRows * rows.stride, rows.stride};
    ahead = {next, kSlabRows, args.row_bytes, CeilDiv(k_all, kStepElems)};
  }
  __m512 total[kRows];
  for (__m512& t : total) t = _mm512_setzero_ps();
  for (size_t k0 = 0; k0 < k_all; k0 += kPiece) {
    __m512 sums[2][kRows];
    for (auto& parity : sums) {
      for (__m512& sum : parity) sum = _mm512_setzero_ps();
    }
    const size_t end = std::min(k_all, k0 + kPiece);
    for (size_t i = k0; i < end; i += kStepElems) {
      ahead.Step();
      const Words words = TransposeLines(rows.first + 2 * i, rows.stride, Some(k_all - i));
#pragma GCC unroll 16
      for (size_t j = 0; j < kSlabRows; ++j) {
        for (int r = 0; r < kRows; ++r) {
          const __m512i word = Word(x + static_cast<size_t>(r) * Pitch(k_all) + i + 2 * j);
          sums[j % 2][r] = AddProducts(sums[j % 2][r], words.d[j], word);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const __m512 sum = _mm512_add_ps(sums[0][r], sums[1][r]);
      total[r] = k0 == 0 ? sum : _mm512_add_ps(total[r], sum);
    }
  }
  for (size_t r = 0; r < kRows; ++r) _mm512_storeu_ps(args.y.Row(r) + first, total[r]);
}

}  // namespace

void RunBf16StripTarget(const StripArgs& args, bool prepared) {
  NM_DCHECK(args.x.rows <= kBf16PanelRows);
  const Scratch scratch = LayOut(args.scratch);
  for (size_t r = 0; r < args.x.rows && !prepared; ++r) {
    RoundRow(args.XRow(r), args.x.cols, scratch.x + r * Pitch(args.x.cols));
  }
  size_t n = 0;
  if (args.x.rows <= kDirectRows) {
    for (; n + kSlabRows <= args.n_rows; n += kSlabRows) {
      const bool ahead_too = n + 2 * kSlabRows <= args.n_rows;
      if (args.x.rows == 1) MultiplyDirect<1>(args, scratch.x, args.first + n, ahead_too);
      if (args.x.rows == 2) MultiplyDirect<2>(args, scratch.x, args.first + n, ahead_too);
      if (args.x.rows == 3) MultiplyDirect<3>(args, scratch.x, args.first + n, ahead_too);
      if (args.x.rows == 4) MultiplyDirect<4>(args, scratch.x, args.first + n, ahead_too);
    }
  }
  for (; n < args.n_rows; n += kBf16StripStep) {
    MultiplyColumns(args, scratch, args.first + n, std::min(kBf16StripStep, args.n_rows - n));
  }
}

bool HasBf16StripTarget(DType dtype) { return dtype == DType::kBF16 && __builtin_cpu_supports("avx512bf16"); }

size_t Bf16ScratchFloatsTarget(size_t max_inner) {
  return ((kSlabs + 1) * kSlabBytes + kBf16PanelRows * Pitch(max_inner) * sizeof(uint16_t)) / sizeof(float);
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#else

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

void RunBf16StripTarget(const StripArgs&, bool) { NM_CHECK(false && "HasBf16Strip said no"); }
bool HasBf16StripTarget(DType) { return false; }
size_t Bf16ScratchFloatsTarget(size_t) { return 0; }

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX3_DL

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(RunBf16StripTarget);
HWY_EXPORT(HasBf16StripTarget);
HWY_EXPORT(Bf16ScratchFloatsTarget);

bool HasBf16Strip(DType dtype, Activations activations) {
  return activations == Activations::k8Bits && HWY_DYNAMIC_DISPATCH(HasBf16StripTarget)(dtype);
}
size_t Bf16ScratchFloats(size_t max_inner) { return HWY_DYNAMIC_DISPATCH(Bf16ScratchFloatsTarget)(max_inner); }
void RunBf16Strip(const StripArgs& args, bool prepared) { HWY_DYNAMIC_DISPATCH(RunBf16StripTarget)(args, prepared); }

}  // namespace npumoe
#endif  // HWY_ONCE
