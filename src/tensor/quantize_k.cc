// SPDX-License-Identifier: Apache-2.0
// Encoders of the formats with 256-element blocks: fit every group, then store the fits as small multiples of the
// block's f16 scale, then choose the codes for what is stored.
#include <cmath>
#include <cstring>

#include "tensor/block_codecs.h"
#include "tensor/block_fit.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

// Fits of a block's groups, all with offset <= 0, as multiples (0..top) of a common scale and a common minimum.
template <size_t kGroups>
struct AffineGroups {
  uint16_t d = 0, dmin = 0;
  uint8_t scales[kGroups], mins[kGroups];

  template <size_t N = kSuperElems / kGroups>
  AffineGroups(const float* x, int32_t code_top, int32_t top, size_t n, float back, float step) {
    AffineFit fits[kGroups];
    float max_scale = 0, max_min = 0;
    for (size_t g = 0; g < kGroups; ++g) {
      fits[g] = FitAffine<N>(x + N * g, FindExtremes<N>(x + N * g), code_top, true, n, back, step);
      max_scale = std::max(max_scale, fits[g].scale);
      max_min = std::max(max_min, -fits[g].offset);
    }
    d = SaturatedF16(max_scale / static_cast<float>(top));
    dmin = SaturatedF16(max_min / static_cast<float>(top));
    const float inverse_d = Inverse(F16ToF32(d)), inverse_dmin = Inverse(F16ToF32(dmin));
    for (size_t g = 0; g < kGroups; ++g) {
      scales[g] = static_cast<uint8_t>(RoundWithin(fits[g].scale * inverse_d, 0, top));
      mins[g] = static_cast<uint8_t>(RoundWithin(-fits[g].offset * inverse_dmin, 0, top));
    }
  }

  template <size_t N = kSuperElems / kGroups>
  void Choose(const float* x, int32_t code_top, uint8_t* codes) const {  // [256]
    for (size_t g = 0; g < kGroups; ++g) {
      const float scale = F16ToF32(d) * static_cast<float>(scales[g]);
      const float minimum = F16ToF32(dmin) * static_cast<float>(mins[g]);
      ChooseCodes<N>(x + N * g, -minimum, Inverse(scale), 0.0f, code_top, codes + N * g);
    }
  }
};

// Signed multiples of d: the scale farthest from zero becomes `low`, the negative end of the stored range.
template <size_t kGroups>
std::array<int8_t, kGroups> SignedMultiples(const std::array<float, kGroups>& scales, int32_t low, uint16_t& d) {
  float farthest = 0;
  for (const float scale : scales) farthest = std::fabs(scale) > std::fabs(farthest) ? scale : farthest;
  d = SaturatedF16(farthest / static_cast<float>(low));
  const float inverse = Inverse(F16ToF32(d));
  std::array<int8_t, kGroups> out{};
  for (size_t g = 0; g < kGroups; ++g) out[g] = static_cast<int8_t>(RoundWithin(scales[g] * inverse, low, -low - 1));
  return out;
}

// 2-bit fields of the codes in the order of Q2_K and Q3_K.
void PackPairs(const uint8_t* codes,  // [256]
               uint8_t* qs) {         // [64]
  for (size_t half = 0; half < 2; ++half) {
    const uint8_t* c = codes + 128 * half;
    for (size_t i = 0; i < 32; ++i) {
      qs[32 * half + i] =
          static_cast<uint8_t>((c[i] & 3) | (c[i + 32] & 3) << 2 | (c[i + 64] & 3) << 4 | (c[i + 96] & 3) << 6);
    }
  }
}

// Low nibbles of the codes in the order of Q4_K and Q5_K.
void PackLowNibbles(const uint8_t* codes,  // [256]
                    uint8_t* qs) {         // [128]
  for (size_t pair = 0; pair < 4; ++pair) {
    const uint8_t* c = codes + 64 * pair;
    for (size_t i = 0; i < 32; ++i) qs[32 * pair + i] = static_cast<uint8_t>((c[i] & 15) | (c[i + 32] & 15) << 4);
  }
}

K4Scales ToK4Scales(const AffineGroups<8>& groups) {
  K4Scales out;
  std::memcpy(out.scales, groups.scales, 8);
  std::memcpy(out.mins, groups.mins, 8);
  return out;
}

}  // namespace

void QuantizeBlock(const float* x, const Extremes&, BlockQ2K& block) {
  const AffineGroups<16> groups(x, 3, 15, 9, 1.0f, 0.2f);
  block.d = groups.d;
  block.dmin = groups.dmin;
  for (size_t g = 0; g < 16; ++g) block.scales[g] = static_cast<uint8_t>(groups.scales[g] | groups.mins[g] << 4);
  uint8_t codes[kSuperElems];
  groups.Choose(x, 3, codes);
  PackPairs(codes, block.qs);
}

void QuantizeBlock(const float* x, const Extremes&, BlockQ3K& block) {
  std::array<float, 16> fits;
  for (size_t g = 0; g < 16; ++g) fits[g] = FitSymmetric<16>(x + 16 * g, FindExtremes<16>(x + 16 * g), -4, 8, 0.25f);
  uint16_t d = 0;
  const std::array<int8_t, 16> scales = SignedMultiples(fits, -32, d);
  block.d = d;
  PackQ3Scales(scales, block.scales);
  uint8_t codes[kSuperElems];
  for (size_t g = 0; g < 16; ++g) {
    const float scale = F16ToF32(d) * static_cast<float>(scales[g]);
    ChooseCodes<16>(x + 16 * g, 0.0f, Inverse(scale), 4.0f, 7, codes + 16 * g);
  }
  PackPairs(codes, block.qs);
  std::memset(block.hmask, 0, sizeof(block.hmask));
  for (size_t b = 0; b < 8; ++b) {
    for (size_t i = 0; i < 32; ++i) {
      block.hmask[i] = static_cast<uint8_t>(block.hmask[i] | (codes[32 * b + i] >> 2 & 1) << b);
    }
  }
}

void QuantizeBlock(const float* x, const Extremes&, BlockQ4K& block) {
  const AffineGroups<8> groups(x, 15, 63, 8, 1.0f, 0.25f);
  block.d = groups.d;
  block.dmin = groups.dmin;
  PackK4Scales(ToK4Scales(groups), block.scales);
  uint8_t codes[kSuperElems];
  groups.Choose(x, 15, codes);
  PackLowNibbles(codes, block.qs);
}

void QuantizeBlock(const float* x, const Extremes&, BlockQ5K& block) {
  const AffineGroups<8> groups(x, 31, 63, 8, 1.0f, 0.25f);
  block.d = groups.d;
  block.dmin = groups.dmin;
  PackK4Scales(ToK4Scales(groups), block.scales);
  uint8_t codes[kSuperElems];
  groups.Choose(x, 31, codes);
  PackLowNibbles(codes, block.qs);
  std::memset(block.qh, 0, sizeof(block.qh));
  for (size_t g = 0; g < 8; ++g) {
    for (size_t i = 0; i < 32; ++i) {
      block.qh[i] = static_cast<uint8_t>(block.qh[i] | (codes[32 * g + i] >> 4 & 1) << g);
    }
  }
}

void QuantizeBlock(const float* x, const Extremes&, BlockQ6K& block) {
  std::array<float, 16> fits;
  for (size_t g = 0; g < 16; ++g) fits[g] = FitSymmetric<16>(x + 16 * g, FindExtremes<16>(x + 16 * g), -32, 6, 0.3f);
  uint16_t d = 0;
  const std::array<int8_t, 16> scales = SignedMultiples(fits, -128, d);
  block.d = d;
  std::memcpy(block.scales, scales.data(), sizeof(block.scales));
  uint8_t codes[kSuperElems];
  for (size_t g = 0; g < 16; ++g) {
    const float scale = F16ToF32(d) * static_cast<float>(scales[g]);
    ChooseCodes<16>(x + 16 * g, 0.0f, Inverse(scale), 32.0f, 63, codes + 16 * g);
  }
  for (size_t half = 0; half < 2; ++half) {
    const uint8_t* c = codes + 128 * half;
    for (size_t i = 0; i < 32; ++i) {
      block.ql[64 * half + i] = static_cast<uint8_t>((c[i] & 15) | (c[i + 64] & 15) << 4);
      block.ql[64 * half + 32 + i] = static_cast<uint8_t>((c[i + 32] & 15) | (c[i + 96] & 15) << 4);
      block.qh[32 * half + i] =
          static_cast<uint8_t>(c[i] >> 4 | c[i + 32] >> 4 << 2 | c[i + 64] >> 4 << 4 | c[i + 96] >> 4 << 6);
    }
  }
}

void QuantizeBlock(const float* x, const Extremes&, BlockIQ4XS& block) {
  std::array<float, 8> fits;
  for (size_t g = 0; g < 8; ++g) fits[g] = FitIq4<32>(x + 32 * g, FindExtremes<32>(x + 32 * g));
  uint16_t d = 0;
  const std::array<int8_t, 8> scales = SignedMultiples(fits, -32, d);
  block.d = d;
  uint32_t high_bits = 0;
  std::memset(block.scales_l, 0, sizeof(block.scales_l));
  for (size_t g = 0; g < 8; ++g) {
    const uint32_t biased = static_cast<uint32_t>(scales[g] + 32);
    block.scales_l[g / 2] = static_cast<uint8_t>(block.scales_l[g / 2] | (biased & 15) << (4 * (g % 2)));
    high_bits |= biased >> 4 << (2 * g);
    const float inverse = Inverse(F16ToF32(d) * static_cast<float>(scales[g]));
    const float* group = x + 32 * g;
    for (size_t i = 0; i < 16; ++i) {
      block.qs[16 * g + i] =
          static_cast<uint8_t>(NearestIq4Code(group[i] * inverse) | NearestIq4Code(group[i + 16] * inverse) << 4);
    }
  }
  block.scales_h = static_cast<uint16_t>(high_bits);
}

}  // namespace npumoe
