// SPDX-License-Identifier: Apache-2.0
#include <Accelerate/Accelerate.h>

#include <cstdio>
#include <cstdlib>

namespace {

thread_local bool single_threaded = false;

void Require(bool fits, const char* what) {
  if (fits) return;
  std::fprintf(stderr, "stand-in for Accelerate: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int BLASSetThreading(BLAS_THREADING threading) {
  single_threaded = threading == BLAS_THREADING_SINGLE_THREADED;
  return 0;
}

// What the real one would only do slowly or wrongly stops the test.
extern "C" void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k,
                            float alpha, const float* a, int lda, const float* b, int ldb, float beta, float* c,
                            int ldc) {
  Require(single_threaded, "a call on a thread that did not ask for one thread");
  Require(order == CblasRowMajor && trans_a == CblasNoTrans && trans_b == CblasTrans, "knows only x * w^T, row-major");
  Require(m > 0 && n > 0 && k > 0 && lda >= k && ldb >= k && ldc >= n, "extents and strides");
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (int l = 0; l < k; ++l) sum += a[static_cast<long>(i) * lda + l] * b[static_cast<long>(j) * ldb + l];
      float& out = c[static_cast<long>(i) * ldc + j];
      out = alpha * sum + (beta == 0.0f ? 0.0f : beta * out);
    }
  }
}
