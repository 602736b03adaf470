// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace npumoe {
namespace {

std::string SharedModel(const std::string& file) {
  return std::string(NM_SOURCE_DIR) + "/../shared/data/models/" + file;
}

#define SKIP_WITHOUT(path) \
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there"

TEST(Model, OpensQwen3MoeFromGguf) {
  const std::string path = SharedModel("rand-qwen3moe.gguf");
  SKIP_WITHOUT(path);
  const auto model = Model::Open(path, {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.family, "qwen3moe");
  EXPECT_EQ(config.name, "rand-qwen3moe");
  EXPECT_EQ(config.vocab_size, 512u);
  EXPECT_EQ(config.context_length, 512u);
  EXPECT_EQ(config.dim, 64u);
  EXPECT_EQ(config.n_layers, 3u);
  EXPECT_EQ(config.n_heads, 4u);
  EXPECT_EQ(config.n_kv_heads, 2u);
  EXPECT_EQ(config.head_dim, 32u);
  EXPECT_EQ(config.rope_dim, 32u);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_FALSE(config.rope_interleaved);
  EXPECT_EQ(config.norm, NormKind::kRms);
  EXPECT_FLOAT_EQ(config.norm_eps, 1e-6f);
  EXPECT_EQ(config.qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(config.n_experts, 8u);
  EXPECT_EQ(config.top_k, 2u);
  EXPECT_EQ(config.expert_dim, 48u);
  EXPECT_EQ(config.router, RouterRule::kSoftmaxTopK);
  EXPECT_TRUE(config.renormalize_top_k);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{2});
  const LayerWeights& layer = model->weights().layers[1];
  EXPECT_EQ(layer.wq.shape, Shape::Of(128, 64));
  EXPECT_EQ(layer.q_norm.shape, Shape::Of(32));
  ASSERT_EQ(layer.expert_down.size(), 8u);
  EXPECT_EQ(layer.expert_down[7].shape, Shape::Of(64, 48));
  EXPECT_EQ(layer.expert_down[7].data - layer.expert_down[0].data, 7 * 64 * 48 * 4);
  EXPECT_TRUE(layer.w_gate.empty());
  EXPECT_EQ(model->converted_bytes(), 0u);  // an F32 file is used in place
  EXPECT_EQ(model->mapped_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(model->Tensors().size(), 39u);
}

TEST(Model, OpensPhiMoeFromGgufInBothReadings) {
  const std::string path = SharedModel("rand-phimoe.gguf");
  SKIP_WITHOUT(path);
  const auto published = Model::Open(path, {});
  ASSERT_TRUE(published.ok()) << published.error().message;
  const ModelConfig& config = published->config();
  EXPECT_EQ(config.norm, NormKind::kLayerNorm);
  EXPECT_EQ(config.router, RouterRule::kSparseMixer);
  EXPECT_FLOAT_EQ(config.router_jitter, 0.01f);
  EXPECT_EQ(config.rope_short_factors.size(), 8u);
  EXPECT_EQ(config.rope_long_factors.size(), 8u);
  EXPECT_EQ(config.rope_original_context, 256u);
  EXPECT_FLOAT_EQ(config.rope_short_scale, 1.19f);
  EXPECT_FLOAT_EQ(config.rope_long_scale, 1.19f);
  EXPECT_EQ(published->weights().output_bias.shape, Shape::Of(512));
  EXPECT_EQ(published->weights().layers[2].bo.shape, Shape::Of(64));
  EXPECT_EQ(published->weights().layers[2].attn_norm_bias.shape, Shape::Of(64));

  const auto llama_cpp = Model::Open(path, {.phimoe_llama_cpp = true});
  ASSERT_TRUE(llama_cpp.ok()) << llama_cpp.error().message;
  EXPECT_EQ(llama_cpp->config().norm, NormKind::kRms);
  EXPECT_EQ(llama_cpp->config().router, RouterRule::kTopKSoftmax);
  EXPECT_FLOAT_EQ(llama_cpp->config().rope_short_scale, 1.19f);
}

TEST(Model, OpensDenseAndUpcycledLlama) {
  const std::string dense_path = SharedModel("stories260K-f32.gguf");
  const std::string moe_path = SharedModel("stories260K-upcycled-4e2.gguf");
  SKIP_WITHOUT(dense_path);
  const auto dense = Model::Open(dense_path, {});
  ASSERT_TRUE(dense.ok()) << dense.error().message;
  EXPECT_EQ(dense->config().n_experts, 0u);
  EXPECT_EQ(dense->config().ffn_dim, 172u);
  EXPECT_EQ(dense->config().rope_theta, 10000);
  EXPECT_TRUE(dense->config().rope_interleaved);
  EXPECT_TRUE(dense->config().tied_embeddings);
  EXPECT_EQ(dense->weights().output.data, dense->weights().embedding.data);
  EXPECT_EQ(dense->weights().layers[4].w_down.shape, Shape::Of(64, 172));
  const auto moe = Model::Open(moe_path, {});
  ASSERT_TRUE(moe.ok()) << moe.error().message;
  EXPECT_EQ(moe->config().router, RouterRule::kTopKSoftmax);
  EXPECT_EQ(moe->config().expert_dim, 172u);
  EXPECT_EQ(moe->weights().layers[0].router.shape, Shape::Of(4, 64));
}

}  // namespace
}  // namespace npumoe
