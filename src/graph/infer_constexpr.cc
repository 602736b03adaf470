// SPDX-License-Identifier: Apache-2.0
// Types of ops that decode weights before the graph runs. Each exists in the form of CoreML6 and 7, whose parameters
// are attributes in a package, and of CoreML8, whose parameters are inputs; here both are operands.
#include <algorithm>
#include <limits>

#include "graph/infer.h"
#include "graph/palette.h"

namespace npumoe {
namespace {

// A parameter that holds plain data: a constant, or the result of another decoding op.
Result<const ValueType*> Data(OpReader& in, std::string_view param) {
  NM_TRY_VAR(const ValueType* type, in.Type(param));
  NM_TRY(in.CheckCompileTime(param));
  return type;
}

// The `shape` vector of the CoreML6 forms.
Result<Dims> ReadShape(OpReader& in) {
  NM_TRY_VAR(const auto shape, in.Ints("shape"));
  ValueType type{ElemType::kU8, {}};
  for (const int64_t dim : shape) type.dims.push_back(static_cast<size_t>(std::max<int64_t>(dim, 0)));
  const Status status = CheckType(type, kMaxGraphRank, "decoded tensor");
  if (!status.ok()) return in.Fail("shape", status.error().message);
  return type.dims;
}

// Packed fields fill exactly the bytes they need.
Status CheckPackedBytes(OpReader& in, std::string_view param, const ValueType& packed, size_t elems, size_t bits) {
  const size_t wanted = (elems * bits + 7) / 8;
  if (packed != ValueType{ElemType::kU8, {wanted}}) {
    return in.Fail(param, fmt::format("wanted uint8[{}] for {} fields of {} bits, got {}", wanted, elems, bits,
                                      packed.ToString()));
  }
  return Ok{};
}

Result<size_t> BitsOfTable(OpReader& in, size_t entries) {
  for (const size_t bits : {1, 2, 4, 6, 8}) {
    if (entries == size_t{1} << bits) return bits;
  }
  return in.Fail("lut", fmt::format("has {} entries, wanted 2, 4, 16, 64 or 256", entries));
}

// Tables per block of the CoreML8 forms. `indices`: element type of an index and shape of the dense tensor of indices.
Result<Palette> ReadTables(OpReader& in, std::string_view param, const ValueType& indices, const ValueType& lut) {
  Palette palette;
  palette.indices = indices.dims;
  palette.elem = lut.elem;
  const size_t rank = indices.dims.size();
  const ElemType elem = indices.elem;
  const bool index_type = IsInt(elem) && BitsOf(elem) <= 8 && elem != ElemType::kI8 && elem != ElemType::kI4;
  if (!index_type || rank == 0) {
    return in.Fail(param, fmt::format("wanted a tensor of uint1 to uint8, got {}", indices.ToString()));
  }
  palette.bits = BitsOf(elem);
  if (lut.dims.size() != rank + 2 || lut.dims[rank] != size_t{1} << palette.bits) {
    return in.Fail("lut", fmt::format("wanted rank {} with {} entries, got {}", rank + 2, size_t{1} << palette.bits,
                                      lut.ToString()));
  }
  palette.width = lut.dims[rank + 1];
  palette.groups.assign(lut.dims.begin(), lut.dims.begin() + static_cast<ptrdiff_t>(rank));
  for (size_t axis = 0; axis < rank; ++axis) {
    if (palette.groups[axis] == 0 || palette.indices[axis] % palette.groups[axis] != 0) {
      return in.Fail("lut", fmt::format("{} tables along axis {} of {} indices", palette.groups[axis], axis,
                                        palette.indices[axis]));
    }
  }
  if (palette.width > 1 || in.Has("vector_axis")) {
    NM_TRY_VAR(palette.axis, in.Axis("vector_axis", rank));
  }
  return palette;
}

Status CheckTableType(OpReader& in, const ValueType& lut) {
  if (IsFloat(lut.elem) || IsByte(lut.elem)) return Ok{};
  return in.Fail("lut", fmt::format("wanted floats or bytes, got {}", lut.ToString()));
}

// The bits that say which elements of a sparse tensor are stored, in the CoreML8 form.
Result<const ValueType*> Mask(OpReader& in, std::string_view param) {
  NM_TRY_VAR(const ValueType* mask, Data(in, param));
  if (mask->elem != ElemType::kU1 || mask->dims.empty()) {
    return in.Fail(param, fmt::format("wanted a tensor of uint1, got {}", mask->ToString()));
  }
  return mask;
}

Result<Palette> ReadPackedPalette(OpReader& in, const ValueType& indices, const ValueType& lut) {
  Palette palette;
  NM_TRY_VAR(palette.indices, ReadShape(in));
  if (lut.dims.size() != 1) return in.Fail("lut", fmt::format("wanted a vector, got {}", lut.ToString()));
  NM_TRY_VAR(palette.bits, BitsOfTable(in, lut.dims[0]));
  NM_TRY(CheckPackedBytes(in, "indices", indices, ProductOf(palette.indices), palette.bits));
  palette.groups.assign(palette.indices.size(), 1);
  palette.packed = true;
  palette.elem = lut.elem;
  return palette;
}

}  // namespace

Dims Palette::dims() const {
  Dims out = indices;
  if (width > 1) out[axis] *= width;
  return out;
}

Result<Palette> ReadPalette(OpReader& in) {
  NM_TRY_VAR(const ValueType* indices, Data(in, "indices"));
  NM_TRY_VAR(const ValueType* lut, Data(in, "lut"));
  NM_TRY(CheckTableType(in, *lut));
  if (in.Has("shape")) return ReadPackedPalette(in, *indices, *lut);
  return ReadTables(in, "indices", *indices, *lut);
}

Result<Palette> ReadSparsePalette(OpReader& in) {
  NM_TRY_VAR(const ValueType* mask, Mask(in, "indices_mask"));
  NM_TRY_VAR(const ValueType* data, Data(in, "indices_nonzero_data"));
  NM_TRY_VAR(const ValueType* lut, Data(in, "lut"));
  if (data->dims.size() != 1) {
    return in.Fail("indices_nonzero_data", fmt::format("wanted a vector, got {}", data->ToString()));
  }
  NM_TRY(CheckTableType(in, *lut));
  return ReadTables(in, "indices_nonzero_data", {data->elem, mask->dims}, *lut);
}

Result<Types> InferLutToSparse(OpReader& in) {
  NM_TRY_VAR(const Palette palette, ReadSparsePalette(in));
  NM_TRY_VAR(const ValueType* data, in.Type("indices_nonzero_data"));
  return Types{{ElemType::kU1, palette.dims()}, {palette.elem, {data->dims[0] * palette.width}}};
}

Result<Types> InferLutToDense(OpReader& in) {
  NM_TRY_VAR(const Palette palette, ReadPalette(in));
  return Types{{palette.elem, palette.dims()}};
}

Result<Types> InferAffineDequantize(OpReader& in) {
  NM_TRY_VAR(const ValueType* data, Data(in, "quantized_data"));
  NM_TRY_VAR(const ValueType* scale, Data(in, "scale"));
  NM_TRY_VAR(const ValueType* zero, Data(in, "zero_point"));
  if (!IsByte(data->elem))
    return in.Fail("quantized_data", fmt::format("wanted int8 or uint8, got {}", data->ToString()));
  if (!IsFloat(scale->elem)) return in.Fail("scale", fmt::format("wanted fp16 or fp32, got {}", scale->ToString()));
  if (!IsByte(zero->elem) && zero->elem != ElemType::kF32) {
    return in.Fail("zero_point", fmt::format("wanted int8, uint8 or fp32, got {}", zero->ToString()));
  }
  NM_TRY_VAR(const size_t axis, in.Axis("axis", data->dims.size()));
  for (const std::string_view param : {"scale", "zero_point"}) {
    NM_TRY_VAR(const ValueType* type, in.Type(param));
    if (!type->dims.empty() && type->dims != Dims{data->dims[axis]}) {
      return in.Fail(param, fmt::format("wanted a scalar or {} values for axis {}, got {}", data->dims[axis], axis,
                                        type->ToString()));
    }
  }
  return Types{{scale->elem, data->dims}};
}

Result<Types> InferSparseToDense(OpReader& in) {
  NM_TRY_VAR(const ValueType* data, Data(in, "nonzero_data"));
  NM_TRY_VAR(const ValueType* mask, Data(in, "mask"));
  if (data->dims.size() != 1 || data->elem == ElemType::kString) {
    return in.Fail("nonzero_data", fmt::format("wanted a vector, got {}", data->ToString()));
  }
  if (in.Has("shape")) {
    NM_TRY_VAR(const Dims dims, ReadShape(in));
    NM_TRY(CheckPackedBytes(in, "mask", *mask, ProductOf(dims), 1));
    return Types{{data->elem, dims}};
  }
  NM_TRY(Mask(in, "mask"));
  return Types{{data->elem, mask->dims}};
}

Result<Types> InferConstexprCast(OpReader& in) {
  NM_TRY_VAR(const ValueType* source, Data(in, "source_val"));
  NM_TRY_VAR(const auto name, in.String("output_dtype"));
  if (source->elem != ElemType::kF16)
    return in.Fail("source_val", fmt::format("wanted fp16, got {}", source->ToString()));
  if (name != "fp32") return in.Fail("output_dtype", fmt::format("'{}', wanted fp32", name));
  return Types{{ElemType::kF32, source->dims}};
}

namespace {

// Scale and offset of a tensor of type `data`, which the parameter `param` holds.
Result<const ValueType*> ReadBlockScale(OpReader& in, std::string_view param, const ValueType& data) {
  NM_TRY_VAR(const ValueType* scale, Data(in, "scale"));
  const ElemType elem = data.elem;
  if (!IsFloat(elem) && !IsByte(elem) && elem != ElemType::kI4 && elem != ElemType::kU4) {
    return in.Fail(param, fmt::format("wanted int4, uint4, int8, uint8 or a float, got {}", data.ToString()));
  }
  if (!IsFloat(scale->elem)) return in.Fail("scale", fmt::format("wanted fp16 or fp32, got {}", scale->ToString()));
  if (scale->dims.size() != data.dims.size() || data.dims.empty()) {
    return in.Fail("scale", fmt::format("rank {}, wanted {} and above 0", scale->dims.size(), data.dims.size()));
  }
  for (size_t axis = 0; axis < data.dims.size(); ++axis) {
    if (scale->dims[axis] == 0 || data.dims[axis] % scale->dims[axis] != 0) {
      return in.Fail("scale", fmt::format("{} blocks along axis {} of {}", scale->dims[axis], axis, data.dims[axis]));
    }
  }
  if (in.Has("offset")) {
    NM_TRY_VAR(const ValueType* offset, Data(in, "offset"));
    if (offset->dims != scale->dims || (offset->elem != elem && !IsFloat(offset->elem))) {
      return in.Fail("offset", fmt::format("wanted {} or a float in the shape of scale {}, got {}", ToString(elem),
                                           scale->ToString(), offset->ToString()));
    }
  }
  return scale;
}

}  // namespace

Result<Types> InferBlockwiseShiftScale(OpReader& in) {
  NM_TRY_VAR(const ValueType* data, Data(in, "data"));
  NM_TRY_VAR(const ValueType* scale, ReadBlockScale(in, "data", *data));
  return Types{{scale->elem, data->dims}};
}

Result<Types> InferSparseBlockwiseShiftScale(OpReader& in) {
  NM_TRY_VAR(const ValueType* mask, Mask(in, "data_mask"));
  NM_TRY_VAR(const ValueType* data, Data(in, "nonzero_data"));
  if (data->dims.size() != 1) {
    return in.Fail("nonzero_data", fmt::format("wanted a vector, got {}", data->ToString()));
  }
  NM_TRY_VAR(const ValueType* scale, ReadBlockScale(in, "nonzero_data", {data->elem, mask->dims}));
  return Types{*mask, {scale->elem, data->dims}};
}

}  // namespace npumoe
