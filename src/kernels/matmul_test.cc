// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <limits>

#include "kernels/target_test.h"
#include "kernels/test_weights.h"

namespace npumoe {
namespace {

class MatMulTest : public EveryTarget {};
NM_FOR_EVERY_TARGET(MatMulTest);

// One product with its own storage. x and y have strides above their widths.
struct Product {
  size_t m, n, k;
  DType dtype;
  std::vector<float> x, y;
  std::vector<std::byte> w;

  Product(Random& random, DType type, size_t rows, size_t outputs, size_t inner)
      : m(rows), n(outputs), k(inner), dtype(type) {
    x = RandomFloats(random, m * x_stride());
    y.assign(m * y_stride(), -77.0f);
    w = RandomRow(random, dtype, n * k);
  }
  size_t x_stride() const { return k + 3; }
  size_t y_stride() const { return n + 5; }
  size_t row_bytes() const { return k / Info(dtype).block_elems * Info(dtype).block_bytes; }

  MatMulJob Job() { return Job(0, m); }
  MatMulJob Job(size_t first, size_t rows) {
    return {ConstMatView(x.data() + first * x_stride(), rows, k, x_stride()),
            TensorView{dtype, Shape::Of(n, k), w.data()}, MatView{y.data() + first * y_stride(), rows, n, y_stride()}};
  }
  std::vector<float> Result() const {
    std::vector<float> out;
    for (size_t row = 0; row < m; ++row) {
      out.insert(out.end(), y.begin() + row * y_stride(), y.begin() + row * y_stride() + n);
    }
    return out;
  }
};

std::vector<float> RunAlone(MatMul& matmul, Product& p) {
  const MatMulJob job = p.Job();
  matmul.Run({&job, 1});
  return p.Result();
}

// Against double: |error| <= K * eps * sum |x_k * w_k|, eps = 2^-24, one rounding per accumulation.
void ExpectCloseToDouble(const Product& p) {
  std::vector<float> w(p.n * p.k);
  for (size_t n = 0; n < p.n; ++n) {
    DequantizeRow(p.dtype, p.w.data() + n * p.row_bytes(), std::span(w.data() + n * p.k, p.k));
  }
  for (size_t m = 0; m < p.m; ++m) {
    for (size_t n = 0; n < p.n; ++n) {
      double sum = 0.0, magnitude = 0.0;
      for (size_t k = 0; k < p.k; ++k) {
        const double product = static_cast<double>(p.x[m * p.x_stride() + k]) * static_cast<double>(w[n * p.k + k]);
        sum += product;
        magnitude += std::abs(product);
      }
      const double got = static_cast<double>(p.y[m * p.y_stride() + n]);
      ASSERT_LE(std::abs(got - sum), static_cast<double>(p.k) * 0x1p-24 * magnitude)
          << Info(p.dtype).name << " m " << m << " of " << p.m << ", n " << n << " of " << p.n << ", k " << p.k << ": "
          << got << ", wanted " << sum;
    }
    // Nothing is written between the rows.
    for (size_t gap = p.n; gap < p.y_stride(); ++gap) ASSERT_EQ(p.y[m * p.y_stride() + gap], -77.0f);
  }
}

TEST_P(MatMulTest, PlainFloatsMatchDoubleAtEveryTail) {
  ThreadPool pool(1);
  MatMul matmul(pool, 67);
  Random random(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (size_t k = 1; k <= 67; ++k) {
      Product p(random, dtype, 1 + k % 5, 1 + (k * 7) % 23, k);
      RunAlone(matmul, p);
      ExpectCloseToDouble(p);
    }
  }
}

TEST_P(MatMulTest, EveryTypeMatchesDoubleForOneToTwentyRows) {
  ThreadPool pool(2);
  MatMul matmul(pool, 2048);
  Random random(2);
  for (const DType dtype : kAllDTypes) {
    for (size_t m = 1; m <= 20; ++m) {
      const size_t block = Info(dtype).block_elems == 32 ? 32 : 256;
      Product p(random, dtype, m, 1 + (m * 11) % 61, block * (1 + m % 5));
      RunAlone(matmul, p);
      ExpectCloseToDouble(p);
    }
  }
}

TEST_P(MatMulTest, LongRowsAndManyRowsMatchDouble) {
  ThreadPool pool(2);
  MatMul matmul(pool, 5120);
  Random random(3);
  for (const DType dtype : {DType::kF32, DType::kQ8_0, DType::kQ4_K}) {
    for (const size_t k : {768u, 1024u, 2048u, 5120u}) {
      Product p(random, dtype, 3, 7, k);
      RunAlone(matmul, p);
      ExpectCloseToDouble(p);
    }
    Product p(random, dtype, 150, 50, 256);
    RunAlone(matmul, p);
    ExpectCloseToDouble(p);
  }
}

TEST_P(MatMulTest, ARowGivesTheSameBitsWhateverRowsItCameWith) {
  ThreadPool pool(1);
  MatMul matmul(pool, 2048);
  Random random(4);
  for (const DType dtype : kAllDTypes) {
    Product p(random, dtype, 71, 59, 1280);
    const std::vector<float> whole = RunAlone(matmul, p);
    for (const size_t rows : {1u, 2u, 3u, 5u, 16u, 64u}) {
      std::fill(p.y.begin(), p.y.end(), -77.0f);
      for (size_t first = 0; first < p.m; first += rows) {
        const MatMulJob job = p.Job(first, std::min(rows, p.m - first));
        matmul.Run({&job, 1});
      }
      ASSERT_EQ(p.Result(), whole) << Info(dtype).name << " in pieces of " << rows;
    }
  }
}

TEST_P(MatMulTest, ThreadsAndOtherJobsDoNotChangeABit) {
  Random random(5);
  std::vector<Product> products;
  for (size_t i = 0; i < 40; ++i) {
    const DType dtype = kAllDTypes[i % kDTypeCount];
    const size_t m = i % 7 == 3 ? 0 : i * i % 37;
    products.emplace_back(random, dtype, m, 1 + i * 13 % 150, 256 * (1 + i % 4));
  }
  ThreadPool alone(1);
  MatMul matmul(alone, 1024);
  std::vector<std::vector<float>> want;
  for (Product& p : products) want.push_back(RunAlone(matmul, p));
  for (const size_t n_threads : {1u, 2u, 4u}) {
    ThreadPool pool(n_threads);
    MatMul together(pool, 1024);
    std::vector<MatMulJob> jobs;
    for (Product& p : products) {
      std::fill(p.y.begin(), p.y.end(), -77.0f);
      jobs.push_back(p.Job());
    }
    together.Run(jobs);
    for (size_t i = 0; i < products.size(); ++i) {
      ASSERT_EQ(products[i].Result(), want[i]) << "job " << i << ", " << n_threads << " threads";
    }
  }
}

TEST_P(MatMulTest, EmptyWorkIsAllowed) {
  ThreadPool pool(2);
  MatMul matmul(pool, 64);
  matmul.Run({});
  Random random(6);
  Product no_rows(random, DType::kF32, 0, 5, 64);
  EXPECT_EQ(RunAlone(matmul, no_rows), std::vector<float>{});
  Product no_inner(random, DType::kF32, 3, 5, 0);
  EXPECT_EQ(RunAlone(matmul, no_inner), std::vector<float>(15, 0.0f));
}

TEST_P(MatMulTest, ANanOrInfinityReachesItsOutputsOnly) {
  ThreadPool pool(1);
  MatMul matmul(pool, 512);
  Random random(8);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const size_t m : {1u, 9u}) {
      Product p(random, dtype, m, 17, 512);
      p.x[300] = std::numeric_limits<float>::quiet_NaN();
      RunAlone(matmul, p);
      for (size_t row = 0; row < m; ++row) {
        for (size_t n = 0; n < p.n; ++n) ASSERT_EQ(std::isnan(p.y[row * p.y_stride() + n]), row == 0);
      }
      p.x[300] = std::numeric_limits<float>::infinity();
      RunAlone(matmul, p);
      for (size_t n = 0; n < p.n; ++n) ASSERT_FALSE(std::isfinite(p.y[n])) << Info(dtype).name;
    }
  }
}

TEST_P(MatMulTest, NamesTheTarget) { EXPECT_STREQ(SimdTargetName(), hwy::TargetName(GetParam())); }

}  // namespace
}  // namespace npumoe
