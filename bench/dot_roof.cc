// SPDX-License-Identifier: Apache-2.0
// Roofs of instructions that Highway 1.0 has no names for.
#include <atomic>
#include <cstdint>

#include "report.h"
#include "roof.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace npumoe {
namespace {

// Adds up the operations of `loop`, which returns how many one call made, on all threads for about `seconds`.
template <typename Loop>
double MeasureLoop(ThreadPool& pool, double seconds, const Loop& loop) {
  std::atomic<size_t> n_ops{0};
  const Clock clock = ClockFor(pool.n_threads());
  const double start = Now(clock);
  pool.ParallelFor(pool.n_threads(), [&](size_t, size_t) {
    while (Now(clock) - start < seconds) n_ops.fetch_add(loop());
  });
  return static_cast<double>(n_ops.load()) / (Now(clock) - start);
}

#if defined(__x86_64__)

constexpr size_t kRounds = 2000;  // a few microseconds
constexpr size_t kChains = 16;    // more than latency times units, fewer than registers
std::atomic<int32_t> g_keep_int{0};
std::atomic<float> g_keep_float{0};

// The empty statement hides from the compiler that every chain adds the same.
__attribute__((target("avx512f,avx512bw,avx512vnni"))) size_t Int8Loop() {
  __m512i sums[kChains];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  __m512i codes = _mm512_set1_epi8(3), x = _mm512_set1_epi8(-1);
  for (size_t i = 0; i < kRounds; ++i) {
    asm("" : "+v"(codes), "+v"(x));
#pragma GCC unroll 16
    for (size_t c = 0; c < kChains; ++c) sums[c] = _mm512_dpbusd_epi32(sums[c], codes, x);
  }
  for (const __m512i& sum : sums) {
    alignas(64) int32_t lanes[16];
    _mm512_store_si512(lanes, sum);
    g_keep_int.fetch_add(lanes[0], std::memory_order_relaxed);
  }
  return kRounds * kChains * 16 * 8;
}

__attribute__((target("avx512f,avx512bw,avx512bf16"))) size_t Bf16Loop() {
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512i ones = _mm512_set1_epi16(0x3f80);
  for (size_t i = 0; i < kRounds; ++i) {
    asm("" : "+v"(ones));
#pragma GCC unroll 16
    for (size_t c = 0; c < kChains; ++c) sums[c] = _mm512_dpbf16_ps(sums[c], (__m512bh)ones, (__m512bh)ones);
  }
  for (const __m512& sum : sums) {
    alignas(64) float lanes[16];
    _mm512_store_ps(lanes, sum);
    g_keep_float.store(lanes[0], std::memory_order_relaxed);
  }
  return kRounds * kChains * 16 * 4;
}

#endif

}  // namespace

double MeasureInt8Roof([[maybe_unused]] ThreadPool& pool, [[maybe_unused]] double seconds) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512vnni")) return MeasureLoop(pool, seconds, Int8Loop);
#endif
  return 0;
}

double MeasureBf16Roof([[maybe_unused]] ThreadPool& pool, [[maybe_unused]] double seconds) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bf16")) return MeasureLoop(pool, seconds, Bf16Loop);
#endif
  return 0;
}

}  // namespace npumoe
