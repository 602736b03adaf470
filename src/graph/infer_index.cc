// SPDX-License-Identifier: Apache-2.0
// Types of ops that look up, write or sort by index.
#include <algorithm>
#include <array>

#include "graph/infer.h"

namespace npumoe {
namespace {

Result<const ValueType*> Indices(OpReader& in, size_t least_rank) {
  NM_TRY_VAR(const ValueType* indices, in.Type("indices"));
  const ElemType elem = indices->elem;
  if (!IsInt(elem) || BitsOf(elem) < 8) {
    return in.Fail("indices", fmt::format("wanted whole numbers, got {}", indices->ToString()));
  }
  if (indices->dims.size() < least_rank) {
    return in.Fail("indices", fmt::format("rank {}, wanted {} or more", indices->dims.size(), least_rank));
  }
  NM_TRY(in.BoolOr("validate_indices", false));
  return indices;
}

// Leading axes that x and indices share; 0 when the op was written for CoreML5, which has no such parameter.
Result<size_t> BatchDims(OpReader& in, const ValueType& x, const ValueType& indices, size_t most) {
  if (!in.Has("batch_dims")) return size_t{0};
  NM_TRY_VAR(const int32_t n, in.Int("batch_dims"));
  if (n < 0 || static_cast<size_t>(n) > most) return in.Fail("batch_dims", fmt::format("{}, wanted 0 to {}", n, most));
  for (size_t axis = 0; axis < static_cast<size_t>(n); ++axis) {
    if (x.dims[axis] != indices.dims[axis]) {
      return in.Fail("batch_dims",
                     fmt::format("axis {} of x {} and indices {} differ", axis, x.ToString(), indices.ToString()));
    }
  }
  return static_cast<size_t>(n);
}

Status CheckMode(OpReader& in) {
  constexpr std::array<std::string_view, 7> kModes{"update", "add", "sub", "mul", "div", "max", "min"};
  NM_TRY_VAR(const auto mode, in.String("mode"));
  if (std::find(kModes.begin(), kModes.end(), mode) == kModes.end()) {
    return in.Fail("mode", fmt::format("'{}', wanted {}", mode, fmt::join(kModes, ", ")));
  }
  return Ok{};
}

template <typename Iterator>
void Append(Dims& dims, Iterator first, Iterator last) {
  dims.insert(dims.end(), first, last);
}

}  // namespace

Result<Types> InferGather(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const ValueType* indices, Indices(in, 0));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", x->dims.size()));
  NM_TRY_VAR(const size_t batch, BatchDims(in, *x, *indices, std::min(axis, indices->dims.size())));
  ValueType out{x->elem, {}};
  const auto at = [](const Dims& dims, size_t i) { return dims.begin() + static_cast<ptrdiff_t>(i); };
  Append(out.dims, x->dims.begin(), at(x->dims, axis));
  Append(out.dims, at(indices->dims, batch), indices->dims.end());
  Append(out.dims, at(x->dims, axis + 1), x->dims.end());
  return Types{out};
}

Result<Types> InferGatherAlongAxis(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", x->dims.size()));
  NM_TRY_VAR(const ValueType* indices, Indices(in, 1));
  Dims wanted = x->dims;
  if (indices->dims.size() == wanted.size()) wanted[axis] = indices->dims[axis];
  if (indices->dims != wanted) {
    return in.Fail("indices",
                   fmt::format("{} does not fit x {} outside of axis {}", indices->ToString(), x->ToString(), axis));
  }
  return Types{{x->elem, indices->dims}};
}

Result<Types> InferGatherNd(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Type("x"));
  NM_TRY_VAR(const ValueType* indices, Indices(in, 1));
  NM_TRY_VAR(const size_t batch, BatchDims(in, *x, *indices, std::min(x->dims.size(), indices->dims.size() - 1)));
  const size_t depth = indices->dims.back();
  if (batch + depth > x->dims.size()) {
    return in.Fail("indices", fmt::format("{} name {} axes after {} batch axes, x has {}", indices->ToString(), depth,
                                          batch, x->dims.size()));
  }
  ValueType out{x->elem, {}};
  Append(out.dims, indices->dims.begin(), indices->dims.end() - 1);
  Append(out.dims, x->dims.begin() + static_cast<ptrdiff_t>(batch + depth), x->dims.end());
  return Types{out};
}

Result<Types> InferScatter(OpReader& in) {
  NM_TRY_VAR(const ValueType* data, in.Number("data"));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", data->dims.size()));
  NM_TRY_VAR(const ValueType* indices, Indices(in, 0));
  NM_TRY(CheckMode(in));
  ValueType updates{data->elem, {data->dims.begin(), data->dims.begin() + static_cast<ptrdiff_t>(axis)}};
  Append(updates.dims, indices->dims.begin(), indices->dims.end());
  Append(updates.dims, data->dims.begin() + static_cast<ptrdiff_t>(axis) + 1, data->dims.end());
  NM_TRY(in.Expect("updates", updates));
  return Types{*data};
}

Result<Types> InferScatterAlongAxis(OpReader& in) {
  NM_TRY_VAR(const ValueType* data, in.Number("data"));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", data->dims.size()));
  NM_TRY_VAR(const ValueType* indices, Indices(in, 1));
  NM_TRY(CheckMode(in));
  Dims wanted = data->dims;
  if (indices->dims.size() == wanted.size()) wanted[axis] = indices->dims[axis];
  if (indices->dims != wanted) {
    return in.Fail("indices", fmt::format("{} does not fit data {} outside of axis {}", indices->ToString(),
                                          data->ToString(), axis));
  }
  NM_TRY(in.Expect("updates", {data->elem, indices->dims}));
  return Types{*data};
}

Result<Types> InferScatterNd(OpReader& in) {
  NM_TRY_VAR(const ValueType* data, in.Number("data"));
  NM_TRY_VAR(const ValueType* indices, Indices(in, 1));
  NM_TRY(CheckMode(in));
  const size_t depth = indices->dims.back();
  if (depth > data->dims.size()) {
    return in.Fail("indices",
                   fmt::format("{} name {} axes, data has {}", indices->ToString(), depth, data->dims.size()));
  }
  ValueType updates{data->elem, {indices->dims.begin(), indices->dims.end() - 1}};
  Append(updates.dims, data->dims.begin() + static_cast<ptrdiff_t>(depth), data->dims.end());
  NM_TRY(in.Expect("updates", updates));
  return Types{*data};
}

Result<Types> InferTopK(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Number("x"));
  NM_TRY_VAR(const size_t axis, in.Axis("axis", x->dims.size()));
  NM_TRY_VAR(const int32_t k, in.Int("k"));
  if (k < 1 || static_cast<size_t>(k) > x->dims[axis]) {
    return in.Fail("k", fmt::format("{}, wanted 1 to {}", k, x->dims[axis]));
  }
  NM_TRY(in.Bool("ascending"));
  NM_TRY(in.BoolOr("sort", true));
  NM_TRY_VAR(const bool with_indices, in.BoolOr("return_indices", true));
  ElemType elem = ElemType::kI32;
  if (in.Has("output_indices_dtype")) {
    NM_TRY_VAR(const auto name, in.String("output_indices_dtype"));
    const Result<ElemType> named = ElemFromName(name);
    if (!named.ok() || !IsInt(*named)) return in.Fail("output_indices_dtype", fmt::format("'{}', wanted int32", name));
    elem = *named;
  }
  ValueType values = *x;
  values.dims[axis] = static_cast<size_t>(k);
  if (!with_indices) return Types{values};
  return Types{values, {elem, values.dims}};
}

Result<Types> InferArgsort(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Number("x"));
  NM_TRY(in.Axis("axis", x->dims.size()));
  NM_TRY(in.Bool("ascending"));
  return Types{{ElemType::kI32, x->dims}};
}

}  // namespace npumoe
