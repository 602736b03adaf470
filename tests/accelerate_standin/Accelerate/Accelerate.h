// SPDX-License-Identifier: Apache-2.0
// Stands in for Apple's Accelerate where there is none: what src/kernels/blas.cc uses of it, as Apple documents it
// (https://developer.apple.com/documentation/accelerate/blas-library).
#pragma once

#if defined(NPUMOE_STANDIN_FOR_MACOS)
#define NM_STANDIN_MACOS_15 __attribute__((availability(macos, introduced = 15.0)))
#else
#define NM_STANDIN_MACOS_15
#endif
#if !defined(__clang__) || defined(NPUMOE_STANDIN_UNGUARDED)
#define __builtin_available(...) true
#endif
#undef __MAC_OS_X_VERSION_MAX_ALLOWED
#define __MAC_OS_X_VERSION_MAX_ALLOWED 150000

extern "C" {

enum CBLAS_ORDER { CblasRowMajor = 101, CblasColMajor = 102 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112, CblasConjTrans = 113 };

// C = alpha * op(A) * op(B) + beta * C.
void cblas_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE trans_a, enum CBLAS_TRANSPOSE trans_b, int m, int n,
                 int k, float alpha, const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc)
    __attribute__((deprecated));

typedef enum BLAS_THREADING {
  BLAS_THREADING_MULTI_THREADED,
  BLAS_THREADING_SINGLE_THREADED,
} BLAS_THREADING;

// Of the calling thread. 0, or -1 where it cannot be had.
int BLASSetThreading(BLAS_THREADING threading) NM_STANDIN_MACOS_15;
}
