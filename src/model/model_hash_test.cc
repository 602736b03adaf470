// SPDX-License-Identifier: Apache-2.0
#include "model/model_hash.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "model/test_files.h"
#include "npumoe/make_model.h"

namespace npumoe {
namespace {

std::string HashOf(const std::string& path, bool phimoe_llama_cpp = false) {
  const auto model = Model::Open(path, {phimoe_llama_cpp});
  EXPECT_TRUE(model.ok()) << model.error().message;
  return ModelHash(*model);
}

MakeModelOptions Tiny() {
  MakeModelOptions options;
  options.shape = "tiny-phimoe";
  options.vocab_size = 400;
  return options;
}

TEST(ModelHash, IsTheSameForACopyAndForAnySplit) {
  const ScratchFolder scratch;
  MakeModelOptions options = Tiny();
  ASSERT_TRUE(MakeModel(options, scratch.File("a.gguf")).ok());
  std::filesystem::copy_file(scratch.File("a.gguf"), scratch.File("copy.gguf"));
  const std::string hash = HashOf(scratch.File("a.gguf"));
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(HashOf(scratch.File("copy.gguf")), hash);
  options.n_splits = 3;
  ASSERT_TRUE(MakeModel(options, scratch.File("split.gguf")).ok());
  EXPECT_EQ(HashOf(scratch.File("split-00001-of-00003.gguf")), hash);
  EXPECT_EQ(HashOf(scratch.File("split-00002-of-00003.gguf")), hash);
}

TEST(ModelHash, NoticesOneByteOfANormAndTheEndsOfALargeTensor) {
  const ScratchFolder scratch;
  const std::string path = scratch.File("a.gguf");
  ASSERT_TRUE(MakeModel(Tiny(), path).ok());
  const std::string hash = HashOf(path), good = ReadFile(path).value();
  // Where the bytes of a tensor lie in the file: found by its content.
  const auto offset_of = [&](const std::string& name, size_t n_bytes, bool from_end) {
    const Model model = Model::Open(path, {}).value();
    for (const TensorListing& tensor : model.Tensors()) {
      if (tensor.name != name) continue;
      EXPECT_GE(tensor.size_bytes, n_bytes);
      const auto* data = reinterpret_cast<const char*>(tensor.data);
      const size_t at = good.find(std::string(data, tensor.size_bytes));
      return from_end ? at + tensor.size_bytes - 1 : at + n_bytes;
    }
    return std::string::npos;
  };
  const size_t large = size_t{17} << 10;
  for (const auto& [name, n_bytes, from_end] :
       {std::tuple("blk.1.attn_norm.weight", size_t{7}, false), std::tuple("output_norm.weight", size_t{0}, true),
        std::tuple("blk.0.ffn_down_exps.weight", size_t{0}, false), std::tuple("token_embd.weight", large, true)}) {
    std::string changed = good;
    const size_t at = offset_of(name, n_bytes, from_end);
    ASSERT_LT(at, changed.size()) << name;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    std::ofstream(scratch.File("changed.gguf"), std::ios::binary | std::ios::trunc) << changed;
    EXPECT_NE(HashOf(scratch.File("changed.gguf")), hash) << name;
  }
}

TEST(ModelHash, NoticesAnotherSeedTypeShapeAndReading) {
  const ScratchFolder scratch;
  const std::string path = scratch.File("a.gguf");
  ASSERT_TRUE(MakeModel(Tiny(), path).ok());
  std::vector<std::string> hashes{HashOf(path), HashOf(path, /*phimoe_llama_cpp=*/true)};
  const auto add = [&](auto change) {
    MakeModelOptions options = Tiny();
    change(options);
    ASSERT_TRUE(MakeModel(options, path).ok());
    hashes.push_back(HashOf(path));
  };
  add([](MakeModelOptions& options) { options.seed = 2; });
  add([](MakeModelOptions& options) { options.type = "q8_0"; });
  add([](MakeModelOptions& options) { options.n_experts = 9; });
  add([](MakeModelOptions& options) { options.shape = "tiny-qwen3moe"; });
  add([](MakeModelOptions& options) {
    options.shape = "tiny-qwen3moe";
    options.top_k = 1;  // the tensors are the same
  });
  for (size_t a = 0; a < hashes.size(); ++a) {
    for (size_t b = 0; b < a; ++b) EXPECT_NE(hashes[a], hashes[b]) << a << " " << b;
  }
}

}  // namespace
}  // namespace npumoe
