// SPDX-License-Identifier: Apache-2.0
#include "kernels/half_product.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/random.h"
#include "kernels/target_test.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

class HalfProductTest : public EveryTarget {};
NM_FOR_EVERY_TARGET(HalfProductTest);

constexpr uint16_t kProductGuard = 0xbeef;

struct Case {
  size_t m, k, n;
  bool stores_bytes;
  std::vector<uint16_t> halves, scales, b, y;
  std::vector<int8_t> bytes;

  Case(Random& random, size_t rows, size_t inner, size_t columns, bool int8)
      : m(rows), k(inner), n(columns), stores_bytes(int8), b(inner * columns), y(rows * columns + 1, kProductGuard) {
    const auto fill = [&](std::vector<uint16_t>& values, float scale) {
      for (uint16_t& half : values) half = F32ToF16(scale * static_cast<float>(random.Gaussian()));
    };
    fill(b, 1.0f);
    halves.resize(m * k);
    fill(halves, 0.1f);
    if (!int8) return;
    scales.resize(m);
    fill(scales, 0.01f);
    for (size_t i = 0; i < m * k; ++i) {
      bytes.push_back(static_cast<int8_t>(static_cast<int>(random.Below(255)) - 127));
      halves[i] = F32ToF16(F16ToF32(scales[i / k]) * static_cast<float>(bytes[i]));
    }
  }

  HalfProductJob Job() {
    const HalfLeft left =
        stores_bytes ? HalfLeft{nullptr, bytes.data(), scales.data()} : HalfLeft{.halves = halves.data()};
    return {left, b.data(), y.data(), m, k, n};
  }

  void Check() const {
    for (size_t row = 0; row < m; ++row) {
      for (size_t column = 0; column < n; ++column) {
        float sum = 0;
        for (size_t i = 0; i < k; ++i) sum += F16ToF32(halves[row * k + i]) * F16ToF32(b[i * n + column]);
        ASSERT_EQ(y[row * n + column], F32ToF16(sum)) << m << " x " << k << " x " << n << (stores_bytes ? " int8" : "")
                                                      << ": row " << row << ", column " << column;
      }
    }
    ASSERT_EQ(y[m * n], kProductGuard);
  }
};

TEST_P(HalfProductTest, HandWorked) {
  // [1 2; -3 0.5] * [4 0 1; 8 -2 65504]: the last column leaves the range in its first row.
  const std::vector<uint16_t> a{0x3c00, 0x4000, 0xc200, 0x3800}, b{0x4400, 0, 0x3c00, 0x4800, 0xc000, 0x7bff};
  std::vector<uint16_t> y(6);
  ThreadPool pool(1);
  HalfProduct product(pool);
  const HalfProductJob job{{.halves = a.data()}, b.data(), y.data(), 2, 2, 3};
  product.Run({&job, 1});
  // 20, -4, 131009 = inf; -8, -1, 32749 rounded to a multiple of 16.
  EXPECT_EQ(y, (std::vector<uint16_t>{0x4d00, 0xc400, 0x7c00, 0xc800, 0xbc00, F32ToF16(32749.0f)}));
}

TEST_P(HalfProductTest, HasTheBitsOfThePlainLoopAtEveryShape) {
  Random random(1);
  ThreadPool pool(2);
  HalfProduct product(pool);
  for (const size_t m : {1, 5, 6, 11, 12, 13, 47, 95, 96, 97, 100}) {
    for (const size_t k : {1, 31, 192, 193, 400}) {
      for (const size_t n : {1, 8, 31, 32, 33, 70}) {
        Case c(random, m, k, n, (m + k + n) % 3 == 0);
        const HalfProductJob job = c.Job();
        product.Run({&job, 1});
        c.Check();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(HalfProductTest, ManyJobsAndColumnsOnAnyNumberOfThreads) {
  for (const size_t threads : {1, 3}) {
    Random random(2);
    ThreadPool pool(threads);
    HalfProduct product(pool);
    std::vector<Case> cases;
    cases.reserve(4);
    cases.emplace_back(random, 61, 40, 1100, false);
    cases.emplace_back(random, 3, 17, 5, true);
    cases.emplace_back(random, 96, 200, 512, true);
    cases.emplace_back(random, 130, 64, 513, false);
    std::vector<HalfProductJob> jobs;
    for (Case& c : cases) jobs.push_back(c.Job());
    product.Run(jobs);
    for (const Case& c : cases) {
      c.Check();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(HalfProductTest, EmptyInnerDimensionGivesZeros) {
  ThreadPool pool(1);
  HalfProduct product(pool);
  std::vector<uint16_t> y(6, kProductGuard);
  const uint16_t none = 0;
  const HalfProductJob jobs[] = {{{.halves = &none}, &none, y.data(), 2, 0, 3},
                                 {{.halves = &none}, &none, nullptr, 0, 4, 3}};
  product.Run(jobs);
  EXPECT_EQ(y, std::vector<uint16_t>(6, 0));
}

}  // namespace
}  // namespace npumoe
