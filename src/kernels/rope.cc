// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope.h"

#include <cmath>

#include "base/check.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// (a, b) -> (a cos - b sin, b cos + a sin). The vector and the scalar form round alike where the target has FMA or
// not, because both multiply first and then use the target's own MulAdd.
template <class D, class V>
HWY_INLINE void Rotate(D /*d*/, V& a, V& b, V cos, V sin) {
  const V rotated = hn::NegMulAdd(b, sin, hn::Mul(a, cos));
  b = hn::MulAdd(a, sin, hn::Mul(b, cos));
  a = rotated;
}

// `a` and `b` are the halves of the rotated part, each [n_pairs].
void RotateHalves(float* a, float* b, const float* cos, const float* sin, size_t n_pairs) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n_pairs; i += lanes) {
    auto va = hn::LoadU(d, a + i), vb = hn::LoadU(d, b + i);
    Rotate(d, va, vb, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i));
    hn::StoreU(va, d, a + i);
    hn::StoreU(vb, d, b + i);
  }
  for (; i < n_pairs; ++i) {
    auto va = hn::LoadU(d1, a + i), vb = hn::LoadU(d1, b + i);
    Rotate(d1, va, vb, hn::LoadU(d1, cos + i), hn::LoadU(d1, sin + i));
    hn::StoreU(va, d1, a + i);
    hn::StoreU(vb, d1, b + i);
  }
}

// `pairs` is [n_pairs, 2].
void RotatePairs(float* pairs, const float* cos, const float* sin, size_t n_pairs) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n_pairs; i += lanes) {
    hn::Vec<decltype(d)> va, vb;
    hn::LoadInterleaved2(d, pairs + 2 * i, va, vb);
    Rotate(d, va, vb, hn::LoadU(d, cos + i), hn::LoadU(d, sin + i));
    hn::StoreInterleaved2(va, vb, d, pairs + 2 * i);
  }
  for (; i < n_pairs; ++i) {
    auto va = hn::LoadU(d1, pairs + 2 * i), vb = hn::LoadU(d1, pairs + 2 * i + 1);
    Rotate(d1, va, vb, hn::LoadU(d1, cos + i), hn::LoadU(d1, sin + i));
    hn::StoreU(va, d1, pairs + 2 * i);
    hn::StoreU(vb, d1, pairs + 2 * i + 1);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {

HWY_EXPORT(RotateHalves);
HWY_EXPORT(RotatePairs);

RopeTable RopeTable::Make(size_t rope_dim, double theta, std::span<const float> factors, float scale,
                          bool interleaved) {
  const size_t n_pairs = rope_dim / 2;
  NM_CHECK(rope_dim % 2 == 0 && (factors.empty() || factors.size() == n_pairs));
  RopeTable table{.inv_freq = std::vector<float>(n_pairs), .scale = scale, .interleaved = interleaved};
  for (size_t i = 0; i < n_pairs; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim);
    const double factor = factors.empty() ? 1.0 : static_cast<double>(factors[i]);
    table.inv_freq[i] = static_cast<float>(std::pow(theta, exponent) / factor);
  }
  return table;
}

void RopeCosSin(const RopeTable& table, size_t position, std::span<float> cos, std::span<float> sin) {
  NM_DCHECK(cos.size() == table.inv_freq.size() && sin.size() == table.inv_freq.size());
  const double scale = static_cast<double>(table.scale);
  for (size_t i = 0; i < table.inv_freq.size(); ++i) {
    const double angle = static_cast<double>(position) * static_cast<double>(table.inv_freq[i]);
    cos[i] = static_cast<float>(std::cos(angle) * scale);
    sin[i] = static_cast<float>(std::sin(angle) * scale);
  }
}

void ApplyRope(std::span<float> head, std::span<const float> cos, std::span<const float> sin, bool interleaved) {
  const size_t n_pairs = cos.size();
  NM_DCHECK(sin.size() == n_pairs && head.size() >= 2 * n_pairs);
  if (interleaved) {
    HWY_DYNAMIC_DISPATCH(RotatePairs)(head.data(), cos.data(), sin.data(), n_pairs);
  } else {
    HWY_DYNAMIC_DISPATCH(RotateHalves)(head.data(), head.data() + n_pairs, cos.data(), sin.data(), n_pairs);
  }
}

}  // namespace npumoe
#endif  // HWY_ONCE
