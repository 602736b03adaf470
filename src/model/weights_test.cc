// SPDX-License-Identifier: Apache-2.0
#include "model/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/random.h"
#include "format/safetensors.h"
#include "model/test_files.h"
#include "npumoe/make_model.h"

namespace npumoe {
namespace {

TEST(Model, OpensQwen3MoeFromGguf) {
  const std::string path = SharedFile("models/rand-qwen3moe.gguf");
  NM_SKIP_WITHOUT(path);
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
  const std::string path = SharedFile("models/rand-phimoe.gguf");
  NM_SKIP_WITHOUT(path);
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
  const std::string dense_path = SharedFile("models/stories260K-f32.gguf");
  const std::string moe_path = SharedFile("models/stories260K-upcycled-4e2.gguf");
  NM_SKIP_WITHOUT(dense_path);
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

// A checkpoint as named tensors, to be changed by tests and written back.
struct Folder {
  explicit Folder(const std::string& shape) {
    MakeModelOptions options;
    options.shape = shape;
    options.hugging_face = true;
    options.n_layers = 1;
    options.dim = 64;
    options.expert_dim = shape.ends_with("llama") ? 0 : 32;
    const std::string path = scratch.File("source");
    EXPECT_TRUE(MakeModel(options, path).ok());
    config = nlohmann::json::parse(ReadFile(path + "/config.json").value());
    source = std::make_unique<SafetensorsFolder>(SafetensorsFolder::Open(path).value());
    for (const auto& [name, view] : source->tensors()) tensors[name] = view;
  }
  void Rename(const std::string& from, const std::string& to) {
    auto node = tensors.extract(from);
    ASSERT_FALSE(node.empty()) << from;
    node.key() = to;
    tensors.insert(std::move(node));
  }
  Result<Model> Open() {
    const std::string path = scratch.File("model" + std::to_string(n_written++));
    std::filesystem::create_directory(path);
    std::vector<NamedTensor> named;
    for (const auto& [name, view] : tensors) named.push_back({name, view});
    EXPECT_TRUE(WriteSafetensors(path + "/model.safetensors", named).ok());
    EXPECT_TRUE(WriteFileAtomic(path + "/config.json", config.dump()).ok());
    auto model = Model::Open(path, {});
    if (model.ok()) return model;
    Error error = model.error();
    if (error.message.starts_with(path)) error.message.replace(0, path.size(), "m");
    return error;
  }
  std::string ErrorOf() {
    const auto model = Open();
    return model.ok() ? "" : model.error().message;
  }
  // A tensor that stacks the given ones.
  TensorView Stack(const std::vector<std::string>& names, const Shape& shape) {
    Tensor tensor = Tensor::Make(DType::kF32, shape).value();
    size_t offset = 0;
    for (const std::string& name : names) {
      const TensorView view = tensors.at(name);
      const size_t bytes = view.shape.elems() * sizeof(float);
      std::memcpy(tensor.data() + offset, view.data, bytes);
      offset += bytes;
      tensors.erase(name);
    }
    EXPECT_EQ(offset, tensor.size_bytes());
    made.push_back(std::move(tensor));
    return made.back().view();
  }

  ScratchFolder scratch;
  nlohmann::json config;
  std::unique_ptr<SafetensorsFolder> source;
  std::map<std::string, TensorView> tensors;
  std::vector<Tensor> made;
  int n_written = 0;
};

std::vector<float> Values(const TensorView& view) { return {view.f32(), view.f32() + view.shape.elems()}; }

TEST(Model, NamesAMissingTensorAndAWrongShape) {
  Folder folder("tiny-qwen3moe");
  const std::string up = "model.layers.0.mlp.experts.5.up_proj.weight";
  const TensorView view = folder.tensors.at(up);
  folder.tensors.erase(up);
  EXPECT_EQ(folder.ErrorOf(),
            "m: missing tensor 'model.layers.0.mlp.experts.5.up_proj.weight' or "
            "'model.layers.0.block_sparse_moe.experts.5.w3.weight' for architecture 'qwen3moe'");
  folder.tensors[up] = {view.dtype, Shape::Of(64, 32), view.data};
  EXPECT_EQ(folder.ErrorOf(),
            "m: tensor 'model.layers.0.mlp.experts.5.up_proj.weight': shape [64, 32], wanted [32, 64]");
  folder.tensors[up] = view;
  folder.tensors.erase("model.norm.weight");
  EXPECT_EQ(folder.ErrorOf(), "m: missing tensor 'model.norm.weight' for architecture 'qwen3moe'");
}

TEST(Model, RefusesTensorsThatWouldChangeTheResultAndListsOthers) {
  Folder folder("tiny-qwen3moe");
  const TensorView norm = folder.tensors.at("model.norm.weight");
  folder.tensors["model.layers.0.mlp.experts.0.up_proj.bias"] = norm;
  EXPECT_EQ(folder.ErrorOf(),
            "m: tensor 'model.layers.0.mlp.experts.0.up_proj.bias' has no place in architecture 'qwen3moe'");
  folder.tensors.erase("model.layers.0.mlp.experts.0.up_proj.bias");
  folder.tensors["model.norm.bias"] = norm;
  EXPECT_EQ(folder.ErrorOf(), "m: tensor 'model.norm.bias' has no place in architecture 'qwen3moe'");
  folder.tensors.erase("model.norm.bias");
  for (const char* extra : {"model.layers.1.input_layernorm.weight", "visual.a", "visual.b", "visual.c", "visual.d",
                            "visual.e", "visual.f"}) {
    folder.tensors[extra] = norm;
  }
  const auto model = folder.Open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->config().warnings,
            std::vector<std::string>{"7 unused tensors: model.layers.1.input_layernorm.weight, visual.a, visual.b, "
                                     "visual.c, visual.d, ..."});
}

TEST(Model, TakesBiasesThatAllLayersHaveAndInsistsOnPromisedOnes) {
  Folder folder("tiny-qwen3moe");
  const TensorView norm = folder.tensors.at("model.norm.weight");
  folder.tensors["model.layers.0.self_attn.o_proj.bias"] = norm;
  auto model = folder.Open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(Values(model->weights().layers[0].bo), Values(norm));
  folder.config["attention_bias"] = true;
  EXPECT_EQ(folder.ErrorOf(), "m: missing tensor 'model.layers.0.self_attn.q_proj.bias' for architecture 'qwen3moe'");
}

TEST(Model, StripsPrefixesOfWrappersAndRefusesTwoTensorsOfOneMeaning) {
  for (const char* prefix : {"model.language_model.", "language_model.model.", ""}) {
    Folder folder("tiny-llama");
    std::vector<std::string> names;
    for (const auto& [name, view] : folder.tensors) names.push_back(name);
    for (const std::string& name : names) {
      if (name.starts_with("model.")) folder.Rename(name, prefix + name.substr(6));
    }
    const auto model = folder.Open();
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(model->weights().layers[0].wq.shape, Shape::Of(256, 64));
    EXPECT_TRUE(model->config().warnings.empty());
  }
  Folder folder("tiny-llama");
  folder.tensors["norm.weight"] = folder.tensors.at("model.norm.weight");
  EXPECT_EQ(folder.ErrorOf(), "m: tensors 'model.norm.weight' and 'norm.weight' have the same meaning");
}

TEST(Model, ReadsFusedProjectionsInPlace) {
  Folder folder("tiny-qwen3moe");
  const auto apart = folder.Open();
  ASSERT_TRUE(apart.ok()) << apart.error().message;
  const std::string layer = "model.layers.0.", experts = layer + "mlp.experts.";
  std::vector<std::string> gate_up, down;
  for (int expert = 0; expert < 8; ++expert) {
    gate_up.push_back(experts + std::to_string(expert) + ".gate_proj.weight");
    gate_up.push_back(experts + std::to_string(expert) + ".up_proj.weight");
    down.push_back(experts + std::to_string(expert) + ".down_proj.weight");
  }
  const TensorView turned_gate_up = folder.Stack(gate_up, Shape::Of(8, 64, 64));  // 2 * 32 = 64 = dim: both ways
  folder.tensors[experts + "gate_up_proj"] = turned_gate_up;
  folder.tensors[experts + "down_proj"] = folder.Stack(down, Shape::Of(8, 64, 32));
  const std::string attention = layer + "self_attn.";
  folder.tensors[attention + "qkv_proj.weight"] = folder.Stack(
      {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}, Shape::Of(1024, 64));
  const auto fused = folder.Open();
  ASSERT_TRUE(fused.ok()) << fused.error().message;
  const LayerWeights &a = apart->weights().layers[0], &b = fused->weights().layers[0];
  EXPECT_EQ(Values(a.wq), Values(b.wq));
  EXPECT_EQ(Values(a.wk), Values(b.wk));
  EXPECT_EQ(Values(a.wv), Values(b.wv));
  for (int expert = 0; expert < 8; ++expert) {
    EXPECT_EQ(Values(a.expert_gate[expert]), Values(b.expert_gate[expert]));
    EXPECT_EQ(Values(a.expert_up[expert]), Values(b.expert_up[expert]));
    EXPECT_EQ(Values(a.expert_down[expert]), Values(b.expert_down[expert]));
  }
  EXPECT_EQ(fused->converted_bytes(), 0u);
  // The same numbers as [in, out]: the down projection's shape tells.
  folder.tensors[experts + "down_proj"].shape = Shape::Of(8, 32, 64);
  EXPECT_EQ(
      folder.ErrorOf(),
      "m: tensor 'model.layers.0.mlp.experts.down_proj': experts stored as [in, out], wanted [out, in] [8, 64, 64]");
}

TEST(Model, DecidesTyingByTheConfigAndThenByTheTensors) {
  Folder folder("tiny-llama");
  folder.config["tie_word_embeddings"] = true;  // lm_head.weight is there, but the config rules
  auto model = folder.Open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->weights().output.data, model->weights().embedding.data);
  EXPECT_TRUE(model->config().warnings.empty());
  folder.config["tie_word_embeddings"] = false;
  folder.tensors.erase("lm_head.weight");
  EXPECT_EQ(folder.ErrorOf(), "m: missing tensor 'lm_head.weight' for architecture 'llama'");
  folder.config.erase("tie_word_embeddings");
  model = folder.Open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_TRUE(model->config().tied_embeddings);
  EXPECT_EQ(model->config().warnings.size(), 1u);
}

TEST(Model, InfersTheHeadWidthOfAPrunedModel) {
  Folder folder("tiny-phimoe");  // 4 heads of 64 in a model 64 wide
  folder.config.erase("head_dim");
  const auto model = folder.Open();
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->config().head_dim, 64u);
  EXPECT_EQ(model->weights().layers[0].wo.shape, Shape::Of(64, 256));
}

TEST(Model, ConvertsSmallTensorsOfEveryDtypeOnce) {
  const ScratchFolder scratch;
  MakeModelOptions options;
  options.shape = "tiny-qwen2moe";
  options.hugging_face = true;
  for (const char* type : {"f32", "f16", "bf16"}) {
    options.type = type;
    const std::string path = scratch.File(type);
    ASSERT_TRUE(MakeModel(options, path).ok());
    const auto model = Model::Open(path, {});
    ASSERT_TRUE(model.ok()) << model.error().message;
    const LayerWeights& layer = model->weights().layers[1];
    for (const TensorView& view : {layer.attn_norm, layer.bq, layer.router, layer.shared_expert_gate}) {
      EXPECT_EQ(view.dtype, DType::kF32);
    }
    EXPECT_EQ(layer.shared_expert_gate.shape, Shape::Of(1, 256));
    EXPECT_EQ(layer.wq.dtype, DTypeFromName(type));
    // Per layer: two norms and the shared gate (3 * 256), biases (256 + 2 * 128), router (8 * 256); the final norm.
    const size_t wanted = std::string(type) == "f32" ? 0 : (2 * (3 * 256 + 512 + 8 * 256) + 256) * sizeof(float);
    EXPECT_EQ(model->converted_bytes(), wanted);
  }
}

TEST(Model, FailsOnPathsThatAreNoModel) {
  const ScratchFolder scratch;
  EXPECT_EQ(Model::Open(scratch.File("absent.gguf"), {}).error().code, Code::kNotFound);
  std::filesystem::create_directory(scratch.File("empty"));
  const auto empty = Model::Open(scratch.File("empty"), {});
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().code, Code::kNotFound);
  EXPECT_NE(empty.error().message.find("config.json"), std::string::npos);
}

TEST(Model, SurvivesMutatedHeaders) {
  const ScratchFolder scratch;
  MakeModelOptions options;
  options.shape = "tiny-phimoe";
  options.n_layers = 1;
  options.dim = 32;
  options.n_experts = 2;
  options.expert_dim = 8;
  options.vocab_size = 300;
  const std::string path = scratch.File("m.gguf");
  ASSERT_TRUE(MakeModel(options, path).ok());
  const std::string good = ReadFile(path).value();
  // Two stretches: the numbers at the start, and the tensor records behind the vocabulary.
  const size_t records = good.find("token_embd.weight");
  ASSERT_NE(records, std::string::npos);
  Random random(5);
  size_t n_opened = 0, n_refused = 0;
  for (int round = 0; round < 1500; ++round) {
    std::string bytes = good;
    const size_t begin = round % 2 == 0 ? 24 : records;
    for (uint64_t change = 0; change <= random.Below(2); ++change) {
      bytes[begin + random.Below(1200)] = static_cast<char>(random.Below(256));
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    const auto model = Model::Open(path, {.phimoe_llama_cpp = round % 3 == 0});
    if (model.ok()) {
      ++n_opened;
      EXPECT_TRUE(Validate(model->config(), "m").ok());
      EXPECT_LE(model->converted_bytes(), bytes.size());
      continue;
    }
    ++n_refused;
    EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
    EXPECT_TRUE(model.error().message.starts_with(path)) << model.error().message;
  }
  EXPECT_GT(n_opened, 0u);
  EXPECT_GT(n_refused, 1000u);
}

}  // namespace
}  // namespace npumoe
