// SPDX-License-Identifier: Apache-2.0
// Decoding of stored weights.
#include "graph/op_run.h"
#include "graph/palette.h"

namespace npumoe {
namespace {

// Field `index` of a stream of `bits`-wide fields in bytes, least significant bit first.
size_t FieldAt(const Array& bytes, size_t index, size_t bits) {
  size_t value = 0;
  for (size_t bit = 0; bit < bits; ++bit) {
    const size_t at = index * bits + bit;
    value |= static_cast<size_t>(bytes.ints[at / 8] >> (at % 8) & 1) << bit;
  }
  return value;
}

// Difference and product in f32, as scale is a float of at most that precision.
float ShiftScale(double q, double offset, float scale) { return scale * static_cast<float>(q - offset); }

}  // namespace

Status RunAffineDequantize(OpRun& run) {
  const Array &data = run.Get("quantized_data"), &scale = run.Get("scale"), &zero = run.Get("zero_point");
  const AxisView view(data.type.dims, run.in.Axis("axis", data.type.dims.size()).value());
  for (size_t i = 0; i < data.ints.size(); ++i) {
    const size_t channel = i / view.inner % view.n;
    const double offset = NumberAt(zero, zero.type.dims.empty() ? 0 : channel);
    run.out().floats[i] = ShiftScale(NumberAt(data, i), offset, scale.floats[scale.type.dims.empty() ? 0 : channel]);
  }
  return Ok{};
}

// Element `at` of the result is value at[axis] % width of the table entry that the index of its place names; the table
// is the one of the block that the place lies in.
Status RunLutToDense(OpRun& run) {
  const Array &indices = run.Get("indices"), &lut = run.Get("lut");
  const Palette palette = ReadPalette(run.in).value();
  const Dims index_strides = StridesOf(palette.indices), group_strides = StridesOf(palette.groups);
  const size_t entries = size_t{1} << palette.bits;
  ForEachIndex(run.out().type.dims, [&](size_t flat, std::span<const size_t> at) {
    size_t place = 0, table = 0, lane = 0;
    for (size_t axis = 0; axis < at.size(); ++axis) {
      size_t i = at[axis];
      if (palette.width > 1 && axis == palette.axis) {
        lane = i % palette.width;
        i /= palette.width;
      }
      place += i * index_strides[axis];
      table += i / (palette.indices[axis] / palette.groups[axis]) * group_strides[axis];
    }
    const size_t index =
        palette.packed ? FieldAt(indices, place, palette.bits) : static_cast<size_t>(indices.ints[place]);
    CopyElem(lut, (table * entries + index) * palette.width + lane, run.out(), flat);
  });
  return Ok{};
}

Status RunSparseToDense(OpRun& run) {
  const Array &data = run.Get("nonzero_data"), &mask = run.Get("mask");
  const bool packed = run.Find("shape") != nullptr;
  size_t taken = 0;
  for (size_t i = 0; i < run.out().type.elems(); ++i) {
    if ((packed ? FieldAt(mask, i, 1) : static_cast<size_t>(mask.ints[i])) == 0) continue;
    if (taken == data.type.elems()) {
      return run.in.Fail("nonzero_data", fmt::format("has {} values, the mask has more ones", taken));
    }
    CopyElem(data, taken++, run.out(), i);
  }
  if (taken != data.type.elems()) {
    return run.in.Fail("nonzero_data", fmt::format("has {} values, the mask has {} ones", data.type.elems(), taken));
  }
  return Ok{};
}

Status RunConstexprCast(OpRun& run) {
  run.out().floats = run.Get("source_val").floats;
  return Ok{};
}

Status RunBlockwiseShiftScale(OpRun& run) {
  const Array &data = run.Get("data"), &scale = run.Get("scale");
  const Array* offset = run.Find("offset");
  const Dims strides = StridesOf(scale.type.dims);
  ForEachIndex(data.type.dims, [&](size_t flat, std::span<const size_t> at) {
    size_t block = 0;
    for (size_t axis = 0; axis < at.size(); ++axis) {
      block += at[axis] / (data.type.dims[axis] / scale.type.dims[axis]) * strides[axis];
    }
    const double shift = offset == nullptr ? 0 : NumberAt(*offset, block);
    run.out().floats[flat] = ShiftScale(NumberAt(data, flat), shift, scale.floats[block]);
  });
  return Ok{};
}

}  // namespace npumoe
