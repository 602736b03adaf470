// SPDX-License-Identifier: Apache-2.0
// Functions of single numbers are computed in double and rounded once: the result does not depend on the machine's
// float library.
#include <algorithm>
#include <cmath>

#include "graph/op_run.h"

namespace npumoe {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

double Gelu(std::string_view mode, double x) {
  constexpr double kSqrtHalf = 0.70710678118654752440, kSqrt2OverPi = 0.79788456080286535588;
  if (mode == "EXACT") return 0.5 * x * (1.0 + std::erf(x * kSqrtHalf));
  // Both approximations are Hendrycks and Gimpel's (arXiv 1606.08415).
  if (mode == "TANH_APPROXIMATION") return 0.5 * x * (1.0 + std::tanh(kSqrt2OverPi * (x + 0.044715 * x * x * x)));
  return x * Sigmoid(1.702 * x);
}

double ComputeUnary(OpKind kind, double x) {
  switch (kind) {
    case OpKind::kSilu:
      return x * Sigmoid(x);
    case OpKind::kSigmoid:
      return Sigmoid(x);
    case OpKind::kRelu:
      return x > 0 ? x : 0;
    case OpKind::kTanh:
      return std::tanh(x);
    case OpKind::kExp:
      return std::exp(x);
    case OpKind::kSin:
      return std::sin(x);
    case OpKind::kCos:
      return std::cos(x);
    case OpKind::kSqrt:
      return std::sqrt(x);
    case OpKind::kSquare:
      return x * x;
    default:
      NM_CHECK(kind == OpKind::kLogicalNot);
      return x == 0 ? 1 : 0;
  }
}

bool ComputeCompare(OpKind kind, double x, double y) {
  switch (kind) {
    case OpKind::kLess:
      return x < y;
    case OpKind::kLessEqual:
      return x <= y;
    case OpKind::kGreater:
      return x > y;
    case OpKind::kGreaterEqual:
      return x >= y;
    case OpKind::kEqual:
      return x == y;
    case OpKind::kNotEqual:
      return x != y;
    case OpKind::kLogicalAnd:
      return x != 0 && y != 0;
    case OpKind::kLogicalOr:
      return x != 0 || y != 0;
    default:
      NM_CHECK(kind == OpKind::kLogicalXor);
      return (x != 0) != (y != 0);
  }
}

// Calls body(index of x, index of y, index of the result) over the broadcast shape.
template <typename Body>
void ForPairs(const Array& x, const Array& y, const Array& out, const Body& body) {
  const Dims sx = BroadcastStrides(x.type.dims, out.type.dims), sy = BroadcastStrides(y.type.dims, out.type.dims);
  ForEachIndex(out.type.dims,
               [&](size_t flat, std::span<const size_t> at) { body(OffsetOf(at, sx), OffsetOf(at, sy), flat); });
}

Status RunBinary(OpRun& run) {
  const Array &x = run.Get("x"), &y = run.Get("y");
  Array& out = run.out();
  const OpKind kind = run.kind();
  ForPairs(x, y, out, [&](size_t i, size_t j, size_t o) {
    if (out.type.elem == ElemType::kBool) {
      out.ints[o] = ComputeCompare(kind, NumberAt(x, i), NumberAt(y, j)) ? 1 : 0;
    } else if (IsFloat(out.type.elem)) {
      out.floats[o] = ComputeBinary(kind, x.floats[i], y.floats[j]);
    } else {
      out.ints[o] = ComputeBinary(kind, x.ints[i], y.ints[j]);
    }
  });
  return Ok{};
}

// Calls body(element, channel of the element) where `axis` names the channels of a vector `scale`; channel 0 of a
// scalar.
template <typename Body>
void ForChannels(OpRun& run, const Array& x, const Array& scale, const Body& body) {
  size_t axis = 0, n = 1, inner = 1;
  if (!scale.type.dims.empty()) {
    axis = run.in.Axis("axis", x.type.dims.size()).value();
    const AxisView view(x.type.dims, axis);
    n = view.n;
    inner = view.inner;
  }
  for (size_t i = 0; i < x.type.elems(); ++i) body(i, i / inner % n);
}

}  // namespace

float ComputeBinary(OpKind kind, float x, float y) {
  switch (kind) {
    case OpKind::kMul:
      return x * y;
    case OpKind::kAdd:
      return x + y;
    case OpKind::kSub:
      return x - y;
    case OpKind::kRealDiv:
      return x / y;
    case OpKind::kMaximum:
      return x > y ? x : y;
    case OpKind::kMinimum:
      return x > y ? y : x;
    default:
      NM_CHECK(kind == OpKind::kPow);
      return static_cast<float>(std::pow(static_cast<double>(x), static_cast<double>(y)));
  }
}

int64_t ComputeBinary(OpKind kind, int64_t x, int64_t y) {
  switch (kind) {
    case OpKind::kMul:
      return x * y;  // operands have 32 bits
    case OpKind::kAdd:
      return x + y;
    case OpKind::kSub:
      return x - y;
    case OpKind::kRealDiv:
      return y == 0 ? 0 : x / y;
    case OpKind::kMaximum:
      return std::max(x, y);
    case OpKind::kMinimum:
      return std::min(x, y);
    default:
      NM_CHECK(kind == OpKind::kPow);
      return Saturate(ElemType::kI32, std::pow(static_cast<double>(x), static_cast<double>(y)));
  }
}

Status RunElementwise(OpRun& run) {
  if (run.Find("y") != nullptr) return RunBinary(run);
  const Array& x = run.Get("x");
  Array& out = run.out();
  const size_t n = out.type.elems();
  switch (run.kind()) {
    case OpKind::kGelu: {
      const std::string mode = run.in.String("mode").value();
      for (size_t i = 0; i < n; ++i) SetNumber(out, i, Gelu(mode, NumberAt(x, i)));
      return Ok{};
    }
    case OpKind::kRsqrt: {
      const double epsilon = NumberAt(run.Get("epsilon"), 0);
      for (size_t i = 0; i < n; ++i) SetNumber(out, i, 1.0 / std::sqrt(NumberAt(x, i) + epsilon));
      return Ok{};
    }
    case OpKind::kClip: {
      const double low = NumberAt(run.Get("alpha"), 0), high = NumberAt(run.Get("beta"), 0);
      for (size_t i = 0; i < n; ++i) SetNumber(out, i, std::min(std::max(NumberAt(x, i), low), high));
      return Ok{};
    }
    default:
      for (size_t i = 0; i < n; ++i) {
        // Squares of 32-bit numbers need all 64 bits before they wrap.
        if (run.kind() == OpKind::kSquare && !IsFloat(x.type.elem)) {
          out.ints[i] = x.ints[i] * x.ints[i];
        } else {
          SetNumber(out, i, ComputeUnary(run.kind(), NumberAt(x, i)));
        }
      }
      return Ok{};
  }
}

Status RunSelect(OpRun& run) {
  const Array &cond = run.Get("cond"), &a = run.Get("a"), &b = run.Get("b");
  Array& out = run.out();
  const Dims sc = BroadcastStrides(cond.type.dims, out.type.dims);
  const Dims sa = BroadcastStrides(a.type.dims, out.type.dims), sb = BroadcastStrides(b.type.dims, out.type.dims);
  ForEachIndex(out.type.dims, [&](size_t flat, std::span<const size_t> at) {
    if (cond.ints[OffsetOf(at, sc)] != 0) {
      CopyElem(a, OffsetOf(at, sa), out, flat);
    } else {
      CopyElem(b, OffsetOf(at, sb), out, flat);
    }
  });
  return Ok{};
}

// To whole numbers: towards zero and held at the ends of the range from floats, low bits from whole numbers.
Status RunCast(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const bool from_float = IsFloat(x.type.elem), to_float = IsFloat(out.type.elem);
  for (size_t i = 0; i < out.type.elems(); ++i) {
    if (to_float) {
      out.floats[i] = from_float ? x.floats[i] : static_cast<float>(x.ints[i]);
    } else {
      out.ints[i] = from_float ? Saturate(out.type.elem, NumberAt(x, i)) : x.ints[i];
    }
  }
  return Ok{};
}

// round(input / scale) + zero_point, halves to even, held at the ends of the range.
Status RunQuantize(OpRun& run) {
  const Array &input = run.Get("input"), &scale = run.Get("scale");
  const Array* zero = run.Find("zero_point");
  Array& out = run.out();
  ForChannels(run, input, scale, [&](size_t i, size_t channel) {
    const double offset = zero == nullptr ? 0 : NumberAt(*zero, channel);
    const double steps = std::nearbyint(static_cast<double>(input.floats[i] / scale.floats[channel]));
    out.ints[i] = Saturate(out.type.elem, steps + offset);
  });
  return Ok{};
}

Status RunDequantize(OpRun& run) {
  const Array &input = run.Get("input"), &scale = run.Get("scale");
  const Array* zero = run.Find("zero_point");
  Array& out = run.out();
  ForChannels(run, input, scale, [&](size_t i, size_t channel) {
    const double offset = zero == nullptr ? 0 : NumberAt(*zero, channel);
    out.floats[i] = scale.floats[channel] * static_cast<float>(NumberAt(input, i) - offset);
  });
  return Ok{};
}

}  // namespace npumoe
