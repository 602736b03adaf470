// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/strip.h"
#define HWY_WANT_AVX3_DL
#include "kernels/target_test.h"
#include "kernels/test_weights.h"

namespace npumoe {
namespace {

class DecodeTest : public EveryTarget {};
NM_FOR_EVERY_TARGET(DecodeTest);

// Every bit pattern is allowed here: infinite, NaN and subnormal scales included.
TEST_P(DecodeTest, EqualsTheScalarDefinitionBitForBit) {
  Random random(7);
  for (const DType dtype : kAllDTypes) {
    const DTypeInfo& info = Info(dtype);
    const size_t n = info.block_elems == 1 ? 1021 : 16 * 256;  // 1021: a tail on every target
    // One byte off, because rows in a mapped file have any alignment.
    std::vector<std::byte> bytes(1 + n / info.block_elems * info.block_bytes);
    std::vector<float> want(n), got(n);
    for (int round = 0; round < 8; ++round) {
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
      DequantizeRow(dtype, bytes.data() + 1, want);
      DecodeRow(dtype, bytes.data() + 1, n, got.data());
      for (size_t i = 0; i < n; ++i) {
        if (std::isnan(want[i]) && std::isnan(got[i])) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
            << info.name << " element " << i << ": " << got[i] << ", wanted " << want[i];
      }
    }
  }
}

TEST_P(DecodeTest, EveryF16IsConverted) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> got(halves.size());
  DecodeRow(DType::kF16, reinterpret_cast<const std::byte*>(halves.data()), halves.size(), got.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    const float want = F16ToF32(halves[i]);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want)) << i;
    }
  }
}

}  // namespace
}  // namespace npumoe
