// SPDX-License-Identifier: Apache-2.0
#include "model/config_hf.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/random.h"
#include "model/test_files.h"

namespace npumoe {
namespace {

using nlohmann::json;

// The smallest config.json of a family; tests change members.
json Qwen3Moe() {
  return json::parse(R"({"model_type": "qwen3_moe", "vocab_size": 512, "max_position_embeddings": 4096,
    "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "intermediate_size": 96, "rms_norm_eps": 1e-6, "rope_theta": 1000000, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 48, "norm_topk_prob": true, "eos_token_id": 7})");
}

json PhiMoe() {
  return json::parse(R"({"model_type": "phimoe", "vocab_size": 512, "max_position_embeddings": 1024,
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "rms_norm_eps": 1e-5, "rope_theta": 10000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "attention_bias": true, "lm_head_bias": true, "sliding_window": 1024,
    "rope_scaling": {"type": "longrope", "short_factor": [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5],
      "long_factor": [2, 3, 4, 5, 6, 7, 8, 9], "short_mscale": 1.25, "long_mscale": 1.5,
      "original_max_position_embeddings": 128}})");
}

Result<ModelConfig> Read(const json& config, std::string_view generation = {}, const ConfigOptions& options = {},
                         const HuggingFaceHints& hints = {}) {
  return ConfigFromHuggingFace(config.dump(), generation, "config.json", options, hints);
}

std::string ErrorOf(const json& config) {
  const auto result = Read(config);
  return result.ok() ? "" : result.error().message;
}

TEST(ConfigFromHuggingFace, ReadsQwen3Moe) {
  const auto config = Read(Qwen3Moe());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->family, "qwen3moe");
  EXPECT_EQ(config->head_dim, 32u);
  EXPECT_EQ(config->rope_dim, 32u);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_FALSE(config->rope_interleaved);
  EXPECT_EQ(config->qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(config->n_experts, 8u);
  EXPECT_EQ(config->expert_dim, 48u);
  EXPECT_EQ(config->ffn_dim, 96u);
  EXPECT_TRUE(config->renormalize_top_k);
  EXPECT_EQ(config->eos_ids, std::vector<int32_t>{7});
  EXPECT_EQ(config->dense_layer, std::vector<bool>(6, false));
  EXPECT_TRUE(config->warnings.empty());
}

TEST(ConfigFromHuggingFace, ReadsPhiMoeInBothReadings) {
  const auto published = Read(PhiMoe());
  ASSERT_TRUE(published.ok()) << published.error().message;
  EXPECT_EQ(published->norm, NormKind::kLayerNorm);
  EXPECT_EQ(published->router, RouterRule::kSparseMixer);
  EXPECT_FLOAT_EQ(published->router_jitter, 0.01f);  // absent: the class's default
  EXPECT_EQ(published->head_dim, 16u);               // absent: 64 / 4
  EXPECT_EQ(published->expert_dim, 96u);
  EXPECT_EQ(published->rope_long_factors[7], 9.0f);
  EXPECT_FLOAT_EQ(published->rope_short_scale, 1.25f);
  EXPECT_FLOAT_EQ(published->rope_long_scale, 1.5f);
  EXPECT_EQ(published->rope_original_context, 128u);
  EXPECT_EQ(published->sliding_window, 1024u);
  EXPECT_TRUE(published->qkv_bias && published->attn_out_bias && published->output_bias);

  const auto llama_cpp = Read(PhiMoe(), {}, {.phimoe_llama_cpp = true});
  ASSERT_TRUE(llama_cpp.ok());
  EXPECT_EQ(llama_cpp->norm, NormKind::kRms);
  EXPECT_EQ(llama_cpp->router, RouterRule::kTopKSoftmax);
  EXPECT_EQ(llama_cpp->sliding_window, 0u);
  // sqrt(1 + ln(1024 / 128) / ln(128)) = sqrt(1 + 3/7)
  EXPECT_FLOAT_EQ(llama_cpp->rope_short_scale, 1.1952286f);
  EXPECT_FLOAT_EQ(llama_cpp->rope_long_scale, 1.1952286f);
}

TEST(ConfigFromHuggingFace, ReadsTheOtherFamilies) {
  json mixtral = Qwen3Moe();
  mixtral["model_type"] = "mixtral";
  mixtral["num_local_experts"] = 8;
  mixtral["sliding_window"] = nullptr;
  auto config = Read(mixtral);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->family, "llama");
  EXPECT_EQ(config->router, RouterRule::kTopKSoftmax);
  EXPECT_EQ(config->expert_dim, 96u);

  json qwen2moe = Qwen3Moe();
  qwen2moe["model_type"] = "qwen2_moe";
  qwen2moe["shared_expert_intermediate_size"] = 112;
  qwen2moe.erase("norm_topk_prob");
  config = Read(qwen2moe);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->shared_expert_dim, 112u);
  EXPECT_TRUE(config->shared_expert_gate);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->renormalize_top_k);

  json olmoe = Qwen3Moe();
  olmoe["model_type"] = "olmoe";
  olmoe.erase("rope_theta");
  olmoe.erase("norm_topk_prob");
  olmoe.erase("num_key_value_heads");
  config = Read(olmoe);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->qk_norm, QkNorm::kFullWidth);
  EXPECT_EQ(config->rope_theta, 10000);
  EXPECT_EQ(config->n_kv_heads, 4u);
  EXPECT_FALSE(config->renormalize_top_k);
  ASSERT_EQ(config->warnings.size(), 1u);
  EXPECT_EQ(config->warnings[0], "rope_theta is absent: using 10000");

  for (const char* dense : {"llama", "qwen3", "qwen2"}) {
    json other = Qwen3Moe();
    other["model_type"] = dense;
    config = Read(other);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->family, dense);
    EXPECT_EQ(config->n_experts, 0u);
    EXPECT_EQ(config->qkv_bias, std::string(dense) == "qwen2");
  }
  json by_class = Qwen3Moe();
  by_class.erase("model_type");
  by_class["architectures"] = {"Qwen3MoeForCausalLM"};
  EXPECT_TRUE(Read(by_class).ok());
}

TEST(ConfigFromHuggingFace, ReadsThetaFromEitherPlaceAndInsistsOnOne) {
  json config = Qwen3Moe();
  config.erase("rope_theta");
  EXPECT_EQ(ErrorOf(config),
            "config.json: rope_theta: missing, and so is rope_parameters.rope_theta: model type 'qwen3_moe' needs one");
  config["rope_parameters"] = {{"rope_theta", 5e6}, {"rope_type", "default"}};
  EXPECT_EQ(Read(config)->rope_theta, 5e6);
  config.erase("rope_parameters");
  config["rope_theta"] = 1234;
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(Read(config)->rope_theta, 1234);
}

TEST(ConfigFromHuggingFace, ReadsScalingUnderBothTypeNames) {
  for (const char* key : {"type", "rope_type"}) {
    json config = Qwen3Moe();
    config["rope_scaling"] = {{key, "linear"}, {"factor", 4}};
    const auto linear = Read(config);
    ASSERT_TRUE(linear.ok()) << linear.error().message;
    EXPECT_EQ(linear->rope_short_factors, std::vector<float>(16, 4.0f));
    EXPECT_EQ(linear->rope_original_context, 0u);
  }
  json config = Qwen3Moe();
  config["rope_parameters"] = {
      {"rope_theta", 1e6},       {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 32768},
      {"attention_factor", 1.5}, {"truncate", false}};
  config["partial_rotary_factor"] = 0.5;
  const auto yarn = Read(config);
  ASSERT_TRUE(yarn.ok()) << yarn.error().message;
  EXPECT_EQ(yarn->rope_dim, 16u);
  EXPECT_NEAR(yarn->rope_long_factors[4], 1.64634f, 1e-5f);  // the same case as in rope_scaling_test.cc
  EXPECT_EQ(yarn->rope_short_scale, 1.5f);

  config = Qwen3Moe();
  config["model_type"] = "llama";
  config["rope_theta"] = 500000;
  config["head_dim"] = 8;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 8192}};
  const auto llama3 = Read(config);
  ASSERT_TRUE(llama3.ok()) << llama3.error().message;
  EXPECT_NEAR(llama3->rope_short_factors[2], 2.69453f, 1e-5f);
  config["rope_scaling"]["high_freq_factor"] = 1.0;
  EXPECT_FALSE(Read(config).ok());
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2}};
  EXPECT_EQ(ErrorOf(config),
            "config.json: rope_scaling.rope_type: 'dynamic', wanted one of: default, linear, llama3, longrope, yarn");
}

TEST(ConfigFromHuggingFace, TakesTheHeadWidthFromTheTensorWhenTheConfigHasNone) {
  json config = Qwen3Moe();
  config.erase("head_dim");
  EXPECT_EQ(Read(config)->head_dim, 16u);
  EXPECT_EQ(Read(config, {}, {}, {.q_rows = 128})->head_dim, 32u);
  config["head_dim"] = 64;
  EXPECT_EQ(Read(config, {}, {}, {.q_rows = 128})->head_dim, 64u);  // the binder then reports the tensor
}

TEST(ConfigFromHuggingFace, MixesDenseAndMoeLayers) {
  json config = Qwen3Moe();
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3, 99};
  const auto mixed = Read(config);
  ASSERT_TRUE(mixed.ok());
  EXPECT_EQ(mixed->dense_layer, (std::vector<bool>{true, false, true, true, true, false}));
  config = Qwen3Moe();
  config["first_k_dense_replace"] = 1;
  EXPECT_EQ(Read(config)->dense_layer, (std::vector<bool>{true, false, false, false, false, false}));
  config["intermediate_size"] = 0;
  EXPECT_EQ(ErrorOf(config), "config.json: dense feed-forward width is 0, wanted at least 1");
}

TEST(ConfigFromHuggingFace, CollectsEveryEndToken) {
  json config = Qwen3Moe();
  config["eos_token_id"] = {7, 9};
  const auto both = Read(config, R"({"eos_token_id": [9, 11]})");
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->eos_ids, (std::vector<int32_t>{7, 9, 11}));
  config["eos_token_id"] = nullptr;
  EXPECT_TRUE(Read(config)->eos_ids.empty());
  config["eos_token_id"] = {-1, 512, 18446744073709551615ull, 3};
  const auto outside = Read(config);
  ASSERT_TRUE(outside.ok());
  EXPECT_EQ(outside->eos_ids, std::vector<int32_t>{3});
  EXPECT_EQ(outside->warnings.size(), 3u);
  config["eos_token_id"] = "</s>";
  EXPECT_EQ(ErrorOf(config), "config.json: eos_token_id: wanted a token id or a list of them");
}

TEST(ConfigFromHuggingFace, ReadsWindows) {
  json config = Qwen3Moe();
  config["sliding_window"] = 128;
  config["use_sliding_window"] = false;
  EXPECT_EQ(Read(config)->sliding_window, 0u);
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 0;
  EXPECT_EQ(Read(config)->sliding_window, 128u);
  config["max_window_layers"] = 6;
  EXPECT_EQ(Read(config)->sliding_window, 0u);
  config["max_window_layers"] = 4;
  EXPECT_EQ(ErrorOf(config),
            "config.json: sliding_window: a window of 128 tokens in 2 of 6 layers, wanted all layers or none");
}

TEST(ConfigFromHuggingFace, LooksIntoTheTextConfigOfAWrapper) {
  json inner = Qwen3Moe();
  const json outer = {{"model_type", "some_vl"}, {"text_config", inner}};
  const auto config = Read(outer);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->family, "qwen3moe");
}

TEST(ConfigFromHuggingFace, RefusesEachBadValueByName) {
  struct Case {
    const char* key;
    json value;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"hidden_size", "64", R"(config.json: hidden_size: "64", wanted a whole number)"},
      {"hidden_size", -64, "config.json: hidden_size: -64, wanted at least 0"},
      {"hidden_size", 1e30, "config.json: hidden_size: 1e+30, wanted a whole number"},
      {"hidden_size", 0, "config.json: model width is 0, wanted at least 1"},
      {"hidden_size", 64.5, "config.json: hidden_size: 64.5, wanted a whole number"},
      {"hidden_size", json::array(), "config.json: hidden_size: an array of 0, wanted a whole number"},
      {"hidden_size", nullptr, "config.json: hidden_size: missing"},
      {"num_hidden_layers", 2147483648u, "config.json: num_hidden_layers: 2147483648, limit 1024"},
      {"num_attention_heads", 0, "config.json: num_attention_heads: 0, wanted at least 1"},
      {"num_key_value_heads", 0, "config.json: key/value head count is 0, wanted at least 1"},
      {"num_key_value_heads", 3, "config.json: 4 attention heads are not a multiple of 3 key/value heads"},
      {"head_dim", 33, "config.json: rope dimension is 33, wanted an even number"},
      {"rms_norm_eps", "small", R"(config.json: rms_norm_eps: "small", wanted a number)"},
      {"rms_norm_eps", 0, "config.json: norm epsilon is 0, wanted a number between 0 and 1"},
      {"rope_theta", -1, "config.json: rope theta is -1, wanted a number above 1"},
      {"num_experts", 0, "config.json: num_experts: 0, wanted at least 1"},
      {"num_experts", 5000, "config.json: num_experts: 5000, limit 4096"},
      {"num_experts_per_tok", 9, "config.json: 9 experts per token, wanted 1 to 8 (the expert count)"},
      {"num_experts_per_tok", 0, "config.json: 0 experts per token, wanted 1 to 8 (the expert count)"},
      {"norm_topk_prob", 1, "config.json: norm_topk_prob: 1, wanted true or false"},
      {"decoder_sparse_step", 0, "config.json: decoder_sparse_step: 0, wanted at least 1"},
      {"hidden_act", "gelu", "config.json: hidden_act: 'gelu', wanted 'silu'"},
      {"mlp_bias", true, "config.json: mlp_bias: true, wanted false"},
      {"rope_scaling", 3, "config.json: rope_scaling: 3, wanted an object"},
      {"model_type", "gemma2",
       "config.json: model_type: 'gemma2' is not supported, wanted one of: qwen3_moe, phimoe, mixtral, llama, "
       "qwen2_moe, olmoe, qwen3, qwen2"},
      {"quantization_config",
       {{"quant_method", "gptq"}},
       "config.json: quantization_config.quant_method: 'gptq', wanted an unquantised checkpoint (F32, F16, BF16) or a "
       "GGUF file"},
  };
  for (const Case& item : cases) {
    json config = Qwen3Moe();
    config[item.key] = item.value;
    EXPECT_EQ(ErrorOf(config), item.message);
  }
}

TEST(ConfigFromHuggingFace, AcceptsEveryExpertCountWithKUpToN) {
  for (const auto& [n, k] : {std::pair{1, 1}, {2, 2}, {3, 1}, {6, 6}, {77, 5}, {160, 8}, {4096, 4096}}) {
    json config = Qwen3Moe();
    config["num_experts"] = n;
    config["num_experts_per_tok"] = k;
    EXPECT_TRUE(Read(config).ok()) << n << ' ' << k;
  }
  json config = Qwen3Moe();
  config["num_experts"] = 4096;
  config["num_hidden_layers"] = 64;
  EXPECT_TRUE(Read(config).ok());
  config["num_hidden_layers"] = 65;
  EXPECT_EQ(ErrorOf(config), "config.json: 65 layers of 4096 experts are 266240, limit 262144");
}

TEST(ConfigFromHuggingFace, RefusesMalformedAndDeepJson) {
  const auto error = [](std::string_view text) {
    const auto result = ConfigFromHuggingFace(text, {}, "config.json", {});
    return result.ok() ? "" : result.error().message;
  };
  EXPECT_EQ(error(""), "config.json: not valid JSON");
  EXPECT_EQ(error("[1, 2]"), "config.json: an array of 2, wanted an object");
  EXPECT_EQ(error("{}"), "config.json: model_type: missing");
  const std::string deep = R"({"a": )" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_EQ(error(deep), "config.json: nested more than 32 deep");
  json huge = PhiMoe();
  huge["rope_scaling"]["short_factor"] = std::vector<float>(2000000, 1.0f);
  EXPECT_EQ(ErrorOf(huge), "config.json: rope_scaling.short_factor: 2000000 elements, limit 1048576");
  huge["rope_scaling"]["short_factor"] = {1, 2, 3};
  EXPECT_EQ(ErrorOf(huge), "config.json: rope_scaling.short_factor: 3 numbers, wanted 8 (half of the rope dimension)");
}

TEST(ConfigFromHuggingFace, FailsOnEveryCutAndSurvivesMutations) {
  const std::string text = PhiMoe().dump();
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ConfigFromHuggingFace(std::string_view(text).substr(0, length), {}, "c", {}).ok()) << length;
  }
  Random random(3);
  size_t n_accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string mutated = text;
    for (int change = 0; change < 3; ++change) {
      mutated[random.Below(mutated.size())] = static_cast<char>(random.Below(256));
    }
    const auto config = ConfigFromHuggingFace(mutated, {}, "c", {});
    if (!config.ok()) {
      EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
      continue;
    }
    ++n_accepted;
    EXPECT_TRUE(Validate(*config, "c").ok());
  }
  EXPECT_GT(n_accepted, 0u);  // digits change into digits
}

TEST(ConfigFromHuggingFace, ReadsPublishedFiles) {
  const std::string big = SharedFile("configs/Qwen3-235B-A22B-Instruct-2507.json");
  NM_SKIP_WITHOUT(big);
  const auto read = [](const std::string& file) {
    const auto text = ReadFile(SharedFile("configs/" + file));
    EXPECT_TRUE(text.ok());
    return ConfigFromHuggingFace(*text, {}, file, {});
  };
  const auto qwen = read("Qwen3-235B-A22B-Instruct-2507.json");
  ASSERT_TRUE(qwen.ok()) << qwen.error().message;
  EXPECT_EQ(qwen->n_layers, 94u);
  EXPECT_EQ(qwen->n_heads * qwen->head_dim, 8192u);
  EXPECT_EQ(qwen->rope_theta, 5e6);
  EXPECT_EQ(qwen->sliding_window, 0u);
  EXPECT_EQ(qwen->eos_ids, std::vector<int32_t>{151645});
  const auto phi = read("phi-3.5-moe-sample.json");
  ASSERT_TRUE(phi.ok()) << phi.error().message;
  EXPECT_EQ(phi->rope_original_context, 4096u);
  EXPECT_FLOAT_EQ(phi->rope_long_scale, 1.243163121016122f);
  EXPECT_FLOAT_EQ(phi->rope_long_factors[63], 64.95999908447266f);
  EXPECT_FLOAT_EQ(phi->rope_short_factors[1], 1.0399999618530273f);
  EXPECT_EQ(phi->sliding_window, 131072u);
  EXPECT_TRUE(phi->output_bias);
  const auto gptq = read("Qwen3-30B-A3B-GPTQ-Int4.json");
  ASSERT_FALSE(gptq.ok());
  EXPECT_EQ(gptq.error().code, Code::kUnsupported);
  const auto glm = read("GLM-4.7.json");
  ASSERT_FALSE(glm.ok());
  EXPECT_EQ(glm.error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace npumoe
