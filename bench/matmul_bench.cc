// SPDX-License-Identifier: Apache-2.0
// Speed of MatMul against the machine's multiply-add and read roofs, measured next to every sample.
// matmul_bench [threads [part of a case name [activation bits [target]]]], e.g. "matmul_bench 2 q4_0 8 AVX2". The
// target is one of Highway's; "AVX2-" and "NEON-" leave out the dot products of bytes that not all such CPUs have,
// "NEON-mm" only the matrix products. In a build with a BLAS (NPUMOE_BLAS), its products are compared with ours, sample
// by sample.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/bf16_strip.h"
#include "kernels/blas.h"
#include "kernels/blas_strip.h"
#include "kernels/byte_dots.h"
#include "kernels/integer_strip.h"
#include "kernels/matmul.h"
#include "kernels/test_weights.h"
#include "report.h"
#define HWY_WANT_AVX3_DL
#include "kernels/simd_targets.h"
// After simd_targets.h.
#include "hwy/highway.h"
#include "roof.h"

namespace npumoe {
namespace {

constexpr size_t kSamples = 31;
constexpr size_t kPoolBytes = size_t{768} << 20;  // beyond any cache: every sample reads another part
constexpr double kRoofSeconds = 0.001;

struct Case {
  const char* name;
  DType dtype;
  size_t n_jobs, m, n, k;
  bool cold;  // weights come from memory: judged by bytes; else by operations
};

// False if this machine has no such target.
bool UseTarget(std::string name) {
  if (name.ends_with("-mm")) {
    AllowByteMatrices(false);
    name.resize(name.size() - 3);
  } else if (name.ends_with('-')) {
    AllowByteDots(false);
    name.pop_back();
  }
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (name != hwy::TargetName(target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    return true;
  }
  return false;
}

// One piece of Gaussian weights, repeated to fill the pool. (Random bits would not do: their scales reach down to f32
// subnormals, which are slow to multiply.)
void FillWeights(DType dtype, std::vector<std::byte>& pool, size_t n_bytes) {
  Random random(3);
  const std::vector<float> values = RandomFloats(random, size_t{64} * 256);
  std::vector<std::byte> piece(RowBytes(dtype, values.size()).value());
  QuantizeRow(dtype, values, piece.data());
  for (size_t at = 0; at < n_bytes; at += piece.size()) {
    std::memcpy(pool.data() + at, piece.data(), std::min(piece.size(), n_bytes - at));
  }
}

// The first and last outputs of every job against double. Activations of 8 bits are off by 1/254 of the largest of 32.
bool ResultsAreRight(std::span<const MatMulJob> jobs, Activations activations) {
  const double tolerance = activations == Activations::k8Bits ? 1e-2 : 1e-4;
  std::vector<float> w(jobs[0].x.cols);
  for (const MatMulJob& job : jobs) {
    for (const size_t n : {size_t{0}, job.y.cols - 1}) {
      const size_t row_bytes = RowBytes(job.w.dtype, job.x.cols).value();
      DequantizeRow(job.w.dtype, job.w.data + n * row_bytes, w);
      for (const size_t m : {size_t{0}, job.x.rows - 1}) {
        double sum = 0.0, magnitude = 0.0;
        for (size_t k = 0; k < w.size(); ++k) {
          const double product = static_cast<double>(job.x.Row(m)[k]) * static_cast<double>(w[k]);
          sum += product;
          magnitude += std::abs(product);
        }
        if (!(std::abs(static_cast<double>(job.y.Row(m)[n]) - sum) <= tolerance * magnitude)) return false;
      }
    }
  }
  return true;
}

// Of the instruction that does the multiplying: bytes for block formats and bfloat16 pairs for bfloat16 where there are
// such, else f32.
double MeasureRoof(DType dtype, Activations activations, ThreadPool& threads) {
  double roof = 0;
  if (HasIntegerStrip(dtype)) roof = MeasureInt8Roof(threads, kRoofSeconds);
  if (HasBf16Strip(dtype, activations)) roof = MeasureBf16Roof(threads, kRoofSeconds);
  return roof > 0 ? roof : MeasureFmaRoof(threads, kRoofSeconds);
}

// False if the results are wrong.
bool RunCase(const Case& c, Activations activations, ThreadPool& threads, std::vector<std::byte>& pool) {
  const size_t matrix_bytes = c.n * RowBytes(c.dtype, c.k).value();
  const size_t set_bytes = c.n_jobs * matrix_bytes;
  const size_t n_sets = c.cold ? kPoolBytes / set_bytes : 1;
  FillWeights(c.dtype, pool, n_sets * set_bytes);
  Tensor x = Tensor::Make(DType::kF32, Shape::Of(c.m, c.k)).value();
  Tensor y = Tensor::Make(DType::kF32, Shape::Of(c.n_jobs, c.m, c.n)).value();
  Random random(1);
  for (size_t i = 0; i < c.m * c.k; ++i) x.f32()[i] = static_cast<float>(random.Gaussian());
  std::vector<MatMulJob> jobs;
  const auto use_set = [&](size_t set) {
    jobs.clear();
    for (size_t job = 0; job < c.n_jobs; ++job) {
      const std::byte* w = pool.data() + set * set_bytes + job * matrix_bytes;
      jobs.push_back({ConstMatView(x.f32(), c.m, c.k, c.k), TensorView{c.dtype, Shape::Of(c.n, c.k), w},
                      MatView{y.f32() + job * c.m * c.n, c.m, c.n, c.n}});
    }
  };
  MatMul matmul(threads, c.k, activations);
  use_set(0);
  matmul.Run(jobs);
  if (!ResultsAreRight(jobs, activations)) return false;

  const double flops = 2.0 * static_cast<double>(c.n_jobs * c.m * c.n * c.k);
  const bool blas = HasBlasStrip(c.m) && !HasIntegerStrip(c.dtype) && !HasBf16Strip(c.dtype, activations);
  std::vector<double> rates, shares, gains;
  for (size_t sample = 0; sample < kSamples; ++sample) {
    use_set((2 * sample) % n_sets);
    const double roof = c.cold
                            ? MeasureReadRoof(threads, pool.data() + (2 * sample + 1) % n_sets * set_bytes, set_bytes)
                            : MeasureRoof(c.dtype, activations, threads);
    const double seconds = Seconds(ClockFor(threads.n_threads()), [&] { matmul.Run(jobs); });
    const double rate = (c.cold ? static_cast<double>(set_bytes) : flops) / seconds;
    rates.push_back(rate);
    shares.push_back(100.0 * rate / roof);
    if (!blas) continue;
    AllowBlas(false);
    gains.push_back(Seconds(ClockFor(threads.n_threads()), [&] { matmul.Run(jobs); }) / seconds);
    AllowBlas(true);
  }
  const Spread rate = SpreadOf(rates), share = SpreadOf(shares);
  fmt::print("{:<18} {:>4} x [{:>4}, {:>6}, {:>5}]  {:>7.1f} +-{:>5.1f} {}  {:>5.1f} % +-{:>4.1f} of the roof", c.name,
             c.n_jobs, c.m, c.n, c.k, rate.median * 1e-9, rate.mad * 1e-9, c.cold ? "GB/s   " : "GFLOP/s", share.median,
             share.mad);
  if (blas) {
    const Spread gain = SpreadOf(gains);
    fmt::print(", {:.2f} +- {:.2f} times as fast as without {}", gain.median, gain.mad, BlasName());
  }
  fmt::print("\n");
  return true;
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, DType dtype) {
    cases.push_back({name, dtype, 16, 1, 768, 2048, true});
    cases.push_back({name, dtype, 1, 1, 16384, 2048, true});
    for (const size_t m : {4u, 16u, 32u, 64u, 512u})
      cases.push_back({name, dtype, m < 64 ? 8u : 1u, m, 768, 2048, false});
    for (const size_t m : {16u, 96u}) cases.push_back({name, dtype, m < 64 ? 8u : 1u, m, 2048, 768, false});
  };
  add("q4_0", DType::kQ4_0);
  add("q8_0", DType::kQ8_0);
  add("q4_k", DType::kQ4_K);
  add("q6_k", DType::kQ6_K);
  add("q5_k", DType::kQ5_K);
  add("mxfp4", DType::kMXFP4);
  add("bf16", DType::kBF16);
  add("f16", DType::kF16);
  add("f32", DType::kF32);
  return cases;
}

}  // namespace
}  // namespace npumoe

int main(int argc, char** argv) {
  using namespace npumoe;
  RequireRelease();
  const size_t n_threads = argc > 1 ? std::max<size_t>(1, std::strtoul(argv[1], nullptr, 10)) : 2;
  const std::string filter = argc > 2 ? argv[2] : "";
  const Activations activations = argc > 3 && std::string(argv[3]) == "16" ? Activations::k16Bits : Activations::k8Bits;
  if (argc > 4 && !UseTarget(argv[4])) {
    fmt::print(stderr, "matmul_bench: no target '{}' on this machine\n", argv[4]);
    return 2;
  }
  ThreadPool threads(n_threads);
  std::vector<std::byte> pool(kPoolBytes);
  fmt::print("{}\n", MachineLine(n_threads));
  fmt::print("roofs: f32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s, int8 {:.0f} GOP/s\n", MeasureFmaRoof(threads, 0.1) * 1e-9,
             MeasureBf16Roof(threads, 0.1) * 1e-9, MeasureInt8Roof(threads, 0.1) * 1e-9);
  for (const Case& c : AllCases()) {
    if (std::string(c.name).find(filter) == std::string::npos) continue;
    if (!RunCase(c, activations, threads, pool)) {
      fmt::print("{}: wrong results\n", c.name);
      return 1;
    }
  }
  return 0;
}
