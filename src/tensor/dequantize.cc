// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "base/check.h"
#include "tensor/block_codecs.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

// Every product and sum below is one f32 operation in a fixed order (the build turns contraction off), because the
// results are compared bit for bit with the reference implementation of the formats.
namespace npumoe {
namespace {

// Splits the nibbles of a 32-element block into elements 0..15 (low) and 16..31 (high).
template <typename Value>
void ReadNibbles(const uint8_t* qs,  // [16]
                 float* out,         // [32]
                 Value value) {
  for (size_t i = 0; i < 16; ++i) {
    out[i] = value(qs[i] & 15, i);
    out[i + 16] = value(qs[i] >> 4, i + 16);
  }
}

uint32_t HighBits(const uint8_t* qh) {  // [4]
  uint32_t bits;
  std::memcpy(&bits, qh, sizeof(bits));
  return bits;
}

template <typename Block>
void DequantizeBlocks(const std::byte* row, std::span<float> out, size_t block_elems) {
  NM_DCHECK(out.size() % block_elems == 0);
  const auto* blocks = reinterpret_cast<const Block*>(row);  // packed: any address will do
  for (size_t b = 0; b < out.size() / block_elems; ++b) DequantizeBlock(blocks[b], out.data() + b * block_elems);
}

template <typename Convert>
void ConvertHalves(const std::byte* row, std::span<float> out, Convert convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, row + i * sizeof(half), sizeof(half));
    out[i] = convert(half);
  }
}

}  // namespace

void DequantizeBlock(const BlockQ8_0& block, float* out) {
  const float d = F16ToF32(block.d);
  for (size_t i = 0; i < 32; ++i) out[i] = static_cast<float>(block.qs[i]) * d;
}

void DequantizeBlock(const BlockQ4_0& block, float* out) {
  const float d = F16ToF32(block.d);
  ReadNibbles(block.qs, out, [d](int q, size_t) { return static_cast<float>(q - 8) * d; });
}

void DequantizeBlock(const BlockQ4_1& block, float* out) {
  const float d = F16ToF32(block.d);
  const float m = F16ToF32(block.m);
  ReadNibbles(block.qs, out, [d, m](int q, size_t) { return static_cast<float>(q) * d + m; });
}

void DequantizeBlock(const BlockQ5_0& block, float* out) {
  const float d = F16ToF32(block.d);
  const uint32_t high = HighBits(block.qh);
  ReadNibbles(block.qs, out, [d, high](int q, size_t i) {
    return static_cast<float>((q | static_cast<int>(high >> i & 1) << 4) - 16) * d;
  });
}

void DequantizeBlock(const BlockQ5_1& block, float* out) {
  const float d = F16ToF32(block.d);
  const float m = F16ToF32(block.m);
  const uint32_t high = HighBits(block.qh);
  ReadNibbles(block.qs, out, [d, m, high](int q, size_t i) {
    return static_cast<float>(q | static_cast<int>(high >> i & 1) << 4) * d + m;
  });
}

void DequantizeBlock(const BlockIQ4NL& block, float* out) {
  const float d = F16ToF32(block.d);
  ReadNibbles(block.qs, out, [d](int q, size_t) { return d * static_cast<float>(kIq4Values[static_cast<size_t>(q)]); });
}

void DequantizeBlock(const BlockMXFP4& block, float* out) {
  const float d = Mxfp4Scale(block.e);
  ReadNibbles(block.qs, out,
              [d](int q, size_t) { return static_cast<float>(kMxfp4Values[static_cast<size_t>(q)]) * d; });
}

void DequantizeRow(DType dtype, const std::byte* row, std::span<float> out) {
  switch (dtype) {
    case DType::kF32:
      if (!out.empty()) std::memcpy(out.data(), row, out.size_bytes());
      return;
    case DType::kF16:
      return ConvertHalves(row, out, F16ToF32);
    case DType::kBF16:
      return ConvertHalves(row, out, BF16ToF32);
    case DType::kQ8_0:
      return DequantizeBlocks<BlockQ8_0>(row, out, kBlockElems);
    case DType::kQ4_0:
      return DequantizeBlocks<BlockQ4_0>(row, out, kBlockElems);
    case DType::kQ4_1:
      return DequantizeBlocks<BlockQ4_1>(row, out, kBlockElems);
    case DType::kQ5_0:
      return DequantizeBlocks<BlockQ5_0>(row, out, kBlockElems);
    case DType::kQ5_1:
      return DequantizeBlocks<BlockQ5_1>(row, out, kBlockElems);
    case DType::kQ2_K:
      return DequantizeBlocks<BlockQ2K>(row, out, kSuperElems);
    case DType::kQ3_K:
      return DequantizeBlocks<BlockQ3K>(row, out, kSuperElems);
    case DType::kQ4_K:
      return DequantizeBlocks<BlockQ4K>(row, out, kSuperElems);
    case DType::kQ5_K:
      return DequantizeBlocks<BlockQ5K>(row, out, kSuperElems);
    case DType::kQ6_K:
      return DequantizeBlocks<BlockQ6K>(row, out, kSuperElems);
    case DType::kIQ4_NL:
      return DequantizeBlocks<BlockIQ4NL>(row, out, kBlockElems);
    case DType::kIQ4_XS:
      return DequantizeBlocks<BlockIQ4XS>(row, out, kSuperElems);
    case DType::kMXFP4:
      return DequantizeBlocks<BlockMXFP4>(row, out, kBlockElems);
  }
}

}  // namespace npumoe
