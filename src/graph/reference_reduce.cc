// SPDX-License-Identifier: Apache-2.0
// Sums along axes, in double.
#include <algorithm>
#include <cmath>

#include "graph/op_run.h"

namespace npumoe {
namespace {

bool Contains(const std::vector<size_t>& axes, size_t axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Extents and element strides of x along `axes` (or along all others).
struct SubShape {
  Dims dims, strides;
  SubShape(const Dims& x, const std::vector<size_t>& axes, bool inside) {
    const Dims own = StridesOf(x);
    for (size_t axis = 0; axis < x.size(); ++axis) {
      if (Contains(axes, axis) != inside) continue;
      dims.push_back(x[axis]);
      strides.push_back(own[axis]);
    }
  }
};

// Calls body(group index, offsets of its elements in row-major order) for every group that `axes` reduces to one.
template <typename Body>
void ForGroups(const Dims& x, const std::vector<size_t>& axes, const Body& body) {
  const SubShape outside(x, axes, false), inside(x, axes, true);
  std::vector<size_t> relative, offsets;
  ForEachIndex(inside.dims,
               [&](size_t, std::span<const size_t> at) { relative.push_back(OffsetOf(at, inside.strides)); });
  ForEachIndex(outside.dims, [&](size_t group, std::span<const size_t> at) {
    const size_t base = OffsetOf(at, outside.strides);
    offsets.clear();
    for (const size_t r : relative) offsets.push_back(base + r);
    body(group, offsets);
  });
}

// Sums and products of whole numbers wrap; only its low 32 bits are kept.
int64_t ReduceInts(OpKind kind, const Array& x, const std::vector<size_t>& offsets) {
  uint64_t sum = 0, product = 1;
  int64_t total = 0, low = x.ints[offsets[0]], high = low;
  for (const size_t at : offsets) {
    const int64_t v = x.ints[at];
    const bool squares = kind == OpKind::kReduceSumSquare;
    sum += static_cast<uint64_t>(squares ? v * v : kind == OpKind::kReduceL1Norm ? std::abs(v) : v);
    product *= static_cast<uint64_t>(v);
    total += v;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  if (kind == OpKind::kReduceMax) return high;
  if (kind == OpKind::kReduceMin) return low;
  if (kind == OpKind::kReduceMean) return total / static_cast<int64_t>(offsets.size());
  return static_cast<int64_t>(kind == OpKind::kReduceProd ? product : sum);
}

// log(sum(exp(x))) without leaving the range of double.
double LogSumExp(const Array& x, const std::vector<size_t>& offsets, double top) {
  if (std::isinf(top)) return top;
  double sum = 0;
  for (const size_t at : offsets) sum += std::exp(NumberAt(x, at) - top);
  return std::log(sum) + top;
}

double ReduceFloats(OpKind kind, const Array& x, const std::vector<size_t>& offsets) {
  const bool squares = kind == OpKind::kReduceSumSquare || kind == OpKind::kReduceL2Norm;
  double sum = 0, product = 1, low = NumberAt(x, offsets[0]), high = low;
  for (const size_t at : offsets) {
    const double v = NumberAt(x, at);
    sum += squares ? v * v : kind == OpKind::kReduceL1Norm ? std::fabs(v) : v;
    product *= v;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  switch (kind) {
    case OpKind::kReduceMax:
      return high;
    case OpKind::kReduceMin:
      return low;
    case OpKind::kReduceMean:
      return sum / static_cast<double>(offsets.size());
    case OpKind::kReduceProd:
      return product;
    case OpKind::kReduceL2Norm:
      return std::sqrt(sum);
    case OpKind::kReduceLogSum:
      return std::log(sum);
    case OpKind::kReduceLogSumExp:
      return LogSumExp(x, offsets, high);
    default:
      return sum;
  }
}

// Square roots and logarithms of whole numbers are computed as those of floats and cut.
bool NeedsFloats(OpKind kind) {
  return kind == OpKind::kReduceL2Norm || kind == OpKind::kReduceLogSum || kind == OpKind::kReduceLogSumExp;
}

// The first of equal largest (or smallest) elements.
size_t ArgBest(OpKind kind, const Array& x, const std::vector<size_t>& offsets) {
  size_t best = 0;
  for (size_t i = 1; i < offsets.size(); ++i) {
    const double v = NumberAt(x, offsets[i]), held = NumberAt(x, offsets[best]);
    if (kind == OpKind::kReduceArgmax ? v > held : v < held) best = i;
  }
  return best;
}

}  // namespace

Status RunReduce(OpRun& run) {
  const Array& x = run.Get("x");
  const size_t rank = x.type.dims.size();
  Array& out = run.out();
  if (run.kind() == OpKind::kReduceArgmax || run.kind() == OpKind::kReduceArgmin) {
    ForGroups(x.type.dims, {run.in.Axis("axis", rank).value()}, [&](size_t group, const auto& offsets) {
      out.ints[group] = static_cast<int64_t>(ArgBest(run.kind(), x, offsets));
    });
    return Ok{};
  }
  ForGroups(x.type.dims, run.in.Axes("axes", rank).value(), [&](size_t group, const auto& offsets) {
    if (IsFloat(x.type.elem)) {
      out.floats[group] = static_cast<float>(ReduceFloats(run.kind(), x, offsets));
    } else if (NeedsFloats(run.kind())) {
      out.ints[group] = Saturate(out.type.elem, ReduceFloats(run.kind(), x, offsets));
    } else {
      out.ints[group] = ReduceInts(run.kind(), x, offsets);
    }
  });
  return Ok{};
}

Status RunSoftmax(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const size_t axis = run.in.Axis("axis", x.type.dims.size()).value();
  ForGroups(x.type.dims, {axis}, [&](size_t, const auto& offsets) {
    double top = static_cast<double>(x.floats[offsets[0]]), sum = 0;
    for (const size_t at : offsets) top = std::max(top, static_cast<double>(x.floats[at]));
    for (const size_t at : offsets) sum += std::exp(static_cast<double>(x.floats[at]) - top);
    for (const size_t at : offsets) {
      out.floats[at] = static_cast<float>(std::exp(static_cast<double>(x.floats[at]) - top) / sum);
    }
  });
  return Ok{};
}

// (x - mean) / sqrt(variance + epsilon) * gamma + beta, variance with divisor n.
Status RunLayerNorm(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const std::vector<size_t> axes = run.in.Axes("axes", x.type.dims.size()).value();
  const Array *gamma = run.Find("gamma"), *beta = run.Find("beta");
  const double epsilon = NumberAt(run.Get("epsilon"), 0);
  // gamma's dims follow `axes` in the order given; the elements of a group come in ascending axis order.
  Dims gamma_dims, gamma_strides(axes.size());
  for (const size_t axis : axes) gamma_dims.push_back(x.type.dims[axis]);
  const Dims own = StridesOf(gamma_dims);
  std::vector<size_t> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto place = std::find(sorted.begin(), sorted.end(), axes[i]) - sorted.begin();
    gamma_strides[static_cast<size_t>(place)] = own[i];
  }
  const SubShape inside(x.type.dims, axes, true);
  std::vector<size_t> gains;
  ForEachIndex(inside.dims, [&](size_t, std::span<const size_t> at) { gains.push_back(OffsetOf(at, gamma_strides)); });

  ForGroups(x.type.dims, axes, [&](size_t, const auto& offsets) {
    const auto n = static_cast<double>(offsets.size());
    double sum = 0, squares = 0;
    for (const size_t at : offsets) sum += static_cast<double>(x.floats[at]);
    const double mean = sum / n;
    for (const size_t at : offsets) {
      const double d = static_cast<double>(x.floats[at]) - mean;
      squares += d * d;
    }
    const double scale = 1.0 / std::sqrt(squares / n + epsilon);
    for (size_t i = 0; i < offsets.size(); ++i) {
      const double gain = gamma == nullptr ? 1 : NumberAt(*gamma, gains[i]);
      const double shift = beta == nullptr ? 0 : NumberAt(*beta, gains[i]);
      out.floats[offsets[i]] =
          static_cast<float>((static_cast<double>(x.floats[offsets[i]]) - mean) * scale * gain + shift);
    }
  });
  return Ok{};
}

// x / sqrt(sum of squares + epsilon) over the last three axes.
Status RunL2Norm(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const double epsilon = NumberAt(run.Get("epsilon"), 0);
  const size_t rank = x.type.dims.size();
  ForGroups(x.type.dims, {rank - 3, rank - 2, rank - 1}, [&](size_t, const auto& offsets) {
    double squares = 0;
    for (const size_t at : offsets) squares += static_cast<double>(x.floats[at]) * static_cast<double>(x.floats[at]);
    const double scale = 1.0 / std::sqrt(squares + epsilon);
    for (const size_t at : offsets) out.floats[at] = static_cast<float>(static_cast<double>(x.floats[at]) * scale);
  });
  return Ok{};
}

Status RunCumsum(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const size_t axis = run.in.Axis("axis", x.type.dims.size()).value();
  const bool exclusive = run.in.Bool("exclusive").value(), reverse = run.in.Bool("reverse").value();
  ForGroups(x.type.dims, {axis}, [&](size_t, const auto& offsets) {
    double sum = 0;  // whole numbers of 32 bits stay exact over 2^21 of them, beyond any axis here
    for (size_t i = 0; i < offsets.size(); ++i) {
      const size_t at = offsets[reverse ? offsets.size() - 1 - i : i];
      const double v = NumberAt(x, at);
      SetNumber(out, at, exclusive ? sum : sum + v);
      sum += v;
    }
  });
  return Ok{};
}

}  // namespace npumoe
