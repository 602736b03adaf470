// SPDX-License-Identifier: Apache-2.0
#include "moe/weight_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

// Row `row` of the stacked weight as f32.
void ReadRow(const TensorView& part, size_t row, std::span<float> out) {
  DequantizeRow(part.dtype, part.Slice(row).data, out);
}

template <typename T>
void StoreAt(std::vector<std::byte>& bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

// Calls body(output row, values) for every row of the stacked weight, heads reordered.
template <typename Body>
void ForRows(std::span<const TensorView> parts, std::span<const uint32_t> head_order, float divisor, const Body& body) {
  std::vector<float> values(parts[0].shape[1]);
  size_t first = 0;
  for (const TensorView& part : parts) {
    for (size_t row = 0; row < part.shape[0]; ++row) {
      ReadRow(part, row, values);
      if (divisor != 1.0f) {
        for (float& v : values) v /= divisor;
      }
      size_t target = row;
      if (!head_order.empty())
        target = row / head_order.size() * head_order.size() + head_order[row % head_order.size()];
      body(first + target, std::span<const float>(values));
    }
    first += part.shape[0];
  }
}

void AddFp16(GraphBuilder& builder, std::span<const TensorView> parts, std::span<const uint32_t> head_order,
             float divisor, WeightConstant& weight) {
  std::vector<std::byte> data(weight.out * weight.in * sizeof(uint16_t));
  ForRows(parts, head_order, divisor, [&](size_t row, std::span<const float> values) {
    for (size_t i = 0; i < values.size(); ++i) StoreAt(data, row * weight.in + i, F32ToF16(values[i]));
  });
  weight.data = builder.AddConstant({ElemType::kF16, {weight.out, weight.in, 1, 1}}, std::move(data));
}

// Symmetric, one scale per output channel: q = round(w / scale), scale = max|w| / 127.
void AddInt8(GraphBuilder& builder, std::span<const TensorView> parts, std::span<const uint32_t> head_order,
             float divisor, WeightConstant& weight) {
  std::vector<std::byte> data(weight.out * weight.in), scales(weight.out * sizeof(uint16_t));
  ForRows(parts, head_order, divisor, [&](size_t row, std::span<const float> values) {
    float top = 0;
    for (const float v : values) top = std::max(top, std::fabs(v));
    // The stored scale is what the graph multiplies by, so the division uses it too.
    const uint16_t half = F32ToF16(top / 127.0f);
    const float scale = F16ToF32(half);
    StoreAt(scales, row, half);
    for (size_t i = 0; i < values.size(); ++i) {
      const float q = scale > 0 ? std::nearbyint(values[i] / scale) : 0.0f;
      StoreAt(data, row * weight.in + i, static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f)));
    }
  });
  weight.data = builder.AddConstant({ElemType::kI8, {weight.out, weight.in, 1, 1}}, std::move(data));
  weight.scale = builder.AddConstant({ElemType::kF16, {weight.out}}, std::move(scales));
}

}  // namespace

WeightConstant AddWeight(GraphBuilder& builder, std::span<const TensorView> parts, WeightFormat format,
                         std::span<const uint32_t> head_order, float divisor) {
  NM_CHECK(!parts.empty());
  WeightConstant weight;
  weight.format = format;
  weight.in = parts[0].shape[1];
  for (const TensorView& part : parts) {
    NM_CHECK(part.shape.rank == 2 && part.shape[1] == weight.in);
    weight.out += part.shape[0];
  }
  if (format == WeightFormat::kInt8)
    AddInt8(builder, parts, head_order, divisor, weight);
  else
    AddFp16(builder, parts, head_order, divisor, weight);
  return weight;
}

ValueId UseWeight(GraphBuilder& builder, const WeightConstant& weight) {
  const ValueId data = builder.UseConstant(weight.data, "weight");
  if (weight.format != WeightFormat::kInt8) return data;
  return builder.Add(
      OpKind::kConstexprAffineDequantize,
      {{"quantized_data", {data}},
       {"zero_point", {builder.UseConstant(builder.AddConstant({ElemType::kI8, {}}, {std::byte{0}}), "zero_point")}},
       {"scale", {builder.UseConstant(weight.scale, "scale")}},
       {"axis", {builder.Int(0)}}})[0];
}

size_t WeightBytes(WeightFormat format, size_t out, size_t in) {
  return format == WeightFormat::kInt8 ? out * in + out * sizeof(uint16_t) : out * in * sizeof(uint16_t);
}

}  // namespace npumoe
