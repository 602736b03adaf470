// SPDX-License-Identifier: Apache-2.0
#include "kernels/scatter.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/scatter.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/columns-inl.h"
#include "kernels/simd_math-inl.h"

#ifndef NM_SCATTER_ONCE
#define NM_SCATTER_ONCE
namespace npumoe {
namespace {

// Channels that one task brings back for all tokens. All slots' values of a block, as rows of 32 bytes, fit into a
// second-level cache of 1 MiB for 32,768 slots (4,096 tokens, top-8), and a block of y is one cache line per token.
constexpr size_t kBlockChannels = 16;
constexpr size_t kTileRows = 32;  // ColumnsToStage may write this far beyond its rows

// What a choice adds: a slot below kFirstRow is a row of the stage; from there on, an f32 row; or nothing.
constexpr uint32_t kFirstRow = 0x80000000u;
constexpr uint32_t kDropped = 0xffffffffu;

struct Block {
  const ScatterJob* job;
  const uint32_t* sources;  // [tokens, top_k]
  uint16_t* stage;          // [slots, kBlockChannels]
  size_t channel, n_channels;
  MatView y;
};

}  // namespace
}  // namespace npumoe
#endif  // NM_SCATTER_ONCE

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Asks for the lines of an expert's columns before they are needed: between experts lies a megabyte, and the hardware
// does not guess such a jump.
HWY_INLINE void PrefetchColumns(const ExpertOutput& output, const Block& block) {
  if (output.n_columns == 0) return;
  const size_t n_bytes = block.n_channels * output.width * sizeof(uint16_t);
  const auto* bytes = reinterpret_cast<const char*>(output.columns + block.channel * output.width);
  for (size_t at = 0; at < n_bytes; at += 64) hwy::Prefetch(bytes + at);
}

HWY_INLINE void FillStage(const Block& block) {
  const ScatterJob& job = *block.job;
  // In ascending order of slots: what a tile writes beyond its rows is overwritten by its owner.
  for (size_t expert = 0; expert < job.experts.size(); ++expert) {
    if (expert + 1 < job.experts.size()) PrefetchColumns(job.experts[expert + 1], block);
    const ExpertOutput& output = job.experts[expert];
    if (output.n_columns == 0) continue;
    ColumnsToStage(output.columns + block.channel * output.width, output.width, output.width, block.n_channels,
                   output.n_columns, block.stage + job.expert_begin[expert] * kBlockChannels, kBlockChannels);
  }
}

// y = [kBlockChannels] += the token's choices. `row_channels` may be read from f32 rows.
HWY_INLINE void AddChoices(const Block& block, size_t token, float* HWY_RESTRICT y) {
  const ScatterJob& job = *block.job;
  const uint32_t* sources = block.sources + token * job.top_k;
  const float* weights = job.weight_of_choice.data() + token * job.top_k;
#if NM_SIMD_HAVE_F16
  const hn::CappedTag<float, kBlockChannels> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  constexpr size_t kLanes = hn::MaxLanes(d), kVectors = kBlockChannels / kLanes;
  const auto scale = hn::Set(d, job.scale);
  hn::Vec<decltype(d)> sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::LoadU(d, y + v * kLanes);
  for (size_t choice = 0; choice < job.top_k; ++choice) {
    const uint32_t source = sources[choice];
    const auto weight = hn::Set(d, weights[choice]);
    if (HWY_LIKELY(source < kFirstRow)) {
      const auto* from = reinterpret_cast<const hwy::float16_t*>(block.stage + source * kBlockChannels);
      for (size_t v = 0; v < kVectors; ++v) {
        const auto value = hn::Mul(hn::PromoteTo(d, hn::LoadU(d16, from + v * kLanes)), scale);
        sum[v] = hn::Add(sum[v], hn::Mul(weight, value));
      }
    } else if (source != kDropped) {
      const float* from = job.rows.Row(source - kFirstRow) + block.channel;
      for (size_t v = 0; v < kVectors; ++v) {
        const auto value = LoadPart(d, from + v * kLanes, block.n_channels - std::min(block.n_channels, v * kLanes));
        sum[v] = hn::Add(sum[v], hn::Mul(weight, value));
      }
    }
  }
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, y + v * kLanes);
#else
  for (size_t choice = 0; choice < job.top_k; ++choice) {
    const uint32_t source = sources[choice];
    if (source == kDropped) continue;
    for (size_t i = 0; i < block.n_channels; ++i) {
      const float value = source < kFirstRow ? F16ToF32(block.stage[source * kBlockChannels + i]) * job.scale
                                             : job.rows.Row(source - kFirstRow)[block.channel + i];
      y[i] += weights[choice] * value;
    }
  }
#endif
}

void ScatterBlock(const Block& block) {
  FillStage(block);
  constexpr size_t kAhead = 8;  // tokens whose line of y is asked for in advance
  for (size_t token = 0; token < block.y.rows; ++token) {
    if (token + kAhead < block.y.rows) hwy::Prefetch(block.y.Row(token + kAhead) + block.channel);
    float* const y = block.y.Row(token) + block.channel;
    if (block.n_channels == kBlockChannels) {
      AddChoices(block, token, y);
      continue;
    }
    float part[kBlockChannels] = {};
    std::copy(y, y + block.n_channels, part);
    AddChoices(block, token, part);
    std::copy(part, part + block.n_channels, y);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(ScatterBlock);

void Scatter::Add(const ScatterJob& job, MatView y) {
  const size_t n_slots = job.slot_of_choice.size();
  NM_DCHECK(job.expert_begin.size() == job.experts.size() + 1 && job.expert_begin.back() == n_slots);
  NM_DCHECK(job.weight_of_choice.size() == n_slots && y.rows * job.top_k == n_slots && n_slots < kFirstRow);
  enum : uint8_t { kColumn, kNothing, kRow };
  kinds_.resize(n_slots);
  for (size_t expert = 0; expert < job.experts.size(); ++expert) {
    const ExpertOutput& output = job.experts[expert];
    const auto begin = kinds_.begin() + job.expert_begin[expert], end = kinds_.begin() + job.expert_begin[expert + 1];
    const auto columns_end = begin + output.n_columns, dropped_end = columns_end + output.n_dropped;
    NM_DCHECK(dropped_end <= end && output.n_columns <= output.width);
    std::fill(begin, columns_end, kColumn);
    std::fill(columns_end, dropped_end, kNothing);
    std::fill(dropped_end, end, kRow);
  }
  sources_.resize(n_slots);
  for (size_t choice = 0; choice < n_slots; ++choice) {
    const uint32_t slot = job.slot_of_choice[choice];
    sources_[choice] = kinds_[slot] == kColumn ? slot : kinds_[slot] == kRow ? slot + kFirstRow : kDropped;
  }
  const size_t stage_size = (n_slots + kTileRows) * kBlockChannels;
  stages_.resize(std::max(stages_.size(), stage_size * pool_.n_threads()));
  const size_t n_blocks = (y.cols + kBlockChannels - 1) / kBlockChannels;
  pool_.ParallelFor(n_blocks, [&](size_t block, size_t thread) {
    const size_t channel = block * kBlockChannels;
    HWY_DYNAMIC_DISPATCH(ScatterBlock)
    ({&job, sources_.data(), stages_.data() + thread * stage_size, channel, std::min(kBlockChannels, y.cols - channel),
      y});
  });
}

size_t Scatter::scratch_bytes() const {
  return sources_.capacity() * sizeof(uint32_t) + kinds_.capacity() + stages_.capacity() * sizeof(uint16_t);
}

}  // namespace npumoe
#endif  // HWY_ONCE
