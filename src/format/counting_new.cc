// SPDX-License-Identifier: Apache-2.0
#include "format/counting_new.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<size_t> g_allocated_bytes{0};
}

// Not inlined: the compiler would take free for a mistake.
[[gnu::noinline]] void* operator new(size_t n_bytes) {
  g_allocated_bytes += n_bytes;
  void* const p = std::malloc(n_bytes == 0 ? 1 : n_bytes);
  if (p == nullptr) std::abort();
  return p;
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace npumoe {
size_t AllocatedBytes() { return g_allocated_bytes; }
}  // namespace npumoe
