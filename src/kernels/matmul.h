// SPDX-License-Identifier: Apache-2.0
// y = x * W^T for f32 activations and weights in any block format, many independent products at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"
#include "kernels/activations.h"
#include "tensor/tensor.h"

namespace npumoe {

// One product. `w` is [N, K]; x is [M, K]; y is [M, N], overwritten, must not alias x. M may be 0.
// `swiglu`: the job after this one has the same x and a weight of the same shape and type, and when both are done y
// becomes silu(y) * (y of that job), while both are still in a cache. What that job's y holds then is not defined.
// `blas`: may go to a BLAS (blas.h). Without, a row's bits never depend on M.
struct MatMulJob {
  ConstMatView x;
  TensorView w;
  MatView y;
  bool swiglu = false;
  // When not null, [M]: row i of the product is that of x.Row(rows[i]), and x.rows is M however many rows lie behind x.
  const uint32_t* rows = nullptr;
  bool blas = true;
};

// Multiplies on the CPU. Owns per-thread scratch, so that a call allocates nothing. One thread at a time.
//
// Every output is a dot product summed in an order that depends on K, the weight's type and the SIMD target only: the
// same row gives the same bits whatever M is, whatever the other jobs are, and on any number of threads. But with a
// BLAS the order of f32 sums may depend on M, too.
//
// How it is computed, and |y - exact|, where eps = 2^-24 and w are the weights' values as DequantizeRow gives them:
// * F32, F16, Q2_K, Q3_K, IQ4_XS everywhere, and every type without the instructions below: f32 multiply-adds of
//   decoded weights, from 32 rows on by the BLAS of a build that has one (blas_strip.h). At most K * eps * sum |x w|.
// * BF16 with AVX512-BF16 and 8 bits of activation: x as bfloat16, see bf16_strip.h. At most
//   (2^-9 + K * eps) * sum |x w|. With 16 bits as before.
// * Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4 with the integer path (Highway's AVX2 and AVX3_DL,
//   and NEON with dotprod or i8mm, so all of Apple Silicon; the same bits on all of them): x as integers with one scale
//   per 32 elements, exact integer sums, f32 sums of groups (definition in integer_strip.h). At most 0.51 / L * sum |w|
//   max|x of w's 32| + (3 K / g + 2) * eps * sum |x| (|w| + 2 |m|), where L is 127 for 8 bits and 32639 for 16, g the
//   number of weights under one scale (Q6_K 16, else 32) and m their offset (0 for formats without). Activations below
//   1e-30 may count as zero, above 1e33 they may overflow. The errors of x are independent of each other, so a sum's is
//   of the order of the square root of its terms, not of their number.
class MatMul {
 public:
  // `max_inner` is the largest K of any later job.
  MatMul(ThreadPool& pool, size_t max_inner, Activations activations);
  ~MatMul();
  MatMul(const MatMul&) = delete;
  MatMul& operator=(const MatMul&) = delete;

  // Runs all jobs, in tasks of (job, some rows of x, some rows of w): weights are decoded once per task and used for
  // all its activations. Jobs may share x.
  void Run(std::span<const MatMulJob> jobs);

  size_t scratch_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Name of the SIMD target in use, for the machine line: "AVX3_DL".
const char* SimdTargetName();

}  // namespace npumoe
