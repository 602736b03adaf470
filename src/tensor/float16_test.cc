// SPDX-License-Identifier: Apache-2.0
#include "tensor/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace npumoe {
namespace {

// The value of a half by its definition, in double: exact for every pattern.
double HalfByDefinition(uint32_t half) {
  const double sign = (half & 0x8000u) != 0 ? -1.0 : 1.0;
  const int exponent = static_cast<int>(half >> 10 & 31u);
  const int mantissa = static_cast<int>(half & 1023u);
  if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(F16, EveryHalfReadsAsItsDefinition) {
  for (uint32_t half = 0; half <= 0xffffu; ++half) {
    const float got = F16ToF32(static_cast<uint16_t>(half));
    const double want = HalfByDefinition(half);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got)) << half;
      ASSERT_EQ(std::signbit(got), (half & 0x8000u) != 0) << half;
    } else {
      ASSERT_EQ(Bits(got), Bits(static_cast<float>(want))) << half;
    }
  }
}

TEST(F16, EveryHalfComesBack) {
  for (uint32_t half = 0; half <= 0xffffu; ++half) {
    const uint16_t back = F32ToF16(F16ToF32(static_cast<uint16_t>(half)));
    if (std::isnan(HalfByDefinition(half))) {
      ASSERT_EQ(back & 0x7c00u, 0x7c00u) << half;
      ASSERT_NE(back & 0x03ffu, 0u) << half;
    } else {
      ASSERT_EQ(back, half);
    }
  }
}

// Between every two neighbours: the midpoint goes to the even one, the floats beside it to the nearer one. The midpoint
// above the largest finite half is where infinity begins.
TEST(F16, RoundsToNearestEven) {
  for (uint32_t sign = 0; sign <= 0x8000u; sign += 0x8000u) {
    for (uint32_t lower = 0; lower < 0x7c00u; ++lower) {
      const double below = HalfByDefinition(lower);
      const double above = lower == 0x7bffu ? 65536.0 : HalfByDefinition(lower + 1);
      const double exact = 0.5 * (below + above) * (sign != 0 ? -1.0 : 1.0);
      const float middle = static_cast<float>(exact);  // 12 significant bits: exact
      ASSERT_EQ(static_cast<double>(middle), exact);
      ASSERT_EQ(F32ToF16(middle), sign | (lower % 2 == 0 ? lower : lower + 1)) << lower;
      ASSERT_EQ(F32ToF16(std::nextafter(middle, 0.0f)), sign | lower) << lower;
      ASSERT_EQ(F32ToF16(std::nextafter(middle, 2 * middle)), sign | (lower + 1)) << lower;
    }
  }
}

TEST(F16, SpecialValues) {
  EXPECT_EQ(F32ToF16(0.0f), 0x0000u);
  EXPECT_EQ(F32ToF16(-0.0f), 0x8000u);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::infinity()), 0x7c00u);
  EXPECT_EQ(F32ToF16(-std::numeric_limits<float>::max()), 0xfc00u);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::denorm_min()), 0x0000u);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::quiet_NaN()), 0x7e00u);
}

TEST(BF16, EveryPatternIsTheUpperHalfOfAFloatAndComesBack) {
  for (uint32_t half = 0; half <= 0xffffu; ++half) {
    const float value = BF16ToF32(static_cast<uint16_t>(half));
    ASSERT_EQ(Bits(value), half << 16);
    const uint16_t back = F32ToBF16(value);
    // A signalling NaN comes back quiet, everything else unchanged.
    ASSERT_EQ(back, std::isnan(value) ? half | 0x40u : half);
  }
}

TEST(BF16, RoundsToNearestEven) {
  for (uint32_t half = 0; half <= 0xffffu; ++half) {
    if ((half & 0x7f80u) == 0x7f80u) continue;  // infinity and NaN have no upper neighbour
    const auto round = [half](uint32_t low) { return F32ToBF16(std::bit_cast<float>(half << 16 | low)); };
    ASSERT_EQ(round(0x7fffu), half);
    ASSERT_EQ(round(0x8000u), half % 2 == 0 ? half : half + 1);
    ASSERT_EQ(round(0x8001u), half + 1);
  }
}

}  // namespace
}  // namespace npumoe
