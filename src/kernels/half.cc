// SPDX-License-Identifier: Apache-2.0
#include "kernels/half.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/half.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h: code that is compiled once per target.
#include "hwy/highway.h"
#include "kernels/columns-inl.h"
#include "kernels/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using F64 = hn::ScalableTag<double>;
using HalfF32 = hn::Rebind<float, F64>;  // as many floats as F64 has lanes

// Values that are widened, computed and rounded at a time: they stay in the first-level cache.
constexpr size_t kPiece = 512;

void ToFloats(const uint16_t* from, size_t n, float* to) { HalfToFloat(from, n, to); }
void ToHalves(const float* from, size_t n, uint16_t* to) { ExactFloatToHalf(from, n, to); }

float Magnitude(const float* values, size_t n) {
  const F32 d;
  auto most = hn::Zero(d);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) most = hn::Max(most, hn::Abs(LoadPart(d, values + i, n - i)));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

void ToBytes(const float* values, size_t n, float scale, int8_t* out) {
  const F32 d;
  const hn::Rebind<int8_t, F32> d8;
  const auto vscale = hn::Set(d, scale), most = hn::Set(d, 127.0f), least = hn::Set(d, -127.0f);
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    const auto steps = hn::Div(LoadPart(d, values + i, n - i), vscale);
    const auto bytes = hn::DemoteTo(d8, hn::NearestInt(hn::Max(least, hn::Min(steps, most))));
    if (HWY_LIKELY(n - i >= lanes)) {
      hn::StoreU(bytes, d8, out + i);
    } else {
      HWY_ALIGN int8_t part[hn::MaxLanes(d8)];
      hn::Store(bytes, d8, part);
      std::copy_n(part, n - i, out + i);
    }
  }
}

// The operand's next n values (padded to whole vectors with what was there) as f32.
HWY_INLINE const float* Widen(HalfOperand operand, size_t at, size_t n, float* piece) {
  if (!operand.repeats) {
    HalfToFloat(operand.data + at, n, piece);
  } else if (at == 0) {
    std::fill_n(piece, kPiece, F16ToF32(*operand.data));
  }
  return piece;
}

template <class Op>
HWY_INLINE void BinaryPieces(HalfOperand x, HalfOperand y, size_t n, uint16_t* out, const Op& op) {
  const F32 d;
  HWY_ALIGN float xs[kPiece] = {}, ys[kPiece] = {};
  for (size_t at = 0; at < n; at += kPiece) {
    const size_t count = std::min(kPiece, n - at);
    Widen(x, at, count, xs);
    Widen(y, at, count, ys);
    HWY_ALIGN float results[kPiece];
    for (size_t i = 0; i < count; i += hn::Lanes(d)) {
      hn::Store(op(hn::Load(d, xs + i), hn::Load(d, ys + i)), d, results + i);
    }
    ExactFloatToHalf(results, count, out + at);
  }
}

void Binary(HalfBinaryOp op, HalfOperand x, HalfOperand y, size_t n, uint16_t* out) {
  using V = hn::Vec<F32>;
  switch (op) {
    case HalfBinaryOp::kAdd:
      return BinaryPieces(x, y, n, out, [](V a, V b) HWY_ATTR { return hn::Add(a, b); });
    case HalfBinaryOp::kSub:
      return BinaryPieces(x, y, n, out, [](V a, V b) HWY_ATTR { return hn::Sub(a, b); });
    case HalfBinaryOp::kMul:
      return BinaryPieces(x, y, n, out, [](V a, V b) HWY_ATTR { return hn::Mul(a, b); });
    case HalfBinaryOp::kDiv:
      return BinaryPieces(x, y, n, out, [](V a, V b) HWY_ATTR { return hn::Div(a, b); });
    case HalfBinaryOp::kMaximum:
      return BinaryPieces(x, y, n, out, [](V a, V b) HWY_ATTR { return hn::IfThenElse(hn::Gt(a, b), a, b); });
    case HalfBinaryOp::kMinimum:
      return BinaryPieces(x, y, n, out, [](V a, V b) HWY_ATTR { return hn::IfThenElse(hn::Gt(a, b), b, a); });
  }
}

// exp(x - top) of the row, in place; returns their sum. f32 sums of kPiece values, their sum in double.
double ExpAndSum(float* row, size_t n, float top) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const auto vtop = hn::Set(d, top);
  double sum = 0;
  for (size_t at = 0; at < n; at += kPiece) {
    const size_t end = std::min(n, at + kPiece);
    auto part = hn::Zero(d);
    size_t i = at;
    for (; i + lanes <= end; i += lanes) {
      const auto e = Exp(d, hn::Sub(hn::LoadU(d, row + i), vtop));
      hn::StoreU(e, d, row + i);
      part = hn::Add(part, e);
    }
    if (i < end) {
      HWY_ALIGN float tail[hn::MaxLanes(d)];
      std::fill_n(tail, lanes, -std::numeric_limits<float>::infinity());  // adds 0
      std::copy(row + i, row + end, tail);
      const auto e = Exp(d, hn::Sub(hn::Load(d, tail), vtop));
      hn::Store(e, d, tail);
      std::copy_n(tail, end - i, row + i);
      part = hn::Add(part, e);
    }
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, part)));
  }
  return sum;
}

// False, and nothing written, when the sum is not a number: NaN or +inf among the values, or nothing but -inf, make it
// so.
bool Softmax(const uint16_t* x, size_t n, float* row, uint16_t* out) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  HalfToFloat(x, n, row);
  float top = row[0];
  auto tops = hn::Set(d, top);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) tops = hn::Max(tops, hn::LoadU(d, row + i));
  top = hn::GetLane(hn::MaxOfLanes(d, tops));
  for (; i < n; ++i) top = std::max(top, row[i]);
  const double sum = ExpAndSum(row, n, top);
  if (std::isnan(sum)) return false;
  const auto divisor = hn::Set(d, static_cast<float>(sum));
  for (i = 0; i + lanes <= n; i += lanes) hn::StoreU(hn::Div(hn::LoadU(d, row + i), divisor), d, row + i);
  for (; i < n; ++i) row[i] /= static_cast<float>(sum);
  ExactFloatToHalf(row, n, out);
  return true;
}

// Calls body(i, vectors of element i of all columns, as double).
template <class Body>
HWY_INLINE void ForColumnElements(const HalfLayerNormArgs& args, const uint16_t* x, const Body& body) {
  constexpr size_t kVectors = kLayerNormColumns / hn::MaxLanes(F64());
  const F64 d64;
  const HalfF32 d32;
  HWY_ALIGN float row[kLayerNormColumns] = {};
  for (size_t i = 0; i < args.n; ++i) {
    const uint16_t* const from = x + i * args.stride;
    if (HWY_LIKELY(args.columns == kLayerNormColumns)) {
      HalfToFloat(from, kLayerNormColumns, row);
    } else {
      HalfToFloat(from, args.columns, row);
    }
    hn::Vec<F64> v[kVectors];
    for (size_t j = 0; j < kVectors; ++j) v[j] = hn::PromoteTo(d64, hn::Load(d32, row + j * hn::MaxLanes(d64)));
    body(i, v);
  }
}

void LayerNorm(const HalfLayerNormArgs& args, const uint16_t* x, uint16_t* out) {
  constexpr size_t kVectors = kLayerNormColumns / hn::MaxLanes(F64());
  using V = hn::Vec<F64>;
  const F64 d64;
  const HalfF32 d32;
  V sums[kVectors], means[kVectors], scales[kVectors];
  for (size_t j = 0; j < kVectors; ++j) sums[j] = hn::Zero(d64);
  ForColumnElements(args, x, [&](size_t, const V(&v)[kVectors]) HWY_ATTR {
    for (size_t j = 0; j < kVectors; ++j) sums[j] = hn::Add(sums[j], v[j]);
  });
  const auto count = hn::Set(d64, static_cast<double>(args.n)), one = hn::Set(d64, 1.0);
  for (size_t j = 0; j < kVectors; ++j) {
    means[j] = hn::Div(sums[j], count);
    sums[j] = hn::Zero(d64);
  }
  ForColumnElements(args, x, [&](size_t, const V(&v)[kVectors]) HWY_ATTR {
    for (size_t j = 0; j < kVectors; ++j) {
      const auto apart = hn::Sub(v[j], means[j]);
      sums[j] = hn::Add(sums[j], hn::Mul(apart, apart));
    }
  });
  const auto epsilon = hn::Set(d64, args.epsilon);
  for (size_t j = 0; j < kVectors; ++j) {
    scales[j] = hn::Div(one, hn::Sqrt(hn::Add(hn::Div(sums[j], count), epsilon)));
  }
  ForColumnElements(args, x, [&](size_t i, const V(&v)[kVectors]) HWY_ATTR {
    const auto gain = hn::Set(d64, args.gamma.empty() ? 1.0 : static_cast<double>(args.gamma[i]));
    const auto shift = hn::Set(d64, args.beta.empty() ? 0.0 : static_cast<double>(args.beta[i]));
    HWY_ALIGN float row[kLayerNormColumns];
    for (size_t j = 0; j < kVectors; ++j) {
      const auto normed = hn::Mul(hn::Sub(v[j], means[j]), scales[j]);
      const auto y = hn::Add(hn::Mul(normed, gain), shift);
      hn::Store(hn::DemoteTo(d32, y), d32, row + j * hn::MaxLanes(d64));
    }
    ExactFloatToHalf(row, args.columns, out + i * args.stride);
  });
}

void Transpose(const uint16_t* in, size_t rows, size_t cols, uint16_t* out) {
  constexpr size_t kRows = 256;  // of as many rows, one cache line each stays in the first-level cache
  for (size_t row = 0; row < rows; row += kRows) {
    const size_t n = std::min(kRows, rows - row);
    StageToColumns<false>(in + row * cols, cols, cols, n, n, out + row, rows);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {
namespace {

// For rows with values that are not finite, in the scalar definition's order.
void ScalarSoftmax(const uint16_t* x, size_t n, uint16_t* out) {
  double top = static_cast<double>(F16ToF32(x[0])), sum = 0;
  for (size_t i = 0; i < n; ++i) top = std::max(top, static_cast<double>(F16ToF32(x[i])));
  for (size_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(F16ToF32(x[i])) - top);
  for (size_t i = 0; i < n; ++i) {
    out[i] = F32ToF16(static_cast<float>(std::exp(static_cast<double>(F16ToF32(x[i])) - top) / sum));
  }
}

}  // namespace

HWY_EXPORT(ToFloats);
HWY_EXPORT(ToHalves);
HWY_EXPORT(Magnitude);
HWY_EXPORT(ToBytes);
HWY_EXPORT(Binary);
HWY_EXPORT(Softmax);
HWY_EXPORT(LayerNorm);
HWY_EXPORT(Transpose);

void HalvesToFloats(std::span<const uint16_t> from, float* to) {
  HWY_DYNAMIC_DISPATCH(ToFloats)(from.data(), from.size(), to);
}

void FloatsToHalves(std::span<const float> from, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(ToHalves)(from.data(), from.size(), to);
}

float MaxMagnitude(std::span<const float> values) {
  return HWY_DYNAMIC_DISPATCH(Magnitude)(values.data(), values.size());
}

void FloatsToBytes(std::span<const float> values, float scale, int8_t* out) {
  HWY_DYNAMIC_DISPATCH(ToBytes)(values.data(), values.size(), scale, out);
}

void HalfBinary(HalfBinaryOp op, HalfOperand x, HalfOperand y, size_t n, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(Binary)(op, x, y, n, out);
}

void HalfLookup(const uint16_t* table, const uint16_t* x, size_t n, uint16_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = table[x[i]];
}

void HalfSoftmax(const uint16_t* x, size_t n, float* scratch, uint16_t* out) {
  if (n == 0) return;
  if (!HWY_DYNAMIC_DISPATCH(Softmax)(x, n, scratch, out)) ScalarSoftmax(x, n, out);
}

void HalfLayerNorm(const HalfLayerNormArgs& args, const uint16_t* x, uint16_t* out) {
  NM_CHECK(args.columns <= kLayerNormColumns);
  NM_CHECK(args.gamma.empty() || args.gamma.size() == args.n);
  NM_CHECK(args.beta.empty() || args.beta.size() == args.n);
  HWY_DYNAMIC_DISPATCH(LayerNorm)(args, x, out);
}

void HalfTranspose(const uint16_t* in, size_t rows, size_t cols, uint16_t* out) {
  HWY_DYNAMIC_DISPATCH(Transpose)(in, rows, cols, out);
}

}  // namespace npumoe
#endif  // HWY_ONCE
