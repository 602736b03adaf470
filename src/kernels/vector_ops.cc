// SPDX-License-Identifier: Apache-2.0
#include "kernels/vector_ops.h"

#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/vector_ops.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/highway.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using F64 = hn::ScalableTag<double>;
using HalfF32 = hn::Rebind<float, F64>;  // as many floats as F64 has lanes

// sum of (x - shift)^2 in double lanes, or of x itself with kPower 1.
template <int kPower>
double SumPowers(const float* x, size_t n, double shift) {
  const F64 d64;
  const HalfF32 d32;
  const size_t lanes = hn::Lanes(d64);
  const auto vshift = hn::Set(d64, shift);
  // Two sums hide the latency of the additions; the order depends on n and the lanes only.
  auto sum0 = hn::Zero(d64), sum1 = hn::Zero(d64);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::Sub(hn::PromoteTo(d64, hn::LoadU(d32, x + i)), vshift);
    const auto b = hn::Sub(hn::PromoteTo(d64, hn::LoadU(d32, x + i + lanes)), vshift);
    sum0 = kPower == 1 ? hn::Add(sum0, a) : hn::MulAdd(a, a, sum0);
    sum1 = kPower == 1 ? hn::Add(sum1, b) : hn::MulAdd(b, b, sum1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d64, hn::Add(sum0, sum1)));
  for (; i < n; ++i) {
    const double value = static_cast<double>(x[i]) - shift;
    sum += kPower == 1 ? value : value * value;
  }
  return sum;
}

void RmsNormRow(const float* x, const float* weight, const float* bias, float eps, float* out, size_t n) {
  const double mean_square = SumPowers<2>(x, n, 0.0) / static_cast<double>(n);
  const F32 d;
  const auto scale = hn::Set(d, static_cast<float>(1.0 / std::sqrt(mean_square + static_cast<double>(eps))));
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t left = n - i;
    const auto normed = hn::Mul(LoadPart(d, x + i, left), scale);
    auto y = hn::Mul(normed, LoadPart(d, weight + i, left));
    if (bias != nullptr) y = hn::Add(y, LoadPart(d, bias + i, left));
    StorePart(y, d, out + i, left);
  }
}

// Normalises in double: x - mean cancels when the mean is large, and then a mean rounded to f32 would show.
void LayerNormRow(const float* x, const float* weight, const float* bias, float eps, float* out, size_t n) {
  const double mean = SumPowers<1>(x, n, 0.0) / static_cast<double>(n);
  const double variance = SumPowers<2>(x, n, mean) / static_cast<double>(n);
  const F64 d64;
  const HalfF32 d32;
  const auto vmean = hn::Set(d64, mean);
  const auto scale = hn::Set(d64, 1.0 / std::sqrt(variance + static_cast<double>(eps)));
  const size_t lanes = hn::Lanes(d64);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t left = n - i;
    const auto centred = hn::Sub(hn::PromoteTo(d64, LoadPart(d32, x + i, left)), vmean);
    const auto normed = hn::DemoteTo(d32, hn::Mul(centred, scale));
    auto y = hn::Mul(normed, LoadPart(d32, weight + i, left));
    if (bias != nullptr) y = hn::Add(y, LoadPart(d32, bias + i, left));
    StorePart(y, d32, out + i, left);
  }
}

// silu(x) = x / (1 + e) for x >= 0 and x * e / (1 + e) below, with e = exp(-|x|) <= 1: nothing overflows. e is the
// square of exp(-|x| / 2), which is normal wherever the result is not zero. silu(-inf) is its limit, zero.
void SiluMulRow(float* gate, const float* up, size_t n) {
  const F32 d;
  const auto one = hn::Set(d, 1.0f), minus_half = hn::Set(d, -0.5f), zero = hn::Zero(d);
  const auto minus_inf = hn::Set(d, -std::numeric_limits<float>::infinity());
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t left = n - i;
    const auto x = LoadPart(d, gate + i, left);
    const auto root = Exp(d, hn::Mul(minus_half, hn::Abs(x)));
    const auto numerator = hn::IfThenElse(hn::Lt(x, zero), hn::Mul(hn::Mul(x, root), root), x);
    const auto silu = hn::Div(numerator, hn::MulAdd(root, root, one));
    const auto finite = hn::IfThenElse(hn::Eq(x, minus_inf), zero, silu);
    StorePart(hn::Mul(finite, LoadPart(d, up + i, left)), d, gate + i, left);
  }
}

void AddScaledRow(const float* x, float scale, float* y, size_t n) {
  const F32 d;
  const auto vscale = hn::Set(d, scale);
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t left = n - i;
    StorePart(hn::MulAdd(LoadPart(d, x + i, left), vscale, LoadPart(d, y + i, left)), d, y + i, left);
  }
}

float MaxOf(const float* x, size_t n) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  auto vmax = hn::Set(d, -std::numeric_limits<float>::infinity());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) vmax = hn::Max(vmax, hn::LoadU(d, x + i));
  float max = hn::GetLane(hn::MaxOfLanes(d, vmax));
  for (; i < n; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

void SoftmaxRow(float* x, size_t n) {
  float max = MaxOf(x, n);
  if (max == -std::numeric_limits<float>::infinity()) max = 0.0f;  // nothing to choose from: exp gives zeros
  const F32 d;
  const auto vmax = hn::Set(d, max);
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t left = n - i;
    StorePart(Exp(d, hn::Sub(LoadPart(d, x + i, left), vmax)), d, x + i, left);
  }
  const double sum = SumPowers<1>(x, n, 0.0);
  const auto inverse = hn::Set(d, sum == 0.0 ? 0.0f : static_cast<float>(1.0 / sum));
  for (size_t i = 0; i < n; i += lanes) {
    const size_t left = n - i;
    StorePart(hn::Mul(LoadPart(d, x + i, left), inverse), d, x + i, left);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(LayerNormRow);
HWY_EXPORT(SiluMulRow);
HWY_EXPORT(AddScaledRow);
HWY_EXPORT(SoftmaxRow);

void RmsNorm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias, float eps,
             std::span<float> out) {
  NM_DCHECK(weight.size() == x.size() && out.size() == x.size() && (bias.empty() || bias.size() == x.size()));
  HWY_DYNAMIC_DISPATCH(RmsNormRow)
  (x.data(), weight.data(), bias.empty() ? nullptr : bias.data(), eps, out.data(), x.size());
}

void LayerNorm(std::span<const float> x, std::span<const float> weight, std::span<const float> bias, float eps,
               std::span<float> out) {
  NM_DCHECK(weight.size() == x.size() && out.size() == x.size() && (bias.empty() || bias.size() == x.size()));
  HWY_DYNAMIC_DISPATCH(LayerNormRow)
  (x.data(), weight.data(), bias.empty() ? nullptr : bias.data(), eps, out.data(), x.size());
}

void SiluMul(std::span<float> gate, std::span<const float> up) {
  NM_DCHECK(up.size() == gate.size());
  HWY_DYNAMIC_DISPATCH(SiluMulRow)(gate.data(), up.data(), gate.size());
}

void AddScaled(std::span<const float> x, float scale, std::span<float> y) {
  NM_DCHECK(y.size() == x.size());
  HWY_DYNAMIC_DISPATCH(AddScaledRow)(x.data(), scale, y.data(), x.size());
}

void Softmax(std::span<float> x) { HWY_DYNAMIC_DISPATCH(SoftmaxRow)(x.data(), x.size()); }

}  // namespace npumoe
#endif  // HWY_ONCE
