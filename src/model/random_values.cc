// SPDX-License-Identifier: Apache-2.0
#include "model/random_values.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

// Any fixed pattern with 16 of each sign would do.
constexpr std::array<float, kCommonPeriod> kCommon = {1, -1, -1, 1, 1, 1,  -1, 1,  -1, -1, 1,  -1, 1, -1, 1,  -1,
                                                      1, 1,  -1, 1, 1, -1, 1,  -1, -1, 1,  -1, -1, 1, -1, -1, 1};

}  // namespace

std::span<const float> CommonDirection() { return kCommon; }

void FillRandom(uint64_t seed, const ValueRule& rule, std::span<float> out) {
  // Four 16-bit uniforms in each 64-bit draw: their sum has mean 4 * 32767.5 and variance 4 * (2^32 - 1) / 12.
  constexpr float kMean = 131070.0f;
  constexpr float kInverseDeviation = 1.0f / 37837.227f;
  Random random(seed);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t bits = random.Next();
    const uint64_t sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    const float z = (static_cast<float>(sum) - kMean) * kInverseDeviation;
    out[i] = rule.scale * (z + rule.common * kCommon[i % kCommonPeriod]);
  }
}

uint64_t MixSeed(std::initializer_list<uint64_t> parts) {
  uint64_t state = 0;
  for (const uint64_t part : parts) state = Random(state ^ part).Next();
  return state;
}

size_t RowMaker::RunElems(size_t rows, size_t cols, DType dtype) {
  if (rows * cols < kDirectElems) return 0;
  const size_t run = cols % 256 == 0 ? 256 : cols % kCommonPeriod == 0 ? kCommonPeriod : 0;
  return run != 0 && run % Info(dtype).block_elems == 0 ? run : 0;
}

void RowMaker::Prepare(size_t rows, size_t cols, DType dtype, const ValueRule& rule, ThreadPool& threads) {
  const size_t run = RunElems(rows, cols, dtype);
  if (run == 0) return;
  const auto [it, inserted] = pools_.try_emplace(PoolKey{dtype, run, rule});
  if (!inserted) return;
  const auto run_bytes = RowBytes(dtype, run);
  NM_CHECK(run_bytes.ok());  // RunElems is whole blocks
  std::vector<std::byte>& pool = it->second;
  pool.resize(kPoolElems / run * run_bytes.value());
  constexpr size_t kElemsPerTask = size_t{1} << 14;
  threads.ParallelFor(kPoolElems / kElemsPerTask, [&](size_t task, size_t) {
    std::array<float, 256> values;
    for (size_t i = task * kElemsPerTask / run; i < (task + 1) * kElemsPerTask / run; ++i) {
      const std::span<float> out(values.data(), run);
      // Not a function of the dtype: files of all dtypes hold the same model.
      FillRandom(MixSeed({seed_, run, i}), rule, out);
      QuantizeRow(dtype, out, pool.data() + i * run_bytes.value());
    }
  });
}

void RowMaker::MakeRow(uint64_t matrix_seed, size_t row, size_t rows, size_t cols, DType dtype, const ValueRule& rule,
                       std::span<float> scratch, std::byte* out) const {
  const uint64_t row_seed = MixSeed({matrix_seed, row});
  const size_t run = RunElems(rows, cols, dtype);
  if (run == 0) {
    FillRandom(row_seed, rule, scratch.first(cols));
    QuantizeRow(dtype, scratch.first(cols), out);
    return;
  }
  const std::vector<std::byte>& pool = pools_.at(PoolKey{dtype, run, rule});
  const size_t n_runs = kPoolElems / run;
  const size_t run_bytes = pool.size() / n_runs;
  Random random(row_seed);
  for (size_t i = 0; i < cols / run; ++i) {
    std::memcpy(out + i * run_bytes, pool.data() + random.Below(n_runs) * run_bytes, run_bytes);
  }
}

}  // namespace npumoe
