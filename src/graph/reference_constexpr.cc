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

// Calls body(flat index of the result, place of its index, element of the table but for that index) for every element:
// value at[axis] % width of an entry of the table of the block that the place lies in.
template <typename Body>
void ForPalette(const Palette& palette, const Body& body) {
  const Dims index_strides = StridesOf(palette.indices), group_strides = StridesOf(palette.groups);
  const size_t entries = size_t{1} << palette.bits;
  ForEachIndex(palette.dims(), [&](size_t flat, std::span<const size_t> at) {
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
    body(flat, place, table * entries * palette.width + lane);
  });
}

Status RunLutToDense(OpRun& run) {
  const Array &indices = run.Get("indices"), &lut = run.Get("lut");
  const Palette palette = ReadPalette(run.in).value();
  ForPalette(palette, [&](size_t flat, size_t place, size_t first) {
    const size_t index =
        palette.packed ? FieldAt(indices, place, palette.bits) : static_cast<size_t>(indices.ints[place]);
    CopyElem(lut, first + index * palette.width, run.out(), flat);
  });
  return Ok{};
}

// Position of every stored element of a sparse tensor in the vector that holds them; fails when mask and vector differ.
Result<std::vector<size_t>> RanksOf(OpRun& run, const Array& mask, std::string_view param, size_t stored) {
  std::vector<size_t> ranks(mask.ints.size());
  size_t n = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i] = n;
    n += mask.ints[i] != 0 ? 1 : 0;
  }
  if (n != stored) return run.in.Fail(param, fmt::format("has {} values, the mask has {} ones", stored, n));
  return ranks;
}

Status RunLutToSparse(OpRun& run) {
  const Array &mask = run.Get("indices_mask"), &data = run.Get("indices_nonzero_data"), &lut = run.Get("lut");
  const Palette palette = ReadSparsePalette(run.in).value();
  NM_TRY_VAR(const auto ranks, RanksOf(run, mask, "indices_nonzero_data", data.ints.size()));
  size_t taken = 0;
  ForPalette(palette, [&](size_t flat, size_t place, size_t first) {
    run.out(0).ints[flat] = mask.ints[place];
    if (mask.ints[place] == 0) return;
    const auto index = static_cast<size_t>(data.ints[ranks[place]]);
    CopyElem(lut, first + index * palette.width, run.out(1), taken++);
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

// Calls body(flat index, block) for every element of a tensor whose scales have the shape `blocks`.
template <typename Body>
void ForBlocks(const Dims& dims, const Dims& blocks, const Body& body) {
  const Dims strides = StridesOf(blocks);
  ForEachIndex(dims, [&](size_t flat, std::span<const size_t> at) {
    size_t block = 0;
    for (size_t axis = 0; axis < at.size(); ++axis) block += at[axis] / (dims[axis] / blocks[axis]) * strides[axis];
    body(flat, block);
  });
}

Status RunBlockwiseShiftScale(OpRun& run) {
  const Array &data = run.Get("data"), &scale = run.Get("scale");
  const Array* offset = run.Find("offset");
  ForBlocks(data.type.dims, scale.type.dims, [&](size_t flat, size_t block) {
    const double shift = offset == nullptr ? 0 : NumberAt(*offset, block);
    run.out().floats[flat] = ShiftScale(NumberAt(data, flat), shift, scale.floats[block]);
  });
  return Ok{};
}

Status RunSparseBlockwiseShiftScale(OpRun& run) {
  const Array &mask = run.Get("data_mask"), &data = run.Get("nonzero_data"), &scale = run.Get("scale");
  const Array* offset = run.Find("offset");
  NM_TRY_VAR(const auto ranks, RanksOf(run, mask, "nonzero_data", data.type.elems()));
  run.out(0).ints = mask.ints;
  ForBlocks(mask.type.dims, scale.type.dims, [&](size_t flat, size_t block) {
    if (mask.ints[flat] == 0) return;
    const double shift = offset == nullptr ? 0 : NumberAt(*offset, block);
    run.out(1).floats[ranks[flat]] = ShiftScale(NumberAt(data, ranks[flat]), shift, scale.floats[block]);
  });
  return Ok{};
}

}  // namespace npumoe
