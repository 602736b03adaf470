// SPDX-License-Identifier: Apache-2.0
#include "kernels/vector_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/target_test.h"

namespace npumoe {
namespace {

constexpr double kEps = 0x1.0p-24;  // one rounding of f32, relative
constexpr double kTiny = std::numeric_limits<float>::min();
constexpr float kInf = std::numeric_limits<float>::infinity();

class VectorOps : public EveryTarget {};
NM_FOR_EVERY_TARGET(VectorOps);

std::vector<float> Gaussians(size_t n, uint64_t seed, double scale = 1.0, double mean = 0.0) {
  Random random(seed);
  std::vector<float> x(n);
  for (float& value : x) value = static_cast<float>(mean + scale * random.Gaussian());
  return x;
}

// Values with room behind them that must stay as it was.
struct Guarded {
  explicit Guarded(std::vector<float> values) : data(std::move(values)), n(data.size()) { data.resize(n + 32, -77.0f); }
  std::span<float> span() { return {data.data(), n}; }
  bool intact() const {
    for (size_t i = n; i < data.size(); ++i) {
      if (data[i] != -77.0f) return false;
    }
    return true;
  }
  std::vector<float> data;
  size_t n;
};

TEST_P(VectorOps, RmsNormOfHandWorkedRow) {
  // mean(x^2) = (9 + 16) / 2 = 12.5; with eps 3.5 the root is 4.
  const std::vector<float> x{3, 4}, weight{2, 1}, bias{0.5f, -1};
  std::vector<float> y(2);
  RmsNorm(x, weight, {}, 3.5f, y);
  EXPECT_EQ(y, (std::vector<float>{1.5f, 1}));
  RmsNorm(x, weight, bias, 3.5f, y);
  EXPECT_EQ(y, (std::vector<float>{2, 0}));
}

TEST_P(VectorOps, LayerNormOfHandWorkedRow) {
  // mean 4, variance (1 + 9 + 1 + 9) / 4 = 5; with eps 4 the root is 3.
  const std::vector<float> x{3, 7, 5, 1}, weight{3, 3, 6, 3}, bias{1, 1, 1, 1};
  std::vector<float> y(4);
  LayerNorm(x, weight, {}, 4.0f, y);
  EXPECT_EQ(y, (std::vector<float>{-1, 3, 2, -3}));
  LayerNorm(x, weight, bias, 4.0f, y);
  EXPECT_EQ(y, (std::vector<float>{0, 4, 3, -2}));
}

TEST_P(VectorOps, RmsNormMatchesDoubleAtEveryTail) {
  for (size_t n = 1; n <= 67; ++n) {
    const std::vector<float> x = Gaussians(n, n), weight = Gaussians(n, n + 100), bias = Gaussians(n, n + 200);
    double square = 0;
    for (const float value : x) square += static_cast<double>(value) * value;
    const double scale = 1.0 / std::sqrt(square / static_cast<double>(n) + static_cast<double>(1e-5f));
    Guarded y(x);  // in place
    RmsNorm(y.span(), weight, bias, 1e-5f, y.span());
    for (size_t i = 0; i < n; ++i) {
      const double scaled = scale * x[i] * weight[i];
      // Roundings: scale, two products, one sum; the sums behind scale are double.
      const double bound = kEps * (3.01 * std::abs(scaled) + std::abs(scaled + bias[i])) + kTiny;
      ASSERT_NEAR(y.data[i], scaled + bias[i], bound) << "n " << n << " i " << i;
    }
    ASSERT_TRUE(y.intact()) << n;
  }
}

TEST_P(VectorOps, LayerNormMatchesDoubleAtEveryTailAndFarFromZero) {
  for (size_t n = 1; n <= 67; ++n) {
    const std::vector<float> x = Gaussians(n, n, 0.01, 100.0), weight = Gaussians(n, n + 100);
    const std::vector<float> bias = Gaussians(n, n + 200);
    double mean = 0, variance = 0;
    for (const float value : x) mean += value;
    mean /= static_cast<double>(n);
    for (const float value : x) variance += (value - mean) * (value - mean);
    const double scale = 1.0 / std::sqrt(variance / static_cast<double>(n) + static_cast<double>(1e-5f));
    Guarded y(x);  // in place
    LayerNorm(y.span(), weight, bias, 1e-5f, y.span());
    for (size_t i = 0; i < n; ++i) {
      const double scaled = scale * (x[i] - mean) * weight[i];
      // Roundings: to f32, product, sum. The mean's own error in double is far below.
      const double bound = kEps * (2.01 * std::abs(scaled) + std::abs(scaled + bias[i])) + 1e-11;
      ASSERT_NEAR(y.data[i], scaled + bias[i], bound) << "n " << n << " i " << i;
    }
    ASSERT_TRUE(y.intact()) << n;
  }
}

TEST_P(VectorOps, NormsOfALongRowStayAccurate) {
  const size_t n = 16384;
  const std::vector<float> x = Gaussians(n, 5, 1.0, 3.0), weight(n, 1.0f);
  double square = 0;
  for (const float value : x) square += static_cast<double>(value) * value;
  const double scale = 1.0 / std::sqrt(square / static_cast<double>(n));
  std::vector<float> y(n);
  RmsNorm(x, weight, {}, 0.0f, y);
  for (size_t i = 0; i < n; ++i) ASSERT_NEAR(y[i], x[i] * scale, 3.01 * kEps * std::abs(x[i] * scale)) << i;
}

double Silu(double x) { return x / (1.0 + std::exp(-x)); }

TEST_P(VectorOps, SiluMulMatchesDoubleAtEveryTail) {
  for (size_t n = 1; n <= 67; ++n) {
    const std::vector<float> gate = Gaussians(n, n, 4.0), up = Gaussians(n, n + 100);
    Guarded y(gate);
    SiluMul(y.span(), up);
    for (size_t i = 0; i < n; ++i) {
      const double want = Silu(gate[i]) * up[i];
      // exp(-|x|/2) to 2 ulp (4 roundings), twice; then two products, sum, quotient, product.
      ASSERT_NEAR(y.data[i], want, 13 * kEps * std::abs(want) + kTiny) << "n " << n << " i " << i;
    }
    ASSERT_TRUE(y.intact()) << n;
  }
}

TEST_P(VectorOps, SiluIsRightOverItsWholeRange) {
  std::vector<float> x;
  for (double value = -110.0; value <= 110.0; value += 0.0137) x.push_back(static_cast<float>(value));
  const std::vector<float> ones(x.size(), 1.0f);
  std::vector<float> y = x;
  SiluMul(y, ones);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = Silu(x[i]);
    ASSERT_NEAR(y[i], want, 13 * kEps * std::abs(want) + 0x1.0p-149) << x[i];
  }
}

TEST_P(VectorOps, SiluAtTheEnds) {
  std::vector<float> y{100, -100, kInf, -kInf, 0, 3e38f, -3e38f, std::numeric_limits<float>::quiet_NaN()};
  const std::vector<float> ones(y.size(), 1.0f);
  SiluMul(y, ones);
  EXPECT_EQ(y[0], 100.0f);
  EXPECT_NEAR(y[1], -3.7200759760208356e-42, 0x1.0p-149);  // -100 exp(-100), subnormal
  EXPECT_EQ(y[2], kInf);
  EXPECT_EQ(y[3], 0.0f);
  EXPECT_EQ(y[4], 0.0f);
  EXPECT_EQ(y[5], 3e38f);
  EXPECT_EQ(y[6], 0.0f);
  EXPECT_TRUE(std::isnan(y[7]));
}

TEST_P(VectorOps, AddScaledAtEveryTail) {
  for (size_t n = 0; n <= 67; ++n) {
    const std::vector<float> x = Gaussians(n, n), y0 = Gaussians(n, n + 100);
    Guarded y(y0);
    AddScaled(x, 0.75f, y.span());
    for (size_t i = 0; i < n; ++i) {
      const double product = 0.75 * x[i];
      ASSERT_NEAR(y.data[i], product + y0[i], kEps * (std::abs(product) + std::abs(product + y0[i]))) << n << " " << i;
    }
    ASSERT_TRUE(y.intact()) << n;
  }
}

TEST_P(VectorOps, SoftmaxOfLogarithmsIsTheirShares) {
  std::vector<float> x{std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  Softmax(x);
  EXPECT_NEAR(x[0], 0.125, 8 * kEps * 0.125);
  EXPECT_NEAR(x[1], 0.25, 8 * kEps * 0.25);
  EXPECT_NEAR(x[2], 0.625, 8 * kEps * 0.625);
}

TEST_P(VectorOps, SoftmaxMatchesDoubleAtEveryTail) {
  for (const double scale : {1.0, 30.0}) {
    for (size_t n = 0; n <= 67; ++n) {
      const std::vector<float> x = Gaussians(n, n, scale);
      double max = -1e300, sum = 0;
      for (const float value : x) max = std::max(max, static_cast<double>(value));
      for (const float value : x) sum += std::exp(value - max);
      Guarded y(x);
      Softmax(y.span());
      for (size_t i = 0; i < n; ++i) {
        const double want = std::exp(x[i] - max) / sum;
        // x - max rounds by eps |x - max|, which exp makes relative; exp 4, sum's terms 5 more, inverse, product.
        const double bound = kEps * want * (2 * std::abs(x[i] - max) + 11) + kTiny;
        ASSERT_NEAR(y.data[i], want, bound) << "n " << n << " i " << i;
      }
      ASSERT_TRUE(y.intact()) << n;
    }
  }
}

TEST_P(VectorOps, SoftmaxGivesNothingToMinusInfinity) {
  for (size_t n = 1; n <= 35; ++n) {
    std::vector<float> x(n, -kInf);
    Softmax(x);
    EXPECT_EQ(x, std::vector<float>(n, 0.0f)) << n;  // and no NaN
    x.assign(n, -kInf);
    x[n / 2] = 3.0f;
    std::vector<float> want(n, 0.0f);
    want[n / 2] = 1.0f;
    Softmax(x);
    EXPECT_EQ(x, want) << n;
  }
}

}  // namespace
}  // namespace npumoe
