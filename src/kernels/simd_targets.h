// SPDX-License-Identifier: Apache-2.0
// Which SIMD targets the kernels are compiled for. Include before any Highway header.
#pragma once

// Each target costs compile time. Kept on x86: the baseline, AVX2, AVX3 (AVX-512) and, where a file asks for it,
// AVX3_DL. Left out: SSSE3 and SSE4 (no machine we meet lacks AVX2), everything newer than AVX3_DL (bits 0 to 6 of
// Highway's mask; Highway 1.0 has no names for them), and targets whose vectors have no compile-time size (they
// cannot stand in arrays of accumulators).
//
// With NM_DEBUG_CHECKS (the sanitizers) AVX3 is left out of files that have AVX3_DL: one source for both, and the release tests run every
// target.
#if defined(NM_DEBUG_CHECKS) && defined(HWY_WANT_AVX3_DL)
#define NM_LEFT_OUT HWY_AVX3
#else
#define NM_LEFT_OUT 0
#endif
#define HWY_DISABLED_TARGETS \
  (NM_LEFT_OUT | HWY_SSSE3 | HWY_SSE4 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | 0x7FLL)
