// SPDX-License-Identifier: Apache-2.0
// What the machine can do at most, measured: f32 multiply-adds, reads from memory, copies.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"

namespace npumoe {

// Floating-point operations per second of a loop of independent f32 FMAs (two operations each) on all threads of the
// pool, with the SIMD target the kernels use. Takes about `seconds`.
double MeasureFmaRoof(ThreadPool& pool, double seconds);

// The same for dot products of bytes (AVX-512 VNNI, not AMX) and of bf16 pairs (AVX512-BF16). 0 where the CPU has none.
double MeasureInt8Roof(ThreadPool& pool, double seconds);
double MeasureBf16Roof(ThreadPool& pool, double seconds);

// Bytes per second of reading [data, data + n_bytes) once, split over all threads of the pool.
double MeasureReadRoof(ThreadPool& pool, const std::byte* data, size_t n_bytes);

// Bytes per second, read plus written, of memcpy from `from` to `to`, which are equally long: one part per thread.
double MeasureCopyRoof(ThreadPool& pool, std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace npumoe
