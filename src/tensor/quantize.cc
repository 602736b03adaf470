// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantize.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "tensor/block_codecs.h"
#include "tensor/block_fit.h"
#include "tensor/float16.h"

// In every encoder the scale is fitted first and rounded to its stored f16; the codes are then chosen for the stored
// scale, so that its rounding costs next to nothing.
namespace npumoe {
namespace {

void PackNibbles(const uint8_t* codes,  // [32]
                 uint8_t* qs) {         // [16]
  for (size_t i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((codes[i] & 15) | codes[i + 16] << 4);
}

void PackFifthBits(const uint8_t* codes,  // [32]
                   uint8_t* qh) {         // [4]
  uint32_t bits = 0;
  for (size_t i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(codes[i] >> 4 & 1) << i;
  std::memcpy(qh, &bits, sizeof(bits));
}

template <typename Block>
void QuantizeBlocks(std::span<const float> in, std::byte* row) {
  constexpr size_t kElems = sizeof(Block) >= sizeof(BlockQ2K) ? kSuperElems : kBlockElems;
  static constexpr float kZeros[kElems] = {};
  NM_DCHECK(in.size() % kElems == 0);
  auto* blocks = reinterpret_cast<Block*>(row);  // packed: any address will do
  for (size_t b = 0; b < in.size() / kElems; ++b) {
    const float* x = in.data() + b * kElems;
    const Extremes extremes = FindExtremes<kElems>(x);
    if (extremes.finite) {
      QuantizeBlock(x, extremes, blocks[b]);
    } else {
      QuantizeBlock(kZeros, Extremes{}, blocks[b]);
    }
  }
}

template <typename Convert>
void ConvertToHalves(std::span<const float> in, std::byte* row, Convert convert) {
  for (size_t i = 0; i < in.size(); ++i) {
    const uint16_t half = convert(in[i]);
    std::memcpy(row + i * sizeof(half), &half, sizeof(half));
  }
}

}  // namespace

void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ8_0& block) {
  block.d = SaturatedF16(std::max(-extremes.low, extremes.high) / 127.0f);
  const float inverse = Inverse(F16ToF32(block.d));
  for (size_t i = 0; i < 32; ++i) {
    block.qs[i] = static_cast<int8_t>(RoundWithin(x[i] * inverse, -127, 127));
  }
}

void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ4_0& block) {
  block.d = SaturatedF16(FitSymmetric<32>(x, extremes, -8, 1, 0.0f));
  uint8_t codes[32];
  ChooseCodes<32>(x, 0.0f, Inverse(F16ToF32(block.d)), 8.0f, 15, codes);
  PackNibbles(codes, block.qs);
}

void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ4_1& block) {
  const AffineFit fit = FitAffine<32>(x, extremes, 15, false, 6, 0.6f, 0.3f);
  block.d = SaturatedF16(fit.scale);
  block.m = SaturatedF16(fit.offset);
  uint8_t codes[32];
  ChooseCodes<32>(x, F16ToF32(block.m), Inverse(F16ToF32(block.d)), 0.0f, 15, codes);
  PackNibbles(codes, block.qs);
}

void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ5_0& block) {
  block.d = SaturatedF16(FitSymmetric<32>(x, extremes, -16, 4, 0.5f));
  uint8_t codes[32];
  ChooseCodes<32>(x, 0.0f, Inverse(F16ToF32(block.d)), 16.0f, 31, codes);
  PackNibbles(codes, block.qs);
  PackFifthBits(codes, block.qh);
}

void QuantizeBlock(const float* x, const Extremes& extremes, BlockQ5_1& block) {
  const AffineFit fit = FitAffine<32>(x, extremes, 31, false, 6, 0.6f, 0.3f);
  block.d = SaturatedF16(fit.scale);
  block.m = SaturatedF16(fit.offset);
  uint8_t codes[32];
  ChooseCodes<32>(x, F16ToF32(block.m), Inverse(F16ToF32(block.d)), 0.0f, 31, codes);
  PackNibbles(codes, block.qs);
  PackFifthBits(codes, block.qh);
}

void QuantizeBlock(const float* x, const Extremes& extremes, BlockIQ4NL& block) {
  block.d = SaturatedF16(FitIq4<32>(x, extremes));
  const float inverse = Inverse(F16ToF32(block.d));
  uint8_t codes[32];
  for (size_t i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(NearestIq4Code(x[i] * inverse));
  PackNibbles(codes, block.qs);
}

namespace {

constexpr size_t kMxfp4Magnitudes = 8;
constexpr std::array<float, kMxfp4Magnitudes - 1> kMxfp4Midpoints = [] {
  std::array<int8_t, kMxfp4Magnitudes> magnitudes{};
  for (size_t i = 0; i < kMxfp4Magnitudes; ++i) magnitudes[i] = kMxfp4Values[i];
  return Midpoints(magnitudes);
}();

// Codes of the nearest levels for scale 2^(e - 128), and the squared error in units of that scale. e >= 1: the inverse
// of the smallest scale is not finite.
float Mxfp4Codes(const float* x,  // [32]
                 uint8_t e,
                 uint8_t* codes) {  // [32]
  const float inverse = std::bit_cast<float>(static_cast<uint32_t>(255 - e) << 23);
  std::array<float, 32> error;
  for (size_t i = 0; i < 32; ++i) {
    const float magnitude = std::fabs(x[i] * inverse);
    float nearest = 0;
    int code = 0;
    for (size_t level = 0; level + 1 < kMxfp4Magnitudes; ++level) {
      const bool above = magnitude > kMxfp4Midpoints[level];
      code += above ? 1 : 0;
      nearest += above ? static_cast<float>(kMxfp4Values[level + 1] - kMxfp4Values[level]) : 0.0f;
    }
    error[i] = magnitude - nearest;
    codes[i] = static_cast<uint8_t>(code | static_cast<int>(std::bit_cast<uint32_t>(x[i]) >> 31 << 3));
  }
  return Dot<32>(error.data(), error.data());
}

}  // namespace

// The largest value, m * 2^k with 1 <= m < 2, fits levels up to 1.5 * 2^k with the finer scale and up to 3 * 2^k with
// the coarser one; the smaller error decides.
void QuantizeBlock(const float* x, const Extremes& extremes, BlockMXFP4& block) {
  const float farthest = std::max(-extremes.low, extremes.high);
  const uint32_t exponent = std::bit_cast<uint32_t>(farthest) >> 23;  // k + 127
  uint8_t codes[2][32];
  const auto fine = static_cast<uint8_t>(exponent < 3 ? 1 : exponent - 2);
  const auto coarse = static_cast<uint8_t>(std::min(fine + 1, 252));  // its level 12 would reach infinity at 253
  const float fine_error = Mxfp4Codes(x, fine, codes[0]);
  const float coarse_error = Mxfp4Codes(x, coarse, codes[1]) * 4.0f;  // its unit is twice as large
  const bool use_fine = fine_error <= coarse_error;
  block.e = use_fine ? fine : coarse;
  PackNibbles(codes[use_fine ? 0 : 1], block.qs);
}

void QuantizeRow(DType dtype, std::span<const float> in, std::byte* row) {
  switch (dtype) {
    case DType::kF32:
      if (!in.empty()) std::memcpy(row, in.data(), in.size_bytes());
      return;
    case DType::kF16:
      return ConvertToHalves(in, row, F32ToF16);
    case DType::kBF16:
      return ConvertToHalves(in, row, F32ToBF16);
    case DType::kQ8_0:
      return QuantizeBlocks<BlockQ8_0>(in, row);
    case DType::kQ4_0:
      return QuantizeBlocks<BlockQ4_0>(in, row);
    case DType::kQ4_1:
      return QuantizeBlocks<BlockQ4_1>(in, row);
    case DType::kQ5_0:
      return QuantizeBlocks<BlockQ5_0>(in, row);
    case DType::kQ5_1:
      return QuantizeBlocks<BlockQ5_1>(in, row);
    case DType::kQ2_K:
      return QuantizeBlocks<BlockQ2K>(in, row);
    case DType::kQ3_K:
      return QuantizeBlocks<BlockQ3K>(in, row);
    case DType::kQ4_K:
      return QuantizeBlocks<BlockQ4K>(in, row);
    case DType::kQ5_K:
      return QuantizeBlocks<BlockQ5K>(in, row);
    case DType::kQ6_K:
      return QuantizeBlocks<BlockQ6K>(in, row);
    case DType::kIQ4_NL:
      return QuantizeBlocks<BlockIQ4NL>(in, row);
    case DType::kIQ4_XS:
      return QuantizeBlocks<BlockIQ4XS>(in, row);
    case DType::kMXFP4:
      return QuantizeBlocks<BlockMXFP4>(in, row);
  }
}

}  // namespace npumoe
