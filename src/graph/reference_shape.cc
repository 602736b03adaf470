// SPDX-License-Identifier: Apache-2.0
// Ops that move elements.
#include <algorithm>

#include "graph/geometry.h"
#include "graph/op_run.h"

namespace npumoe {
namespace {

// Element of x at start + i * step along every axis of the slice, as an offset; body(offset, index in the slice).
template <typename Body>
void ForSlice(const Dims& x, const std::vector<SliceAxis>& axes, const Body& body) {
  Dims counts;
  for (const SliceAxis& axis : axes) counts.push_back(axis.count);
  const Dims strides = StridesOf(x);
  ForEachIndex(counts, [&](size_t flat, std::span<const size_t> at) {
    size_t offset = 0;
    for (size_t i = 0; i < axes.size(); ++i) {
      offset += static_cast<size_t>(axes[i].start + static_cast<int64_t>(at[i]) * axes[i].step) * strides[i];
    }
    body(offset, flat);
  });
}

// Range of slice_by_index and slice_update from arrays, which may be run-time values.
Result<std::vector<SliceAxis>> RangeOf(OpRun& run, const Dims& dims) {
  NM_TRY_VAR(const SliceMasks masks, ReadSliceMasks(run.in, dims.size()));
  return ResolveSlice(run.in, dims, run.Get("begin").ints, run.Get("end").ints, masks);
}

}  // namespace

Status RunCopy(OpRun& run) {
  const Array& x = run.Get("x");
  run.out().floats = x.floats;
  run.out().ints = x.ints;
  return Ok{};
}

Status RunTranspose(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const auto perm = run.in.Axes("perm", x.type.dims.size()).value();
  const Dims own = StridesOf(x.type.dims);
  Dims strides;
  for (const size_t axis : perm) strides.push_back(own[axis]);
  ForEachIndex(out.type.dims,
               [&](size_t flat, std::span<const size_t> at) { CopyElem(x, OffsetOf(at, strides), out, flat); });
  return Ok{};
}

// Element j of input k along the axis lands at (start of k) + j, or at j * n + k when interleaved.
Status RunConcat(OpRun& run) {
  const auto values = run.List("values");
  Array& out = run.out();
  const size_t axis = run.in.Axis("axis", out.type.dims.size()).value();
  const bool interleave = run.in.Bool("interleave").value();
  const AxisView to(out.type.dims, axis);
  size_t start = 0;
  for (size_t k = 0; k < values.size(); ++k) {
    const AxisView from(values[k]->type.dims, axis);
    for (size_t o = 0; o < from.outer; ++o) {
      for (size_t j = 0; j < from.n; ++j) {
        const size_t place = interleave ? j * values.size() + k : start + j;
        for (size_t i = 0; i < from.inner; ++i) {
          CopyElem(*values[k], from.Offset(o, i) + j * from.inner, out, to.Offset(o, i) + place * to.inner);
        }
      }
    }
    start += from.n;
  }
  return Ok{};
}

Status RunStack(OpRun& run) {
  const auto values = run.List("values");
  Array& out = run.out();
  const AxisView to(out.type.dims, run.in.Axis("axis", out.type.dims.size()).value());
  for (size_t k = 0; k < values.size(); ++k) {
    for (size_t o = 0; o < to.outer; ++o) {
      for (size_t i = 0; i < to.inner; ++i) {
        CopyElem(*values[k], o * to.inner + i, out, to.Offset(o, i) + k * to.inner);
      }
    }
  }
  return Ok{};
}

Status RunSplit(OpRun& run) {
  const Array& x = run.Get("x");
  const size_t axis = run.in.Axis("axis", x.type.dims.size()).value();
  const AxisView from(x.type.dims, axis);
  size_t start = 0;
  for (size_t k = 0; k < run.n_out(); ++k) {
    Array& out = run.out(k);
    const AxisView to(out.type.dims, axis);
    for (size_t o = 0; o < to.outer; ++o) {
      for (size_t j = 0; j < to.n; ++j) {
        for (size_t i = 0; i < to.inner; ++i) {
          CopyElem(x, from.Offset(o, i) + (start + j) * from.inner, out, to.Offset(o, i) + j * to.inner);
        }
      }
    }
    start += to.n;
  }
  return Ok{};
}

Status RunSliceByIndex(OpRun& run) {
  const Array& x = run.Get("x");
  NM_TRY_VAR(const auto axes, RangeOf(run, x.type.dims));
  ForSlice(x.type.dims, axes, [&](size_t offset, size_t flat) { CopyElem(x, offset, run.out(), flat); });
  return Ok{};
}

Status RunSliceBySize(OpRun& run) {
  const Array& x = run.Get("x");
  const Array& begin = run.Get("begin");
  std::vector<SliceAxis> axes;
  for (size_t axis = 0; axis < x.type.dims.size(); ++axis) {
    const size_t count = run.out().type.dims[axis];
    if (begin.ints[axis] < 0 ||
        begin.ints[axis] + static_cast<int64_t>(count) > static_cast<int64_t>(x.type.dims[axis])) {
      return run.in.Fail(
          "begin", fmt::format("axis {}: {} elements from {} of {}", axis, count, begin.ints[axis], x.type.dims[axis]));
    }
    axes.push_back({begin.ints[axis], 1, count, false});
  }
  ForSlice(x.type.dims, axes, [&](size_t offset, size_t flat) { CopyElem(x, offset, run.out(), flat); });
  return Ok{};
}

Status RunSliceUpdate(OpRun& run) {
  const Array &x = run.Get("x"), &update = run.Get("update");
  NM_TRY_VAR(const auto axes, RangeOf(run, x.type.dims));
  if (update.type.dims != SliceDims(axes)) {
    return run.in.Fail("update", fmt::format("wanted the shape [{}] of the range, got {}",
                                             fmt::join(SliceDims(axes), ", "), update.type.ToString()));
  }
  NM_TRY(RunCopy(run));
  ForSlice(x.type.dims, axes, [&](size_t offset, size_t flat) { CopyElem(update, flat, run.out(), offset); });
  return Ok{};
}

Status RunTile(OpRun& run) {
  const Array& x = run.Get("x");
  const Dims strides = StridesOf(x.type.dims);
  ForEachIndex(run.out().type.dims, [&](size_t flat, std::span<const size_t> at) {
    size_t offset = 0;
    for (size_t axis = 0; axis < at.size(); ++axis) offset += at[axis] % x.type.dims[axis] * strides[axis];
    CopyElem(x, offset, run.out(), flat);
  });
  return Ok{};
}

Status RunPad(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const auto pad = ReadPad(run.in, x.type.dims).value();
  const std::string mode = run.in.String("mode").value();
  const float fill = run.Get("constant_val").floats[0];
  const Dims strides = StridesOf(x.type.dims);
  ForEachIndex(out.type.dims, [&](size_t flat, std::span<const size_t> at) {
    size_t offset = 0;
    bool inside = true;
    for (size_t axis = 0; axis < at.size(); ++axis) {
      const auto n = static_cast<int64_t>(x.type.dims[axis]);
      int64_t i = static_cast<int64_t>(at[axis]) - static_cast<int64_t>(pad[axis].before);
      inside = inside && i >= 0 && i < n;
      if (mode == "reflect") i = i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
      offset += static_cast<size_t>(std::clamp<int64_t>(i, 0, n - 1)) * strides[axis];
    }
    out.floats[flat] = inside || mode != "constant" ? x.floats[offset] : fill;
  });
  return Ok{};
}

Status RunFill(OpRun& run) {
  for (size_t i = 0; i < run.out().type.elems(); ++i) CopyElem(run.Get("value"), 0, run.out(), i);
  return Ok{};
}

Status RunBandPart(OpRun& run) {
  const Array& x = run.Get("x");
  Array& out = run.out();
  const int64_t lower = run.in.Int("lower").value(), upper = run.in.Int("upper").value();
  const size_t rank = x.type.dims.size();
  ForEachIndex(x.type.dims, [&](size_t flat, std::span<const size_t> at) {
    const int64_t below = static_cast<int64_t>(at[rank - 2]) - static_cast<int64_t>(at[rank - 1]);
    if ((lower < 0 || below <= lower) && (upper < 0 || -below <= upper)) CopyElem(x, flat, out, flat);
  });
  return Ok{};
}

}  // namespace npumoe
