// SPDX-License-Identifier: Apache-2.0
// Seeded random matrices, row by row, fast enough for gigabytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/dtype.h"

namespace npumoe {

// The pattern that every embedding row carries a share of: +-1, mean 0, period 32, so that it survives any cut of a row
// into blocks. Routers read it back, which is how a model without router biases gets popular and unpopular experts.
inline constexpr size_t kCommonPeriod = 32;
std::span<const float> CommonDirection();  // [kCommonPeriod]

// How the values of a matrix are distributed.
struct ValueRule {
  float scale = 1;   // standard deviation
  float common = 0;  // share of CommonDirection(), before scaling
  auto operator<=>(const ValueRule&) const = default;
};

// out[i] = scale * (z + common * CommonDirection()[i % 32]), z roughly normal (the sum of four uniforms: mean 0,
// standard deviation 1, at most 3.46). The same bits on every machine.
void FillRandom(uint64_t seed, const ValueRule& rule, std::span<float> out);

// 64 bits that depend on all of `parts`: seeds of tensors and rows.
uint64_t MixSeed(std::initializer_list<uint64_t> parts);

// Rows of random matrices as blocks of a dtype. A matrix of kDirectElems values or more is put together from a pool of
// kPoolElems ready-made values, in runs of 256 (or 32) chosen at random: its statistics are those of fresh values, at
// the speed of memcpy. Which way is taken depends on the matrix alone, not on the dtype or the file's layout.
class RowMaker {
 public:
  static constexpr size_t kDirectElems = size_t{1} << 20;
  static constexpr size_t kPoolElems = size_t{1} << 20;

  explicit RowMaker(uint64_t seed) : seed_(seed) {}

  // Makes the pool that rows of this kind need; after it, MakeRow may be called from several threads.
  void Prepare(size_t rows, size_t cols, DType dtype, const ValueRule& rule, ThreadPool& threads);
  // Row `row` of the matrix `matrix_seed` [rows, cols]; out: RowBytes(dtype, cols). scratch: [cols].
  void MakeRow(uint64_t matrix_seed, size_t row, size_t rows, size_t cols, DType dtype, const ValueRule& rule,
               std::span<float> scratch, std::byte* out) const;

 private:
  static size_t RunElems(size_t rows, size_t cols, DType dtype);  // 0: no pool
  using PoolKey = std::tuple<DType, size_t, ValueRule>;
  uint64_t seed_;
  std::map<PoolKey, std::vector<std::byte>> pools_;
};

}  // namespace npumoe
