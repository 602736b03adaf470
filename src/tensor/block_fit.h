// SPDX-License-Identifier: Apache-2.0
// Least-squares fits of a scale (and an offset) to one group of weights, for the encoders of the block formats.
// Loops are written for the auto-vectoriser: fixed trip counts, no branches, sums in kLanes separate lanes. The order
// of the additions is therefore fixed too, and the result does not depend on the vector width.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tensor/blocks.h"
#include "tensor/float16.h"

namespace npumoe {

inline constexpr size_t kLanes = 8;

struct Extremes {
  float low = 0, high = 0;
  bool finite = true;
  // The value farthest from zero, with its sign; the positive one on a tie.
  float Farthest() const { return -low > high ? low : high; }
};

// Floats compare like integers once the magnitude bits of the negative ones are flipped; integer minima and maxima
// vectorise without -ffast-math, and NaN and infinity end up outside the finite range.
inline int32_t OrderedBits(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

template <size_t N>
Extremes FindExtremes(const float* x) {  // [N]
  int32_t low = INT32_MAX, high = INT32_MIN;
  for (size_t i = 0; i < N; ++i) {
    const int32_t ordered = OrderedBits(std::bit_cast<int32_t>(x[i]));
    low = std::min(low, ordered);
    high = std::max(high, ordered);
  }
  constexpr int32_t kInfinity = 0x7f800000;
  const bool finite = high < kInfinity && low > OrderedBits(static_cast<int32_t>(0xff800000u));
  return {std::bit_cast<float>(OrderedBits(low)), std::bit_cast<float>(OrderedBits(high)), finite};
}

// Adding it to a float below 2^22 in magnitude rounds to a whole number (nearest even) and leaves that number in the
// low mantissa bits.
inline constexpr float kRounder = 0x1.8p23f;
inline constexpr int32_t kRounderBits = std::bit_cast<int32_t>(kRounder);

// The whole number nearest to `value` (not NaN), within low..high (magnitudes below 2^21). Clamped as integers: GCC
// makes branches of float comparisons here, and floats of one sign order like their bits.
inline int32_t RoundWithin(float value, int32_t low, int32_t high) {
  const int32_t bits = std::bit_cast<int32_t>(value + kRounder);
  return std::min(std::max(bits, kRounderBits + low), kRounderBits + high) - kRounderBits;
}

// The nearest f16, saturated instead of infinite.
inline uint16_t SaturatedF16(float value) { return F32ToF16(std::clamp(value, -65504.0f, 65504.0f)); }

inline float Inverse(float value) { return value == 0 ? 0.0f : 1.0f / value; }

inline float SumLanes(const std::array<float, kLanes>& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

template <size_t N>
float Dot(const float* a, const float* b) {  // [N] each
  std::array<float, kLanes> lanes{};
  for (size_t i = 0; i < N; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  return SumLanes(lanes);
}

template <size_t N>
float Sum(const float* a) {  // [N]
  std::array<float, kLanes> lanes{};
  for (size_t i = 0; i < N; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane];
  }
  return SumLanes(lanes);
}

// The group times a power of two that brings its largest magnitude into [1, 2): no sum of squares can overflow or
// vanish. Magnitudes below 2^-60 count as zero: every format here with an f16 scale (at least 2^-24) loses them.
template <size_t N>
struct Normalized {
  std::array<float, N> x;
  float unit = 0;  // multiply by it to undo; 0 if the group is zero

  Normalized(const float* values, const Extremes& extremes) {
    const float magnitude = std::max(-extremes.low, extremes.high);
    if (magnitude < 0x1p-60f) {
      x.fill(0.0f);
      return;
    }
    unit = std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) & 0x7f800000u);
    const float shrink = 1.0f / unit;  // exact, though subnormal for unit = 2^127
    for (size_t i = 0; i < N; ++i) x[i] = values[i] * shrink;
  }
};

// x is about scale * level(q). `Level` maps x / scale to the nearest value a code can have.
// Tries inverse scales first, first + step, ... (n of them), each followed by the least-squares scale for its codes;
// then refines the winner once.
template <size_t N, typename Level>
float FitScale(const float* x,  // [N], normalized
               float first, float step, size_t n, const Level& level) {
  float best_scale = 0, best_gain = 0;
  const auto consider = [&](float inverse) {
    std::array<float, N> q;
    for (size_t i = 0; i < N; ++i) q[i] = level(x[i] * inverse);
    const float sum_xq = Dot<N>(x, q.data()), sum_qq = Dot<N>(q.data(), q.data());
    if (sum_qq == 0) return;
    const float gain = sum_xq * sum_xq / sum_qq;  // sum x^2 minus the squared error that is left
    if (gain > best_gain) {
      best_gain = gain;
      best_scale = sum_xq / sum_qq;
    }
  };
  for (size_t i = 0; i < n; ++i) consider(first + static_cast<float>(i) * step);
  consider(Inverse(best_scale));
  return best_scale;
}

// Scale for codes low..-low-1 (two's complement: one more level on the negative side, which the farthest value takes).
// The scale is negative when that value is positive. Tries n inverse scales around low / farthest, `step` levels apart.
template <size_t N>
float FitSymmetric(const float* x, const Extremes& extremes, int32_t low, size_t n, float step) {
  const Normalized<N> group(x, extremes);
  if (group.unit == 0) return 0;
  const float per_level = group.unit / extremes.Farthest();
  const float first = (static_cast<float>(low) - step * 0.5f * static_cast<float>(n - 1)) * per_level;
  const auto level = [low](float v) { return static_cast<float>(RoundWithin(v, low, -low - 1)); };
  return FitScale<N>(group.x.data(), first, step * per_level, n, level) * group.unit;
}

// codes[i] = the whole number nearest to (x[i] - offset) * inverse + bias, within 0..top.
template <size_t N>
void ChooseCodes(const float* x,  // [N]
                 float offset, float inverse, float bias, int32_t top,
                 uint8_t* codes) {  // [N]
  for (size_t i = 0; i < N; ++i) {
    codes[i] = static_cast<uint8_t>(RoundWithin((x[i] - offset) * inverse + bias, 0, top));
  }
}

struct AffineFit {
  float scale = 0, offset = 0;  // x is about scale * q + offset
};

// Scale and offset for codes 0..top. With `offset_not_positive` (the K formats store its negation unsigned) the offset
// is at most zero. Tries n spans of top - back, top - back + step, ... codes, then refines the best once.
template <size_t N>
AffineFit FitAffine(const float* x, const Extremes& extremes, int32_t top, bool offset_not_positive, size_t n,
                    float back, float step) {
  const Normalized<N> group(x, extremes);
  if (group.unit == 0) return {};
  const float shrink = 1.0f / group.unit;
  float low = extremes.low * shrink;
  if (offset_not_positive) low = std::min(low, 0.0f);
  const float span = extremes.high * shrink - low;
  if (!(span > 0)) return {0, low * group.unit};

  const float sum_x = Sum<N>(group.x.data());
  constexpr float kN = static_cast<float>(N);
  AffineFit best;
  float best_gain = 0;
  const auto consider = [&](float inverse, float offset) {
    std::array<float, N> q;
    for (size_t i = 0; i < N; ++i) q[i] = static_cast<float>(RoundWithin((group.x[i] - offset) * inverse, 0, top));
    const float sum_q = Sum<N>(q.data()), sum_xq = Dot<N>(group.x.data(), q.data()),
                sum_qq = Dot<N>(q.data(), q.data());
    const float determinant = kN * sum_qq - sum_q * sum_q;
    if (!(determinant > 0)) return;
    AffineFit fit;
    fit.scale = (kN * sum_xq - sum_x * sum_q) / determinant;
    fit.offset = (sum_x - fit.scale * sum_q) / kN;
    if (offset_not_positive && fit.offset > 0) fit = {sum_xq / sum_qq, 0};
    const float gain = fit.scale * sum_xq + fit.offset * sum_x;  // sum x^2 minus the squared error that is left
    if (fit.scale > 0 && gain > best_gain) {
      best_gain = gain;
      best = fit;
    }
  };
  for (size_t i = 0; i < n; ++i) consider((static_cast<float>(top) - back + static_cast<float>(i) * step) / span, low);
  if (best.scale > 0) consider(1.0f / best.scale, best.offset);
  if (!(best.scale > 0)) best = {span / static_cast<float>(top), low};
  return {best.scale * group.unit, best.offset * group.unit};
}

// Midpoints between the neighbours of an ascending table of levels.
template <size_t L>
constexpr std::array<float, L - 1> Midpoints(const std::array<int8_t, L>& levels) {
  std::array<float, L - 1> out{};
  for (size_t i = 0; i + 1 < L; ++i) out[i] = 0.5f * static_cast<float>(levels[i] + levels[i + 1]);
  return out;
}
inline constexpr std::array<float, 15> kIq4Midpoints = Midpoints(kIq4Values);

// The code of kIq4Values nearest to v.
inline int NearestIq4Code(float v) {
  int code = 0;
  for (size_t i = 0; i < 15; ++i) code += v > kIq4Midpoints[i] ? 1 : 0;
  return code;
}

// Scale for the levels of IQ4_NL and IQ4_XS, the farthest value near level -127.
template <size_t N>
float FitIq4(const float* x, const Extremes& extremes) {
  const Normalized<N> group(x, extremes);
  if (group.unit == 0) return 0;
  const float per_level = group.unit / extremes.Farthest();
  const auto level = [](float v) {
    float value = kIq4Values[0];
    for (size_t i = 0; i < 15; ++i) {
      value += v > kIq4Midpoints[i] ? static_cast<float>(kIq4Values[i + 1] - kIq4Values[i]) : 0.0f;
    }
    return value;
  };
  return FitScale<N>(group.x.data(), -134.0f * per_level, 2.0f * per_level, 8, level) * group.unit;
}

}  // namespace npumoe
