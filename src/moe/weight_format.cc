// SPDX-License-Identifier: Apache-2.0
#include "moe/weight_format.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/half.h"
#include "kernels/strip.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

// Appended to, so that no byte is written twice.
template <typename T>
void Append(std::vector<std::byte>& bytes, std::span<const T> values) {
  const auto added = std::as_bytes(values);
  bytes.insert(bytes.end(), added.begin(), added.end());
}

// Calls body(values) for every row of the stacked weight in the order of its outputs, heads reordered.
template <typename Body>
void ForRows(std::span<const TensorView> parts, std::span<const uint32_t> head_order, float divisor, const Body& body) {
  std::vector<float> values(parts[0].shape[1]);
  const size_t head = std::max<size_t>(1, head_order.size());
  std::vector<size_t> from(head, 0);  // row of a head by its place in the order
  for (size_t i = 0; i < head_order.size(); ++i) from[head_order[i]] = i;
  for (const TensorView& part : parts) {
    NM_CHECK(part.shape[0] % head == 0);
    for (size_t row = 0; row < part.shape[0]; ++row) {
      DecodeRow(part.dtype, part.Slice(row - row % head + from[row % head]).data, values.size(), values.data());
      if (divisor != 1.0f) {
        for (float& v : values) v /= divisor;
      }
      body(std::span<const float>(values));
    }
  }
}

void AddFp16(GraphBuilder& builder, std::span<const TensorView> parts, std::span<const uint32_t> head_order,
             float divisor, WeightConstant& weight) {
  std::vector<std::byte> data;
  data.reserve(weight.out * weight.in * sizeof(uint16_t));
  std::vector<uint16_t> halves(weight.in);
  ForRows(parts, head_order, divisor, [&](std::span<const float> values) {
    FloatsToHalves(values, halves.data());
    Append<uint16_t>(data, halves);
  });
  weight.data = builder.AddConstant({ElemType::kF16, {weight.out, weight.in, 1, 1}}, std::move(data));
}

// Symmetric, one scale per output channel: q = round(w / scale), scale = max|w| / 127.
void AddInt8(GraphBuilder& builder, std::span<const TensorView> parts, std::span<const uint32_t> head_order,
             float divisor, WeightConstant& weight) {
  std::vector<std::byte> data, scales;
  data.reserve(weight.out * weight.in);
  std::vector<int8_t> bytes(weight.in);
  ForRows(parts, head_order, divisor, [&](std::span<const float> values) {
    // The stored scale is what the graph multiplies by, so the division uses it too.
    const uint16_t half = F32ToF16(MaxMagnitude(values) / 127.0f);
    const float scale = F16ToF32(half);
    Append<uint16_t>(scales, std::span(&half, 1));
    if (scale > 0) {
      FloatsToBytes(values, scale, bytes.data());
    } else {
      std::fill(bytes.begin(), bytes.end(), int8_t{0});
    }
    Append<int8_t>(data, bytes);
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
