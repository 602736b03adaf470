// SPDX-License-Identifier: Apache-2.0
// Operations on rows of fp16 values with the rounding of an NPU: computed wider, rounded once to nearest even. Each is
// one thread's work; results of the same input have the same bits on every machine unless said otherwise, except for
// the sign of a NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace npumoe {

// As F16ToF32 (which see; a signalling NaN may become quiet) and F32ToF16.
void HalvesToFloats(std::span<const uint16_t> from, float* to);  // to [from.size()]
void FloatsToHalves(std::span<const float> from, uint16_t* to);  // to [from.size()]

// The largest magnitude; 0 of nothing.
float MaxMagnitude(std::span<const float> values);

// out[i] = values[i] / scale, rounded to the nearest whole number (halves to even), held to +-127. scale > 0.
void FloatsToBytes(std::span<const float> values, float scale, int8_t* out);  // out [values.size()]

enum class HalfBinaryOp : uint8_t { kAdd, kSub, kMul, kDiv, kMaximum, kMinimum };

// An operand of n values, or one value for all.
struct HalfOperand {
  const uint16_t* data = nullptr;
  bool repeats = false;
};

// out[i] = x[i] op y[i] in f32. The maximum is x > y ? x : y, the minimum x > y ? y : x. `out` may be an operand.
void HalfBinary(HalfBinaryOp op, HalfOperand x, HalfOperand y, size_t n, uint16_t* out);

// out[i] = table[x[i]]: any function of one fp16 value. table [65536].
void HalfLookup(const uint16_t* table, const uint16_t* x, size_t n, uint16_t* out);

// out = softmax(x). Exponentials and their sum in f32: before the last rounding a value is off by less than
// 2^-20 of itself. Bits depend on the SIMD target. scratch [n].
void HalfSoftmax(const uint16_t* x, size_t n, float* scratch, uint16_t* out);

// Columns that HalfLayerNorm takes at most.
inline constexpr size_t kLayerNormColumns = 32;

// Normalises every column over n: out = (x - mean) / sqrt(variance + epsilon) * gamma + beta, all of it in double, in
// ascending order. An empty gamma is 1, an empty beta 0.
struct HalfLayerNormArgs {
  size_t n = 0, stride = 0;      // x and out: element i of column c at i * stride + c
  size_t columns = 0;            // <= kLayerNormColumns
  std::span<const float> gamma;  // [n]
  std::span<const float> beta;   // [n]
  double epsilon = 0;
};
void HalfLayerNorm(const HalfLayerNormArgs& args, const uint16_t* x, uint16_t* out);

// out[c, r] = in[r, c].
void HalfTranspose(const uint16_t* in,  // [rows, cols]
                   size_t rows, size_t cols,
                   uint16_t* out);  // [cols, rows]

}  // namespace npumoe
