// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checked_math.h"

namespace npumoe {
namespace {

Result<size_t> HalfLayerBytes(const ModelConfig& config, DType dtype, size_t capacity) {
  NM_TRY_VAR(const size_t positions, CheckedMul(capacity, size_t{config.n_kv_heads}));
  NM_TRY_VAR(const size_t row_bytes, RowBytes(dtype, config.head_dim));
  return CheckedMul(positions, row_bytes);
}

}  // namespace

Result<size_t> KvCache::ReservedBytes(const ModelConfig& config, DType dtype, size_t capacity) {
  NM_TRY_VAR(const size_t half, HalfLayerBytes(config, dtype, capacity));
  return CheckedMul(half, size_t{2} * config.n_layers);
}

Result<KvCache> KvCache::Make(const ModelConfig& config, DType dtype, size_t capacity) {
  NM_CHECK(dtype == DType::kF16 || dtype == DType::kF32 || dtype == DType::kQ8_0);
  NM_CHECK(capacity > 0);
  KvCache cache;
  NM_TRY_VAR(cache.half_layer_bytes_, HalfLayerBytes(config, dtype, capacity));
  NM_TRY_VAR(cache.bytes_, ReservedBytes(config, dtype, capacity));
  cache.view_ = {dtype, nullptr, nullptr, config.n_kv_heads, capacity, config.head_dim};
  void* p = ::mmap(nullptr, cache.bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return MakeError(Code::kOutOfMemory, "kv cache: cannot reserve {} bytes for {} positions: {}", cache.bytes_,
                     capacity, std::strerror(errno));
  }
  cache.data_ = static_cast<std::byte*>(p);
  return cache;
}

KvCache::KvCache(KvCache&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      half_layer_bytes_(other.half_layer_bytes_),
      view_(other.view_) {}

KvCache& KvCache::operator=(KvCache&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(half_layer_bytes_, other.half_layer_bytes_);
  std::swap(view_, other.view_);
  return *this;
}

KvCache::~KvCache() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

KvView KvCache::Layer(size_t layer) const {
  KvView view = view_;
  view.keys = data_ + 2 * layer * half_layer_bytes_;
  view.values = view.keys + half_layer_bytes_;
  return view;
}

}  // namespace npumoe
