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

#include "hwy/highway.h"
#include "kernels/attention_narrow-inl.h"
#include "kernels/attention_task.h"
#include "kernels/attention_vec-inl.h"
#include "kernels/simd_math-inl.h"
#include "kernels/transpose-inl.h"
#include "tensor/float16.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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
void UnpackTile(DType dtype, const std::byte* from, size_t n, size_t dim, float* to) {
  const size_t stride = TileStride(dim), dim_pad = RoundUp(dim, kPad);
  UnpackRows(dtype, from, n, dim, to);
  for (size_t row = 0; dim != dim_pad && row < n; ++row) std::fill_n(to + row * stride + dim, dim_pad - dim, 0.0f);
  std::fill_n(to + n * stride, (RoundUp(n, kPad) - n) * stride, 0.0f);
}

// One strip against one tile; pointers to strip memory start at the first column of the vectors in use.
struct StripTile {
  const float* queries;     // [dim, kStripRows]
  const float* tile;        // [n_positions, stride], keys or values
  float* scores;            // [n_positions, kStripRows]
  float* rescale;           // [rows]
  float* max;               // [rows]
  float* sum;               // [rows]
  float* out;               // [dim_pad, kStripRows]
  const float* first_seen;  // [rows], relative to the tile; null when every row sees every position
  const float* last_seen;   // [rows]
  size_t dim, dim_pad, stride;
  size_t n_positions;  // a multiple of kPad, 0 when no row sees any; the surplus is masked

  void Advance(size_t rows) {
    queries += rows, scores += rows, rescale += rows, max += rows, sum += rows, out += rows;
    if (first_seen != nullptr) first_seen += rows, last_seen += rows;
  }
};

template <size_t kN>
HWY_INLINE void Scores(const StripTile& t, TilePrefetch& prefetch) {
  const Floats d;
  for (size_t position = 0; position < t.n_positions; position += kBroadcasts) {
    prefetch.Fetch(kBroadcasts * kN / 3);
    FloatVec acc[kBroadcasts][kN];
    for (size_t i = 0; i < kBroadcasts; ++i) {
      for (size_t v = 0; v < kN; ++v) acc[i][v] = hn::Zero(d);
    }
    const float* const keys = t.tile + position * t.stride;
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

// Scores become exp(score - max); max, sum and rescale move on.
HWY_INLINE void Probabilities(const StripTile& t, size_t v) {
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
  hn::Store(rescale, d, t.rescale + v * kLanes);
}

template <size_t kN>
HWY_INLINE void AddValues(const StripTile& t, TilePrefetch& prefetch) {
  const Floats d;
  FloatVec rescale[kN];
  for (size_t v = 0; v < kN; ++v) rescale[v] = hn::Load(d, t.rescale + v * kLanes);
  for (size_t k = 0; k < t.dim_pad; k += kBroadcasts) {
    prefetch.Fetch(kBroadcasts * kN / 6);
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
      const float* const values = t.tile + position * t.stride + k;
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
HWY_NOINLINE void AttendKeys(const StripTile& t, TilePrefetch& prefetch) {
  Scores<kN>(t, prefetch);
  if (t.first_seen != nullptr) MaskScores(t, kN);
  for (size_t v = 0; v < kN; ++v) Probabilities(t, v);
}

template <size_t kN>
HWY_NOINLINE void AttendValues(const StripTile& t, TilePrefetch& prefetch) {
  AddValues<kN>(t, prefetch);
}

// All vectors of a strip that hold rows, kVecs at a time: its scores when the tile holds keys, else its output.
void AttendStrip(StripTile t, size_t n_rows, bool keys, TilePrefetch& prefetch) {
  size_t n_vecs = (n_rows + kLanes - 1) / kLanes;
  while (n_vecs != 0) {
    const size_t n = std::min(n_vecs, kVecs);
    if (n == 3) {
      keys ? AttendKeys<3>(t, prefetch) : AttendValues<3>(t, prefetch);
    } else if (n == 2) {
      keys ? AttendKeys<2>(t, prefetch) : AttendValues<2>(t, prefetch);
    } else {
      keys ? AttendKeys<1>(t, prefetch) : AttendValues<1>(t, prefetch);
    }
    n_vecs -= n;
    t.Advance(n * kLanes);
  }
}

void ClearState(const AttentionTask& task, const AttentionState& state) {
  const size_t n_rows = RoundUp(task.n_rows, kStripRows);
  std::fill_n(state.max, n_rows, kMinusInf);
  std::fill_n(state.sum, n_rows, 0.0f);
  std::fill_n(state.out, n_rows * task.dim_pad(), 0.0f);
}

// Attends the task's rows of one strip to `n` positions from `tile` on, whose keys or else values are unpacked.
void AttendTile(const AttentionTask& task, size_t strip, size_t tile, size_t n, bool keys,
                const AttentionScratch& scratch, const AttentionState& state, TilePrefetch& prefetch) {
  const size_t first_row = strip * kStripRows;
  const size_t n_rows = std::min(kStripRows, task.n_rows - first_row);
  const size_t last_row = first_row + n_rows - 1;
  const size_t last_position = task.Position(last_row);
  if (last_position < tile || task.FirstSeen(first_row) >= tile + n) return;
  const size_t n_positions = RoundUp(std::min(n, last_position + 1 - tile), kPad);
  const bool masked = task.Position(first_row) + 1 < tile + n_positions || task.FirstSeen(last_row) > tile;
  alignas(64) float first_seen[kStripRows], last_seen[kStripRows];
  for (size_t i = 0; keys && masked && i < kStripRows; ++i) {
    // Rows that fill up the vector see what the last one sees. -1: the row stands before the tile, sees nothing of it.
    const size_t row = std::min(first_row + i, last_row);
    const size_t from = task.FirstSeen(row), to = task.Position(row);
    first_seen[i] = from <= tile ? 0.0f : static_cast<float>(std::min(from - tile, kTilePositions));
    last_seen[i] = to < tile ? -1.0f : static_cast<float>(std::min(to - tile, kTilePositions));
  }
  AttendStrip({.queries = scratch.queries + task.StripOffset(first_row),
               .tile = scratch.tile,
               .scores = scratch.scores + first_row * kTilePositions,
               .rescale = scratch.rescale + first_row,
               .max = state.max + first_row,
               .sum = state.sum + first_row,
               .out = state.out + task.StripOffset(first_row),
               .first_seen = keys && masked ? first_seen : nullptr,
               .last_seen = last_seen,
               .dim = task.kv->head_dim,
               .dim_pad = task.dim_pad(),
               .stride = TileStride(task.kv->head_dim),
               .n_positions = n_positions},
              n_rows, keys, prefetch);
}

// The task's packed queries against the keys of one split; overwrites `state`.
void AttendSplit(const AttentionTask& task, size_t split, const AttentionScratch& scratch,
                 const AttentionState& state) {
  ClearState(task, state);
  const KvView& kv = *task.kv;
  const bool narrow = task.n_rows <= kNarrowRows;
  if (narrow) ClearNarrow(task, state);
  const size_t row_bytes = kv.row_bytes();
  const size_t begin = std::max(split * kSplitPositions, task.FirstSeen(0) / kTilePositions * kTilePositions);
  const size_t end_of_task = task.Position(task.n_rows - 1) + 1;
  const size_t end = std::min((split + 1) * kSplitPositions, end_of_task);
  for (size_t tile = begin; tile < end; tile += kTilePositions) {
    const size_t n = std::min(kTilePositions, end - tile);
    const size_t offset = (task.kv_head * kv.capacity + tile) * row_bytes;
    const size_t next = offset + n * row_bytes;
    const size_t n_next = std::min(kTilePositions, end_of_task - (tile + n));
    TilePrefetch prefetch = n_next == 0 ? TilePrefetch::OfOutput(task)
                                        : TilePrefetch::OfTile(kv.keys + next, kv.values + next, n_next * row_bytes);
    if (narrow) {
      AttendNarrowTile(task, tile, n, kv.keys + offset, kv.values + offset, scratch, state, prefetch);
      continue;
    }
    for (const bool keys : {true, false}) {
      UnpackTile(kv.dtype, (keys ? kv.keys : kv.values) + offset, n, kv.head_dim, scratch.tile);
      for (size_t strip = 0; strip < task.n_strips(); ++strip) {
        AttendTile(task, strip, tile, n, keys, scratch, state, prefetch);
      }
    }
  }
  if (narrow) WidenOutputs(task, state);
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
// scratch.tile.
void WriteOut(const AttentionTask& task, const AttentionScratch& scratch, const AttentionState& state) {
  const Floats d;
  const FloatVec zero = hn::Zero(d);
  const size_t dim = task.kv->head_dim;
  for (size_t row = 0; row < task.n_rows; row += kLanes) {
    float* to[kLanes];  // lanes beyond the task's rows write where nobody reads
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t at = row + lane;
      to[lane] = at < task.n_rows ? task.out.Row(task.QueryToken(at)) + task.HeadOffset(at) : scratch.tile;
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
