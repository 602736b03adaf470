// SPDX-License-Identifier: Apache-2.0
// The formats with 256-element blocks. As in dequantize.cc, the order of the f32 operations is part of the contract.
#include "tensor/block_codecs.h"
#include "tensor/float16.h"

namespace npumoe {

void DequantizeBlock(const BlockQ2K& block, float* out) {
  const float d = F16ToF32(block.d);
  const float dmin = F16ToF32(block.dmin);
  for (size_t group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(block.scales[group] & 15);
    const float offset = dmin * static_cast<float>(block.scales[group] >> 4);
    const uint8_t* qs = block.qs + 32 * (group / 8) + 16 * (group % 2);
    const size_t shift = 2 * (group / 2 % 4);
    for (size_t i = 0; i < 16; ++i) out[16 * group + i] = scale * static_cast<float>(qs[i] >> shift & 3) - offset;
  }
}

void DequantizeBlock(const BlockQ3K& block, float* out) {
  const float d = F16ToF32(block.d);
  const std::array<int8_t, 16> scales = UnpackQ3Scales(block.scales);
  for (size_t group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(scales[group]);
    const uint8_t* qs = block.qs + 32 * (group / 8) + 16 * (group % 2);
    const uint8_t* hmask = block.hmask + 16 * (group % 2);
    const size_t shift = 2 * (group / 2 % 4);
    for (size_t i = 0; i < 16; ++i) {
      const int q = (qs[i] >> shift & 3) | (hmask[i] >> (group / 2) & 1) << 2;
      out[16 * group + i] = scale * static_cast<float>(q - 4);
    }
  }
}

void DequantizeBlock(const BlockQ4K& block, float* out) {
  const float d = F16ToF32(block.d);
  const float dmin = F16ToF32(block.dmin);
  const K4Scales k = UnpackK4Scales(block.scales);
  for (size_t group = 0; group < 8; ++group) {
    const float scale = d * static_cast<float>(k.scales[group]);
    const float offset = dmin * static_cast<float>(k.mins[group]);
    const uint8_t* qs = block.qs + 32 * (group / 2);
    const size_t shift = 4 * (group % 2);
    for (size_t i = 0; i < 32; ++i) out[32 * group + i] = scale * static_cast<float>(qs[i] >> shift & 15) - offset;
  }
}

void DequantizeBlock(const BlockQ5K& block, float* out) {
  const float d = F16ToF32(block.d);
  const float dmin = F16ToF32(block.dmin);
  const K4Scales k = UnpackK4Scales(block.scales);
  for (size_t group = 0; group < 8; ++group) {
    const float scale = d * static_cast<float>(k.scales[group]);
    const float offset = dmin * static_cast<float>(k.mins[group]);
    const uint8_t* qs = block.qs + 32 * (group / 2);
    const size_t shift = 4 * (group % 2);
    for (size_t i = 0; i < 32; ++i) {
      const int q = (qs[i] >> shift & 15) | (block.qh[i] >> group & 1) << 4;
      out[32 * group + i] = scale * static_cast<float>(q) - offset;
    }
  }
}

void DequantizeBlock(const BlockQ6K& block, float* out) {
  const float d = F16ToF32(block.d);
  for (size_t group = 0; group < 16; ++group) {
    const float scale = d * static_cast<float>(block.scales[group]);
    const size_t half = group / 8;
    const size_t part = group / 2 % 4;  // which 32 elements of the half
    const uint8_t* ql = block.ql + 64 * half + 32 * (part % 2) + 16 * (group % 2);
    const uint8_t* qh = block.qh + 32 * half + 16 * (group % 2);
    for (size_t i = 0; i < 16; ++i) {
      const int q = (ql[i] >> (4 * (part / 2)) & 15) | (qh[i] >> (2 * part) & 3) << 4;
      out[16 * group + i] = scale * static_cast<float>(q - 32);
    }
  }
}

void DequantizeBlock(const BlockIQ4XS& block, float* out) {
  const float d = F16ToF32(block.d);
  for (size_t group = 0; group < 8; ++group) {
    const float scale = d * static_cast<float>(Iq4XsScale(block, group));
    const uint8_t* qs = block.qs + 16 * group;
    for (size_t i = 0; i < 16; ++i) {
      out[32 * group + i] = scale * static_cast<float>(kIq4Values[qs[i] & 15]);
      out[32 * group + i + 16] = scale * static_cast<float>(kIq4Values[qs[i] >> 4]);
    }
  }
}

}  // namespace npumoe
