// SPDX-License-Identifier: Apache-2.0
// Blocks written by hand, decoded to values worked out by hand. 0x3800 is 0.5 in f16, 0x4000 is 2, 0x3c00 is 1.
#include "tensor/blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tensor/quantize.h"

namespace npumoe {
namespace {

template <typename Block>
std::vector<float> Decode(DType dtype, const Block& block) {
  std::vector<float> out(Info(dtype).block_elems);
  EXPECT_EQ(sizeof(Block), Info(dtype).block_bytes);
  // One byte off any alignment, as in a file.
  std::vector<std::byte> bytes(sizeof(Block) + 1);
  std::memcpy(bytes.data() + 1, &block, sizeof(Block));
  DequantizeRow(dtype, bytes.data() + 1, out);
  return out;
}

TEST(Blocks, PlainFloats) {
  const uint16_t halves[2] = {0x3800, 0xc000};
  float out[2];
  DequantizeRow(DType::kF16, reinterpret_cast<const std::byte*>(halves), out);
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_EQ(out[1], -2.0f);
  DequantizeRow(DType::kBF16, reinterpret_cast<const std::byte*>(halves), out);
  EXPECT_EQ(out[1], -2.0f);  // the upper half of a float: 0xc0000000
  EXPECT_EQ(out[0], 0x1p-15f);
  DequantizeRow(DType::kQ4_0, nullptr, {});  // an empty row reads nothing
}

TEST(Blocks, Q8_0) {
  BlockQ8_0 block{0x3800, {}};
  block.qs[0] = -128;
  block.qs[31] = 127;
  const auto out = Decode(DType::kQ8_0, block);
  EXPECT_EQ(out[0], -64.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[31], 63.5f);
}

TEST(Blocks, Q4_0AndQ4_1) {
  BlockQ4_0 block{0x3800, {}};
  block.qs[3] = 0xf9;
  const auto out = Decode(DType::kQ4_0, block);
  EXPECT_EQ(out[3], 0.5f);   // (9 - 8) * 0.5
  EXPECT_EQ(out[19], 3.5f);  // (15 - 8) * 0.5
  EXPECT_EQ(out[0], -4.0f);
  BlockQ4_1 with_min{0x3800, 0xc000, {}};
  with_min.qs[3] = 0xf9;
  const auto shifted = Decode(DType::kQ4_1, with_min);
  EXPECT_EQ(shifted[3], 2.5f);   // 9 * 0.5 - 2
  EXPECT_EQ(shifted[19], 5.5f);  // 15 * 0.5 - 2
  EXPECT_EQ(shifted[0], -2.0f);
}

TEST(Blocks, Q5_0AndQ5_1) {
  BlockQ5_0 block{0x3800, {0x08, 0, 0x08, 0x80}, {}};  // fifth bits of elements 3, 19 and 31
  block.qs[3] = 0xf9;
  const auto out = Decode(DType::kQ5_0, block);
  EXPECT_EQ(out[3], 4.5f);   // (25 - 16) * 0.5
  EXPECT_EQ(out[19], 7.5f);  // (31 - 16) * 0.5
  EXPECT_EQ(out[31], 0.0f);
  EXPECT_EQ(out[0], -8.0f);
  BlockQ5_1 with_min{0x3800, 0xc000, {0x08, 0, 0x08, 0x80}, {}};
  with_min.qs[3] = 0xf9;
  const auto shifted = Decode(DType::kQ5_1, with_min);
  EXPECT_EQ(shifted[3], 10.5f);   // 25 * 0.5 - 2
  EXPECT_EQ(shifted[19], 13.5f);  // 31 * 0.5 - 2
  EXPECT_EQ(shifted[0], -2.0f);
}

TEST(Blocks, Q2_K) {
  BlockQ2K block{};
  block.d = 0x3800;
  block.dmin = 0x4000;
  block.scales[0] = 0x13;  // elements 0..15: 0.5 * 3 * q - 2 * 1
  block.scales[3] = 0x0f;  // elements 48..63: 0.5 * 15 * q
  block.scales[9] = 0x02;  // elements 144..159: q
  block.qs[1] = 0x03;      // element 1: q = 3
  block.qs[16] = 0x08;     // element 48 (field 1): q = 2
  block.qs[48] = 0x02;     // element 144: q = 2
  const auto out = Decode(DType::kQ2_K, block);
  EXPECT_EQ(out[0], -2.0f);
  EXPECT_EQ(out[1], 2.5f);
  EXPECT_EQ(out[48], 15.0f);
  EXPECT_EQ(out[144], 2.0f);
}

TEST(Blocks, Q3_K) {
  BlockQ3K block{};
  block.d = 0x3800;
  std::array<int8_t, 16> scales{};
  for (size_t g = 0; g < 16; ++g) scales[g] = static_cast<int8_t>(4 * static_cast<int>(g) - 32);
  scales[15] = 31;
  PackQ3Scales(scales, block.scales);
  EXPECT_EQ(block.scales[0], 0x00);  // groups 0 (biased 0) and 8 (biased 32): low nibbles 0
  EXPECT_EQ(block.scales[1], 0x44);  // groups 1 (4) and 9 (36)
  EXPECT_EQ(block.scales[8], 0xe4);  // high bits of groups 0, 4, 8, 12: 0, 1, 2, 3
  EXPECT_EQ(UnpackQ3Scales(block.scales), scales);
  block.qs[0] = 0x03;     // element 0: low bits 3
  block.hmask[0] = 0x81;  // third bit of elements 0 and 224
  const auto out = Decode(DType::kQ3_K, block);
  EXPECT_EQ(out[0], -48.0f);    // 0.5 * -32 * (7 - 4)
  EXPECT_EQ(out[1], 64.0f);     // 0.5 * -32 * (0 - 4)
  EXPECT_EQ(out[224], 0.0f);    // q = 4
  EXPECT_EQ(out[255], -62.0f);  // 0.5 * 31 * -4
}

TEST(Blocks, K4ScalesPackAndUnpack) {
  const K4Scales in{{1, 2, 3, 63, 5, 6, 7, 48}, {9, 10, 11, 12, 63, 14, 31, 16}};
  uint8_t packed[12];
  PackK4Scales(in, packed);
  EXPECT_EQ(packed[0], 1);
  EXPECT_EQ(packed[3], 63 | 3 << 6);  // scale 7 is 48: high bits 3
  EXPECT_EQ(packed[4], 9 | 3 << 6);   // min 4 is 63: high bits 3
  EXPECT_EQ(packed[8], 5 | 15 << 4);  // low nibbles of scale 4 and min 4
  const K4Scales out = UnpackK4Scales(packed);
  EXPECT_EQ(std::memcmp(&out, &in, sizeof(in)), 0);
}

TEST(Blocks, Q4_KAndQ5_K) {
  K4Scales scales{};
  scales.scales[1] = 3;
  scales.mins[1] = 1;
  scales.scales[6] = 40;
  BlockQ4K block{0x3800, 0x4000, {}, {}};
  PackK4Scales(scales, block.scales);
  block.qs[0] = 0x50;   // element 32: q = 5
  block.qs[96] = 0x0f;  // element 192: q = 15
  const auto out = Decode(DType::kQ4_K, block);
  EXPECT_EQ(out[32], 5.5f);  // 0.5 * 3 * 5 - 2
  EXPECT_EQ(out[33], -2.0f);
  EXPECT_EQ(out[192], 300.0f);  // 0.5 * 40 * 15
  BlockQ5K fifth{0x3800, 0x4000, {}, {}, {}};
  std::memcpy(fifth.scales, block.scales, sizeof(fifth.scales));
  std::memcpy(fifth.qs, block.qs, sizeof(fifth.qs));
  fifth.qh[0] = 0x02;  // fifth bit of element 32
  fifth.qh[1] = 0x40;  // fifth bit of element 193
  const auto five = Decode(DType::kQ5_K, fifth);
  EXPECT_EQ(five[32], 29.5f);  // 0.5 * 3 * 21 - 2
  EXPECT_EQ(five[192], 300.0f);
  EXPECT_EQ(five[193], 320.0f);  // 0.5 * 40 * 16
}

TEST(Blocks, Q6_K) {
  BlockQ6K block{};
  block.d = 0x3800;
  block.scales[0] = -2;
  block.scales[6] = 127;
  block.scales[15] = 1;
  block.ql[0] = 0xa5;    // element 0: low 5; element 64: low 10
  block.qh[0] = 0x31;    // high bits: element 0: 1, element 64: 3, element 96: 0
  block.ql[127] = 0x70;  // element 255: low 7
  block.qh[63] = 0x80;   // element 255: high 2
  block.scales[4] = 1;
  const auto out = Decode(DType::kQ6_K, block);
  EXPECT_EQ(out[0], 11.0f);      // 0.5 * -2 * (21 - 32)
  EXPECT_EQ(out[64], 13.0f);     // 0.5 * (58 - 32)
  EXPECT_EQ(out[96], -2032.0f);  // 0.5 * 127 * -32
  EXPECT_EQ(out[255], 3.5f);     // 0.5 * (39 - 32)
}

TEST(Blocks, IQ4_NLAndIQ4_XS) {
  BlockIQ4NL block{0x3800, {}};
  block.qs[5] = 0xf8;
  const auto out = Decode(DType::kIQ4_NL, block);
  EXPECT_EQ(out[5], 0.5f);    // level 8 is 1
  EXPECT_EQ(out[21], 56.5f);  // level 15 is 113
  EXPECT_EQ(out[0], -63.5f);
  BlockIQ4XS super{0x3800, 0x0003, {0x5f, 0, 0, 0}, {}};  // scales 63 - 32 = 31, 5 - 32 = -27, then -32
  super.qs[0] = 0xf8;
  const auto wide = Decode(DType::kIQ4_XS, super);
  EXPECT_EQ(wide[0], 15.5f);
  EXPECT_EQ(wide[16], 1751.5f);   // 0.5 * 31 * 113
  EXPECT_EQ(wide[32], 1714.5f);   // 0.5 * -27 * -127
  EXPECT_EQ(wide[255], 2032.0f);  // 0.5 * -32 * -127
}

TEST(Blocks, MXFP4) {
  EXPECT_EQ(Mxfp4Scale(0), 0x1p-128f);
  EXPECT_EQ(Mxfp4Scale(1), 0x1p-127f);
  EXPECT_EQ(Mxfp4Scale(2), 0x1p-126f);
  EXPECT_EQ(Mxfp4Scale(127), 0.5f);
  EXPECT_EQ(Mxfp4Scale(255), 0x1p127f);
  BlockMXFP4 block{128, {}};  // 2^1, so the doubled levels are the values
  block.qs[0] = 0x97;
  block.qs[1] = 0xf8;
  const auto out = Decode(DType::kMXFP4, block);
  EXPECT_EQ(out[0], 12.0f);
  EXPECT_EQ(out[16], -1.0f);
  EXPECT_EQ(out[1], 0.0f);
  EXPECT_EQ(out[17], -12.0f);
}

}  // namespace
}  // namespace npumoe
