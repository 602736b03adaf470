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
// (measured). The first and the last line of a piece are half a step each and make one together. Even, for words stay
// words; whole steps only. Rows that begin differently are read as they lie.
size_t LeadOf(const StripArgs& args) {
  const size_t lead = reinterpret_cast<uintptr_t>(args.w.data) % kStepBytes / sizeof(uint16_t);
  const bool alike =
      args.row_bytes > 0 && args.row_bytes % kStepBytes == 0 && reinterpret_cast<uintptr_t>(args.w.data) % 4 == 0;
  return alike ? lead : 0;
}

struct Scratch {
  size_t* lead;  // for which x was laid out
  uint16_t* x;   // [panel rows, Pitch(K)], every piece turned by `lead`: its last elements come first
};
constexpr size_t kLeadBytes = 64;

Scratch LayOut(float* scratch) {
  auto* bytes = reinterpret_cast<std::byte*>(scratch);
  return {reinterpret_cast<size_t*>(bytes), reinterpret_cast<uint16_t*>(bytes + kLeadBytes)};
}

// The first n of 32.
__mmask32 First(size_t n) { return n >= kStep ? ~__mmask32{0} : (__mmask32{1} << n) - 1; }

// out[0..n) = x[0..n). Asks for the same of `next`: chosen rows lie anywhere.
void RoundElements(const float* x, const float* next, size_t n, uint16_t* out) {
  for (size_t i = 0; i < n; i += kStep) {
    __builtin_prefetch(next + i);
    __builtin_prefetch(next + i + kStep / 2);
    const __mmask32 some = First(n - i);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some), x + i);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(some >> 16), x + i + 16);
    _mm512_mask_storeu_epi16(out + i, some, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
}

void RoundRow(const float* x, const float* next, size_t k_all, size_t lead, uint16_t* out) {
  for (size_t k0 = 0; k0 < k_all; k0 += Piece(k_all)) {
    const size_t k = std::min(Piece(k_all), k_all - k0);
    RoundElements(x + k0, next + k0, k - lead, out + k0 + lead);
    RoundElements(x + k0 + k - lead, next + k0 + k - lead, lead, out + k0);
  }
}

// Tiles of some rows of x each, one after the other, times the same weight rows. Addresses are a base and a distance:
// one pointer per row would not fit the registers. Weights' are of the line in which the piece of K begins, `lead`
// elements before it.
struct Bf16Tiles {
  size_t n;
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

// sums[r][c] += 32 elements of x times 32 of w, which `load` gets for a row's address.
template <size_t kRows, size_t kN, size_t kAhead, class Load>
HWY_INLINE void AddStep(const Bf16Tiles& tile, size_t at, const __m512i (&xs)[kRows], const Load& load,
                        Sums<kRows>& sums) {
#pragma GCC unroll 8
  for (size_t c = 0; c < kAhead; ++c)
    __builtin_prefetch(tile.ahead + c * tile.stride + at, /*write=*/0, /*locality=*/3);
  const std::byte* const w[3] = {tile.w + at, tile.w + 3 * tile.stride + at, tile.w + 6 * tile.stride + at};
#pragma GCC unroll 8
  for (size_t c = 0; c < kN; ++c) {
    __m512i row = load(w[c / 3] + c % 3 * tile.stride);
    asm("" : "+v"(row));  // read once, not once per row of x; see KeepInRegister
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
      sums[r][c].raw = _mm512_dpbf16_ps(sums[r][c].raw, (__m512bh)row, (__m512bh)xs[r]);
    }
  }
}

// Those of the rows of x not in `some` are zero.
template <size_t kRows>
HWY_INLINE void LoadX(const Bf16Tiles& tile, size_t at, __mmask32 some, __m512i (&xs)[kRows]) {
  const auto* x = reinterpret_cast<const std::byte*>(tile.x) + at;
#pragma GCC unroll 4
  for (size_t r = 0; r < kRows; ++r) xs[r] = _mm512_maskz_loadu_epi16(some, x + r * tile.pitch * sizeof(uint16_t));
}

template <size_t kRows, size_t kN, size_t kAhead>
HWY_INLINE void MultiplyTile(const Bf16Tiles& tile) {
  Sums<kRows> sums;
  for (auto& row : sums) {
    for (TileV& sum : row) sum.raw = _mm512_setzero_ps();
  }
  __m512i xs[kRows];
  const size_t whole = tile.k / kStep * kStepBytes;
  size_t at = 0;  // bytes
  if (tile.lead != 0) {
    const __mmask32 last = First(tile.lead);
    LoadX<kRows>(tile, at, ~__mmask32{0}, xs);
    AddStep<kRows, kN, kAhead>(
        tile, at, xs,
        [&](const std::byte* w)
            HWY_ATTR { return _mm512_mask_loadu_epi16(_mm512_maskz_loadu_epi16(~last, w), last, w + whole); },
        sums);
    at += kStepBytes;
  }
#pragma GCC unroll 2
  for (; at < whole; at += kStepBytes) {
    LoadX<kRows>(tile, at, ~__mmask32{0}, xs);
    AddStep<kRows, kN, kAhead>(
        tile, at, xs, [](const std::byte* w) HWY_ATTR { return _mm512_loadu_si512(w); }, sums);
  }
  if (tile.k % kStep != 0) {
    const __mmask32 some = First(tile.k % kStep);
    LoadX<kRows>(tile, at, some, xs);
    AddStep<kRows, kN, kAhead>(
        tile, at, xs, [&](const std::byte* w) HWY_ATTR { return _mm512_maskz_loadu_epi16(some, w); }, sums);
  }
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

// kRows rows of x a tile, times kN weight rows; kAhead rows are asked for with every tile.
template <size_t kRows, size_t kN, size_t kAhead>
HWY_NOINLINE void MultiplyTiles(Bf16Tiles tile) {
  for (size_t n = tile.n; n > 0; --n) {
    MultiplyTile<kRows, kN, kAhead>(tile);
    tile.x += kRows * tile.pitch;
    tile.y += kRows * tile.y_stride;
    tile.ahead += kAhead * tile.stride;
  }
}

template <size_t kRows, size_t kN>
void MultiplyTilesAhead(size_t n_ahead, const Bf16Tiles& tiles) {
  if constexpr (kN == kCols) {
    if (n_ahead == 1) return MultiplyTiles<kRows, kN, 1>(tiles);
    if (n_ahead == 2) return MultiplyTiles<kRows, kN, 2>(tiles);
    if (n_ahead == 3) return MultiplyTiles<kRows, kN, 3>(tiles);
    if (n_ahead == 4) return MultiplyTiles<kRows, kN, 4>(tiles);
    if (n_ahead == 8) return MultiplyTiles<kRows, kN, 8>(tiles);
  }
  MultiplyTiles<kRows, kN, 0>(tiles);
}

template <size_t kN>
void MultiplyTilesOf(size_t n_rows, size_t n_ahead, const Bf16Tiles& tiles) {
  static_assert(kBf16PanelStep == 3);
  if (n_rows == 1) return MultiplyTilesAhead<1, kN>(n_ahead, tiles);
  if (n_rows == 2) return MultiplyTilesAhead<2, kN>(n_ahead, tiles);
  return MultiplyTilesAhead<3, kN>(n_ahead, tiles);
}

// How many rows each tile from `tile` to `until` asks for while kN rows are multiplied: together the kN that are
// multiplied next, since a read from memory takes as long as hundreds of multiplications. If there are more tiles than
// rows the last ones ask, for what was asked for earlier has left the first-level cache when its time comes (10 % at 48
// rows, measured).
struct Asked {
  size_t n_ahead, until;
};
template <size_t kN>
Asked AskedFrom(size_t tile, size_t n_tiles) {
  if (n_tiles > kN) return tile < n_tiles - kN ? Asked{0, n_tiles - kN} : Asked{1, n_tiles};
  const size_t each = kN / n_tiles, n_more = kN % n_tiles;
  return tile < n_more ? Asked{each + 1, n_more} : Asked{each, n_tiles};
}

// kN weight rows from `first` on, times all of x.
template <size_t kN>
void MultiplyColumns(const StripArgs& args, const Scratch& scratch, size_t first) {
  const size_t k_all = args.x.cols, n_tiles = CeilDiv(args.x.rows, kBf16PanelStep);
  // Nearly equal tiles: one of few rows cannot fill the multipliers. The first n_wide have a row more.
  const size_t rows = args.x.rows / n_tiles, n_wide = args.x.rows % n_tiles;
  Bf16Tiles tiles = {};
  tiles.pitch = Pitch(k_all);
  tiles.stride = args.row_bytes;
  tiles.lead = *scratch.lead;
  tiles.y_stride = args.y.stride;
  const std::byte* const w = args.w.data + first * args.row_bytes - sizeof(uint16_t) * tiles.lead;
  for (size_t k0 = 0; k0 == 0 || k0 < k_all; k0 += tiles.k) {  // K = 0 still writes zeros
    tiles.k = std::min(Piece(k_all), k_all - k0);
    tiles.w = w + sizeof(uint16_t) * k0;
    tiles.add = k0 != 0;
    const bool last_piece = k0 + tiles.k >= k_all;
    const bool last = last_piece && first + 2 * kN > args.first + args.n_rows;
    tiles.ahead = last_piece ? w + kN * tiles.stride : tiles.w + sizeof(uint16_t) * tiles.k;
    tiles.x = scratch.x + k0;
    tiles.y = args.y.Row(0) + first;
    for (size_t t = 0; t < n_tiles; t += tiles.n) {
      const Asked asked = AskedFrom<kN>(t, n_tiles);
      const size_t n_rows = rows + (t < n_wide ? 1 : 0), n_ahead = last ? 0 : asked.n_ahead;
      tiles.n = std::min(t < n_wide ? n_wide : n_tiles, asked.until) - t;
      MultiplyTilesOf<kN>(n_rows, n_ahead, tiles);
      tiles.x += tiles.n * n_rows * tiles.pitch;
      tiles.y += tiles.n * n_rows * tiles.y_stride;
      tiles.ahead += tiles.n * n_ahead * tiles.stride;
    }
    if (k_all == 0) break;
  }
}

}  // namespace

void RunBf16StripTarget(const StripArgs& args, bool prepared) {
  NM_DCHECK(args.x.rows <= kBf16PanelRows);
  const Scratch scratch = LayOut(args.scratch);
  const size_t lead = LeadOf(args);
  if (!prepared || *scratch.lead != lead) {
    *scratch.lead = lead;
    for (size_t r = 0; r < args.x.rows; ++r) {
      const float* next = args.XRow(std::min(r + 1, args.x.rows - 1));
      RoundRow(args.XRow(r), next, args.x.cols, lead, scratch.x + r * Pitch(args.x.cols));
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
