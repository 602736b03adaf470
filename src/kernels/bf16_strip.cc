// SPDX-License-Identifier: Apache-2.0
#include "kernels/bf16_strip.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"

#define HWY_WANT_AVX3_DL
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16_strip.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/tile-inl.h"

#if HWY_TARGET == HWY_AVX3_DL

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace npumoe {
namespace HWY_NAMESPACE {
namespace {

// How it is computed: tiles of 8 weight rows times 3 of x, 24 accumulators; both lie in memory as they are read, so
// that nothing is laid out first, and the lanes are added together at the end of a piece. The weight rows stay in the
// first-level cache while all of x passes by from the second.

constexpr size_t kStep = 32;  // elements of a row that are multiplied at a time, 64 bytes
constexpr size_t kStepBytes = kStep * sizeof(uint16_t);
constexpr size_t kCols = kBf16StripStep;  // weight rows of a tile
static_assert(kCols == kTileCols);

// From one row of x to the next: rows of a power of two would share a cache set.
size_t Pitch(size_t k) { return (CeilDiv(k, kStep) + 1) * kStep; }

// How K is cut: equal pieces of at most kBf16Piece, whole steps.
size_t Piece(size_t k) { return CeilDiv(CeilDiv(k, std::max<size_t>(1, CeilDiv(k, kBf16Piece))), kStep) * kStep; }

// Rows that all begin in the middle of a cache line are read line by line all the same, and this is how many elements
// before a row its first line begins: where every load crosses two lines, a tile of 96 rows takes 15 % longer
// (measured). Even, for words stay words; rows that begin differently are read as they lie.
size_t LeadOf(const StripArgs& args) {
  const size_t lead = reinterpret_cast<uintptr_t>(args.w.data) % kStepBytes / sizeof(uint16_t);
  return args.row_bytes % kStepBytes == 0 && reinterpret_cast<uintptr_t>(args.w.data) % 4 == 0 ? lead : 0;
}

struct Scratch {
  size_t* lead;  // for which x was laid out
  uint16_t* x;   // [panel rows, Pitch(K)], a row begins `lead` elements behind a cache line
};
constexpr size_t kLeadBytes = 64;

Scratch LayOut(float* scratch) {
  auto* bytes = reinterpret_cast<std::byte*>(scratch);
  return {reinterpret_cast<size_t*>(bytes), reinterpret_cast<uint16_t*>(bytes + kLeadBytes)};
}

// The first n of 32.
__mmask32 First(size_t n) { return n >= kStep ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }

void RoundRow(const float* x, size_t k, uint16_t* out) {
  for (size_t i = 0; i < k; i += kStep) {
    const __mmask32 some = First(k - i);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some), x + i);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), x + i + 16);
    _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
}

// Addresses are a base and a distance: one pointer per row would not fit the registers. All bases are of the line in
// which the piece of K begins, `lead` elements before it.
struct Bf16Tile {
  const uint16_t* x;       // first row
  size_t pitch;            // elements
  const std::byte* w;      // first row
  const std::byte* ahead;  // first of the rows that are asked for: multiplied later
  size_t stride;           // bytes
  size_t lead, k;
  float* y;  // first row
  size_t y_stride;
  bool add;  // to what y holds: all but the first piece of K
};

template <size_t kRows>
using Sums = TileV[kRows][kTileCols];

// sums[r][c] += 32 elements of x times 32 of w; those not in `some` are neither read nor anything but zero.
template <size_t kRows, size_t kN, size_t kAhead>
HWY_INLINE void AddStep(const Bf16Tile& tile, size_t at, __mmask32 some, Sums<kRows>& sums) {
#pragma GCC unroll 8
  for (size_t c = 0; c < kAhead; ++c)
    __builtin_prefetch(tile.ahead + c * tile.stride + at, /*write=*/0, /*locality=*/3);
  const auto* x = reinterpret_cast<const std::byte*>(tile.x) + at;
  __m512i xs[kRows];
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) xs[r] = _mm512_maskz_loadu_epi16(some, x + r * tile.pitch * sizeof(uint16_t));
  const std::byte* const w[3] = {tile.w + at, tile.w + 3 * tile.stride + at, tile.w + 6 * tile.stride + at};
#pragma GCC unroll 8
  for (size_t c = 0; c < kN; ++c) {
    __m512i row = _mm512_maskz_loadu_epi16(some, w[c / 3] + c % 3 * tile.stride);
    asm("" : "+v"(row));  // read once, not once per row of x; see KeepInRegister
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      sums[r][c].raw = _mm512_dpbf16_ps(sums[r][c].raw, (__m512bh)row, (__m512bh)xs[r]);
    }
  }
}

// Lane l of every sum from lane l + lead / 2: where it would be, had the row begun with a line.
template <size_t kRows>
HWY_INLINE void Realign(size_t lead, Sums<kRows>& sums) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i from = _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(lead / 2)));
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (size_t c = 0; c < kTileCols; ++c) sums[r][c].raw = _mm512_permutexvar_ps(from, sums[r][c].raw);
  }
}

// kRows rows of x times kN weight rows; kAhead rows are asked for.
template <size_t kRows, size_t kN, size_t kAhead>
HWY_NOINLINE void MultiplyTile(const Bf16Tile& of) {
  const Bf16Tile tile = of;
  Sums<kRows> sums;
  for (auto& row : sums) {
    for (TileV& sum : row) sum.raw = _mm512_setzero_ps();
  }
  const size_t end = tile.lead + tile.k, whole = end / kStep * kStepBytes;
  size_t at = 0;  // bytes
  if (tile.lead != 0) {
    AddStep<kRows, kN, kAhead>(tile, at, First(end) & ~First(tile.lead), sums);
    at += kStepBytes;
  }
#pragma GCC unroll 2
  for (; at < whole; at += kStepBytes) AddStep<kRows, kN, kAhead>(tile, at, ~__mmask32{0}, sums);
  if (at < sizeof(uint16_t) * end) AddStep<kRows, kN, kAhead>(tile, at, First(end % kStep), sums);
  // Half a vector needs no realignment: both halves are added first.
  if (tile.lead % 16 != 0) Realign<kRows>(tile.lead, sums);
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) {
    alignas(32) float lanes[kTileCols];
    SumLanes(sums[r], lanes);
    constexpr auto kMask = static_cast<__mmask8>((1u << kN) - 1u);
    __m256 fresh = _mm256_load_ps(lanes);
    float* y = tile.y + r * tile.y_stride;
    if (tile.add) fresh = _mm256_add_ps(_mm256_maskz_loadu_ps(kMask, y), fresh);
    _mm256_mask_storeu_ps(y, kMask, fresh);
  }
}

template <size_t kRows, size_t kN>
void MultiplyTileAhead(size_t n_ahead, const Bf16Tile& tile) {
  if constexpr (kN == kCols) {
    if (n_ahead == 1) return MultiplyTile<kRows, kN, 1>(tile);
    if (n_ahead == 2) return MultiplyTile<kRows, kN, 2>(tile);
    if (n_ahead == 3) return MultiplyTile<kRows, kN, 3>(tile);
    if (n_ahead == 4) return MultiplyTile<kRows, kN, 4>(tile);
    if (n_ahead == 8) return MultiplyTile<kRows, kN, 8>(tile);
  }
  MultiplyTile<kRows, kN, 0>(tile);
}

template <size_t kN>
void MultiplyTileOf(size_t n_rows, size_t n_ahead, const Bf16Tile& tile) {
  static_assert(kBf16PanelStep == 3);
  if (n_rows == 1) return MultiplyTileAhead<1, kN>(n_ahead, tile);
  if (n_rows == 2) return MultiplyTileAhead<2, kN>(n_ahead, tile);
  return MultiplyTileAhead<3, kN>(n_ahead, tile);
}

// kN weight rows from `first` on, times all of x. Meanwhile asks for as many that are multiplied after them, evenly: a
// read from memory takes as long as hundreds of multiplications.
template <size_t kN>
void MultiplyColumns(const StripArgs& args, const Scratch& scratch, size_t first) {
  const size_t k_all = args.x.cols, n_tiles = CeilDiv(args.x.rows, kBf16PanelStep);
  Bf16Tile tile = {};
  tile.pitch = Pitch(k_all);
  tile.stride = args.row_bytes;
  tile.lead = *scratch.lead;
  tile.y_stride = args.y.stride;
  const std::byte* const w = args.w.data + first * args.row_bytes - sizeof(uint16_t) * tile.lead;
  for (size_t k0 = 0; k0 == 0 || k0 < k_all; k0 += tile.k) {  // K = 0 still writes zeros
    tile.k = std::min(Piece(k_all), k_all - k0);
    tile.w = w + sizeof(uint16_t) * k0;
    tile.add = k0 != 0;
    const bool last_piece = k0 + tile.k >= k_all;
    const bool last = last_piece && first + 2 * kN > args.first + args.n_rows;
    const std::byte* const ahead = last_piece ? w + kN * tile.stride : tile.w + sizeof(uint16_t) * tile.k;
    for (size_t t = 0, row = 0; t < n_tiles; ++t) {
      // Nearly equal tiles: one of few rows cannot fill the multipliers.
      const size_t rows = CeilDiv(args.x.rows - row, n_tiles - t);
      const size_t asked = kN * t / n_tiles, n_ahead = last ? 0 : kN * (t + 1) / n_tiles - asked;
      tile.ahead = ahead + asked * tile.stride;
      tile.x = scratch.x + row * tile.pitch + k0;
      tile.y = args.y.Row(row) + first;
      MultiplyTileOf<kN>(rows, n_ahead, tile);
      row += rows;
    }
    if (k_all == 0) break;
  }
}

}  // namespace

void RunBf16StripTarget(const StripArgs& args, bool prepared) {
  NM_DCHECK(args.x.rows <= kBf16PanelRows);
  const Scratch scratch = LayOut(args.scratch);
  if (!prepared) {
    *scratch.lead = LeadOf(args);
    for (size_t r = 0; r < args.x.rows; ++r) {
      RoundRow(args.XRow(r), args.x.cols, scratch.x + r * Pitch(args.x.cols) + *scratch.lead);
    }
  }
  size_t n = 0;
  for (; n + kCols <= args.n_rows; n += kCols) MultiplyColumns<kCols>(args, scratch, args.first + n);
  for (; n < args.n_rows; ++n) MultiplyColumns<1>(args, scratch, args.first + n);
}

bool HasBf16StripTarget(DType dtype) { return dtype == DType::kBF16 && __builtin_cpu_supports("avx512bf16"); }

size_t Bf16ScratchFloatsTarget(size_t max_inner) {
  return (kLeadBytes + kBf16PanelRows * Pitch(max_inner) * sizeof(uint16_t)) / sizeof(float);
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
