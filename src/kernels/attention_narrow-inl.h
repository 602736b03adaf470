// SPDX-License-Identifier: Apache-2.0
// Attention of few rows, as in decode: lanes run over positions for the scores and over dimensions for the values, so
// that no lane idles. Every sum has the order of attention-inl.h, hence the same bits: a score adds up dimension
// after dimension, a sum of probabilities and an output position after position.

#if defined(NM_ATTENTION_NARROW_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NM_ATTENTION_NARROW_INL_H
#undef NM_ATTENTION_NARROW_INL_H
#else
#define NM_ATTENTION_NARROW_INL_H
#endif

#include <algorithm>

#include "hwy/highway.h"
#include "kernels/attention_task.h"
#include "kernels/attention_vec-inl.h"
#include "kernels/simd_math-inl.h"
#include "kernels/transpose-inl.h"
#include "tensor/blocks.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Up to half the lanes: with more rows the wide kernels lose less than the transposes here cost.
inline constexpr size_t kNarrowRows = kLanes / 2;
// Positions whose keys are transposed at once.
inline constexpr size_t kNarrowPositions = 2 * kLanes;
static_assert(kTilePositions % kNarrowPositions == 0);

// A few rows against one tile of the cache.
struct NarrowTile {
  const float* queries;     // [dim, kStripRows], lane = row, as packed for the wide kernels
  DType dtype;              // of keys and values
  const std::byte* keys;    // [n_positions, dim]
  const std::byte* values;  // [n_positions, dim]
  float* memory;            // [kTilePositions, TileStride]: one half for keys as f32, one for them transposed
  float* scores;            // [kNarrowRows, kTilePositions]
  float* out;               // [kNarrowRows, stride]
  size_t dim, stride;
  size_t n_positions;
  size_t prefetch_lines;  // at a time, so that the next tile's lines are spread over all work on this one

  float* transposed() const { return memory + kTilePositions / 2 * stride; }  // [dim, kNarrowPositions]
  // [n_positions, dim / 32], of a q8_0 cache: instead of keys, once their scores are there.
  float* value_scales() const { return memory; }
};

// TransposeKeys of blocks. Four codes at a time are moved as one word of 32 bits: a quarter of the shuffles.
HWY_INLINE void TransposeBlocks(const NarrowTile& t, size_t position, size_t n, TilePrefetch& prefetch) {
  const Floats d;
  const hn::Rebind<int32_t, Floats> di32;
  const size_t per_row = t.dim / kBlockElems;
  const auto* const first = reinterpret_cast<const BlockQ8_0*>(t.keys) + position * per_row;
  float* const scales = t.memory;  // [n, per_row]
  BlockScales(first, n * per_row, scales);
  for (size_t lane = 0; lane < kNarrowPositions; lane += kLanes) {
    for (size_t block = 0; block < per_row; ++block) {
      const int8_t* codes[kLanes];
      HWY_ALIGN float scale_of[kLanes];
      for (size_t i = 0; i < kLanes; ++i) {
        const size_t at = std::min(lane + i, n - 1) * per_row + block;
        codes[i] = first[at].qs;
        scale_of[i] = scales[at];
      }
      const FloatVec scale = hn::Load(d, scale_of);
      float* to = t.transposed() + block * kBlockElems * kNarrowPositions + lane;
      for (size_t k = 0; k < kBlockElems; k += 16) {
        prefetch.Fetch(4 * t.prefetch_lines);
        hn::Vec<decltype(di32)> words[4];
        LoadColumns(di32, codes, k, words);
        for (size_t i = 0; i < 4; ++i) {
          // Little endian: the first code is the lowest byte.
          const hn::Vec<decltype(di32)> code[4] = {
              hn::ShiftRight<24>(hn::ShiftLeft<24>(words[i])), hn::ShiftRight<24>(hn::ShiftLeft<16>(words[i])),
              hn::ShiftRight<24>(hn::ShiftLeft<8>(words[i])), hn::ShiftRight<24>(words[i])};
          for (size_t c = 0; c < 4; ++c, to += kNarrowPositions) {
            hn::Store(hn::Mul(hn::ConvertTo(d, code[c]), scale), d, to);
          }
        }
      }
    }
  }
}

#if NM_SIMD_HAVE_F16 && HWY_TARGET != HWY_SCALAR

// TransposeKeys of halves. Two at a time are moved as one word of 32 bits: half the shuffles, and nothing is unpacked
// before. For dimensions in eights.
HWY_INLINE void TransposeHalves(const NarrowTile& t, size_t position, size_t n, TilePrefetch& prefetch) {
  const Floats d;
  const hn::Rebind<uint32_t, Floats> du32;
  const hn::Repartition<uint16_t, decltype(du32)> du16;
  const hn::Repartition<hwy::float16_t, decltype(du32)> df16;
  const hn::Half<decltype(df16)> half;
  const auto* const first = reinterpret_cast<const uint16_t*>(t.keys) + position * t.dim;
  const uint16_t* keys[kNarrowPositions];
  for (size_t i = 0; i < kNarrowPositions; ++i) keys[i] = first + std::min(i, n - 1) * t.dim;
  for (size_t lane = 0; lane < kNarrowPositions; lane += kLanes) {
    float* to = t.transposed() + lane;
    for (size_t k = 0; k < t.dim; k += 8) {
      prefetch.Fetch(2 * t.prefetch_lines);
      hn::Vec<decltype(du32)> words[4];
      LoadColumns(du32, keys + lane, k, words);
      for (size_t i = 0; i < 4; i += 2) {
        const auto a = hn::BitCast(du16, words[i]), b = hn::BitCast(du16, words[i + 1]);
        // Little endian: the first half is the lower one.
        const auto even = hn::BitCast(df16, hn::ConcatEven(du16, b, a)),
                   odd = hn::BitCast(df16, hn::ConcatOdd(du16, b, a));
        hn::Store(hn::PromoteTo(d, hn::LowerHalf(half, even)), d, to);
        hn::Store(hn::PromoteTo(d, hn::LowerHalf(half, odd)), d, to + kNarrowPositions);
        hn::Store(hn::PromoteTo(d, hn::UpperHalf(half, even)), d, to + 2 * kNarrowPositions);
        hn::Store(hn::PromoteTo(d, hn::UpperHalf(half, odd)), d, to + 3 * kNarrowPositions);
        to += 4 * kNarrowPositions;
      }
    }
  }
}

#endif

// Transposes the keys of kNarrowPositions positions from `position` on; beyond the last one they repeat it.
HWY_INLINE void TransposeKeys(const NarrowTile& t, size_t position, TilePrefetch& prefetch) {
  const Floats d;
  const float* keys[kNarrowPositions];
  const size_t n = std::min(kNarrowPositions, t.n_positions - position);
  if (t.dtype == DType::kQ8_0) return TransposeBlocks(t, position, n, prefetch);
#if NM_SIMD_HAVE_F16 && HWY_TARGET != HWY_SCALAR
  if (t.dtype == DType::kF16 && t.dim % 8 == 0) return TransposeHalves(t, position, n, prefetch);
#endif
  const float* first = reinterpret_cast<const float*>(t.keys) + position * t.dim;
  if (t.dtype == DType::kF16) {
    UnpackRows(t.dtype, t.keys + position * t.dim * 2, n, t.dim, t.memory);
    first = t.memory;
  }
  const size_t stride = t.dtype == DType::kF16 ? t.stride : t.dim;
  for (size_t i = 0; i < kNarrowPositions; ++i) keys[i] = first + std::min(i, n - 1) * stride;
  float* const to = t.transposed();
  for (size_t lane = 0; lane < kNarrowPositions; lane += kLanes) {
    size_t k = 0;
    for (; k + 4 <= t.dim; k += 4) {
      prefetch.Fetch(t.prefetch_lines);
      FloatVec columns[4];
      LoadColumns(d, keys + lane, k, columns);
      for (size_t i = 0; i < 4; ++i) hn::Store(columns[i], d, to + (k + i) * kNarrowPositions + lane);
    }
    for (; k < t.dim; ++k) {
      for (size_t i = lane; i < lane + kLanes; ++i) to[k * kNarrowPositions + i] = keys[i][k];
    }
  }
}

// Scores of kN rows against the transposed keys.
template <size_t kN>
HWY_INLINE void NarrowScores(const NarrowTile& t, size_t position, TilePrefetch& prefetch) {
  const Floats d;
  FloatVec acc[kN][2];
  for (size_t i = 0; i < kN; ++i) acc[i][0] = acc[i][1] = hn::Zero(d);
  const float* const keys = t.transposed();
  for (size_t k = 0; k < t.dim; ++k) {
    if (k % 4 == 0) prefetch.Fetch(t.prefetch_lines);
    const FloatVec key0 = hn::Load(d, keys + k * kNarrowPositions);
    const FloatVec key1 = hn::Load(d, keys + k * kNarrowPositions + kLanes);
    for (size_t i = 0; i < kN; ++i) {
      const FloatVec query = hn::Set(d, t.queries[k * kStripRows + i]);
      acc[i][0] = hn::MulAdd(query, key0, acc[i][0]);
      acc[i][1] = hn::MulAdd(query, key1, acc[i][1]);
    }
  }
  for (size_t i = 0; i < kN; ++i) {
    hn::Store(acc[i][0], d, t.scores + i * kTilePositions + position);
    hn::Store(acc[i][1], d, t.scores + i * kTilePositions + position + kLanes);
  }
}

// Scores of one row become exp(score - max), zero where the row does not see. Moves max on and returns what the earlier
// sum and out are to be scaled by.
HWY_INLINE float NarrowProbabilities(float* scores, size_t first_seen, size_t end_seen, size_t n_positions,
                                     float& max) {
  const Floats d;
  const size_t n = RoundUp(n_positions, kLanes);
  std::fill(scores, scores + std::min(first_seen, n), kMinusInf);
  std::fill(scores + std::min(end_seen, n), scores + n, kMinusInf);
  FloatVec tile_max = hn::Set(d, max);
  for (size_t i = 0; i < n; i += kLanes) tile_max = hn::Max(tile_max, hn::Load(d, scores + i));
  const FloatVec new_max = hn::MaxOfLanes(d, tile_max);
  const FloatVec pivot = Pivot(new_max);
  for (size_t i = 0; i < n; i += kLanes) {
    hn::Store(Exp(d, hn::Sub(hn::Load(d, scores + i), pivot)), d, scores + i);
  }
  const FloatVec rescale = Exp(d, hn::Sub(hn::Set(d, max), pivot));
  max = hn::GetLane(new_max);
  return hn::GetLane(rescale);
}

// sum = sum * rescale + the probabilities, position after position; all rows at a time, for each addition waits for the
// one before.
template <size_t kN>
HWY_INLINE void AddProbabilities(const NarrowTile& t, size_t n_rows, const float* rescale, float* sum) {
  const Floats d;
  float of_tile[kN] = {};
  for (size_t position = 0; position < t.n_positions; ++position) {
    for (size_t row = 0; row < kN; ++row) of_tile[row] += t.scores[row * kTilePositions + position];
  }
  for (size_t row = 0; row < n_rows; ++row) {
    sum[row] = hn::GetLane(hn::MulAdd(hn::Set(d, sum[row]), hn::Set(d, rescale[row]), hn::Set(d, of_tile[row])));
  }
}

// A vector of one position's values from dimension `k` on; zeros beyond the last dimension, unless kWhole says that
// there is nothing beyond.
template <DType kType, bool kWhole>
HWY_INLINE FloatVec LoadValues(const NarrowTile& t, size_t position, size_t k) {
  const Floats d;
  const size_t at = position * t.dim + k, left = kWhole ? kLanes : t.dim - k;
  if constexpr (kType == DType::kF32) return LoadPart(d, reinterpret_cast<const float*>(t.values) + at, left);
  if constexpr (kType == DType::kQ8_0) {
    const size_t block = at / kBlockElems;
    return ScaledCodes(reinterpret_cast<const BlockQ8_0*>(t.values)[block].qs + at % kBlockElems,
                       hn::Set(d, t.value_scales()[block]));
  }
  const auto* const half = reinterpret_cast<const uint16_t*>(t.values) + at;
#if NM_SIMD_HAVE_F16
  if (left >= kLanes) {
    const hn::Rebind<hwy::float16_t, Floats> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(half)));
  }
#endif
  HWY_ALIGN float part[kLanes] = {};
  HalfToFloat(half, std::min(left, kLanes), part);
  return hn::Load(d, part);
}

// out = out * rescale + probabilities * values, for kN rows and kWide vectors of dimensions.
template <size_t kN, size_t kWide, DType kType, bool kWhole>
HWY_INLINE void NarrowValues(const NarrowTile& t, size_t k, const float* rescale, TilePrefetch& prefetch) {
  const Floats d;
  FloatVec acc[kN][kWide];
  for (size_t i = 0; i < kN; ++i) {
    for (size_t v = 0; v < kWide; ++v) {
      acc[i][v] = hn::Mul(hn::Load(d, t.out + i * t.stride + k + v * kLanes), hn::Set(d, rescale[i]));
    }
  }
  for (size_t position = 0; position < t.n_positions; ++position) {
    if (position % 4 == 0) prefetch.Fetch(t.prefetch_lines);
    FloatVec value[kWide];
#pragma GCC unroll 4
    for (size_t v = 0; v < kWide; ++v) value[v] = LoadValues<kType, kWhole>(t, position, k + v * kLanes);
    for (size_t i = 0; i < kN; ++i) {
      const FloatVec weight = hn::Set(d, t.scores[i * kTilePositions + position]);
      for (size_t v = 0; v < kWide; ++v) acc[i][v] = hn::MulAdd(weight, value[v], acc[i][v]);
    }
  }
  for (size_t i = 0; i < kN; ++i) {
    for (size_t v = 0; v < kWide; ++v) hn::Store(acc[i][v], d, t.out + i * t.stride + k + v * kLanes);
  }
}

// All dimensions of the values.
template <size_t kN, DType kType>
HWY_INLINE void AddNarrowValues(const NarrowTile& t, const float* rescale, TilePrefetch& prefetch) {
  constexpr size_t kWide = std::min<size_t>((kBroadcasts == 8 ? 16 : 8) / kN, 4);  // 8 or 16 accumulators
  size_t k = 0;
  for (; k + kWide * kLanes <= t.dim; k += kWide * kLanes) {
    NarrowValues<kN, kWide, kType, /*kWhole=*/true>(t, k, rescale, prefetch);
  }
  for (; k < t.dim; k += kLanes) NarrowValues<kN, 1, kType, /*kWhole=*/false>(t, k, rescale, prefetch);
}

// kN is the number of rows, rounded up to what there is code for; the rows that fill up repeat the last one.
template <size_t kN>
HWY_NOINLINE void AttendNarrow(const NarrowTile& t, size_t n_rows, const size_t* first_seen, const size_t* end_seen,
                               const AttentionState& state, TilePrefetch& prefetch) {
  for (size_t position = 0; position < t.n_positions; position += kNarrowPositions) {
    TransposeKeys(t, position, prefetch);
    NarrowScores<kN>(t, position, prefetch);
  }
  float rescale[kN] = {};
  for (size_t row = 0; row < n_rows; ++row) {
    rescale[row] = NarrowProbabilities(t.scores + row * kTilePositions, first_seen[row], end_seen[row], t.n_positions,
                                       state.max[row]);
  }
  AddProbabilities<kN>(t, n_rows, rescale, state.sum);
  if (t.dtype == DType::kQ8_0) {
    BlockScales(reinterpret_cast<const BlockQ8_0*>(t.values), t.n_positions * (t.dim / kBlockElems), t.value_scales());
    AddNarrowValues<kN, DType::kQ8_0>(t, rescale, prefetch);
  } else if (t.dtype == DType::kF16) {
    AddNarrowValues<kN, DType::kF16>(t, rescale, prefetch);
  } else {
    AddNarrowValues<kN, DType::kF32>(t, rescale, prefetch);
  }
}

// Outputs of the narrow kernels stand behind the first strip of the state, row by row, until the split is done.
HWY_INLINE float* NarrowOut(const AttentionTask& task, const AttentionState& state) {
  return state.out + task.StripOffset(kStripRows);
}

// The task's rows against `n` positions from `tile` on.
void AttendNarrowTile(const AttentionTask& task, size_t tile, size_t n, const std::byte* keys, const std::byte* values,
                      const AttentionScratch& scratch, const AttentionState& state, TilePrefetch& prefetch) {
  size_t first_seen[kLanes] = {}, end_seen[kLanes] = {};
  for (size_t row = 0; row < task.n_rows; ++row) {
    first_seen[row] = std::max(task.FirstSeen(row), tile) - tile;
    end_seen[row] = std::max(std::min(task.Position(row) + 1, tile + n), tile) - tile;
  }
  const NarrowTile t{.queries = scratch.queries,
                     .dtype = task.kv->dtype,
                     .keys = keys,
                     .values = values,
                     .memory = scratch.tile,
                     .scores = scratch.scores,
                     .out = NarrowOut(task, state),
                     .dim = task.kv->head_dim,
                     .stride = TileStride(task.kv->head_dim),
                     .n_positions = n,
                     .prefetch_lines = std::max<size_t>(1, 8 * task.kv->row_bytes() / task.kv->head_dim / kLanes)};
  if (task.n_rows == 1) {
    AttendNarrow<1>(t, task.n_rows, first_seen, end_seen, state, prefetch);
  } else if (task.n_rows == 2) {
    AttendNarrow<2>(t, task.n_rows, first_seen, end_seen, state, prefetch);
  } else if (task.n_rows <= 4) {
    AttendNarrow<4>(t, task.n_rows, first_seen, end_seen, state, prefetch);
  } else {
    AttendNarrow<8>(t, task.n_rows, first_seen, end_seen, state, prefetch);
  }
}

// Zeroes the narrow outputs for a new split.
void ClearNarrow(const AttentionTask& task, const AttentionState& state) {
  std::fill_n(NarrowOut(task, state), kNarrowRows * TileStride(task.kv->head_dim), 0.0f);
}

// Moves the narrow outputs to where the wide kernels have theirs.
void WidenOutputs(const AttentionTask& task, const AttentionState& state) {
  const size_t dim = task.kv->head_dim;
  const float* const rows = NarrowOut(task, state);
  for (size_t row = 0; row < task.n_rows; ++row) {
    for (size_t k = 0; k < dim; ++k) state.out[k * kStripRows + row] = rows[row * TileStride(dim) + k];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // NM_ATTENTION_NARROW_INL_H
