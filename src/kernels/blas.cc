// SPDX-License-Identifier: Apache-2.0
#include "kernels/blas.h"

#include <atomic>
#include <climits>

#include "base/check.h"

#if defined(NPUMOE_BLAS_ACCELERATE)
#include <Accelerate/Accelerate.h>
#elif defined(NPUMOE_BLAS_CBLAS)
#include <cblas.h>
#endif

namespace npumoe {
namespace {

std::atomic<bool> g_allowed{true};

}  // namespace

void AllowBlas(bool allowed) { g_allowed.store(allowed); }

}  // namespace npumoe

#if defined(NPUMOE_BLAS_ACCELERATE) || defined(NPUMOE_BLAS_CBLAS)

#if defined(NPUMOE_BLAS_CBLAS)
// OpenBLAS alone has these. Weak: null with other libraries.
extern "C" {
[[gnu::weak]] void openblas_set_num_threads(int n_threads);
[[gnu::weak]] char* openblas_get_config(void);
}
#endif

namespace npumoe {
namespace {

#if defined(NPUMOE_BLAS_ACCELERATE)

std::string Name() { return "Accelerate"; }

// Accelerate keeps this setting per thread.
void UseOneThread() {
#if __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
  thread_local bool done = false;
  if (done) return;
  if (__builtin_available(macOS 15.0, *)) BLASSetThreading(BLAS_THREADING_SINGLE_THREADED);
  done = true;
#endif
}

#else

// The first two words of what OpenBLAS says of itself: name and version.
std::string Name() {
  if (openblas_get_config == nullptr) return "BLAS";
  const std::string all = openblas_get_config();
  const size_t space = all.find(' ');
  return space == std::string::npos ? all : all.substr(0, all.find(' ', space + 1));
}

void UseOneThread() {
  static const bool done = [] {
    if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

#endif

int Extent(size_t n) {
  NM_DCHECK(n > 0 && n <= INT_MAX);
  return static_cast<int>(n);
}

}  // namespace

bool HasBlas() { return g_allowed.load(std::memory_order_relaxed); }

std::string BlasName() { return Name(); }

void BlasMultiply(ConstMatView x, const float* w, size_t w_stride, bool add, MatView y) {
  UseOneThread();
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, Extent(x.rows), Extent(y.cols), Extent(x.cols), 1.0f, x.data,
              Extent(x.stride), w, Extent(w_stride), add ? 1.0f : 0.0f, y.data, Extent(y.stride));
}

}  // namespace npumoe

#else

namespace npumoe {

bool HasBlas() { return false; }
std::string BlasName() { return ""; }
void BlasMultiply(ConstMatView, const float*, size_t, bool, MatView) { NM_CHECK(false && "HasBlas said no"); }

}  // namespace npumoe

#endif
