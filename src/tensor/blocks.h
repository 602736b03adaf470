// SPDX-License-Identifier: Apache-2.0
// The bytes of every block format (little endian), and the small tables and bit fields needed to read them.
// Layouts are GGUF's: "d" is the block's f16 scale, "m"/"dmin" its f16 offset. Element order is told per format.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace npumoe {

static_assert(std::endian::native == std::endian::little, "block formats are little endian and are read in place");

inline constexpr size_t kBlockElems = 32;   // of the simple formats
inline constexpr size_t kSuperElems = 256;  // of the K formats and IQ4_XS

// Packed: a tensor may start at any byte of a mapped file, so no member may be assumed to be aligned.
// "low/high halves": nibble i of qs holds element i in its low half and element i + 16 in its high half.

struct [[gnu::packed]] BlockQ8_0 {  // x = d * q
  uint16_t d;
  int8_t qs[32];
};
struct [[gnu::packed]] BlockQ4_0 {  // x = d * (q - 8); low/high halves
  uint16_t d;
  uint8_t qs[16];
};
struct [[gnu::packed]] BlockQ4_1 {  // x = d * q + m; low/high halves
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};
struct [[gnu::packed]] BlockQ5_0 {  // x = d * (q - 16); low/high halves, bit i of qh is the fifth bit of element i
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct [[gnu::packed]] BlockQ5_1 {  // x = d * q + m; bits as in Q5_0
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};

// 16 groups of 16: x = d * (scale & 15) * q - dmin * (scale >> 4). Element 128 h + 32 s + i is the 2-bit field s of
// qs[32 h + i].
struct [[gnu::packed]] BlockQ2K {
  uint8_t scales[16];
  uint8_t qs[64];
  uint16_t d;
  uint16_t dmin;
};
// 16 groups of 16: x = d * (scale - 32) * (q - 4). Low two bits of q as in Q2_K, its third bit for element 32 b + i is
// bit b of hmask[i].
struct [[gnu::packed]] BlockQ3K {
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];  // 16 x 6 bits, see UnpackQ3Scales
  uint16_t d;
};
// 8 groups of 32: x = d * scale * q - dmin * min. Group 2 h is the low and group 2 h + 1 the high nibble of qs[32 h..].
struct [[gnu::packed]] BlockQ4K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];  // 8 scales and 8 mins of 6 bits, see UnpackK4Scales
  uint8_t qs[128];
};
// As Q4_K; the fifth bit of element 32 g + i is bit g of qh[i].
struct [[gnu::packed]] BlockQ5K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
// 16 groups of 16: x = d * scale * (q - 32). In each half h of 128 elements, element 32 p + i (p < 4) has its low
// nibble in ql[64 h + 32 (p & 1) + i] (low half for p < 2) and its high two bits in field p of qh[32 h + i].
struct [[gnu::packed]] BlockQ6K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};

struct [[gnu::packed]] BlockIQ4NL {  // x = d * kIq4Values[q]; low/high halves
  uint16_t d;
  uint8_t qs[16];
};
// 8 groups of 32, each with low/high halves: x = d * (scale - 32) * kIq4Values[q]. Scale g is nibble g of scales_l with
// bits 2 g and 2 g + 1 of scales_h above it.
struct [[gnu::packed]] BlockIQ4XS {
  uint16_t d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};
struct [[gnu::packed]] BlockMXFP4 {  // x = 2^(e - 128) * kMxfp4Values[q]; low/high halves
  uint8_t e;
  uint8_t qs[16];
};

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ2K) == 84 && sizeof(BlockQ3K) == 110 && sizeof(BlockQ4K) == 144);
static_assert(sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210);
static_assert(sizeof(BlockIQ4NL) == 18 && sizeof(BlockIQ4XS) == 136 && sizeof(BlockMXFP4) == 17);

// The non-linear 4-bit levels of IQ4_NL and IQ4_XS (part of the format).
inline constexpr std::array<int8_t, 16> kIq4Values{-127, -104, -83, -65, -49, -35, -22, -10,
                                                   1,    13,   25,  38,  53,  69,  89,  113};
// FP4 E2M1 (OCP Microscaling Formats 1.0), doubled so that it is whole; code 8 is minus zero and reads as zero.
inline constexpr std::array<int8_t, 16> kMxfp4Values{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128): half of the E8M0 scale, to go with the doubled values. e < 2 gives f32 subnormals; 255 (NaN in the
// standard) is read as the power of two it would be, as llama.cpp does.
inline float Mxfp4Scale(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}

// Scales (0..63) and mins (0..63) of the 8 groups of Q4_K and Q5_K.
struct K4Scales {
  uint8_t scales[8];
  uint8_t mins[8];
};
inline K4Scales UnpackK4Scales(const uint8_t* packed) {  // [12]
  K4Scales out;
  for (size_t g = 0; g < 4; ++g) {
    out.scales[g] = packed[g] & 63;
    out.mins[g] = packed[g + 4] & 63;
    out.scales[g + 4] = static_cast<uint8_t>((packed[g + 8] & 15) | (packed[g] >> 6 << 4));
    out.mins[g + 4] = static_cast<uint8_t>((packed[g + 8] >> 4) | (packed[g + 4] >> 6 << 4));
  }
  return out;
}
inline void PackK4Scales(const K4Scales& in, uint8_t* packed) {  // [12]
  for (size_t g = 0; g < 4; ++g) {
    packed[g] = static_cast<uint8_t>(in.scales[g] | (in.scales[g + 4] >> 4 << 6));
    packed[g + 4] = static_cast<uint8_t>(in.mins[g] | (in.mins[g + 4] >> 4 << 6));
    packed[g + 8] = static_cast<uint8_t>((in.scales[g + 4] & 15) | (in.mins[g + 4] & 15) << 4);
  }
}

// The 16 scales of Q3_K, -32..31: low nibbles in bytes 0..7 (scale g + 8 above scale g), high two bits in bytes 8..11.
inline std::array<int8_t, 16> UnpackQ3Scales(const uint8_t* packed) {  // [12]
  std::array<int8_t, 16> out{};
  for (size_t g = 0; g < 16; ++g) {
    const int low = packed[g % 8] >> (g < 8 ? 0 : 4) & 15;
    const int high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
    out[g] = static_cast<int8_t>((low | high << 4) - 32);
  }
  return out;
}
inline void PackQ3Scales(const std::array<int8_t, 16>& scales, uint8_t* packed) {  // [12]
  for (size_t i = 0; i < 12; ++i) packed[i] = 0;
  for (size_t g = 0; g < 16; ++g) {
    const int biased = scales[g] + 32;
    packed[g % 8] = static_cast<uint8_t>(packed[g % 8] | (biased & 15) << (g < 8 ? 0 : 4));
    packed[8 + g % 4] = static_cast<uint8_t>(packed[8 + g % 4] | (biased >> 4) << (2 * (g / 4)));
  }
}

// Scale of group g of IQ4_XS, -32..31.
inline int Iq4XsScale(const BlockIQ4XS& block, size_t g) {
  const int low = block.scales_l[g / 2] >> (4 * (g % 2)) & 15;
  const int high = block.scales_h >> (2 * g) & 3;
  return (low | high << 4) - 32;
}

}  // namespace npumoe
