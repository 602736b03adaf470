// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <variant>

#include "format/gguf.h"
#include "format/gguf_writer.h"
#include "model/config.h"
#include "model/test_files.h"

namespace npumoe {
namespace {

using Value = std::variant<uint32_t, float, bool, std::string, std::vector<int32_t>>;
struct Content {
  std::string architecture = "qwen3moe";
  std::map<std::string, Value> keys;                  // after "architecture."
  std::map<std::string, Value> global;                // whole keys
  std::map<std::string, std::vector<float>> vectors;  // F32 tensors of rank 1
  std::map<std::string, Shape> matrices;              // F32, zeros
};

// The smallest metadata of a MoE file; tests change members.
Content Base(const std::string& architecture) {
  Content content;
  content.architecture = architecture;
  content.keys = {{"context_length", 512u},
                  {"embedding_length", 64u},
                  {"block_count", 2u},
                  {"feed_forward_length", 48u},
                  {"attention.head_count", 4u},
                  {"attention.head_count_kv", 2u},
                  {"attention.layer_norm_rms_epsilon", 1e-6f},
                  {"rope.freq_base", 10000.0f},
                  {"vocab_size", 100u},
                  {"expert_count", 8u},
                  {"expert_used_count", 2u},
                  {"expert_gating_func", 1u}};
  return content;
}

void Set(GgufWriter& writer, const std::string& key, const Value& value) {
  if (const auto* number = std::get_if<uint32_t>(&value)) writer.SetUint(key, *number);
  if (const auto* real = std::get_if<float>(&value)) writer.SetFloat(key, *real);
  if (const auto* flag = std::get_if<bool>(&value)) writer.SetBool(key, *flag);
  if (const auto* text = std::get_if<std::string>(&value)) writer.SetString(key, *text);
  if (const auto* list = std::get_if<std::vector<int32_t>>(&value)) writer.SetInts(key, *list);
}

Result<ModelConfig> Read(const Content& content, const ConfigOptions& options = {}) {
  const ScratchFolder folder;
  const std::string path = folder.File("m.gguf");
  GgufWriter writer;
  writer.SetString("general.architecture", content.architecture);
  for (const auto& [key, value] : content.keys) Set(writer, content.architecture + "." + key, value);
  for (const auto& [key, value] : content.global) Set(writer, key, value);
  for (const auto& [name, values] : content.vectors) writer.AddTensor(name, DType::kF32, Shape::Of(values.size()));
  for (const auto& [name, shape] : content.matrices) writer.AddTensor(name, DType::kF32, shape);
  EXPECT_TRUE(writer.Begin(path).ok());
  for (const auto& [name, values] : content.vectors) {
    EXPECT_TRUE(writer.WriteTensorBytes(std::as_bytes(std::span(values))).ok());
  }
  for (const auto& [name, shape] : content.matrices) {
    EXPECT_TRUE(writer.WriteTensorBytes(std::vector<std::byte>(shape.elems() * sizeof(float))).ok());
  }
  EXPECT_TRUE(writer.Finish().ok());
  const auto file = GgufFile::Open(path);
  if (!file.ok()) return file.error();
  auto config = ConfigFromGguf(*file, options);
  if (config.ok()) return config;
  // Without the scratch folder, so that tests can compare the whole message.
  Error error = config.error();
  const size_t at = error.message.find(path);
  if (at != std::string::npos) error.message.replace(at, path.size(), "m.gguf");
  return error;
}

std::string ErrorOf(const Content& content) {
  const auto config = Read(content);
  return config.ok() ? "" : config.error().message;
}

TEST(ConfigFromGguf, ReadsFamilyRules) {
  const auto qwen3 = Read(Base("qwen3moe"));
  ASSERT_TRUE(qwen3.ok()) << qwen3.error().message;
  EXPECT_EQ(qwen3->head_dim, 16u);
  EXPECT_TRUE(qwen3->renormalize_top_k);
  EXPECT_TRUE(qwen3->warnings.empty());
  const auto olmoe = Read(Base("olmoe"));
  ASSERT_TRUE(olmoe.ok()) << olmoe.error().message;
  EXPECT_EQ(olmoe->qk_norm, QkNorm::kFullWidth);
  EXPECT_FALSE(olmoe->renormalize_top_k);
  const auto mixtral = Read(Base("llama"));
  ASSERT_TRUE(mixtral.ok());
  EXPECT_EQ(mixtral->router, RouterRule::kTopKSoftmax);
  EXPECT_TRUE(mixtral->rope_interleaved);
  Content qwen2 = Base("qwen2moe");
  qwen2.keys["expert_shared_feed_forward_length"] = 80u;
  const auto shared = Read(qwen2);
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ(shared->shared_expert_dim, 80u);
  EXPECT_TRUE(shared->shared_expert_gate && shared->qkv_bias);
  EXPECT_FALSE(shared->renormalize_top_k);
}

TEST(ConfigFromGguf, InfersWidthsFromTensorsWhenKeysAreAbsent) {
  Content content = Base("qwen2moe");
  content.matrices = {
      {"blk.0.attn_q.weight", Shape::Of(128, 64)},      {"blk.1.ffn_up_exps.weight", Shape::Of(8, 24, 64)},
      {"blk.1.ffn_gate_inp.weight", Shape::Of(8, 64)},  {"blk.0.ffn_up.weight", Shape::Of(48, 64)},
      {"blk.1.ffn_up_shexp.weight", Shape::Of(40, 64)}, {"token_embd.weight", Shape::Of(120, 64)}};
  const auto config = Read(content);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->head_dim, 32u);
  EXPECT_EQ(config->rope_dim, 32u);
  EXPECT_EQ(config->expert_dim, 24u);
  EXPECT_EQ(config->shared_expert_dim, 40u);
  EXPECT_EQ(config->vocab_size, 120u);
  EXPECT_EQ(config->dense_layer, (std::vector<bool>{true, false}));
  EXPECT_TRUE(config->tied_embeddings);
  ASSERT_EQ(config->warnings.size(), 1u);
  EXPECT_EQ(config->warnings[0], "qwen2moe.vocab_size is 100, but token_embd.weight has 120 rows: using the rows");
  content.keys["attention.key_length"] = 16u;  // the key wins; the binder then reports the tensor
  content.keys["attention.value_length"] = 16u;
  EXPECT_EQ(Read(content)->head_dim, 16u);
}

TEST(ConfigFromGguf, WarnsWhereTheFileIsSilentAndInsistsWhereItMustSpeak) {
  Content content = Base("llama");
  content.keys.erase("rope.freq_base");
  content.keys.erase("expert_gating_func");
  const auto config = Read(content);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->warnings,
            (std::vector<std::string>{"llama.rope.freq_base is absent: using 10000",
                                      "llama.expert_gating_func is absent: using the rule of architecture 'llama'"}));
  content = Base("qwen3moe");
  content.keys.erase("rope.freq_base");
  EXPECT_EQ(ErrorOf(content), "m.gguf: missing key qwen3moe.rope.freq_base, which architecture 'qwen3moe' needs");
  content = Base("qwen3moe");
  content.keys.erase("attention.layer_norm_rms_epsilon");
  EXPECT_EQ(ErrorOf(content), "m.gguf: missing key qwen3moe.attention.layer_norm_rms_epsilon");
}

TEST(ConfigFromGguf, ReadsLongRopeByTheReadingAskedFor) {
  Content content = Base("phimoe");
  content.keys["rope.scaling.original_context_length"] = 128u;
  content.vectors = {{"rope_factors_short.weight", std::vector<float>(8, 1.5f)},
                     {"rope_factors_long.weight", std::vector<float>(8, 4.0f)}};
  const auto formula = Read(content);
  ASSERT_TRUE(formula.ok()) << formula.error().message;
  EXPECT_FLOAT_EQ(formula->rope_long_scale, 1.1338934f);  // sqrt(1 + ln(512 / 128) / ln(128)) = sqrt(9 / 7)
  EXPECT_EQ(formula->rope_long_factors, std::vector<float>(8, 4.0f));
  EXPECT_EQ(formula->rope_original_context, 128u);
  EXPECT_FLOAT_EQ(Read(content, {.phimoe_llama_cpp = true})->rope_long_scale, 1.0f);
  content.keys["rope.scaling.attn_factor"] = 1.19f;
  EXPECT_FLOAT_EQ(Read(content)->rope_short_scale, 1.19f);
  EXPECT_FLOAT_EQ(Read(content, {.phimoe_llama_cpp = true})->rope_short_scale, 1.19f);
  content.keys["npumoe.short_mscale"] = 1.25f;
  content.keys["npumoe.long_mscale"] = 1.5f;
  EXPECT_FLOAT_EQ(Read(content)->rope_short_scale, 1.25f);
  EXPECT_FLOAT_EQ(Read(content)->rope_long_scale, 1.5f);
  EXPECT_FLOAT_EQ(Read(content, {.phimoe_llama_cpp = true})->rope_long_scale, 1.19f);
  content.vectors.erase("rope_factors_long.weight");
  EXPECT_EQ(ErrorOf(content), "m.gguf: missing tensor 'rope_factors_long.weight' beside its twin");
  content.vectors["rope_factors_long.weight"] = std::vector<float>(7, 4.0f);
  EXPECT_EQ(ErrorOf(content), "m.gguf: tensor 'rope_factors_long.weight': shape [7], wanted [8]");
}

TEST(ConfigFromGguf, ReadsTheOtherRopeScalings) {
  Content content = Base("llama");
  content.vectors = {{"rope_freqs.weight", {1, 1, 2, 2, 3, 3, 8, 8}}};
  const auto llama3 = Read(content);
  ASSERT_TRUE(llama3.ok());
  EXPECT_EQ(llama3->rope_short_factors, (std::vector<float>{1, 1, 2, 2, 3, 3, 8, 8}));
  EXPECT_EQ(llama3->rope_long_factors, llama3->rope_short_factors);
  EXPECT_EQ(llama3->rope_original_context, 0u);
  content = Base("qwen3moe");
  content.keys["rope.scaling.factor"] = 4.0f;
  EXPECT_EQ(Read(content)->rope_short_factors, std::vector<float>(8, 4.0f));  // no type means linear
  content.keys["rope.scaling.type"] = std::string("none");
  EXPECT_TRUE(Read(content)->rope_short_factors.empty());
  content.keys["rope.scaling.type"] = std::string("yarn");
  content.keys["rope.scaling.original_context_length"] = 4096u;
  const auto yarn = Read(content);
  ASSERT_TRUE(yarn.ok()) << yarn.error().message;
  EXPECT_NEAR(yarn->rope_long_factors[3], 1.2307692f, 1e-6f);  // the same case as in rope_scaling_test.cc
  EXPECT_FLOAT_EQ(yarn->rope_long_scale, 1.1386294f);
  content.keys["rope.scaling.type"] = std::string("dynamic");
  EXPECT_EQ(ErrorOf(content),
            "m.gguf: qwen3moe.rope.scaling.type is 'dynamic', wanted one of: none, linear, longrope, yarn");
}

TEST(ConfigFromGguf, AcceptsPerLayerValuesThatAreEqual) {
  Content content = Base("qwen3moe");
  content.keys["attention.head_count_kv"] = std::vector<int32_t>{2, 2};
  const auto config = Read(content);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->n_kv_heads, 2u);
  content.keys["attention.head_count_kv"] = std::vector<int32_t>{2, 4};
  EXPECT_EQ(ErrorOf(content), "m.gguf: qwen3moe.attention.head_count_kv differs from layer to layer, wanted one value");
  content.keys["attention.head_count_kv"] = std::vector<int32_t>{2, -4};
  EXPECT_EQ(ErrorOf(content), "m.gguf: qwen3moe.attention.head_count_kv is not an array of counts");
  content.keys["attention.head_count_kv"] = std::vector<int32_t>{};
  EXPECT_EQ(ErrorOf(content), "m.gguf: qwen3moe.attention.head_count_kv is not an array of counts");
}

TEST(ConfigFromGguf, CollectsEndTokens) {
  Content content = Base("qwen3moe");
  content.global = {
      {"tokenizer.ggml.eos_token_id", 5u}, {"tokenizer.ggml.eot_token_id", 6u}, {"tokenizer.ggml.eom_token_id", 100u}};
  const auto config = Read(content);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->eos_ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(config->warnings,
            std::vector<std::string>{"tokenizer.ggml.eom_token_id is 100, beyond the 100 tokens: ignored"});
}

TEST(ConfigFromGguf, RefusesEachBadValueByName) {
  struct Case {
    const char* key;
    Value value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"block_count", 0x80000000u, "m.gguf: qwen3moe.block_count is 2147483648, limit 1024"},
      {"block_count", 0u, "m.gguf: layer count is 0, wanted at least 1"},
      {"attention.head_count", 0u, "m.gguf: 0 attention heads and 2 key/value heads, wanted at least 1"},
      {"attention.head_count_kv", 0u, "m.gguf: 4 attention heads and 0 key/value heads, wanted at least 1"},
      {"attention.head_count_kv", 3u, "m.gguf: 4 attention heads are not a multiple of 3 key/value heads"},
      {"attention.value_length", 8u, "m.gguf: keys are 16 wide and values 8, wanted equal widths"},
      {"attention.layer_norm_rms_epsilon", 0.0f, "m.gguf: norm epsilon is 0, wanted a number between 0 and 1"},
      {"rope.freq_base", -3.0f, "m.gguf: rope theta is -3, wanted a number above 1"},
      {"rope.dimension_count", 0u, "m.gguf: rope dimension is 0, wanted at least 2"},
      {"rope.dimension_count", 18u, "m.gguf: rope dimension is 18, limit 16"},
      {"rope.dimension_count", 7u, "m.gguf: rope dimension is 7, wanted an even number"},
      {"expert_count", 0u, "m.gguf: qwen3moe.expert_count is 0, which architecture 'qwen3moe' cannot have"},
      {"expert_count", 5000u, "m.gguf: qwen3moe.expert_count is 5000, limit 4096"},
      {"expert_used_count", 9u, "m.gguf: 9 experts per token, wanted 1 to 8 (the expert count)"},
      {"expert_used_count", 0u, "m.gguf: 0 experts per token, wanted 1 to 8 (the expert count)"},
      {"expert_gating_func", 2u,
       "m.gguf: qwen3moe.expert_gating_func is 2, wanted 1 (softmax) or 3 (softmax over the chosen)"},
      {"attention.clamp_kqv", 8.0f, "m.gguf: qwen3moe.attention.clamp_kqv is 8, wanted 0 or no such key"},
      {"expert_weights_scale", 2.5f, "m.gguf: qwen3moe.expert_weights_scale is 2.5, wanted 1 or no such key"},
  };
  for (const Case& item : cases) {
    Content content = Base("qwen3moe");
    content.keys[item.key] = item.value;
    EXPECT_EQ(ErrorOf(content), item.message);
  }
  EXPECT_EQ(ErrorOf(Base("gemma2")),
            "m.gguf: architecture 'gemma2' is not supported, wanted one of: qwen3moe, phimoe, llama, qwen2moe, olmoe, "
            "qwen3, qwen2");
  Content wrong_type = Base("qwen3moe");
  wrong_type.keys["block_count"] = std::string("two");
  EXPECT_FALSE(Read(wrong_type).ok());
  Content three = Base("phimoe");
  three.keys["expert_used_count"] = 3u;
  EXPECT_EQ(ErrorOf(three), "m.gguf: sparsemixer routing with 3 experts per token, wanted 2");
}

}  // namespace
}  // namespace npumoe
