// SPDX-License-Identifier: Apache-2.0
#include "kernels/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/target_test.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

class Half : public EveryTarget {};
NM_FOR_EVERY_TARGET(Half);

bool IsNan(uint16_t half) { return (half & 0x7fffu) > 0x7c00u; }
bool Same(uint16_t a, uint16_t b) { return a == b || (IsNan(a) && IsNan(b)); }

// Any bit pattern now and then, values around 1 mostly.
std::vector<uint16_t> AnyHalves(Random& random, size_t n) {
  std::vector<uint16_t> halves(n);
  for (uint16_t& half : halves) {
    half = random.Below(4) == 0 ? static_cast<uint16_t>(random.Below(1 << 16))
                                : F32ToF16(static_cast<float>(random.Gaussian()));
  }
  return halves;
}

std::vector<uint16_t> FiniteHalves(Random& random, size_t n) {
  std::vector<uint16_t> halves(n);
  for (uint16_t& half : halves) half = F32ToF16(static_cast<float>(3 * random.Gaussian()));
  return halves;
}

constexpr uint16_t kGuard = 0xbeef;

TEST_P(Half, ConversionsMatchTheScalarDefinition) {
  Random random(1);
  for (const size_t n : {0, 1, 5, 15, 16, 17, 33, 64, 67, 200}) {
    const std::vector<uint16_t> halves = AnyHalves(random, n);
    std::vector<float> floats(n + 1, -77.0f);
    HalvesToFloats(halves, floats.data());
    for (size_t i = 0; i < n; ++i) {
      if (IsNan(halves[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(floats[i]), std::bit_cast<uint32_t>(F16ToF32(halves[i])));
    }
    ASSERT_EQ(floats[n], -77.0f);
    for (float& f : floats) f = std::bit_cast<float>(static_cast<uint32_t>(random.Below(uint64_t{1} << 32)));
    std::vector<uint16_t> back(n + 1, kGuard);
    FloatsToHalves(std::span(floats).first(n), back.data());
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(back[i], F32ToF16(floats[i])) << i << " of " << n;
    ASSERT_EQ(back[n], kGuard);
  }
}

TEST_P(Half, MagnitudeAndBytesOfHandWorkedRows) {
  EXPECT_EQ(MaxMagnitude({}), 0.0f);
  std::vector<float> values(37, 0.25f);
  values[36] = -3.0f;
  EXPECT_EQ(MaxMagnitude(values), 3.0f);
  // Halves go to the even number; beyond +-127 the end holds.
  const std::vector<float> steps{0.5f, 1.5f, -0.5f, -2.5f, 126.6f, 127.4f, 300.0f, -127.6f, -1e9f, 0.0f, 2.4f};
  const std::vector<int8_t> want{0, 2, 0, -2, 127, 127, 127, -127, -127, 0, 2};
  for (size_t n = 0; n <= 40; ++n) {
    std::vector<float> row(n);
    for (size_t i = 0; i < n; ++i) row[i] = steps[i % steps.size()] * 0.125f;
    std::vector<int8_t> bytes(n + 1, 99);
    FloatsToBytes(row, 0.125f, bytes.data());
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(bytes[i], want[i % want.size()]) << i << " of " << n;
    ASSERT_EQ(bytes[n], 99);
  }
}

float Scalar(HalfBinaryOp op, float x, float y) {
  switch (op) {
    case HalfBinaryOp::kAdd:
      return x + y;
    case HalfBinaryOp::kSub:
      return x - y;
    case HalfBinaryOp::kMul:
      return x * y;
    case HalfBinaryOp::kDiv:
      return x / y;
    case HalfBinaryOp::kMaximum:
      return x > y ? x : y;
    default:
      return x > y ? y : x;
  }
}

TEST_P(Half, BinaryMatchesF32RoundedOnceAtEveryTail) {
  Random random(2);
  for (const auto op : {HalfBinaryOp::kAdd, HalfBinaryOp::kSub, HalfBinaryOp::kMul, HalfBinaryOp::kDiv,
                        HalfBinaryOp::kMaximum, HalfBinaryOp::kMinimum}) {
    for (size_t n = 0; n <= 1100; n += n < 40 ? 1 : 53) {
      for (const size_t repeats : {0, 1, 2, 3}) {
        const bool one_x = (repeats & 1) != 0, one_y = (repeats & 2) != 0;
        const auto x = AnyHalves(random, one_x ? 1 : n), y = AnyHalves(random, one_y ? 1 : n);
        std::vector<uint16_t> out(n + 1, kGuard);
        HalfBinary(op, {x.data(), one_x}, {y.data(), one_y}, n, out.data());
        for (size_t i = 0; i < n; ++i) {
          const uint16_t want = F32ToF16(Scalar(op, F16ToF32(x[one_x ? 0 : i]), F16ToF32(y[one_y ? 0 : i])));
          ASSERT_TRUE(Same(out[i], want))
              << static_cast<int>(op) << ": " << i << " of " << n << ": " << out[i] << ", wanted " << want;
        }
        ASSERT_EQ(out[n], kGuard);
      }
    }
  }
}

TEST_P(Half, SoftmaxIsOneRoundingFromDouble) {
  Random random(3);
  for (size_t n = 1; n <= 1600; n += n < 40 ? 1 : 119) {
    std::vector<uint16_t> x = FiniteHalves(random, n);
    if (n > 3) x[n / 2] = 0xfc00;             // -inf, as masks have it
    if (n > 5) x[n - 1] = 0xf800;             // far below
    if (n > 30 && n % 2 == 0) x[7] = 0x5640;  // 100: the rest vanish
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const uint16_t v : x) top = std::max(top, static_cast<double>(F16ToF32(v)));
    for (const uint16_t v : x) sum += std::exp(static_cast<double>(F16ToF32(v)) - top);
    std::vector<float> scratch(n);
    std::vector<uint16_t> out(n + 1, kGuard);
    HalfSoftmax(x.data(), n, scratch.data(), out.data());
    for (size_t i = 0; i < n; ++i) {
      const double want = std::exp(static_cast<double>(F16ToF32(x[i])) - top) / sum;
      // Half a unit of fp16 (2^-25 among subnormals) for the rounding, 2^-20 for what came before.
      const double allowed = std::max(0x1p-25, want * 0x1p-11) + want * 0x1p-20;
      ASSERT_NEAR(static_cast<double>(F16ToF32(out[i])), want, allowed) << i << " of " << n;
    }
    ASSERT_EQ(out[n], kGuard);
  }
}

TEST_P(Half, SoftmaxOfInfinitiesIsNotANumber) {
  std::vector<float> scratch(20);
  std::vector<uint16_t> out(20);
  for (const uint16_t fill : {uint16_t{0xfc00}, uint16_t{0x7c00}, uint16_t{0x7e00}}) {
    const std::vector<uint16_t> x(20, fill);
    HalfSoftmax(x.data(), 20, scratch.data(), out.data());
    for (const uint16_t half : out) EXPECT_TRUE(IsNan(half)) << fill;
  }
}

// Layer norm of one column as the reference defines it.
void ScalarNorm(const HalfLayerNormArgs& args, const uint16_t* x, std::vector<uint16_t>& out, size_t column) {
  const auto at = [&](size_t i) { return static_cast<double>(F16ToF32(x[i * args.stride + column])); };
  double sum = 0, squares = 0;
  for (size_t i = 0; i < args.n; ++i) sum += at(i);
  const double mean = sum / static_cast<double>(args.n);
  for (size_t i = 0; i < args.n; ++i) squares += (at(i) - mean) * (at(i) - mean);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(args.n) + args.epsilon);
  for (size_t i = 0; i < args.n; ++i) {
    const double gain = args.gamma.empty() ? 1 : static_cast<double>(args.gamma[i]);
    const double shift = args.beta.empty() ? 0 : static_cast<double>(args.beta[i]);
    out[i * args.stride + column] = F32ToF16(static_cast<float>((at(i) - mean) * scale * gain + shift));
  }
}

TEST_P(Half, LayerNormHasTheBitsOfTheScalarDefinition) {
  Random random(4);
  for (size_t columns = 1; columns <= kLayerNormColumns; ++columns) {
    for (const size_t n : {1, 2, 7, 48, 131}) {
      HalfLayerNormArgs args;
      args.n = n;
      args.stride = columns + columns % 3;
      args.columns = columns;
      args.epsilon = 1e-6;
      const std::vector<uint16_t> x = FiniteHalves(random, n * args.stride);
      std::vector<float> gamma(n), beta(n);
      for (float& g : gamma) g = F16ToF32(F32ToF16(static_cast<float>(random.Gaussian())));
      for (float& b : beta) b = F16ToF32(F32ToF16(static_cast<float>(random.Gaussian())));
      if (n != 7) args.gamma = gamma;
      if (n == 48) args.beta = beta;
      std::vector<uint16_t> out(x.size(), kGuard), want(x.size(), kGuard);
      HalfLayerNorm(args, x.data(), out.data());
      for (size_t column = 0; column < columns; ++column) ScalarNorm(args, x.data(), want, column);
      ASSERT_EQ(out, want) << n << " values, " << columns << " columns";
    }
  }
}

TEST_P(Half, TransposeTurnsEveryShape) {
  Random random(5);
  for (const size_t rows : {1, 2, 7, 8, 31, 32, 33, 70, 256, 300}) {
    for (const size_t cols : {1, 3, 8, 16, 29, 67, 128}) {
      const std::vector<uint16_t> in = AnyHalves(random, rows * cols);
      std::vector<uint16_t> out(rows * cols + 1, kGuard);
      HalfTranspose(in.data(), rows, cols, out.data());
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < cols; ++c) ASSERT_EQ(out[c * rows + r], in[r * cols + c]) << rows << " x " << cols;
      }
      ASSERT_EQ(out[rows * cols], kGuard);
    }
  }
}

}  // namespace
}  // namespace npumoe
