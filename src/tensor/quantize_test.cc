// SPDX-License-Identifier: Apache-2.0
#include "tensor/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"

namespace npumoe {
namespace {

constexpr size_t kRow = 2048;

class Quantize : public testing::TestWithParam<size_t> {
 public:
  DType dtype() const { return static_cast<DType>(GetParam()); }
};

// The same for the types from Q8_0 on, which have blocks.
class QuantizeBlocks : public Quantize {};

// About normal, from exact operations only: the same bits on every machine.
std::vector<float> MakeRow(uint64_t seed, float scale) {
  Random random(seed);
  std::vector<float> row(kRow);
  for (float& x : row) {
    double sum = -2.0;
    for (int i = 0; i < 4; ++i) sum += random.Uniform();
    x = static_cast<float>(sum * 1.75) * scale;
  }
  return row;
}

std::vector<std::byte> Encode(DType dtype, const std::vector<float>& row) {
  std::vector<std::byte> bytes(RowBytes(dtype, row.size()).value() + 1, std::byte{0xa5});
  QuantizeRow(dtype, row, bytes.data());
  EXPECT_EQ(bytes.back(), std::byte{0xa5}) << "wrote beyond the row";
  bytes.pop_back();
  return bytes;
}

std::vector<float> Decode(DType dtype, const std::vector<std::byte>& bytes, size_t n) {
  std::vector<float> out(n);
  DequantizeRow(dtype, bytes.data(), out);
  return out;
}

std::vector<float> RoundTrip(DType dtype, const std::vector<float>& row) {
  return Decode(dtype, Encode(dtype, row), row.size());
}

// Root mean square error divided by the root mean square of the row.
double RelativeError(const std::vector<float>& row, const std::vector<float>& back) {
  double error = 0, power = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    error += std::pow(static_cast<double>(row[i]) - static_cast<double>(back[i]), 2);
    power += std::pow(static_cast<double>(row[i]), 2);
  }
  return std::sqrt(error / power);
}

// Measured with llama.cpp's encoders (ggml_quantize_chunk, no importance matrix) on normal rows; ours may not be worse.
// The oracle test measures both on the same rows; this holds where npm is absent.
double AllowedError(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 0.00022;
    case DType::kBF16:
      return 0.0018;
    case DType::kQ8_0:
      return 0.0054;
    case DType::kQ4_0:
      return 0.087;
    case DType::kQ4_1:
      return 0.079;
    case DType::kQ5_0:
      return 0.043;
    case DType::kQ5_1:
      return 0.038;
    case DType::kQ2_K:
      return 0.30;
    case DType::kQ3_K:
      return 0.151;
    case DType::kQ4_K:
      return 0.072;
    case DType::kQ5_K:
      return 0.0365;
    case DType::kQ6_K:
      return 0.018;
    case DType::kIQ4_NL:
      return 0.077;
    case DType::kIQ4_XS:
      return 0.077;
    case DType::kMXFP4:
      return 0.115;
  }
  return 0;
}

TEST_P(Quantize, ErrorIsSmallAtEveryMagnitude) {
  for (const float scale : {1.0f, 0.02f, 300.0f}) {
    const std::vector<float> row = MakeRow(1, scale);
    EXPECT_LE(RelativeError(row, RoundTrip(dtype(), row)), AllowedError(dtype())) << scale;
  }
}

TEST_P(Quantize, EncodingADecodedRowChangesNothingMuch) {
  const std::vector<float> once = RoundTrip(dtype(), MakeRow(2, 1.0f));
  // A decoded row is representable, so a second trip loses less than a tenth of what the first lost.
  EXPECT_LE(RelativeError(once, RoundTrip(dtype(), once)), 0.1 * AllowedError(dtype()));
}

TEST_P(Quantize, ZerosStayZeros) {
  for (const float x : RoundTrip(dtype(), std::vector<float>(kRow, 0.0f))) ASSERT_EQ(x, 0.0f);
  QuantizeRow(dtype(), {}, nullptr);  // an empty row writes nothing
}

TEST_P(QuantizeBlocks, ABlockWithANonFiniteValueBecomesZerosAloneAmongItsNeighbours) {
  const size_t n = Info(dtype()).block_elems;
  const std::vector<float> clean = MakeRow(3, 1.0f);
  const std::vector<float> want = RoundTrip(dtype(), clean);
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> row = clean;
    row[n + 7] = bad;
    const std::vector<float> got = RoundTrip(dtype(), row);
    for (size_t i = 0; i < kRow; ++i) ASSERT_EQ(got[i], i / n == 1 ? 0.0f : want[i]) << bad << " at " << i;
  }
}

TEST_P(QuantizeBlocks, ExtremeFiniteValuesStayFiniteAndOfTheirSign) {
  for (const float magnitude : {3.4e38f, 1e20f, 1e6f, 1e-6f, 1e-30f, 1e-45f}) {
    std::vector<float> row = MakeRow(4, 1.0f);
    for (float& x : row) x = x < 0 ? -magnitude : magnitude;
    const std::vector<float> back = RoundTrip(dtype(), row);
    for (size_t i = 0; i < kRow; ++i) {
      ASSERT_TRUE(std::isfinite(back[i])) << magnitude << " at " << i;
      ASSERT_GE(back[i] * (row[i] < 0 ? -1.0f : 1.0f), 0.0f) << magnitude << " at " << i;
      ASSERT_LE(std::fabs(back[i]), 1.5 * static_cast<double>(magnitude)) << i;
    }
  }
}

TEST_P(Quantize, ConstantRowsAreKeptToTheScalesPrecision) {
  for (const float value : {0.7f, -0.7f}) {
    const std::vector<float> back = RoundTrip(dtype(), std::vector<float>(kRow, value));
    // One f16 rounding for the scale, or none of the levels at hand (MXFP4: 0.75 beside 0.7).
    const float tolerance = dtype() == DType::kMXFP4 ? 0.0501f : 0.7f * 0x1p-8f;
    for (const float x : back) ASSERT_NEAR(x, value, tolerance);
  }
}

TEST_P(Quantize, BytesAreTheSameOnEveryMachine) {
  const uint64_t kWant[kDTypeCount] = {0xb324874db46869aa, 0x5552072871d02aa5, 0xb16b9640af158749, 0xe57a4a3dc9d044d,
                                       0xdfd8784f5c53ec41, 0x61bba31ef2fb449,  0x76dff2bcb4cede20, 0x7f2714df1d4c10ad,
                                       0x427d048335ec446,  0x1f0aef8f1a99fd5e, 0x323c928c9e8040c6, 0x9810b740615ea36,
                                       0x918c4cc341ebd878, 0x44ec70f05f4b4827, 0xf2829e79ce0de84e, 0xc54b38e6a6390267};
  uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  for (const float scale : {1.0f, 3e-6f}) {
    for (const std::byte b : Encode(dtype(), MakeRow(5, scale))) {
      hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001b3ULL;
    }
  }
  // Recorded from this encoder; a deliberate change of an encoder changes its line.
  EXPECT_EQ(hash, kWant[GetParam()]) << std::hex << "0x" << hash << " for " << Info(dtype()).name;
}

std::string TypeName(const testing::TestParamInfo<size_t>& test) {
  return std::string(Info(static_cast<DType>(test.param)).name);
}
INSTANTIATE_TEST_SUITE_P(AllTypes, Quantize, testing::Range<size_t>(0, kDTypeCount), TypeName);
INSTANTIATE_TEST_SUITE_P(BlockTypes, QuantizeBlocks, testing::Range(static_cast<size_t>(DType::kQ8_0), kDTypeCount),
                         TypeName);

TEST(QuantizeQ8_0, RoundsToTheNearestOf255Levels) {
  std::vector<float> row(32, 0.0f);
  row[0] = 127.0f;  // scale 1
  row[1] = -127.0f;
  row[2] = 2.4f;
  row[3] = -2.6f;
  const std::vector<float> back = RoundTrip(DType::kQ8_0, row);
  EXPECT_EQ(back[0], 127.0f);
  EXPECT_EQ(back[1], -127.0f);
  EXPECT_EQ(back[2], 2.0f);
  EXPECT_EQ(back[3], -3.0f);
}

TEST(QuantizeQ4_0, KeepsEveryMultipleOfTheScale) {
  std::vector<float> row(32);
  for (size_t i = 0; i < 32; ++i) row[i] = 0.25f * (static_cast<float>(i % 16) - 8.0f);
  EXPECT_EQ(RoundTrip(DType::kQ4_0, row), row);
}

TEST(QuantizeMXFP4, TakesTheCoarserScaleWhenTheFinerOneWouldClipMore) {
  std::vector<float> row(32, 0.0f);
  for (size_t i = 0; i < 32; ++i)
    row[i] = i % 2 == 0 ? 8.0f : -4.0f;  // levels of the coarser scale; the finer ends at 6
  EXPECT_EQ(RoundTrip(DType::kMXFP4, row), row);
  for (size_t i = 0; i < 32; ++i) row[i] = i % 2 == 0 ? 6.0f : -0.5f;  // levels of the finer scale only
  EXPECT_EQ(RoundTrip(DType::kMXFP4, row), row);
}

}  // namespace
}  // namespace npumoe
