// SPDX-License-Identifier: Apache-2.0
// Ops that look up, write or sort by index. An index below 0 counts from the end; beyond either end is an error.
#include <algorithm>
#include <numeric>

#include "graph/op_run.h"

namespace npumoe {
namespace {

Result<size_t> ResolveIndex(OpRun& run, int64_t index, size_t n) {
  size_t resolved = 0;
  if (!ResolveAxis(index, n, resolved)) return run.in.Fail("indices", fmt::format("index {} of {} elements", index, n));
  return resolved;
}

// data[at] = data[at] (mode) update.
void Apply(std::string_view mode, const Array& updates, size_t from, Array& data, size_t at) {
  if (mode == "update") {
    CopyElem(updates, from, data, at);
    return;
  }
  const OpKind kind = mode == "add"   ? OpKind::kAdd
                      : mode == "sub" ? OpKind::kSub
                      : mode == "mul" ? OpKind::kMul
                      : mode == "div" ? OpKind::kRealDiv
                      : mode == "max" ? OpKind::kMaximum
                                      : OpKind::kMinimum;
  if (IsFloat(data.type.elem)) {
    data.floats[at] = ComputeBinary(kind, data.floats[at], updates.floats[from]);
  } else {
    data.ints[at] = WrapInt(data.type.elem, ComputeBinary(kind, data.ints[at], updates.ints[from]));
  }
}

void CopyAll(const Array& from, Array& to) {
  to.floats = from.floats;
  to.ints = from.ints;
}

size_t BatchDims(OpRun& run) {
  return run.in.Has("batch_dims") ? static_cast<size_t>(run.in.Int("batch_dims").value()) : 0;
}

// Offset in `dims` (after `batch` axes) of the tuple that starts at `first`, and the elements below it.
Result<size_t> TupleOffset(OpRun& run, const Array& indices, size_t first, std::span<const size_t> dims, size_t depth) {
  size_t offset = 0;
  for (size_t i = 0; i < depth; ++i) {
    NM_TRY_VAR(const size_t index, ResolveIndex(run, indices.ints[first + i], dims[i]));
    offset = offset * dims[i] + index;
  }
  return offset * ProductOf(dims.subspan(depth));
}

}  // namespace

Status RunGather(OpRun& run) {
  const Array &x = run.Get("x"), &indices = run.Get("indices");
  Array& out = run.out();
  const size_t axis = run.in.Axis("axis", x.type.dims.size()).value(), batch = BatchDims(run);
  const std::span<const size_t> dims(x.type.dims), index_dims(indices.type.dims);
  const size_t n_batch = ProductOf(dims.first(batch)), middle = ProductOf(dims.subspan(batch, axis - batch));
  const size_t n = dims[axis], inner = ProductOf(dims.subspan(axis + 1)),
               looked_up = ProductOf(index_dims.subspan(batch));
  for (size_t outer = 0; outer < n_batch * middle; ++outer) {
    for (size_t j = 0; j < looked_up; ++j) {
      NM_TRY_VAR(const size_t index, ResolveIndex(run, indices.ints[outer / middle * looked_up + j], n));
      for (size_t i = 0; i < inner; ++i) {
        CopyElem(x, (outer * n + index) * inner + i, out, (outer * looked_up + j) * inner + i);
      }
    }
  }
  return Ok{};
}

Status RunGatherAlongAxis(OpRun& run) {
  const Array &x = run.Get("x"), &indices = run.Get("indices");
  const size_t axis = run.in.Axis("axis", x.type.dims.size()).value();
  const AxisView from(x.type.dims, axis), to(indices.type.dims, axis);
  for (size_t flat = 0; flat < indices.ints.size(); ++flat) {
    NM_TRY_VAR(const size_t index, ResolveIndex(run, indices.ints[flat], from.n));
    const size_t outer = flat / (to.n * to.inner), i = flat % to.inner;
    CopyElem(x, from.Offset(outer, i) + index * from.inner, run.out(), flat);
  }
  return Ok{};
}

Status RunGatherNd(OpRun& run) {
  const Array &x = run.Get("x"), &indices = run.Get("indices");
  const size_t batch = BatchDims(run), depth = indices.type.dims.back();
  const std::span<const size_t> dims(x.type.dims);
  const size_t n_batch = ProductOf(dims.first(batch)), per_batch = ProductOf(dims.subspan(batch));
  const size_t inner = ProductOf(dims.subspan(batch + depth));
  const size_t n_tuples = indices.ints.size() / depth, tuples_per_batch = n_tuples / n_batch;
  for (size_t t = 0; t < n_tuples; ++t) {
    NM_TRY_VAR(const size_t offset, TupleOffset(run, indices, t * depth, dims.subspan(batch), depth));
    const size_t first = t / tuples_per_batch * per_batch + offset;
    for (size_t i = 0; i < inner; ++i) CopyElem(x, first + i, run.out(), t * inner + i);
  }
  return Ok{};
}

Status RunScatter(OpRun& run) {
  const Array &data = run.Get("data"), &indices = run.Get("indices"), &updates = run.Get("updates");
  Array& out = run.out();
  CopyAll(data, out);
  const std::string mode = run.in.String("mode").value();
  const AxisView view(data.type.dims, run.in.Axis("axis", data.type.dims.size()).value());
  const size_t n = indices.ints.size();
  for (size_t o = 0; o < view.outer; ++o) {
    for (size_t j = 0; j < n; ++j) {
      NM_TRY_VAR(const size_t index, ResolveIndex(run, indices.ints[j], view.n));
      for (size_t i = 0; i < view.inner; ++i) {
        Apply(mode, updates, (o * n + j) * view.inner + i, out, view.Offset(o, i) + index * view.inner);
      }
    }
  }
  return Ok{};
}

Status RunScatterAlongAxis(OpRun& run) {
  const Array &data = run.Get("data"), &indices = run.Get("indices"), &updates = run.Get("updates");
  Array& out = run.out();
  CopyAll(data, out);
  const std::string mode = run.in.String("mode").value();
  const size_t axis = run.in.Axis("axis", data.type.dims.size()).value();
  const AxisView to(data.type.dims, axis), from(indices.type.dims, axis);
  for (size_t flat = 0; flat < indices.ints.size(); ++flat) {
    NM_TRY_VAR(const size_t index, ResolveIndex(run, indices.ints[flat], to.n));
    const size_t outer = flat / (from.n * from.inner), i = flat % from.inner;
    Apply(mode, updates, flat, out, to.Offset(outer, i) + index * to.inner);
  }
  return Ok{};
}

Status RunScatterNd(OpRun& run) {
  const Array &data = run.Get("data"), &indices = run.Get("indices"), &updates = run.Get("updates");
  Array& out = run.out();
  CopyAll(data, out);
  const std::string mode = run.in.String("mode").value();
  const size_t depth = indices.type.dims.back();
  const std::span<const size_t> dims(data.type.dims);
  const size_t inner = ProductOf(dims.subspan(depth));
  for (size_t t = 0; t < indices.ints.size() / depth; ++t) {
    NM_TRY_VAR(const size_t offset, TupleOffset(run, indices, t * depth, dims, depth));
    for (size_t i = 0; i < inner; ++i) Apply(mode, updates, t * inner + i, out, offset + i);
  }
  return Ok{};
}

// Sorted whatever `sort` says; equal elements in ascending order of index.
Status RunSort(OpRun& run) {
  const Array& x = run.Get("x");
  const bool top = run.kind() == OpKind::kTopK;
  const bool ascending = run.in.Bool("ascending").value();
  const size_t axis = run.in.Axis("axis", x.type.dims.size()).value();
  const AxisView from(x.type.dims, axis), to(run.out().type.dims, axis);
  std::vector<size_t> order(from.n);
  for (size_t o = 0; o < from.outer; ++o) {
    for (size_t i = 0; i < from.inner; ++i) {
      const auto at = [&](size_t j) { return from.Offset(o, i) + j * from.inner; };
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return ascending ? NumberAt(x, at(a)) < NumberAt(x, at(b)) : NumberAt(x, at(a)) > NumberAt(x, at(b));
      });
      for (size_t j = 0; j < to.n; ++j) {
        const size_t place = to.Offset(o, i) + j * to.inner;
        if (top) CopyElem(x, at(order[j]), run.out(0), place);
        if (!top) run.out().ints[place] = static_cast<int64_t>(order[j]);
        if (top && run.n_out() > 1) run.out(1).ints[place] = static_cast<int64_t>(order[j]);
      }
    }
  }
  return Ok{};
}

}  // namespace npumoe
