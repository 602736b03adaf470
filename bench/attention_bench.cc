// SPDX-License-Identifier: Apache-2.0
// Speed of Attention: prefill against the multiply-add roof, decode against the read roof, both measured next to
// every sample. attention_bench [threads [part of a case name]], e.g. "attention_bench 2 prefill".
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/attention.h"
#include "report.h"
#include "roof.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

constexpr size_t kSamples = 31;
constexpr size_t kColdBytes = size_t{512} << 20;  // beyond any cache: every decode sample reads another layer
constexpr double kRoofSeconds = 0.002;

// Decode is judged by the bytes of the cache it reads, prefill by the operations below the diagonal.
struct Case {
  const char* name;
  DType dtype;
  size_t n_heads, n_kv_heads, head_dim;
  size_t tokens;  // of the chunk
  size_t before;  // positions before it
};

constexpr Case kCases[] = {
    {"prefill qwen3-moe", DType::kF32, 32, 4, 128, 512, 0},
    {"prefill qwen3-moe", DType::kF16, 32, 4, 128, 512, 0},
    {"prefill qwen3-moe", DType::kF16, 32, 4, 128, 512, 3584},
    {"prefill phi-3.5-moe", DType::kF16, 32, 8, 128, 512, 0},
    {"prefill qwen3-moe", DType::kQ8_0, 32, 4, 128, 512, 3584},
    {"prefill olmoe", DType::kF16, 16, 16, 128, 512, 0},
    {"prefill small", DType::kF32, 8, 4, 64, 256, 0},
    {"decode qwen3-moe", DType::kF32, 32, 4, 128, 1, 4095},
    {"decode qwen3-moe", DType::kF16, 32, 4, 128, 1, 511},
    {"decode qwen3-moe", DType::kF16, 32, 4, 128, 1, 4095},
    {"decode phi-3.5-moe", DType::kF16, 32, 8, 128, 1, 4095},
    {"decode qwen3-moe", DType::kQ8_0, 32, 4, 128, 1, 4095},
    {"decode olmoe", DType::kF16, 16, 16, 128, 1, 4095},
    {"decode one kv head", DType::kF16, 8, 1, 128, 1, 16383},
};

struct Layer {
  std::vector<std::byte> keys, values;
};

// One (token, head) against double.
bool ResultIsRight(const Case& c, const KvView& kv, const float* q, const float* out, size_t token, size_t head,
                   double scale) {
  const size_t kv_head = head / (c.n_heads / c.n_kv_heads), last = c.before + token;
  std::vector<float> key(c.head_dim), value(c.head_dim);
  const auto read = [&](const std::byte* cache, size_t position, std::vector<float>& to) {
    DequantizeRow(c.dtype, cache + (kv_head * kv.capacity + position) * kv.row_bytes(), to);
  };
  const size_t row = (token * c.n_heads + head) * c.head_dim;
  double sum = 0.0;
  std::vector<double> want(c.head_dim);
  for (size_t position = 0; position <= last; ++position) {
    double score = 0.0;
    read(kv.keys, position, key);
    read(kv.values, position, value);
    for (size_t i = 0; i < c.head_dim; ++i) score += static_cast<double>(q[row + i]) * static_cast<double>(key[i]);
    const double weight = std::exp(scale * score);
    sum += weight;
    for (size_t i = 0; i < c.head_dim; ++i) want[i] += weight * static_cast<double>(value[i]);
  }
  for (size_t i = 0; i < c.head_dim; ++i) {
    if (!(std::abs(static_cast<double>(out[row + i]) - want[i] / sum) <= 1e-5)) return false;
  }
  return true;
}

// False if the results are wrong.
bool RunCase(const Case& c, ThreadPool& threads) {
  const size_t positions = c.before + c.tokens, cols = c.n_heads * c.head_dim;
  const size_t cache_bytes = RowBytes(c.dtype, c.n_kv_heads * positions * c.head_dim).value();
  const bool decode = c.tokens == 1;
  const size_t n_layers = decode ? kColdBytes / (2 * cache_bytes) : 1;
  Random random(1);
  std::vector<float> q(c.tokens * cols), out(q.size()), row(c.n_kv_heads * c.head_dim);
  for (float& x : q) x = static_cast<float>(random.Gaussian());
  std::vector<Layer> layers(1);
  layers[0].keys.resize(cache_bytes);
  layers[0].values.resize(cache_bytes);
  const auto view = [&](Layer& layer) {
    return KvView{.dtype = c.dtype,
                  .keys = layer.keys.data(),
                  .values = layer.values.data(),
                  .n_kv_heads = c.n_kv_heads,
                  .capacity = positions,
                  .head_dim = c.head_dim};
  };
  for (size_t position = 0; position < positions; ++position) {
    for (float& x : row) x = static_cast<float>(random.Gaussian());
    view(layers[0]).Store(position, row.data(), row.data());
  }
  layers.resize(n_layers, layers[0]);
  const AttentionParams params{.n_heads = c.n_heads,
                               .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)))};
  Attention attention(threads, c.head_dim);
  const auto run = [&](size_t layer) {
    attention.Run(params, {q.data(), c.tokens, cols, cols}, view(layers[layer]), c.before,
                  {out.data(), c.tokens, cols, cols});
  };
  run(0);
  for (const size_t token : {size_t{0}, c.tokens - 1}) {
    const double scale = static_cast<double>(params.scale);
    if (!ResultIsRight(c, view(layers[0]), q.data(), out.data(), token, c.n_heads - 1, scale)) return false;
  }

  const double pairs =
      static_cast<double>(c.tokens) * (static_cast<double>(c.before) + static_cast<double>(c.tokens) / 2);
  const double work = decode ? 2.0 * static_cast<double>(cache_bytes) : 4.0 * static_cast<double>(cols) * pairs;
  std::vector<double> rates, shares, times;
  for (size_t sample = 0; sample < kSamples; ++sample) {
    const size_t other = (2 * sample + 1) % n_layers;
    const double roof = decode ? MeasureReadRoof(threads, layers[other].keys.data(), cache_bytes)
                               : MeasureFmaRoof(threads, kRoofSeconds);
    const double seconds = Seconds(ClockFor(threads.n_threads()), [&] { run(2 * sample % n_layers); });
    times.push_back(seconds * 1e3);
    rates.push_back(work / seconds);
    shares.push_back(100.0 * work / seconds / roof);
  }
  const Spread time = SpreadOf(times), rate = SpreadOf(rates), share = SpreadOf(shares);
  fmt::print(
      "{:<20} {} {:>2}/{:<2} heads of {:>3}, {:>3} after {:>5}  {:>8.3f} ms  {:>6.1f} +-{:>5.1f} {}  {:>5.1f} % "
      "+-{:>4.1f} of the roof\n",
      c.name, Info(c.dtype).name, c.n_heads, c.n_kv_heads, c.head_dim, c.tokens, c.before, time.median,
      rate.median * 1e-9, rate.mad * 1e-9, decode ? "GB/s   " : "GFLOP/s", share.median, share.mad);
  return true;
}

}  // namespace
}  // namespace npumoe

int main(int argc, char** argv) {
  using namespace npumoe;
  RequireRelease();
  const size_t n_threads = argc > 1 ? std::max<size_t>(1, std::strtoul(argv[1], nullptr, 10)) : 2;
  const std::string filter = argc > 2 ? argv[2] : "";
  ThreadPool threads(n_threads);
  fmt::print("{}\n", MachineLine(n_threads));
  for (const Case& c : kCases) {
    if (std::string(c.name).find(filter) == std::string::npos) continue;
    if (!RunCase(c, threads)) {
      fmt::print("{}: wrong results\n", c.name);
      return 1;
    }
  }
  return 0;
}
