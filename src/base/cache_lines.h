// SPDX-License-Identifier: Apache-2.0
// Vectors that start at a cache line, where kernels store whole lines past the cache.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace npumoe {

inline constexpr size_t kCacheLineBytes = 64;  // of x86 and of the stores that matter on arm64

template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{kCacheLineBytes})); }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t{kCacheLineBytes}); }
  bool operator==(const CacheLineAllocator&) const = default;
};

template <typename T>
using CacheLines = std::vector<T, CacheLineAllocator<T>>;

}  // namespace npumoe
