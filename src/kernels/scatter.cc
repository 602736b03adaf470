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
#include "kernels/simd_math-inl.h"

#ifndef NM_SCATTER_ONCE
#define NM_SCATTER_ONCE
namespace npumoe {
namespace {

enum Kind : uint8_t { kHalf, kDropped, kRow };

struct Tokens {
  const ScatterJob* job;
  const uint8_t* kinds;  // [slots]
  size_t begin, end;     // tokens
  MatView y;
};

}  // namespace
}  // namespace npumoe
#endif  // NM_SCATTER_ONCE

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Channels summed at a time: two cache lines of fp16 per choice.
constexpr size_t kBlock = 64;

// Asks for what the next token needs of a block of channels, while this token's is summed: every row is a page of its
// own, where the hardware starts guessing anew.
HWY_INLINE void PrefetchToken(const Tokens& tokens, size_t token, size_t channel) {
  const ScatterJob& job = *tokens.job;
  for (size_t choice = token * job.top_k; choice < (token + 1) * job.top_k; ++choice) {
    const uint32_t slot = job.slot_of_choice[choice];
    if (HWY_LIKELY(tokens.kinds[slot] == kHalf)) {
      for (size_t i = 0; i < kBlock; i += 32) hwy::Prefetch(job.halves + slot * job.halves_stride + channel + i);
    } else if (tokens.kinds[slot] == kRow) {
      for (size_t i = 0; i < kBlock; i += 16) hwy::Prefetch(job.rows.Row(slot) + channel + i);
    }
  }
  for (size_t i = 0; i < kBlock; i += 16) hwy::Prefetch(tokens.y.Row(token) + channel + i);
  if (job.whole.data == nullptr) return;
  for (size_t i = 0; i < kBlock; i += 16) hwy::Prefetch(job.whole.Row(token) + channel + i);
}

HWY_INLINE float WholeScale(const ScatterJob& job, size_t token) {
  return job.whole_scales.empty() ? 1.0f : job.whole_scales[token];
}

// y[0, n) += the token's choices, n <= kBlock.
HWY_INLINE void AddTail(const Tokens& tokens, size_t token, size_t channel, size_t n, float* y) {
  const ScatterJob& job = *tokens.job;
  for (size_t choice = token * job.top_k; choice < (token + 1) * job.top_k; ++choice) {
    const uint32_t slot = job.slot_of_choice[choice];
    if (tokens.kinds[slot] == kDropped) continue;
    const uint16_t* halves = job.halves + slot * job.halves_stride + channel;
    const float* row = job.rows.Row(slot) + channel;
    for (size_t i = 0; i < n; ++i) {
      const float value = tokens.kinds[slot] == kHalf ? F16ToF32(halves[i]) * job.scale : row[i];
      y[i] += job.weight_of_choice[choice] * value;
    }
  }
  if (job.whole.data == nullptr) return;
  for (size_t i = 0; i < n; ++i) y[i] += WholeScale(job, token) * job.whole.Row(token)[channel + i];
}

HWY_INLINE void AddBlock(const Tokens& tokens, size_t token, size_t channel, float* HWY_RESTRICT y) {
#if NM_SIMD_HAVE_F16
  const ScatterJob& job = *tokens.job;
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d16;
  constexpr size_t kLanes = hn::MaxLanes(d), kVectors = kBlock / kLanes;
  const auto scale = hn::Set(d, job.scale);
  hn::Vec<decltype(d)> sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::LoadU(d, y + v * kLanes);
  for (size_t choice = token * job.top_k; choice < (token + 1) * job.top_k; ++choice) {
    const uint32_t slot = job.slot_of_choice[choice];
    const auto weight = hn::Set(d, job.weight_of_choice[choice]);
    if (HWY_LIKELY(tokens.kinds[slot] == kHalf)) {
      const auto* from = reinterpret_cast<const hwy::float16_t*>(job.halves + slot * job.halves_stride + channel);
      for (size_t v = 0; v < kVectors; ++v) {
        const auto value = hn::Mul(hn::PromoteTo(d, hn::LoadU(d16, from + v * kLanes)), scale);
        sum[v] = hn::Add(sum[v], hn::Mul(weight, value));
      }
    } else if (tokens.kinds[slot] == kRow) {
      const float* from = job.rows.Row(slot) + channel;
      for (size_t v = 0; v < kVectors; ++v) {
        sum[v] = hn::Add(sum[v], hn::Mul(weight, hn::LoadU(d, from + v * kLanes)));
      }
    }
  }
  if (job.whole.data != nullptr) {
    const auto weight = hn::Set(d, WholeScale(job, token));
    const float* from = job.whole.Row(token) + channel;
    for (size_t v = 0; v < kVectors; ++v) {
      sum[v] = hn::Add(sum[v], hn::Mul(weight, hn::LoadU(d, from + v * kLanes)));
    }
  }
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, y + v * kLanes);
#else
  AddTail(tokens, token, channel, kBlock, y);
#endif
}

void ScatterTokens(const Tokens& tokens) {
  const size_t dim = tokens.y.cols;
  for (size_t token = tokens.begin; token < tokens.end; ++token) {
    float* const y = tokens.y.Row(token);
    size_t channel = 0;
    for (; channel + kBlock <= dim; channel += kBlock) {
      if (token + 1 < tokens.end) PrefetchToken(tokens, token + 1, channel);
      AddBlock(tokens, token, channel, y + channel);
    }
    AddTail(tokens, token, channel, dim - channel, y + channel);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(ScatterTokens);

void Scatter::Add(const ScatterJob& job, MatView y) {
  const size_t n_slots = job.slot_of_choice.size();
  NM_DCHECK(job.experts.empty() || job.expert_begin.size() == job.experts.size() + 1);
  NM_DCHECK(job.experts.empty() || job.expert_begin.back() == n_slots);
  NM_DCHECK(job.weight_of_choice.size() == n_slots && y.rows * job.top_k == n_slots);
  NM_DCHECK(job.whole.data == nullptr || (job.whole.rows == y.rows && job.whole.cols == y.cols));
  kinds_.assign(n_slots, kRow);
  for (size_t expert = 0; expert < job.experts.size(); ++expert) {
    const auto begin = kinds_.begin() + job.expert_begin[expert];
    const auto halves_end = begin + job.experts[expert].n_halves;
    const auto dropped_end = halves_end + job.experts[expert].n_dropped;
    NM_DCHECK(dropped_end <= kinds_.begin() + job.expert_begin[expert + 1]);
    std::fill(begin, halves_end, kHalf);
    std::fill(halves_end, dropped_end, kDropped);
  }
  constexpr size_t kTokens = 16;  // per task
  pool_.ParallelFor((y.rows + kTokens - 1) / kTokens, [&](size_t task, size_t) {
    const size_t begin = task * kTokens;
    HWY_DYNAMIC_DISPATCH(ScatterTokens)({&job, kinds_.data(), begin, std::min(y.rows, begin + kTokens), y});
  });
}

}  // namespace npumoe
#endif  // HWY_ONCE
