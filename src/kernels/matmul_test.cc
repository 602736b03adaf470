// SPDX-License-Identifier: Apache-2.0
#include "kernels/matmul.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

#include "base/test_effort.h"
#include "kernels/bf16_strip.h"
#include "kernels/blas_strip.h"
#include "kernels/every_way_test.h"
#include "kernels/integer_strip.h"
#include "kernels/test_weights.h"
#include "kernels/vector_ops.h"
#include "tensor/blocks.h"

namespace {
std::atomic<size_t> g_allocations{0};
}  // namespace

[[gnu::noinline]] void* operator new(size_t n) {
  g_allocations.fetch_add(1);
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace npumoe {
namespace {

class MatMulTest : public EveryWay {};
NM_FOR_EVERY_WAY(MatMulTest);

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

// What the format subtracts or adds to every element: the row with all its codes zero, where code 0 means 0.
std::vector<float> OffsetsOf(DType dtype, const std::byte* row, size_t k) {
  const DTypeInfo& info = Info(dtype);
  const bool k_format = dtype == DType::kQ4_K || dtype == DType::kQ5_K;
  std::vector<float> out(k, 0.0f);
  if (!k_format && dtype != DType::kQ4_1 && dtype != DType::kQ5_1) return out;
  std::vector<std::byte> bytes(row, row + k / info.block_elems * info.block_bytes);
  const size_t head = k_format ? 16 : 4;
  for (size_t at = 0; at < bytes.size(); at += info.block_bytes) {
    std::fill(bytes.begin() + at + head, bytes.begin() + at + info.block_bytes, std::byte{0});
  }
  DequantizeRow(dtype, bytes.data(), out);
  return out;
}

// Against double, with the bounds that matmul.h states.
void ExpectCloseToDouble(const Product& p, Activations activations) {
  const bool integers = HasIntegerStrip(p.dtype);
  const bool halves = HasBf16Strip(p.dtype, activations);
  const double eps = 0x1p-24;
  const double n_roundings =
      integers ? 3.0 * static_cast<double>(p.k) / (p.dtype == DType::kQ6_K ? 16 : 32) + 2.0 : static_cast<double>(p.k);
  std::vector<float> largest;  // of every 32 activations
  for (size_t m = 0; integers && m < p.m; ++m) {
    for (size_t k = 0; k < p.k; k += 32) {
      const float* group = p.x.data() + m * p.x_stride() + k;
      const auto [low, high] = std::minmax_element(group, group + 32);
      largest.push_back(std::max(std::abs(*low), std::abs(*high)));
    }
  }
  std::vector<float> w(p.k);
  for (size_t n = 0; n < p.n; ++n) {
    const std::byte* row = p.w.data() + n * p.row_bytes();
    DequantizeRow(p.dtype, row, w);
    const std::vector<float> offsets = OffsetsOf(p.dtype, row, p.k);
    for (size_t m = 0; m < p.m; ++m) {
      const float* x = p.x.data() + m * p.x_stride();
      double sum = 0.0, magnitude = 0.0, of_x = 0.0;
      for (size_t k = 0; k < p.k; ++k) {
        const float seen = halves ? BF16ToF32(F32ToBF16(x[k])) : x[k];
        const double xk = static_cast<double>(seen), wk = static_cast<double>(w[k]);
        sum += xk * wk;
        magnitude += std::abs(xk) * (std::abs(wk) + (integers ? 2.0 * std::abs(static_cast<double>(offsets[k])) : 0.0));
        if (!integers) continue;
        of_x += std::abs(wk) * 0.51 / LargestInteger(activations) * static_cast<double>(largest[(m * p.k + k) / 32]);
      }
      const double got = static_cast<double>(p.y[m * p.y_stride() + n]);
      ASSERT_LE(std::abs(got - sum), of_x + n_roundings * eps * magnitude)
          << Info(p.dtype).name << " m " << m << " of " << p.m << ", n " << n << " of " << p.n << ", k " << p.k << ": "
          << got << ", wanted " << sum;
    }
  }
  for (size_t m = 0; m < p.m; ++m) {  // nothing is written between the rows
    for (size_t gap = p.n; gap < p.y_stride(); ++gap) ASSERT_EQ(p.y[m * p.y_stride() + gap], -77.0f);
  }
}

// Whether a BLAS computes it.
bool UsesBlas(const Product& p, Activations activations) {
  return HasBlasStrip(p.m) && !HasIntegerStrip(p.dtype) && !HasBf16Strip(p.dtype, activations);
}

TEST_P(MatMulTest, PlainFloatsMatchDoubleAtEveryTail) {
  ThreadPool pool(1);
  MatMul matmul(pool, 67, activations_);
  Random random(1);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (size_t k = 1; k <= 67; ++k) {
      Product p(random, dtype, 1 + k % 5, 1 + (k * 7) % 23, k);
      RunAlone(matmul, p);
      ExpectCloseToDouble(p, activations_);
    }
  }
}

TEST_P(MatMulTest, EveryTypeMatchesDoubleForOneToTwentyRows) {
  ThreadPool pool(2);
  MatMul matmul(pool, 2048, activations_);
  Random random(2);
  for (const DType dtype : kAllDTypes) {
    for (size_t m = 1; m <= 20; ++m) {
      const size_t block = Info(dtype).block_elems == 32 ? 32 : 256;
      Product p(random, dtype, m, 1 + (m * 11) % 61, block * (1 + m % 5));
      RunAlone(matmul, p);
      ExpectCloseToDouble(p, activations_);
    }
  }
}

TEST_P(MatMulTest, LongRowsAndManyRowsMatchDouble) {
  ThreadPool pool(2);
  MatMul matmul(pool, 5120, activations_);
  Random random(3);
  for (const DType dtype : {DType::kF32, DType::kQ8_0, DType::kQ4_K}) {
    for (const size_t k : {768u, 1024u, 2048u, 5120u}) {
      Product p(random, dtype, 3, 7, k);
      RunAlone(matmul, p);
      ExpectCloseToDouble(p, activations_);
    }
    Product p(random, dtype, 150, 50, 256);
    RunAlone(matmul, p);
    ExpectCloseToDouble(p, activations_);
  }
}

// Around the fewest rows and the most weight rows of a BLAS's strip, and over more than one of its pieces of K.
TEST_P(MatMulTest, ManyRowsOfEveryTypeMatchDouble) {
  ThreadPool pool(2);
  MatMul matmul(pool, 2304, activations_);
  Random random(17);
  for (const DType dtype : kAllDTypes) {
    for (const auto& [m, n, k] : {std::array<size_t, 3>{31, 5, 256}, {32, 1, 256}, {33, 193, 256}, {70, 3, 2304}}) {
      Product p(random, dtype, m, n, k);
      RunAlone(matmul, p);
      ExpectCloseToDouble(p, activations_);
    }
  }
  Product odd(random, DType::kF32, 40, 21, 67);
  const std::vector<float> want = RunAlone(matmul, odd);
  odd.w.insert(odd.w.begin(), std::byte{0});  // weights of a file may lie at any address
  MatMulJob job = odd.Job();
  ++job.w.data;
  matmul.Run({&job, 1});
  EXPECT_EQ(odd.Result(), want);
}

TEST_P(MatMulTest, ARowGivesTheSameBitsWhateverRowsItCameWith) {
  ThreadPool pool(1);
  MatMul matmul(pool, 2048, activations_);
  Random random(4);
  for (const DType dtype : kAllDTypes) {
    Product p(random, dtype, 100, 59, 1024);  // more rows than a panel has
    const std::vector<float> whole = RunAlone(matmul, p);
    if (UsesBlas(p, activations_)) continue;  // sums in the library's order
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
  MatMul matmul(alone, 1024, activations_);
  std::vector<std::vector<float>> want;
  for (Product& p : products) want.push_back(RunAlone(matmul, p));
  for (const size_t n_threads : {1u, 2u, 4u}) {
    ThreadPool pool(n_threads);
    MatMul together(pool, 1024, activations_);
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

TEST_P(MatMulTest, JobsThatShareActivationsGiveTheBitsOfJobsAlone) {
  ThreadPool pool(2);
  MatMul matmul(pool, 512, activations_);
  Random random(14);
  for (const DType dtype : kAllDTypes) {
    Product gate(random, dtype, 100, 70, 512), up(random, dtype, 100, 70, 512), other(random, dtype, 100, 70, 512);
    up.x = gate.x;
    const std::vector<float> want_gate = RunAlone(matmul, gate), want_up = RunAlone(matmul, up);
    const std::vector<float> want_other = RunAlone(matmul, other);
    for (Product* p : {&gate, &up, &other}) std::fill(p->y.begin(), p->y.end(), -77.0f);
    MatMulJob jobs[] = {gate.Job(), up.Job(), other.Job()};
    jobs[1].x = jobs[0].x;
    matmul.Run(jobs);
    EXPECT_EQ(gate.Result(), want_gate) << Info(dtype).name;
    EXPECT_EQ(up.Result(), want_up) << Info(dtype).name;
    EXPECT_EQ(other.Result(), want_other) << Info(dtype).name;
  }
}

// Rows that begin within a cache line are read line by line: what lies beside them is not for the sums, and every row
// of x gets the bits that it gets alone. Two pieces of K among them.
TEST_P(MatMulTest, Bfloat16WeightsMayBeginAnywhere) {
  ThreadPool pool(1);
  MatMul matmul(pool, 2112, activations_);
  Random random(15);
  constexpr size_t kLine = 64;
  const uint16_t nan = 0x7fff;
  for (const size_t k : {size_t{0}, size_t{8}, size_t{32}, size_t{40}, size_t{64}, size_t{288}, size_t{2112}}) {
    for (const size_t m : {1u, 2u, 3u, 7u}) {
      Product p(random, DType::kBF16, m, 19, k);
      std::vector<std::byte> around(p.w.size() + 4 * kLine);
      const size_t to_line = (kLine - reinterpret_cast<uintptr_t>(around.data()) % kLine) % kLine;
      for (size_t offset = 0; offset < kLine; offset += AllOrFew(2u, 14u)) {
        for (size_t i = 0; i + 2 <= around.size(); i += 2) std::memcpy(around.data() + i, &nan, 2);
        std::byte* w = around.data() + to_line + kLine + offset;
        std::copy(p.w.begin(), p.w.end(), w);
        std::fill(p.y.begin(), p.y.end(), -77.0f);
        MatMulJob job = p.Job();
        job.w.data = w;
        matmul.Run({&job, 1});
        ExpectCloseToDouble(p, activations_);
        const std::vector<float> together = p.Result();
        for (size_t row = 0; row < m; ++row) {
          MatMulJob alone = job;
          alone.x = {job.x.Row(row), 1, job.x.cols, job.x.stride};
          alone.y = {job.y.Row(row), 1, job.y.cols, job.y.stride};
          std::fill_n(alone.y.data, alone.y.cols, -77.0f);
          matmul.Run({&alone, 1});
        }
        ASSERT_EQ(p.Result(), together) << "k " << k << ", m " << m << ", offset " << offset;
      }
    }
  }
}

// Gate and up may begin differently in a line: what was made of their activations is shared only if they do not.
TEST_P(MatMulTest, JobsThatShareActivationsMayBeginAnywhere) {
  ThreadPool pool(1);
  MatMul matmul(pool, 256, activations_);
  Random random(16);
  Product gate(random, DType::kBF16, 5, 24, 256), up(random, DType::kBF16, 5, 24, 256);
  up.x = gate.x;
  const std::vector<float> want_gate = RunAlone(matmul, gate);
  std::vector<std::byte> moved(up.w.size() + 64);
  for (size_t offset = 0; offset < 64; offset += AllOrFew(4u, 20u)) {
    std::memcpy(moved.data() + offset, up.w.data(), up.w.size());
    MatMulJob alone = up.Job();
    alone.w.data = moved.data() + offset;
    matmul.Run({&alone, 1});
    ExpectCloseToDouble(up, activations_);
    const std::vector<float> want_up = up.Result();
    std::fill(gate.y.begin(), gate.y.end(), -77.0f);
    std::fill(up.y.begin(), up.y.end(), -77.0f);
    MatMulJob jobs[] = {gate.Job(), up.Job()};
    jobs[1].x = jobs[0].x;
    jobs[1].w.data = moved.data() + offset;
    matmul.Run(jobs);
    ASSERT_EQ(gate.Result(), want_gate) << offset;
    ASSERT_EQ(up.Result(), want_up) << offset;
  }
}

// Experts of few rows beside experts of many, as a layer has them: what they are multiplied with in turn leaves no trace.
// K of one piece and of two, odd numbers of weight rows, weights that begin differently in a cache line.
TEST_P(MatMulTest, FewRowsBesideManyGiveTheBitsOfJobsAlone) {
  Random random(18);
  for (const size_t k : {size_t{0}, size_t{64}, size_t{2112}}) {
    std::vector<Product> products;  // gate, up, gate, up, ...
    for (const size_t m : {3u, 70u, 1u, 0u, 96u, 15u, 7u, 100u, 2u, 1u, 1u, 16u, 5u}) {
      products.emplace_back(random, DType::kBF16, m, 19, k);
      products.emplace_back(random, DType::kBF16, m, 19, k);
      products.back().x = products[products.size() - 2].x;
    }
    std::vector<std::vector<std::byte>> moved;
    for (size_t i = 0; i < products.size(); ++i) {
      moved.emplace_back(products[i].w.size() + 64);
      std::copy(products[i].w.begin(), products[i].w.end(), moved[i].data() + i * 4 % 64);
    }
    for (const bool swiglu : {false, true}) {
      ThreadPool alone(1);
      MatMul matmul(alone, 2112, activations_);
      std::vector<MatMulJob> jobs;
      std::vector<std::vector<float>> want;
      for (size_t i = 0; i < products.size(); i += 2) {
        MatMulJob gate = products[i].Job(), up = products[i + 1].Job();
        gate.w.data = moved[i].data() + i * 4 % 64;
        up.w.data = moved[i + 1].data() + (i + 1) * 4 % 64;
        up.x = gate.x;
        gate.swiglu = swiglu;
        matmul.Run(std::array{gate, up});
        want.push_back(products[i].Result());
        want.push_back(products[i + 1].Result());
        jobs.push_back(gate);
        jobs.push_back(up);
      }
      for (const size_t n_threads : {1u, 3u}) {
        for (Product& p : products) std::fill(p.y.begin(), p.y.end(), -77.0f);
        ThreadPool pool(n_threads);
        MatMul together(pool, 2112, activations_);
        together.Run(jobs);
        for (size_t i = 0; i < products.size(); i += swiglu ? 2 : 1) {
          ASSERT_EQ(products[i].Result(), want[i]) << "K " << k << ", job " << i << ", " << n_threads << " threads";
        }
      }
    }
  }
}

TEST_P(MatMulTest, SwiGluAtTheEndGivesTheBitsOfSwiGluAfterwards) {
  ThreadPool pool(2);
  MatMul matmul(pool, 512, activations_);
  Random random(14);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    for (const auto& [m, n] : {std::pair{1u, 150u}, {7u, 150u}, {130u, 150u}, {9u, 2100u}}) {
      Product gate(random, dtype, m, n, 256), up(random, dtype, m, n, 256), other(random, dtype, m, n, 256);
      up.x = other.x = gate.x;
      const std::vector<float> plain = RunAlone(matmul, other);
      std::vector<float> want = RunAlone(matmul, gate);
      std::vector<float> times = RunAlone(matmul, up);
      for (size_t row = 0; row < m; ++row) SiluMul({&want[row * n], n}, {&times[row * n], n});
      // The first has the same activations and shape as the pair.
      MatMulJob jobs[] = {other.Job(), gate.Job(), up.Job()};
      jobs[1].swiglu = true;
      jobs[0].x = jobs[2].x = jobs[1].x;
      matmul.Run(jobs);
      EXPECT_EQ(gate.Result(), want) << Info(dtype).name << " m " << m << " n " << n;
      EXPECT_EQ(other.Result(), plain) << Info(dtype).name << " m " << m << " n " << n;
    }
  }
}

TEST_P(MatMulTest, ChosenRowsGiveTheBitsOfThoseRows) {
  ThreadPool pool(2);
  MatMul matmul(pool, 256, activations_);
  Random random(16);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    for (const size_t m : {1u, 5u, 130u}) {
      Product all(random, dtype, 40, 70, 256), chosen(random, dtype, m, 70, 256);
      const std::vector<float> want = RunAlone(matmul, all);
      std::vector<uint32_t> rows(m);
      for (uint32_t& row : rows) row = static_cast<uint32_t>(random.Below(all.m));
      MatMulJob job = chosen.Job();
      job.x = {all.x.data(), m, all.k, all.x_stride()};
      job.rows = rows.data();
      job.w = all.Job().w;
      matmul.Run({&job, 1});
      const std::vector<float> got = chosen.Result();
      for (size_t i = 0; i < m; ++i) {
        for (size_t n = 0; n < all.n; ++n) {
          const float a = got[i * all.n + n], b = want[rows[i] * all.n + n];
          // A BLAS sums in another order when it gets other numbers of rows.
          if (HasBlas()) {
            ASSERT_NEAR(a, b, 1e-4 * (1 + std::fabs(b))) << Info(dtype).name << " m " << m << " row " << i;
          } else {
            ASSERT_EQ(a, b) << Info(dtype).name << " m " << m << " row " << i;
          }
        }
      }
    }
  }
}

TEST_P(MatMulTest, ACallAllocatesNothing) {
  ThreadPool pool(2);
  MatMul matmul(pool, 512, activations_);
  Random random(13);
  std::vector<Product> products;
  for (const DType dtype : kAllDTypes) products.emplace_back(random, dtype, 50, 70, 512);
  std::vector<MatMulJob> jobs;
  for (Product& p : products) jobs.push_back(p.Job());
  const size_t before = g_allocations.load();
  matmul.Run(jobs);
  EXPECT_EQ(g_allocations.load(), before);
}

TEST_P(MatMulTest, EmptyWorkIsAllowed) {
  ThreadPool pool(2);
  MatMul matmul(pool, 64, activations_);
  matmul.Run({});
  Random random(6);
  Product no_rows(random, DType::kF32, 0, 5, 64);
  EXPECT_EQ(RunAlone(matmul, no_rows), std::vector<float>{});
  Product no_inner(random, DType::kF32, 3, 5, 0);
  EXPECT_EQ(RunAlone(matmul, no_inner), std::vector<float>(15, 0.0f));
  Product many_rows(random, DType::kF16, 40, 5, 0);
  EXPECT_EQ(RunAlone(matmul, many_rows), std::vector<float>(200, 0.0f));
}

TEST_P(MatMulTest, ANanOrInfinityReachesItsOutputsOnly) {
  ThreadPool pool(1);
  MatMul matmul(pool, 512, activations_);
  Random random(8);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
    for (const size_t m : {1u, 9u, 40u}) {
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

// Largest codes against largest activations of one sign: the integer sums must not overflow.
TEST_P(MatMulTest, ExtremeCodesAndActivationsDoNotOverflow) {
  ThreadPool pool(1);
  MatMul matmul(pool, 64, activations_);
  Random random(10);
  for (const float x : {1.0f, -1.0f, 1e30f, 1e-20f}) {
    for (const int8_t q : {int8_t{-128}, int8_t{127}}) {
      Product p(random, DType::kQ8_0, 1, 1, 64);
      std::fill(p.x.begin(), p.x.end(), x);
      for (size_t b = 0; b < 2; ++b) {
        const uint16_t tiny = F32ToF16(0x1p-14f);
        std::memcpy(p.w.data() + 34 * b, &tiny, 2);
        std::memset(p.w.data() + 34 * b + 2, q, 32);
      }
      RunAlone(matmul, p);
      EXPECT_NEAR(p.y[0] / x, 64.0f * 0x1p-14f * static_cast<float>(q), 1e-5f) << x << " " << static_cast<int>(q);
    }
  }
}

TEST_P(MatMulTest, ZeroActivationsGiveZero) {
  ThreadPool pool(1);
  MatMul matmul(pool, 256, activations_);
  Random random(11);
  for (const DType dtype : kAllDTypes) {
    Product p(random, dtype, 3, 20, 256);
    std::fill(p.x.begin(), p.x.end(), 0.0f);
    EXPECT_EQ(RunAlone(matmul, p), std::vector<float>(60, 0.0f)) << Info(dtype).name;
  }
}

// The error beside that of 8-bit activations with one scale per 32, which llama.cpp uses for some formats (others have
// one per 256), root mean square over 2,000 outputs. With 8 bits it is the same up to the f32 sums, with 16 at most
// 1/64 of it (1/257 is expected).
TEST_P(MatMulTest, ErrorIsThatOfEightBitActivationsOrFarBelow) {
  ThreadPool pool(1);
  MatMul matmul(pool, 2048, activations_);
  Random random(12);
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ4_K, DType::kQ6_K}) {
    Product p(random, dtype, 20, 100, 2048);
    RunAlone(matmul, p);
    std::vector<float> w(p.k);
    double ours = 0.0, eight_bit = 0.0;
    for (size_t n = 0; n < p.n; ++n) {
      DequantizeRow(dtype, p.w.data() + n * p.row_bytes(), w);
      double largest = 0.0;  // rows of random bits differ by orders of magnitude: compare relative errors
      for (const float value : w) largest = std::max(largest, std::abs(static_cast<double>(value)));
      for (size_t m = 0; m < p.m; ++m) {
        double sum = 0.0, rounded = 0.0;
        for (size_t b = 0; b < p.k; b += 32) {
          const float* x = p.x.data() + m * p.x_stride() + b;
          double max = 0.0;
          for (size_t i = 0; i < 32; ++i) max = std::max(max, std::abs(static_cast<double>(x[i])));
          for (size_t i = 0; i < 32; ++i) {
            const double xi = static_cast<double>(x[i]), wi = static_cast<double>(w[b + i]);
            sum += xi * wi;
            rounded += std::round(xi / max * 127.0) * max / 127.0 * wi;
          }
        }
        const double got = static_cast<double>(p.y[m * p.y_stride() + n]);
        ours += (got - sum) * (got - sum) / (largest * largest);
        eight_bit += (rounded - sum) * (rounded - sum) / (largest * largest);
      }
    }
    const double share = activations_ == Activations::k8Bits ? 1.01 : 1.0 / 64.0;
    EXPECT_LT(std::sqrt(ours), std::sqrt(eight_bit) * share) << Info(dtype).name;
  }
}

TEST_P(MatMulTest, NamesTheTarget) { EXPECT_STREQ(SimdTargetName(), hwy::TargetName(GetParam().target)); }

}  // namespace
}  // namespace npumoe
