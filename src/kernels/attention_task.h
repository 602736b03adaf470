// SPDX-License-Identifier: Apache-2.0
// What the scheduler in attention.cc and the per-target kernels in attention-inl.h say to each other. Internal.
#pragma once

#include <cstddef>

#include "kernels/attention.h"
#include "tensor/tensor.h"

namespace npumoe {

// Positions per tile of keys: scores and probabilities of a strip (64 * 48 floats) stay in the first-level cache.
inline constexpr size_t kTilePositions = 64;
// Positions whose softmax is accumulated in one go; the partial results are merged in ascending order. Fixed, so
// that decode may spread one query's keys over threads and still sum in the order of prefill.
inline constexpr size_t kSplitPositions = 512;
// Rows side by side in scratch: 3 vectors of 16 floats, 6 of 8, 12 of 4.
inline constexpr size_t kStripRows = 48;
// Rows of one task: enough that unpacking a tile of keys and values is a few per cent of using it.
inline constexpr size_t kMaxTaskRows = 4 * kStripRows;
// Positions and dimensions are rounded up to this many with zeros, so that register tiles need no tails.
inline constexpr size_t kPad = 8;

// Every array in scratch starts at a cache line: a vector of 64 bytes that crosses lines costs two loads.
inline constexpr size_t kLineFloats = 16;

inline constexpr size_t RoundUp(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Floats from one position to the next in an unpacked tile: an odd number of cache lines, so that walking down a
// column of the tile visits all sets of the first-level cache.
inline constexpr size_t TileStride(size_t dim) {
  const size_t lines = (dim + kLineFloats - 1) / kLineFloats;
  return (lines | 1) * kLineFloats;
}

// Rows of one kv head: row r is query head r % group of the token r / group of the chunk, so rows ascend in position.
struct AttentionTask {
  const AttentionParams* params = nullptr;
  const KvView* kv = nullptr;
  ConstMatView q;  // [tokens, n_heads * head_dim]
  MatView out;     // [tokens, n_heads * head_dim]
  size_t first_position = 0, kv_head = 0, group = 0;
  size_t first_row = 0, n_rows = 0;  // n_rows in [1, kMaxTaskRows]

  size_t dim_pad() const { return RoundUp(kv->head_dim, kPad); }
  size_t n_strips() const { return (n_rows + kStripRows - 1) / kStripRows; }
  // Position of the task's row, and the first position that it sees.
  size_t Position(size_t row) const { return first_position + (first_row + row) / group; }
  size_t FirstSeen(size_t row) const {
    const size_t position = Position(row);
    return params->window == 0 || position < params->window ? 0 : position - params->window + 1;
  }
  // Where the row's column starts in strips of dim_pad lines.
  size_t StripOffset(size_t row) const { return row / kStripRows * dim_pad() * kStripRows + row % kStripRows; }
  // Where the task's row starts inside q and out.
  size_t QueryToken(size_t row) const { return (first_row + row) / group; }
  size_t HeadOffset(size_t row) const { return (kv_head * group + (first_row + row) % group) * kv->head_dim; }
};

// Softmax over part of the keys: the largest score, the sum of exp(score - max) and the values weighted with that.
struct AttentionState {
  float* max = nullptr;  // [kMaxTaskRows]
  float* sum = nullptr;  // [kMaxTaskRows]
  float* out = nullptr;  // [strips, dim_pad, kStripRows]

  static size_t Floats(size_t dim_pad) { return kMaxTaskRows * (dim_pad + 2); }
  static AttentionState At(float* base) { return {base, base + kMaxTaskRows, base + 2 * kMaxTaskRows}; }
};

// Fetches what is needed next into the second-level cache while a tile is worked on: a few lines at a time, because a
// core has few loads from memory under way at once and the rest would wait.
struct TilePrefetch {
  const std::byte* first = nullptr;   // [n_rows, row_bytes]
  const std::byte* second = nullptr;  // likewise
  size_t stride_bytes = 0, row_bytes = 0, n_rows = 0;
  size_t row = 0, byte = 0;  // how far it has got

  // The next tile of the cache: [n_bytes] each.
  static TilePrefetch OfTile(const std::byte* keys, const std::byte* values, size_t n_bytes) {
    return {.first = keys, .second = values, .row_bytes = n_bytes, .n_rows = n_bytes == 0 ? 0u : 1u};
  }
  // Where the task's results go: the upper and the lower half of its tokens.
  static TilePrefetch OfOutput(const AttentionTask& task) {
    const size_t first_token = task.QueryToken(0), n_tokens = task.QueryToken(task.n_rows - 1) + 1 - first_token;
    const size_t half = (n_tokens + 1) / 2;
    const float* const out = task.out.Row(first_token) + task.kv_head * task.group * task.kv->head_dim;
    return {.first = reinterpret_cast<const std::byte*>(out),
            .second = reinterpret_cast<const std::byte*>(out + (n_tokens - half) * task.out.stride),
            .stride_bytes = task.out.stride * sizeof(float),
            .row_bytes = task.group * task.kv->head_dim * sizeof(float),
            .n_rows = half};
  }

  void Fetch(size_t n_lines) {
    for (size_t line = 0; line < n_lines && row < n_rows; ++line) {
      __builtin_prefetch(first + row * stride_bytes + byte, 0, 2);
      __builtin_prefetch(second + row * stride_bytes + byte, 0, 2);
      byte += 64;
      if (byte >= row_bytes) {
        byte = 0;
        ++row;
      }
    }
  }
};

// One thread's working memory. One tile holds the keys first and the values later: it fits the first-level cache, two
// would not.
struct AttentionScratch {
  float* queries = nullptr;  // [strips, dim_pad, kStripRows], scaled
  float* scores = nullptr;   // [strips, kTilePositions, kStripRows]
  float* rescale = nullptr;  // [kMaxTaskRows], what a tile scales the earlier sum and out by
  float* tile = nullptr;     // [kTilePositions, TileStride]

  static size_t Floats(size_t dim_pad) {
    return kMaxTaskRows * (dim_pad + kTilePositions + 1) + kTilePositions * TileStride(dim_pad);
  }
  static AttentionScratch At(float* base, size_t dim_pad) {
    float* const scores = base + kMaxTaskRows * dim_pad;
    float* const rescale = scores + kMaxTaskRows * kTilePositions;
    return {base, scores, rescale, rescale + kMaxTaskRows};
  }
};

}  // namespace npumoe
