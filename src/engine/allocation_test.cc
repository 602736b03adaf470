// SPDX-License-Identifier: Apache-2.0
// After the first chunk, prefill and decode allocate nothing: counted by replacing operator new.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "npumoe/engine.h"
#include "npumoe/make_model.h"

namespace {
std::atomic<size_t> n_allocations{0};

void* CountedAlloc(size_t n_bytes) {
  n_allocations.fetch_add(1);
  void* p = std::malloc(n_bytes == 0 ? 1 : n_bytes);
  if (p == nullptr) std::abort();
  return p;
}
}  // namespace

void* operator new(size_t n_bytes) { return CountedAlloc(n_bytes); }
void* operator new[](size_t n_bytes) { return CountedAlloc(n_bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace npumoe {
namespace {

TEST(Allocation, NothingAfterTheFirstChunk) {
  const auto path =
      std::filesystem::temp_directory_path() / ("npumoe_alloc_test_" + std::to_string(::getpid()) + ".gguf");
  for (const std::string shape : {"tiny-qwen3moe", "tiny-phimoe", "tiny-qwen2moe"}) {
    MakeModelOptions make;
    make.shape = shape;
    make.type = "q8_0";
    ASSERT_TRUE(MakeModel(make, path.string()).ok());
    EngineOptions options;
    options.kv_type = shape == "tiny-phimoe" ? KvType::kQ8_0 : KvType::kF16;
    options.n_threads = 2;
    options.chunk_tokens = 32;
    options.context_tokens = 200;
    Engine engine = Engine::Open(path.string(), options).value();
    Session session = engine.NewSession().value();
    const std::vector<int32_t> prompt(32, 5), more(64, 9);
    ASSERT_TRUE(session.Append(prompt).ok());
    const size_t before = n_allocations.load();
    ASSERT_TRUE(session.Append(more).ok());
    for (int32_t id = 0; id < 20; ++id) ASSERT_TRUE(session.Append({&id, 1}).ok());
    EXPECT_EQ(n_allocations.load(), before) << shape;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace npumoe
