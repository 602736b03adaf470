// SPDX-License-Identifier: Apache-2.0
#include "kernels/bf16_strip.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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

// One product of a group, as it is multiplied.
struct Side {
  const StripArgs* args;
  size_t lead;
  const uint16_t* x;  // [x.rows, Pitch(K)], every piece turned by `lead`: its last elements come first
  // Nearly equal tiles: one of few rows cannot fill the multipliers. The first n_wide have a row more.
  size_t n_tiles, rows, n_wide;

  // A weight row of the strip from the piece at k0 on.
  const std::byte* Weights(size_t row, size_t k0) const {
    return args->w.data + (args->first + row) * args->row_bytes + sizeof(uint16_t) * k0 - sizeof(uint16_t) * lead;
  }
};

// What is multiplied between two looks at the first product: the weight rows of each product's strip from `row` on,
// times the piece at k0 of all its x.
struct Turn {
  size_t row, k0, k;
  size_t next_row, next_k0;
  bool last;  // there is no next one
};

// What tiles ask for: each of the next n_tiles so many rows, the first of them from `ahead` on.
struct Asked {
  size_t n_ahead, n_tiles;
  const std::byte* ahead;
};

// Which of the kN rows that every product multiplies next a tile asks for, since a read from memory takes as long as
// hundreds of multiplications. The last kN tiles ask for the first product's of the next turn, for what is asked for
// earlier has left the first-level cache when its time comes (10 % at 48 rows, measured). Those before them ask for the
// other products' of this turn, evenly, so that memory is never idle.
template <size_t kN>
class Asking {
 public:
  Asking(std::span<const Side> sides, const Turn& turn) : sides_(sides), turn_(turn) {
    size_t n_tiles = 0;
    for (const Side& side : sides) n_tiles += side.n_tiles;
    n_late_ = std::min(n_tiles, kN);
    n_early_ = n_tiles - n_late_;
  }

  // To be called in ascending order, from 0 on: `tile` is the last one plus what it said in n_tiles, or less.
  Asked From(size_t tile) { return tile < n_early_ ? Early(tile) : Late(tile - n_early_); }

 private:
  Asked Early(size_t tile) {
    const size_t n_rows = kN * (sides_.size() - 1), due = (tile + 1) * n_rows / n_early_;
    if (n_asked_ == due) return {0, n_rows == 0 ? n_early_ - tile : 1, nullptr};
    const size_t row = n_asked_ % kN;
    const Side& side = sides_[1 + n_asked_ / kN];
    const size_t n = std::min({due - n_asked_, kN - row, kMostAhead});
    n_asked_ += n;
    return {n, 1, side.Weights(turn_.row + row, turn_.k0)};
  }

  Asked Late(size_t tile) const {
    if (turn_.last) return {0, n_late_ - tile, nullptr};
    const size_t each = kN / n_late_, n_more = kN % n_late_;
    const std::byte* ahead = sides_[0].Weights(turn_.next_row + tile * each + std::min(tile, n_more), turn_.next_k0);
    return tile < n_more ? Asked{each + 1, n_more - tile, ahead} : Asked{each, n_late_ - tile, ahead};
  }

  static constexpr size_t kMostAhead = 4;  // MultiplyTilesAhead has every number up to it

  std::span<const Side> sides_;
  const Turn& turn_;
  size_t n_early_, n_late_;  // tiles
  size_t n_asked_ = 0;       // rows, by early tiles
};

template <size_t kN>
void MultiplyTurn(std::span<const Side> sides, const Turn& turn) {
  Asking<kN> asking(sides, turn);
  size_t n_before = 0;  // tiles of the sides before
  for (const Side& side : sides) {
    const StripArgs& args = *side.args;
    Bf16Tiles tiles = {};
    tiles.x = side.x + turn.k0;
    tiles.pitch = Pitch(args.x.cols);
    tiles.w = side.Weights(turn.row, turn.k0);
    tiles.stride = args.row_bytes;
    tiles.lead = side.lead;
    tiles.k = turn.k;
    tiles.y = args.y.Row(0) + args.first + turn.row;
    tiles.y_stride = args.y.stride;
    tiles.add = turn.k0 != 0;
    for (size_t t = 0; t < side.n_tiles; t += tiles.n) {
      const Asked asked = asking.From(n_before + t);
      const size_t n_rows = side.rows + (t < side.n_wide ? 1 : 0);
      tiles.n = std::min(asked.n_tiles, (t < side.n_wide ? side.n_wide : side.n_tiles) - t);
      tiles.ahead = asked.ahead;
      MultiplyTilesOf<kN>(n_rows, asked.n_ahead, tiles);
      tiles.x += tiles.n * n_rows * tiles.pitch;
      tiles.y += tiles.n * n_rows * tiles.y_stride;
    }
    n_before += side.n_tiles;
  }
}

// kN weight rows of each strip from `row` on, piece by piece of K. Strips end at row_end.
template <size_t kN>
void MultiplyRows(std::span<const Side> sides, size_t row, size_t row_end) {
  const size_t k_all = sides[0].args->x.cols;
  size_t k0 = 0;
  do {  // K = 0 still writes zeros
    const size_t k = std::min(Piece(k_all), k_all - k0);
    const bool last_piece = k0 + k == k_all;
    Turn turn = {.row = row, .k0 = k0, .k = k, .next_row = row, .next_k0 = k0 + k, .last = false};
    if (last_piece) {
      turn.next_row = row + kN;
      turn.next_k0 = 0;
      turn.last = turn.next_row + kN > row_end;
    }
    MultiplyTurn<kN>(sides, turn);
    k0 += k;
  } while (k0 < k_all);
}

// The scratch: for which lead each product's x was laid out, then every x.
constexpr size_t kLeadsBytes = kMaxBf16Group * sizeof(size_t);
static_assert(kLeadsBytes % 64 == 0);

}  // namespace

void RunBf16StripsTarget(std::span<const StripArgs> group, bool prepared) {
  NM_DCHECK(!group.empty() && group.size() <= kMaxBf16Group);
  auto* leads = reinterpret_cast<size_t*>(group[0].scratch);
  auto* x = reinterpret_cast<uint16_t*>(leads + kMaxBf16Group);
  std::array<Side, kMaxBf16Group> sides;
  for (size_t i = 0; i < group.size(); ++i) {
    const StripArgs& args = group[i];
    const size_t m = args.x.rows, k = args.x.cols, lead = LeadOf(args), n_tiles = CeilDiv(m, kBf16PanelStep);
    NM_DCHECK(m > 0 && k == group[0].x.cols && args.n_rows == group[0].n_rows);
    sides[i] = {&args, lead, x, n_tiles, m / n_tiles, m % n_tiles};
    for (size_t r = 0; r < m && !(prepared && leads[i] == lead); ++r) {
      RoundRow(args.XRow(r), args.XRow(std::min(r + 1, m - 1)), k, lead, x + r * Pitch(k));
    }
    leads[i] = lead;
    x += m * Pitch(k);
  }
  const std::span<const Side> all(sides.data(), group.size());
  const size_t row_end = group[0].n_rows;
  size_t row = 0;
  for (; row + kCols <= row_end; row += kCols) MultiplyRows<kCols>(all, row, row_end);
  for (; row < row_end; ++row) MultiplyRows<1>(all, row, row_end);
}

bool HasBf16StripTarget(DType dtype) { return dtype == DType::kBF16 && __builtin_cpu_supports("avx512bf16"); }

size_t Bf16ScratchFloatsTarget(size_t max_inner) {
  return (kLeadsBytes + kBf16GroupRows * Pitch(max_inner) * sizeof(uint16_t)) / sizeof(float);
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_POP_ATTRIBUTES

#else

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {

void RunBf16StripsTarget(std::span<const StripArgs>, bool) { NM_CHECK(false && "HasBf16Strip said no"); }
bool HasBf16StripTarget(DType) { return false; }
size_t Bf16ScratchFloatsTarget(size_t) { return 0; }

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // HWY_AVX3_DL

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(RunBf16StripsTarget);
HWY_EXPORT(HasBf16StripTarget);
HWY_EXPORT(Bf16ScratchFloatsTarget);

bool HasBf16Strip(DType dtype, Activations activations) {
  return activations == Activations::k8Bits && HWY_DYNAMIC_DISPATCH(HasBf16StripTarget)(dtype);
}
size_t Bf16ScratchFloats(size_t max_inner) { return HWY_DYNAMIC_DISPATCH(Bf16ScratchFloatsTarget)(max_inner); }
void RunBf16Strips(std::span<const StripArgs> group, bool prepared) {
  HWY_DYNAMIC_DISPATCH(RunBf16StripsTarget)(group, prepared);
}

}  // namespace npumoe
#endif  // HWY_ONCE
