// SPDX-License-Identifier: Apache-2.0
// y = x * W^T for f32 activations and weights in any block format, many independent products at once.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace npumoe {

// One product. `w` is [N, K]; x is [M, K]; y is [M, N], overwritten, must not alias x. M may be 0.
struct MatMulJob {
  ConstMatView x;
  TensorView w;
  MatView y;
};

// Multiplies on the CPU. Owns per-thread scratch, so that a call allocates nothing. One thread at a time.
//
// Every output is a dot product summed in an order that depends on K and on the SIMD target only: the same row
// gives the same bits whatever M is, whatever the other jobs are, and on any number of threads.
class MatMul {
 public:
  // `max_inner` is the largest K of any later job.
  MatMul(ThreadPool& pool, size_t max_inner);
  ~MatMul();
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;

  // Runs all jobs, spread over (job, strip of output rows). Small M takes a matrix-vector path, large M decodes
  // a strip of weights once and uses it for all rows.
  void Run(std::span<const MatMulJob> jobs);

  size_t scratch_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Name of the SIMD target in use, for the machine line: "AVX3_DL".
const char* SimdTargetName();

}  // namespace npumoe
