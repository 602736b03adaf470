// SPDX-License-Identifier: Apache-2.0
// Products of fp16 matrices in the order that a static graph keeps them: y[m, n] = sum over k of a[m, k] * b[k, n].
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/thread_pool.h"

namespace npumoe {

// The left matrix: fp16, or bytes that stand for fp16(scales[row] * bytes[row, k]).
struct HalfLeft {
  const uint16_t* halves = nullptr;  // [m, k]
  const int8_t* bytes = nullptr;     // [m, k], used when `halves` is null
  const uint16_t* scales = nullptr;  // [m], fp16
};

struct HalfProductJob {
  HalfLeft a;
  const uint16_t* b = nullptr;  // [k, n]
  uint16_t* y = nullptr;        // [m, n], overwritten, must not overlap a or b
  size_t m = 0, k = 0, n = 0;
};

// Multiplies on the CPU. Every output is summed in f32 in ascending k and rounded once to fp16. Products of fp16 values
// are exact in f32, so whether a target multiplies and adds in one step or two makes no difference: the bits are
// those of the plain loop on every machine and any number of threads (except for the sign of a NaN).
// Owns per-thread scratch. One thread at a time.
class HalfProduct {
 public:
  explicit HalfProduct(ThreadPool& pool);
  ~HalfProduct();
  HalfProduct(const HalfProduct&) = delete;
  HalfProduct& operator=(const HalfProduct&) = delete;

  void Run(std::span<const HalfProductJob> jobs);

  size_t scratch_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe
