// SPDX-License-Identifier: Apache-2.0
// What the machine can do at most, measured: f32 multiply-adds and reads from memory.
#pragma once

#include <cstddef>

#include "base/thread_pool.h"

namespace npumoe {

// Floating-point operations per second of a loop of independent f32 FMAs (two operations each) on all threads of the
// pool, with the SIMD target the kernels use. Takes about `seconds`.
double MeasureFmaRoof(ThreadPool& pool, double seconds);

// Bytes per second of reading [data, data + n_bytes) once, split over all threads of the pool.
double MeasureReadRoof(ThreadPool& pool, const std::byte* data, size_t n_bytes);

}  // namespace npumoe
