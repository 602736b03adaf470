// SPDX-License-Identifier: Apache-2.0
// Per-target kernels of attention. Lanes run over query rows; keys and values are broadcast. So no score is ever
// summed across lanes, and each row's additions have one order, whatever rows stand beside it.

#if defined(NM_ATTENTION_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NM_ATTENTION_INL_H
#undef NM_ATTENTION_INL_H
#else
#define NM_ATTENTION_INL_H
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/attention_task.h"
#include "kernels/simd_math-inl.h"
#include "kernels/transpose-inl.h"
#include "tensor/float16.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, 16>;
using FloatVec = hn::Vec<Floats>;
inline constexpr size_t kLanes = hn::MaxLanes(Floats());
inline constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// A register tile is kBroadcasts x kVecs accumulators, plus kVecs loads and one broadcast: 28 of 32 registers, or 16
// of 16. Which one it is does not show in the result.
#if HWY_ARCH_X86 && HWY_TARGET >= HWY_AVX2
inline constexpr size_t kBroadcasts = 4;
#else
inline constexpr size_t kBroadcasts = 8;
#endif
inline constexpr size_t kVecs = 3;
static_assert(kPad % kBroadcasts == 0 && kStripRows % (kVecs * kLanes) == 0);

// Queries times scale, transposed: lane = row. Lanes beyond the task's rows repeat the last one.
void PackQueries(const AttentionTask& task, const AttentionScratch& scratch) {
  const Floats d;
  const size_t dim = task.kv->head_dim;
  const FloatVec scale = hn::Set(d, task.params->scale);
  for (size_t row = 0; row < task.n_rows; row += kLanes) {
    const float* from[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t at = std::min(row + lane, task.n_rows - 1);
      from[lane] = task.q.Row(task.QueryToken(at)) + task.HeadOffset(at);
    }
    float* const to = scratch.queries + task.StripOffset(row);
    size_t k = 0;
    for (; k + 4 <= dim; k += 4) {
      FloatVec columns[4];
      LoadColumns(d, from, k, columns);
      for (size_t i = 0; i < 4; ++i) hn::Store(hn::Mul(columns[i], scale), d, to + (k + i) * kStripRows);
    }
    for (; k < dim; ++k) {
      for (size_t lane = 0; lane < kLanes; ++lane) to[k * kStripRows + lane] = from[lane][k] * task.params->scale;
    }
  }
}

// Copies `n` rows of the cache to f32 rows; pads both ways with zeros.
void UnpackTile(DType dtype, const std::byte* from, size_t n, size_t dim, size_t dim_pad, float* to) {
  const size_t stride = TileStride(dim);
  for (size_t row = 0; row < n; ++row, to += stride) {
    if (dtype == DType::kF16) {
      HalfToFloat(reinterpret_cast<const uint16_t*>(from) + row * dim, dim, to);
    } else {
      std::memcpy(to, reinterpret_cast<const float*>(from) + row * dim, dim * sizeof(float));
    }
    std::fill(to + dim, to + dim_pad, 0.0f);
  }
  std::fill_n(to, (RoundUp(n, kPad) - n) * stride, 0.0f);
}

// One strip against one tile; pointers to strip memory start at the first column of the vectors in use.
struct StripTile {
  const float* queries;     // [dim, kStripRows]
  const float* keys;        // [n_positions, stride]
  const float* values;      // [n_positions, stride]
  float* scores;            // [n_positions, kStripRows]
  float* max;               // [rows]
  float* sum;               // [rows]
  float* out;               // [dim_pad, kStripRows]
  const float* first_seen;  // [rows], relative to the tile; null when every row sees every position
  const float* last_seen;   // [rows]
  size_t dim, dim_pad, stride;
  size_t n_positions;  // a multiple of kPad; the surplus is masked
};

template <size_t kN>
HWY_INLINE void Scores(const StripTile& t) {
  const Floats d;
  for (size_t position = 0; position < t.n_positions; position += kBroadcasts) {
    FloatVec acc[kBroadcasts][kN];
    for (size_t i = 0; i < kBroadcasts; ++i) {
      for (size_t v = 0; v < kN; ++v) acc[i][v] = hn::Zero(d);
    }
    const float* const keys = t.keys + position * t.stride;
    for (size_t k = 0; k < t.dim; ++k) {
      FloatVec q[kN];
      for (size_t v = 0; v < kN; ++v) q[v] = hn::Load(d, t.queries + k * kStripRows + v * kLanes);
      for (size_t i = 0; i < kBroadcasts; ++i) {
        const FloatVec key = hn::Set(d, keys[i * t.stride + k]);
        for (size_t v = 0; v < kN; ++v) acc[i][v] = hn::MulAdd(q[v], key, acc[i][v]);
      }
    }
    for (size_t i = 0; i < kBroadcasts; ++i) {
      for (size_t v = 0; v < kN; ++v) {
        hn::Store(acc[i][v], d, t.scores + (position + i) * kStripRows + v * kLanes);
      }
    }
  }
}

// Scores of unseen positions become -inf, whose exponential is 0.
HWY_INLINE void MaskScores(const StripTile& t, size_t n_vecs) {
  const Floats d;
  const FloatVec minus_inf = hn::Set(d, kMinusInf);
  for (size_t v = 0; v < n_vecs; ++v) {
    const FloatVec first = hn::Load(d, t.first_seen + v * kLanes);
    const FloatVec last = hn::Load(d, t.last_seen + v * kLanes);
    for (size_t position = 0; position < t.n_positions; ++position) {
      const FloatVec at = hn::Set(d, static_cast<float>(position));
      float* const score = t.scores + position * kStripRows + v * kLanes;
      const auto unseen = hn::Or(hn::Lt(at, first), hn::Gt(at, last));
      hn::Store(hn::IfThenElse(unseen, minus_inf, hn::Load(d, score)), d, score);
    }
  }
}

// The maximum to subtract: a row that has seen nothing has -inf, and -inf - -inf would be NaN.
HWY_INLINE FloatVec Pivot(FloatVec max) {
  const Floats d;
  return hn::IfThenZeroElse(hn::Eq(max, hn::Set(d, kMinusInf)), max);
}

// Scores become exp(score - max); max and sum move on. Returns what the earlier sum and out are to be scaled by.
HWY_INLINE FloatVec Probabilities(const StripTile& t, size_t v) {
  const Floats d;
  const FloatVec old_max = hn::Load(d, t.max + v * kLanes);
  FloatVec max = old_max;
  float* const scores = t.scores + v * kLanes;
  for (size_t position = 0; position < t.n_positions; ++position) {
    max = hn::Max(max, hn::Load(d, scores + position * kStripRows));
  }
  const FloatVec pivot = Pivot(max);
  FloatVec sum = hn::Zero(d);
  for (size_t position = 0; position < t.n_positions; ++position) {
    const FloatVec p = Exp(d, hn::Sub(hn::Load(d, scores + position * kStripRows), pivot));
    sum = hn::Add(sum, p);
    hn::Store(p, d, scores + position * kStripRows);
  }
  const FloatVec rescale = Exp(d, hn::Sub(old_max, pivot));
  hn::Store(max, d, t.max + v * kLanes);
  hn::Store(hn::MulAdd(hn::Load(d, t.sum + v * kLanes), rescale, sum), d, t.sum + v * kLanes);
  return rescale;
}

template <size_t kN>
HWY_INLINE void AddValues(const StripTile& t, const FloatVec (&rescale)[kN]) {
  const Floats d;
  for (size_t k = 0; k < t.dim_pad; k += kBroadcasts) {
    FloatVec acc[kBroadcasts][kN];
    float* const out = t.out + k * kStripRows;
    for (size_t i = 0; i < kBroadcasts; ++i) {
      for (size_t v = 0; v < kN; ++v) {
        acc[i][v] = hn::Mul(hn::Load(d, out + i * kStripRows + v * kLanes), rescale[v]);
      }
    }
    for (size_t position = 0; position < t.n_positions; ++position) {
      FloatVec p[kN];
      for (size_t v = 0; v < kN; ++v) p[v] = hn::Load(d, t.scores + position * kStripRows + v * kLanes);
      const float* const values = t.values + position * t.stride + k;
      for (size_t i = 0; i < kBroadcasts; ++i) {
        const FloatVec value = hn::Set(d, values[i]);
        for (size_t v = 0; v < kN; ++v) acc[i][v] = hn::MulAdd(p[v], value, acc[i][v]);
      }
    }
    for (size_t i = 0; i < kBroadcasts; ++i) {
      for (size_t v = 0; v < kN; ++v) hn::Store(acc[i][v], d, out + i * kStripRows + v * kLanes);
    }
  }
}

template <size_t kN>
HWY_NOINLINE void AttendVectors(const StripTile& t) {
  Scores<kN>(t);
  if (t.first_seen != nullptr) MaskScores(t, kN);
  FloatVec rescale[kN];
  for (size_t v = 0; v < kN; ++v) rescale[v] = Probabilities(t, v);
  AddValues<kN>(t, rescale);
}

// All vectors of a strip that hold rows, kVecs at a time.
void AttendStrip(StripTile t, size_t n_rows) {
  size_t n_vecs = (n_rows + kLanes - 1) / kLanes;
  while (n_vecs != 0) {
    const size_t n = std::min(n_vecs, kVecs);
    if (n == 3) {
      AttendVectors<3>(t);
    } else if (n == 2) {
      AttendVectors<2>(t);
    } else {
      AttendVectors<1>(t);
    }
    n_vecs -= n;
    const size_t step = n * kLanes;
    t.queries += step, t.scores += step, t.max += step, t.sum += step, t.out += step;
    if (t.first_seen != nullptr) t.first_seen += step, t.last_seen += step;
  }
}

void ClearState(const AttentionTask& task, const AttentionState& state) {
  const size_t n_rows = task.n_strips() * kStripRows;
  std::fill_n(state.max, n_rows, kMinusInf);
  std::fill_n(state.sum, n_rows, 0.0f);
  std::fill_n(state.out, n_rows * task.dim_pad(), 0.0f);
}

// Attends the task's rows of one strip to the unpacked tile of `n` positions from `tile` on.
void AttendTile(const AttentionTask& task, size_t strip, size_t tile, size_t n, const AttentionScratch& scratch,
                const AttentionState& state) {
  const size_t first_row = strip * kStripRows;
  const size_t n_rows = std::min(kStripRows, task.n_rows - first_row);
  const size_t last_row = first_row + n_rows - 1;
  const size_t last_position = task.Position(last_row);
  if (last_position < tile || task.FirstSeen(first_row) >= tile + n) return;
  const size_t n_positions = RoundUp(std::min(n, last_position + 1 - tile), kPad);
  const bool masked = task.Position(first_row) + 1 < tile + n_positions || task.FirstSeen(last_row) > tile;
  alignas(64) float first_seen[kStripRows], last_seen[kStripRows];
  for (size_t i = 0; masked && i < kStripRows; ++i) {
    // Rows that fill up the vector see what the last one sees. -1: the row stands before the tile, sees nothing of it.
    const size_t row = std::min(first_row + i, last_row);
    const size_t from = task.FirstSeen(row), to = task.Position(row);
    first_seen[i] = from <= tile ? 0.0f : static_cast<float>(std::min(from - tile, kTilePositions));
    last_seen[i] = to < tile ? -1.0f : static_cast<float>(std::min(to - tile, kTilePositions));
  }
  const size_t dim_pad = task.dim_pad();
  const size_t offset = task.StripOffset(first_row);
  AttendStrip({.queries = scratch.queries + offset,
               .keys = scratch.keys,
               .values = scratch.values,
               .scores = scratch.scores,
               .max = state.max + first_row,
               .sum = state.sum + first_row,
               .out = state.out + offset,
               .first_seen = masked ? first_seen : nullptr,
               .last_seen = last_seen,
               .dim = task.kv->head_dim,
               .dim_pad = dim_pad,
               .stride = TileStride(task.kv->head_dim),
               .n_positions = n_positions},
              n_rows);
}

// The task's packed queries against the keys of one split; overwrites `state`.
void AttendSplit(const AttentionTask& task, size_t split, const AttentionScratch& scratch,
                 const AttentionState& state) {
  ClearState(task, state);
  const KvView& kv = *task.kv;
  const size_t dim = kv.head_dim, dim_pad = task.dim_pad();
  const size_t element_bytes = kv.dtype == DType::kF16 ? 2 : 4;
  const size_t begin = std::max(split * kSplitPositions, task.FirstSeen(0) / kTilePositions * kTilePositions);
  const size_t end = std::min((split + 1) * kSplitPositions, task.Position(task.n_rows - 1) + 1);
  for (size_t tile = begin; tile < end; tile += kTilePositions) {
    const size_t n = std::min(kTilePositions, end - tile);
    const size_t offset = (task.kv_head * kv.capacity + tile) * dim * element_bytes;
    UnpackTile(kv.dtype, kv.keys + offset, n, dim, dim_pad, scratch.keys);
    UnpackTile(kv.dtype, kv.values + offset, n, dim, dim_pad, scratch.values);
    for (size_t strip = 0; strip < task.n_strips(); ++strip) AttendTile(task, strip, tile, n, scratch, state);
  }
}

// total = total and part together. Merging with a state that has seen nothing changes no bit.
void MergeState(const AttentionTask& task, const AttentionState& part, const AttentionState& total) {
  const Floats d;
  const size_t dim_pad = task.dim_pad();
  for (size_t row = 0; row < task.n_rows; row += kLanes) {
    const FloatVec max_a = hn::Load(d, total.max + row), max_b = hn::Load(d, part.max + row);
    const FloatVec max = hn::Max(max_a, max_b);
    const FloatVec pivot = Pivot(max);
    const FloatVec a = Exp(d, hn::Sub(max_a, pivot)), b = Exp(d, hn::Sub(max_b, pivot));
    const FloatVec sum = hn::Mul(hn::Load(d, total.sum + row), a);
    hn::Store(hn::MulAdd(hn::Load(d, part.sum + row), b, sum), d, total.sum + row);
    hn::Store(max, d, total.max + row);
    const size_t offset = task.StripOffset(row);
    for (size_t k = 0; k < dim_pad; ++k) {
      float* const out = total.out + offset + k * kStripRows;
      const FloatVec more = hn::Mul(hn::Load(d, part.out + offset + k * kStripRows), b);
      hn::Store(hn::MulAdd(hn::Load(d, out), a, more), d, out);
    }
  }
}

// out = state.out / state.sum, back to one row per query. A row that saw nothing but -inf gives zeros. Uses up
// scratch.keys.
void WriteOut(const AttentionTask& task, const AttentionScratch& scratch, const AttentionState& state) {
  const Floats d;
  const FloatVec zero = hn::Zero(d);
  const size_t dim = task.kv->head_dim;
  for (size_t row = 0; row < task.n_rows; row += kLanes) {
    float* to[kLanes];  // lanes beyond the task's rows write where nobody reads
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t at = row + lane;
      to[lane] = at < task.n_rows ? task.out.Row(task.QueryToken(at)) + task.HeadOffset(at) : scratch.keys;
    }
    const FloatVec sum = hn::Load(d, state.sum + row);
    const FloatVec inverse = hn::IfThenZeroElse(hn::Eq(sum, zero), hn::Div(hn::Set(d, 1.0f), sum));
    const float* const from = state.out + task.StripOffset(row);
    size_t k = 0;
    for (; k + 4 <= dim; k += 4) {
      FloatVec columns[4];
      for (size_t i = 0; i < 4; ++i) {
        // Adding 0 makes -0 a 0: which of them a row gets may depend on the splits that saw nothing.
        columns[i] = hn::MulAdd(hn::Load(d, from + (k + i) * kStripRows), inverse, zero);
      }
      StoreColumns(d, columns, to, k);
    }
    HWY_ALIGN float column[kLanes];
    for (; k < dim; ++k) {
      hn::Store(hn::MulAdd(hn::Load(d, from + k * kStripRows), inverse, zero), d, column);
      for (size_t lane = 0; lane < kLanes; ++lane) to[lane][k] = column[lane];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // NM_ATTENTION_INL_H
