// SPDX-License-Identifier: Apache-2.0
// Types of ops that move elements without computing.
#include <algorithm>
#include <limits>

#include "graph/geometry.h"
#include "graph/infer.h"

namespace npumoe {
namespace {

constexpr int64_t kMaxDim32 = std::numeric_limits<int32_t>::max();

Status CheckRank(OpReader& in, std::string_view param, const ValueType& type, size_t least) {
  if (type.dims.size() >= least) return Ok{};
  return in.Fail(param, fmt::format("rank {}, wanted {} or more", type.dims.size(), least));
}

// All values of the list have one type outside of `axis`.
Status CheckAlike(OpReader& in, const std::vector<const ValueType*>& values, size_t axis) {
  for (const ValueType* value : values) {
    ValueType expected = *values[0];
    if (value->dims.size() == expected.dims.size() && axis < expected.dims.size()) {
      expected.dims[axis] = value->dims[axis];
    }
    if (*value != expected) {
      return in.Fail("values", fmt::format("{} does not fit {}", value->ToString(), values[0]->ToString()));
    }
  }
  return Ok{};
}

}  // namespace

Result<Types> InferReshape(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const auto shape, in.Ints("shape"));
  ValueType out{x->elem, {}};
  size_t known = 1, rest = shape.size();
  for (size_t i = 0; i < shape.size(); ++i) {
    size_t dim = 1;
    if (shape[i] == -1 && rest == shape.size()) {
      rest = i;
    } else if (shape[i] == 0 && i < x->dims.size()) {
      dim = x->dims[i];
    } else if (shape[i] > 0 && shape[i] <= kMaxDim32) {
      dim = static_cast<size_t>(shape[i]);
    } else {
      return in.Fail("shape",
                     fmt::format("[{}] at {}, wanted sizes above 0 and at most one -1", fmt::join(shape, ", "), i));
    }
    out.dims.push_back(dim);
    if (dim > kMaxTensorBytes / known)
      return in.Fail("shape", fmt::format("[{}] is too large", fmt::join(shape, ", ")));
    known *= dim;
  }
  const size_t elems = x->elems();
  if (rest < shape.size() && elems % known == 0) out.dims[rest] = elems / known;
  if (out.elems() != elems) {
    return in.Fail("shape", fmt::format("[{}] does not hold the {} elements of x {}", fmt::join(shape, ", "), elems,
                                        x->ToString()));
  }
  return Types{out};
}

Result<Types> InferTranspose(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY(CheckRank(in, "x", *x, 2));
  NM_TRY_VAR(const auto perm, in.Axes("perm", x->dims.size()));
  if (perm.size() != x->dims.size()) {
    return in.Fail("perm", fmt::format("has {} axes, wanted {}", perm.size(), x->dims.size()));
  }
  ValueType out{x->elem, {}};
  for (const size_t axis : perm) out.dims.push_back(x->dims[axis]);
  return Types{out};
}

Result<Types> InferExpandDims(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const auto raw, in.Ints("axes"));
  if (raw.size() > kMaxGraphRank) {
    return in.Fail("axes", fmt::format("adds {} axes, a value has at most {}", raw.size(), kMaxGraphRank));
  }
  NM_TRY_VAR(const auto axes, in.Axes("axes", x->dims.size() + raw.size()));
  ValueType out{x->elem, {}};
  for (size_t axis = 0, taken = 0; axis < x->dims.size() + axes.size(); ++axis) {
    const bool added = std::find(axes.begin(), axes.end(), axis) != axes.end();
    out.dims.push_back(added ? 1 : x->dims[taken++]);
  }
  return Types{out};
}

Result<Types> InferSqueeze(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  std::vector<bool> drop(x->dims.size());
  if (in.Has("axes")) {
    NM_TRY_VAR(const auto axes, in.Axes("axes", x->dims.size()));
    for (const size_t axis : axes) {
      if (x->dims[axis] != 1) return in.Fail("axes", fmt::format("axis {} of {} is not 1", axis, x->ToString()));
      drop[axis] = true;
    }
  } else {
    for (size_t axis = 0; axis < drop.size(); ++axis) drop[axis] = x->dims[axis] == 1;
  }
  ValueType out{x->elem, {}};
  for (size_t axis = 0; axis < drop.size(); ++axis) {
    if (!drop[axis]) out.dims.push_back(x->dims[axis]);
  }
  return Types{out};
}

Result<Types> InferConcat(OpReader& in) {
  NM_TRY_VAR(const auto values, in.List("values"));
  NM_TRY(CheckRank(in, "values", *values[0], 1));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", values[0]->dims.size()));
  NM_TRY_VAR(const bool interleave, in.Bool("interleave"));
  NM_TRY(CheckAlike(in, values, interleave ? values[0]->dims.size() : axis));
  ValueType out = *values[0];
  out.dims[axis] = 0;
  for (const ValueType* value : values) out.dims[axis] += value->dims[axis];
  return Types{out};
}

Result<Types> InferStack(OpReader& in) {
  NM_TRY_VAR(const auto values, in.List("values"));
  const size_t rank = values[0]->dims.size();
  NM_TRY_VAR(const size_t axis, in.Axis("axis", rank + 1));
  NM_TRY(CheckAlike(in, values, rank));
  ValueType out = *values[0];
  out.dims.insert(out.dims.begin() + static_cast<ptrdiff_t>(axis), values.size());
  return Types{out};
}

Result<Types> InferSplit(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", x->dims.size()));
  NM_TRY_VAR(const auto sizes, ReadSplit(in, x->dims[axis]));
  Types out(sizes.size(), *x);
  for (size_t i = 0; i < sizes.size(); ++i) out[i].dims[axis] = sizes[i];
  return out;
}

Result<Types> InferSliceByIndex(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  const size_t rank = x->dims.size();
  NM_TRY(CheckRank(in, "x", *x, 1));
  // A begin computed at run time gives an unknown shape, which no static graph has.
  NM_TRY_VAR(const auto begin, in.Ints("begin", rank));
  NM_TRY_VAR(const auto end, in.Ints("end", rank));
  NM_TRY_VAR(const SliceMasks masks, ReadSliceMasks(in, rank));
  NM_TRY_VAR(const auto axes, ResolveSlice(in, x->dims, begin, end, masks));
  return Types{{x->elem, SliceDims(axes)}};
}

Result<Types> InferSliceBySize(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  const size_t rank = x->dims.size();
  NM_TRY(CheckRank(in, "x", *x, 1));
  NM_TRY_VAR(const auto size, in.Ints("size", rank));
  std::vector<int64_t> begin(rank, 0);
  const bool fixed = in.IsConstant("begin");
  if (fixed) {
    NM_TRY_VAR(begin, in.Ints("begin", rank));
  } else {
    NM_TRY(in.Expect("begin", {ElemType::kI32, {rank}}));
  }
  ValueType out{x->elem, {}};
  for (size_t axis = 0; axis < rank; ++axis) {
    const auto n = static_cast<int64_t>(x->dims[axis]);
    if (begin[axis] < 0 || begin[axis] >= n) {
      return in.Fail("begin", fmt::format("axis {}: element {} of {}", axis, begin[axis], n));
    }
    if (size[axis] == -1 && !fixed) return in.Fail("size", "is -1 where begin is a run-time value");
    const int64_t count = size[axis] == -1 ? n - begin[axis] : size[axis];
    if (count < 1 || count > n - begin[axis]) {
      return in.Fail("size", fmt::format("axis {}: {} elements from {} of {}", axis, count, begin[axis], n));
    }
    out.dims.push_back(static_cast<size_t>(count));
  }
  return Types{out};
}

Result<Types> InferSliceUpdate(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const ValueType* update, in.Type("update"));
  const size_t rank = x->dims.size();
  NM_TRY(CheckRank(in, "x", *x, 1));
  NM_TRY(CheckRank(in, "update", *update, 1));
  if (update->elem != x->elem) {
    return in.Fail("update", fmt::format("wanted {} as x has, got {}", ToString(x->elem), update->ToString()));
  }
  NM_TRY_VAR(const SliceMasks masks, ReadSliceMasks(in, rank));
  if (!in.IsConstant("begin") || !in.IsConstant("end")) {
    // The shape of the update is checked when the range is known.
    NM_TRY(in.Expect("begin", {ElemType::kI32, {rank}}));
    NM_TRY(in.Expect("end", {ElemType::kI32, {rank}}));
    return Types{*x};
  }
  NM_TRY_VAR(const auto begin, in.Ints("begin", rank));
  NM_TRY_VAR(const auto end, in.Ints("end", rank));
  NM_TRY_VAR(const auto axes, ResolveSlice(in, x->dims, begin, end, masks));
  NM_TRY(in.Expect("update", {x->elem, SliceDims(axes)}));
  return Types{*x};
}

Result<Types> InferTile(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY(CheckRank(in, "x", *x, 1));
  NM_TRY_VAR(const auto reps, in.Ints("reps", x->dims.size()));
  ValueType out = *x;
  for (size_t axis = 0; axis < reps.size(); ++axis) {
    if (reps[axis] < 1 || reps[axis] > kMaxDim32)
      return in.Fail("reps", fmt::format("value {}, wanted 1 or more", reps[axis]));
    out.dims[axis] *= static_cast<size_t>(reps[axis]);
  }
  return Types{out};
}

Result<Types> InferPad(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  NM_TRY(CheckRank(in, "x", *x, 1));
  NM_TRY_VAR(const auto pad, ReadPad(in, x->dims));
  NM_TRY(CheckFloatScalar(in, "constant_val"));
  NM_TRY(in.Expect("constant_val", {x->elem, {}}));
  ValueType out = *x;
  for (size_t axis = 0; axis < pad.size(); ++axis) out.dims[axis] += pad[axis].before + pad[axis].after;
  return Types{out};
}

Result<Types> InferFill(OpReader& in) {
  NM_TRY_VAR(const auto shape, in.Ints("shape"));
  NM_TRY_VAR(const ValueType* value, in.Type("value"));
  NM_TRY(in.CheckCompileTime("value"));
  if (!value->dims.empty() || value->elem == ElemType::kString) {
    return in.Fail("value", fmt::format("wanted a scalar, got {}", value->ToString()));
  }
  ValueType out{value->elem, {}};
  for (const int64_t dim : shape) {
    if (dim < 1 || dim > kMaxDim32) return in.Fail("shape", fmt::format("size {}, wanted 1 or more", dim));
    out.dims.push_back(static_cast<size_t>(dim));
  }
  return Types{out};
}

Result<Types> InferBandPart(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY(CheckRank(in, "x", *x, 2));
  NM_TRY(in.Int("lower"));
  NM_TRY(in.Int("upper"));
  return Types{*x};
}

}  // namespace npumoe
