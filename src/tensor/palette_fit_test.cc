// SPDX-License-Identifier: Apache-2.0
#include "tensor/palette_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <vector>

#include "base/random.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

using Halves = std::vector<uint16_t>;

Halves Halve(const std::vector<float>& values) {
  Halves halves;
  for (const float v : values) halves.push_back(F32ToF16(v));
  return halves;
}

struct Fitted {
  std::vector<float> table;
  std::vector<uint8_t> indices;
  double squares = 0;  // sum of squared distances
};

Fitted Fit(size_t bits, const Halves& halves, size_t part = 1000) {
  PaletteFit fit(bits);
  Halves table(size_t{1} << bits);
  fit.Clear();
  for (size_t i = 0; i < halves.size(); i += part) {
    fit.Add(std::span(halves).subspan(i, std::min(part, halves.size() - i)));
  }
  fit.Fit(table);
  Fitted fitted;
  for (const uint16_t half : table) fitted.table.push_back(F16ToF32(half));
  fitted.indices.resize(halves.size());
  fit.Indices(halves, fitted.indices.data());
  for (size_t i = 0; i < halves.size(); ++i) {
    const double off = static_cast<double>(F16ToF32(halves[i])) - static_cast<double>(fitted.table[fitted.indices[i]]);
    fitted.squares += off * off;
  }
  return fitted;
}

// The least sum of squares over all cuts of the sorted values into at most `entries` runs.
double BruteForce(std::vector<double> values, size_t entries) {
  std::sort(values.begin(), values.end());
  double best = INFINITY;
  std::vector<size_t> cuts{0};
  const std::function<void(double)> go = [&](double so_far) {
    const size_t begin = cuts.back();
    if (begin == values.size()) best = std::min(best, so_far);
    if (begin == values.size() || cuts.size() > entries) return;
    for (size_t end = begin + 1; end <= values.size(); ++end) {
      double mean = 0, cost = 0;
      for (size_t i = begin; i < end; ++i) mean += values[i] / static_cast<double>(end - begin);
      for (size_t i = begin; i < end; ++i) cost += (values[i] - mean) * (values[i] - mean);
      cuts.push_back(end);
      go(so_far + cost);
      cuts.pop_back();
    }
  };
  go(0);
  return best;
}

TEST(PaletteFit, IsAsGoodAsEveryCutOfSmallSets) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const size_t bits = 1 + round % 3, n = 1 + random.Below(13);
    std::vector<double> values;
    Halves halves;
    for (size_t i = 0; i < n; ++i) {
      // Few distinct values in some rounds, far ones in others.
      const double v = round % 4 == 0 ? static_cast<double>(random.Below(6)) : random.Gaussian() * (i == 0 ? 50 : 1);
      halves.push_back(F32ToF16(static_cast<float>(v)));
      values.push_back(static_cast<double>(F16ToF32(halves.back())));
    }
    const Fitted fitted = Fit(bits, halves);
    // A mean rounded to fp16 is off by 2^-11 of itself at most; n of them by n times its square.
    double slack = 1e-12;
    for (const double v : values) slack += v * v * std::ldexp(1, -22);
    EXPECT_NEAR(fitted.squares, BruteForce(values, size_t{1} << bits), slack) << "round " << round;
  }
}

TEST(PaletteFit, KeepsValuesWhenTheyAreFewEnough) {
  for (const size_t bits : {1, 2, 4, 6, 8}) {
    const size_t entries = size_t{1} << bits;
    Random random(bits);
    std::set<float> distinct{-0.0f, 65504.0f};  // the ends of what fp16 holds
    if (entries > 2) distinct.insert(-65504.0f), distinct.insert(0x1.0p-24f);
    while (distinct.size() < entries) distinct.insert(F16ToF32(F32ToF16(static_cast<float>(random.Gaussian()))));
    const std::vector<float> values(distinct.begin(), distinct.end());
    Halves halves;
    for (size_t i = 0; i < 5000; ++i) halves.push_back(F32ToF16(values[i < entries ? i : random.Below(entries)]));
    const Fitted fitted = Fit(bits, halves);
    EXPECT_EQ(fitted.squares, 0) << bits;
    EXPECT_EQ(fitted.table, values) << bits;
  }
}

TEST(PaletteFit, OneValueFillsTheTable) {
  const Fitted fitted = Fit(4, Halves(37, F32ToF16(-0.125f)));
  EXPECT_EQ(fitted.table, std::vector<float>(16, -0.125f));
  EXPECT_EQ(fitted.indices, std::vector<uint8_t>(37, 0));
}

TEST(PaletteFit, BothZerosAreOneValue) {
  const Fitted fitted = Fit(1, Halve({-0.0f, 0.0f, 3.0f}));
  EXPECT_EQ(fitted.table, (std::vector<float>{0, 3}));
  EXPECT_EQ(fitted.indices, (std::vector<uint8_t>{0, 0, 1}));
}

TEST(PaletteFit, ForgetsWhatWasCleared) {
  PaletteFit fit(1);
  Halves table(2);
  const Halves first = Halve({100, 200, 300}), second = Halve({1, 2});
  fit.Add(first);
  fit.Fit(table);
  fit.Clear();
  fit.Add(second);
  fit.Fit(table);
  EXPECT_EQ(table, second);
}

Halves RandomWeights(size_t n, int kind) {
  Random random(static_cast<uint64_t>(kind) + 5);
  Halves halves;
  for (size_t i = 0; i < n; ++i) {
    double v = random.Gaussian() * 0.02;
    if (kind == 1 && i % 50 == 0) v *= 20;                                                           // outliers
    if (kind == 2) v = std::round(v / 0.004) * 0.004 * (1 + static_cast<double>(i / 32 % 64) / 64);  // levels of blocks
    halves.push_back(F32ToF16(static_cast<float>(v)));
  }
  return halves;
}

TEST(PaletteFit, ErrorFallsWithBitsAndNearsTheTheory) {
  for (int kind = 0; kind < 3; ++kind) {
    const Halves halves = RandomWeights(20000, kind);
    double power = 0;
    for (const uint16_t half : halves) power += std::pow(static_cast<double>(F16ToF32(half)), 2);
    double last = INFINITY;
    for (size_t bits = 1; bits <= 8; ++bits) {
      const Fitted fitted = Fit(bits, halves);
      EXPECT_LT(fitted.squares, last) << "kind " << kind << ", bits " << bits;
      last = fitted.squares;
      // Best scalar quantizers of a Gaussian (Max 1960): 0.3634, 0.1175, 0.03454, 0.009497 of the power.
      constexpr double kMax[] = {0, 0.3634, 0.1175, 0.03454, 0.009497};
      if (kind == 0 && bits <= 4) {
        EXPECT_NEAR(fitted.squares / power, kMax[bits], 0.03 * kMax[bits]) << bits;
      }
    }
  }
}

TEST(PaletteFit, EveryValueTakesItsNearestEntry) {
  const Halves halves = RandomWeights(3000, 1);
  const Fitted fitted = Fit(4, halves);
  EXPECT_TRUE(std::is_sorted(fitted.table.begin(), fitted.table.end()));
  for (size_t i = 0; i < halves.size(); ++i) {
    const float v = F16ToF32(halves[i]);
    for (const float entry : fitted.table) {
      ASSERT_LE(std::fabs(v - fitted.table[fitted.indices[i]]), std::fabs(v - entry)) << i;
    }
  }
}

// More distinct values than pieces, so that cuts are searched among pieces and in the band.
TEST(PaletteFit, LargeSetsAreNearTheBestCut) {
  for (int kind = 0; kind < 3; ++kind) {
    const Halves halves = RandomWeights(2000, kind);
    std::vector<double> v;
    for (const uint16_t half : halves) v.push_back(static_cast<double>(F16ToF32(half)));
    std::sort(v.begin(), v.end());
    v.erase(std::unique(v.begin(), v.end()), v.end());
    if (kind < 2) {
      ASSERT_GT(v.size(), PaletteFit::kMostPieces);
    }
    // Every value once, so that plain prefix sums do.
    Halves distinct;
    for (const double x : v) distinct.push_back(F32ToF16(static_cast<float>(x)));
    std::vector<double> sum{0}, squares{0};
    for (const double x : v) sum.push_back(sum.back() + x), squares.push_back(squares.back() + x * x);
    for (const size_t bits : {size_t{2}, size_t{4}, size_t{6}}) {
      if (bits == 6 && kind != 1) continue;  // the search below takes its time
      std::vector<double> least(v.size() + 1, INFINITY);
      least[0] = 0;
      for (size_t entry = 0; entry < size_t{1} << bits; ++entry) {
        std::vector<double> next(v.size() + 1, INFINITY);
        for (size_t end = 1; end <= v.size(); ++end) {
          for (size_t begin = 0; begin < end; ++begin) {
            const double s = sum[end] - sum[begin];
            const double cost = squares[end] - squares[begin] - s * s / static_cast<double>(end - begin);
            next[end] = std::min(next[end], least[begin] + cost);
          }
        }
        least = next;
      }
      EXPECT_LE(Fit(bits, distinct).squares, 1.05 * least[v.size()] + 1e-9) << "kind " << kind << ", bits " << bits;
    }
  }
}

TEST(PaletteFit, DoesNotDependOnTheOrder) {
  Halves halves = RandomWeights(9000, 0);
  const Fitted one = Fit(6, halves, 9000);
  std::reverse(halves.begin(), halves.end());
  EXPECT_EQ(Fit(6, halves, 7).table, one.table);
}

}  // namespace
}  // namespace npumoe
