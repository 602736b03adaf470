// SPDX-License-Identifier: Apache-2.0
#include "model/random_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/files.h"
#include "format/gguf.h"
#include "format/tokenizer.h"
#include "model/random_values.h"
#include "model/random_vocab.h"
#include "model/test_files.h"
#include "model/weights.h"
#include "npumoe/make_model.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

uint64_t CountParameters(const ModelConfig& config) {
  const uint64_t q = uint64_t{config.n_heads} * config.head_dim, kv = uint64_t{config.n_kv_heads} * config.head_dim;
  const uint64_t dim = config.dim;
  uint64_t layer = 2 * q * dim + 2 * kv * dim + 2 * dim + config.n_experts * (3 * dim * config.expert_dim + dim);
  if (config.norm == NormKind::kLayerNorm) layer += 2 * dim;
  if (config.qkv_bias) layer += q + 2 * kv;
  if (config.attn_out_bias) layer += dim;
  if (config.qk_norm == QkNorm::kPerHead) layer += 2 * config.head_dim;
  if (config.qk_norm == QkNorm::kFullWidth) layer += q + kv;
  if (config.shared_expert_dim > 0) layer += 3 * dim * config.shared_expert_dim + dim;
  uint64_t total = config.n_layers * layer + 2 * dim * config.vocab_size + dim;
  if (config.norm == NormKind::kLayerNorm) total += dim;
  if (config.output_bias) total += config.vocab_size;
  return total;
}

TEST(ShapeByName, HasThePublishedParameterCounts) {
  // Of the checkpoints' safetensors, as their pages on huggingface.co state them.
  const std::map<std::string, uint64_t> published = {
      {"qwen3-30b-a3b", 30532122624}, {"phi-3.5-moe", 41873153344},  {"phi-mini-moe", 7647632704},
      {"phi-tiny-moe", 3755220288},   {"mixtral-8x7b", 46702792704}, {"qwen1.5-moe-a2.7b", 14315784192},
      {"olmoe-1b-7b", 6919161856},
  };
  for (const auto& [name, count] : published) {
    const auto config = ShapeByName(name);
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(CountParameters(*config), count) << name;
  }
}

TEST(ShapeByName, EveryNameIsAValidModel) {
  for (const std::string_view name : ShapeNames()) {
    const auto config = ShapeByName(name);
    ASSERT_TRUE(config.ok());
    EXPECT_TRUE(Validate(*config, name).ok()) << name;
  }
  const auto unknown = ShapeByName("qwen9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_TRUE(unknown.error().message.starts_with("shape 'qwen9' is not known, wanted one of: qwen3-30b-a3b, phi-3.5"))
      << unknown.error().message;
}

MakeModelOptions Tiny(const std::string& shape) {
  MakeModelOptions options;
  options.shape = shape;
  return options;
}

std::vector<float> Decode(const TensorView& view) {
  std::vector<float> out(view.shape.elems());
  const size_t cols = view.shape.inner();
  const size_t row_bytes = RowBytes(view.dtype, cols).value();
  for (size_t row = 0; row < out.size() / cols; ++row) {
    DequantizeRow(view.dtype, view.data + row * row_bytes, std::span(out).subspan(row * cols, cols));
  }
  return out;
}

TEST(WriteRandomModel, WritesEveryFamilyInEveryForm) {
  for (const std::string_view name : ShapeNames()) {
    if (!name.starts_with("tiny-")) continue;
    const ScratchFolder scratch;
    MakeModelOptions options = Tiny(std::string(name));
    const std::string merged = scratch.File("merged.gguf");
    const auto bytes = MakeModel(options, merged);
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    EXPECT_EQ(*bytes, std::filesystem::file_size(merged));
    const auto model = Model::Open(merged, {});
    ASSERT_TRUE(model.ok()) << model.error().message;
    const ModelConfig shape = *ShapeByName(name), &read = model->config();
    EXPECT_EQ(read.family, shape.family);
    EXPECT_EQ(read.router, shape.router);
    EXPECT_EQ(read.renormalize_top_k, shape.renormalize_top_k);
    EXPECT_EQ(read.rope_long_factors, shape.rope_long_factors);
    EXPECT_EQ(read.rope_long_scale, shape.rope_long_scale);
    EXPECT_EQ(read.shared_expert_dim, shape.shared_expert_dim);
    EXPECT_EQ(read.eos_ids, std::vector<int32_t>{511});
    EXPECT_TRUE(read.warnings.empty()) << read.warnings[0];

    options.merged_experts = shape.n_experts == 0;  // a dense shape takes nothing about experts
    options.n_splits = 3;
    ASSERT_TRUE(MakeModel(options, scratch.File("split.gguf")).ok());
    const auto split = Model::Open(scratch.File("split-00002-of-00003.gguf"), {});
    ASSERT_TRUE(split.ok()) << split.error().message;
    options.hugging_face = true;
    options.n_splits = 2;
    ASSERT_TRUE(MakeModel(options, scratch.File("folder")).ok());
    const auto folder = Model::Open(scratch.File("folder"), {});
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    EXPECT_TRUE(folder->config().warnings.empty()) << folder->config().warnings[0];
    EXPECT_EQ(folder->config().renormalize_top_k, shape.renormalize_top_k);
    EXPECT_EQ(folder->config().eos_ids, (std::vector<int32_t>{511, 509}));

    // Both formats give the same config in both readings, except for the order of q and k rows.
    for (const bool as_llama_cpp : {false, true}) {
      const ModelConfig x = Model::Open(merged, {as_llama_cpp})->config();
      const ModelConfig y = Model::Open(scratch.File("folder"), {as_llama_cpp})->config();
      EXPECT_EQ(x.norm, y.norm);
      EXPECT_EQ(x.router, y.router);
      EXPECT_EQ(x.norm_eps, y.norm_eps);
      EXPECT_EQ(x.rope_theta, y.rope_theta);
      EXPECT_EQ(x.rope_short_scale, y.rope_short_scale);
      EXPECT_EQ(x.rope_long_scale, y.rope_long_scale);
      EXPECT_EQ(x.rope_short_factors, y.rope_short_factors);
      EXPECT_EQ(x.rope_original_context, y.rope_original_context);
      EXPECT_EQ(x.router_jitter, y.router_jitter);
      EXPECT_EQ(x.qkv_bias, y.qkv_bias);
      EXPECT_EQ(x.output_bias, y.output_bias);
    }

    // The same numbers in each; q and k rows of GGUF llama are stored in another order.
    const LayerWeights &a = model->weights().layers[1], &b = split->weights().layers[1],
                       &c = folder->weights().layers[1];
    EXPECT_EQ(Decode(a.wq), Decode(b.wq));
    EXPECT_EQ(Decode(a.wv), Decode(c.wv));
    EXPECT_EQ(Decode(a.wq) == Decode(c.wq), shape.family != "llama");
    if (shape.n_experts > 0) {
      EXPECT_EQ(Decode(a.router), Decode(c.router));
      EXPECT_EQ(Decode(a.expert_down[7]), Decode(b.expert_down[7]));
      EXPECT_EQ(Decode(a.expert_down[7]), Decode(c.expert_down[7]));
      EXPECT_NE(Decode(a.expert_down[7]), Decode(a.expert_down[6]));
    }
  }
}

TEST(WriteRandomModel, AlternatesTheHalvesOfEachHeadInGgufLlama) {
  const ScratchFolder scratch;
  MakeModelOptions options = Tiny("tiny-llama");
  ASSERT_TRUE(MakeModel(options, scratch.File("m.gguf")).ok());
  options.hugging_face = true;
  ASSERT_TRUE(MakeModel(options, scratch.File("folder")).ok());
  const auto gguf = Model::Open(scratch.File("m.gguf"), {}), folder = Model::Open(scratch.File("folder"), {});
  ASSERT_TRUE(gguf.ok() && folder.ok());
  EXPECT_TRUE(gguf->config().rope_interleaved);
  EXPECT_FALSE(folder->config().rope_interleaved);
  const TensorView a = gguf->weights().layers[0].wk, b = folder->weights().layers[0].wk;  // [2 heads * 64, 256]
  const auto row = [](const TensorView& view, size_t i) {
    return Decode({view.dtype, Shape::Of(256), view.data + i * 1024});
  };
  EXPECT_EQ(row(a, 64 + 0), row(b, 64 + 0));
  EXPECT_EQ(row(a, 64 + 1), row(b, 64 + 32));
  EXPECT_EQ(row(a, 64 + 2), row(b, 64 + 1));
  EXPECT_EQ(row(a, 64 + 63), row(b, 64 + 63));
}

TEST(WriteRandomModel, IsAFunctionOfTheSeed) {
  const ScratchFolder scratch;
  MakeModelOptions options = Tiny("tiny-qwen3moe");
  options.type = "q8_0";
  const auto bytes = [&](const char* name) {
    EXPECT_TRUE(MakeModel(options, scratch.File(name)).ok());
    return *ReadFile(scratch.File(name));
  };
  const std::string first = bytes("a"), again = bytes("b");
  options.seed = 2;
  const std::string other = bytes("c");
  EXPECT_TRUE(first == again);
  EXPECT_EQ(first.size(), other.size());
  EXPECT_FALSE(first == other);
}

TEST(WriteRandomModel, HoldsTheSameModelInEveryBlockType) {
  const ScratchFolder scratch;
  MakeModelOptions options = Tiny("tiny-qwen3moe");
  options.n_layers = 1;
  options.n_experts = 4;
  ASSERT_TRUE(MakeModel(options, scratch.File("f32.gguf")).ok());
  const auto exact = Model::Open(scratch.File("f32.gguf"), {});
  ASSERT_TRUE(exact.ok());
  const std::vector<float> truth = Decode(exact->weights().layers[0].expert_up[3]);
  double power = 0;
  for (const float value : truth) power += static_cast<double>(value) * value;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    options.type = Info(static_cast<DType>(i)).name;
    const std::string path = scratch.File(options.type + ".gguf");
    ASSERT_TRUE(MakeModel(options, path).ok());
    const auto model = Model::Open(path, {});
    ASSERT_TRUE(model.ok()) << model.error().message;
    const TensorView view = model->weights().layers[0].expert_up[3];
    EXPECT_EQ(view.dtype, static_cast<DType>(i));
    const std::vector<float> values = Decode(view);
    double error = 0;
    for (size_t k = 0; k < truth.size(); ++k) error += std::pow(static_cast<double>(values[k]) - truth[k], 2);
    // Relative error of 2-bit blocks on normal values is about 0.3 (recorded); all others are smaller.
    EXPECT_LT(std::sqrt(error / power), 0.4) << options.type;
  }
}

TEST(WriteRandomModel, FallsBackWhereRowsAreNotWholeBlocks) {
  const ScratchFolder scratch;
  MakeModelOptions options = Tiny("tiny-qwen3moe");
  options.type = "q4_k";
  options.expert_dim = 96;
  ASSERT_TRUE(MakeModel(options, scratch.File("m.gguf")).ok());
  auto model = Model::Open(scratch.File("m.gguf"), {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->weights().layers[0].expert_up[0].dtype, DType::kQ4_K);
  EXPECT_EQ(model->weights().layers[0].expert_down[0].dtype, DType::kQ8_0);
  options.expert_dim = 44;
  ASSERT_TRUE(MakeModel(options, scratch.File("m.gguf")).ok());
  model = Model::Open(scratch.File("m.gguf"), {});
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(model->weights().layers[0].expert_down[0].dtype, DType::kF16);
}

TEST(WriteRandomModel, SkewsTheRouterByRank) {
  // Logits of a normalised stream that holds the common direction and fresh noise.
  const ScratchFolder scratch;
  MakeModelOptions options = Tiny("tiny-qwen3moe");
  options.n_experts = 128;
  options.top_k = 8;
  options.n_layers = 1;
  options.expert_dim = 32;
  const auto loads_of = [&](double zipf) {
    options.zipf = zipf;
    EXPECT_TRUE(MakeModel(options, scratch.File("m.gguf")).ok());
    const auto model = Model::Open(scratch.File("m.gguf"), {});
    EXPECT_TRUE(model.ok());
    const float* router = model->weights().layers[0].router.f32();  // [128, 256]
    std::vector<double> loads(128);
    std::vector<float> x(256), logits(128);
    for (uint64_t token = 0; token < 2048; ++token) {
      FillRandom(token, {.scale = 1 / std::sqrt(1.25f), .common = 0.5f}, x);
      for (size_t expert = 0; expert < 128; ++expert) {
        logits[expert] = std::inner_product(x.begin(), x.end(), router + expert * 256, 0.0f);
      }
      std::vector<size_t> order(128);
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + 8, order.end(),
                        [&](size_t a, size_t b) { return logits[a] > logits[b]; });
      for (size_t i = 0; i < 8; ++i) loads[order[i]] += 1.0 / 128;  // the mean load is 1
    }
    return loads;
  };
  const std::vector<double> skewed = loads_of(0.35), even = loads_of(0);
  // Published-like skew: the hottest expert of 128 gets 7.5 to 13.5 times the mean.
  const double hottest = *std::max_element(skewed.begin(), skewed.end());
  EXPECT_GT(hottest, 7.5);
  EXPECT_LT(hottest, 13.5);
  EXPECT_LT(*std::max_element(even.begin(), even.end()), 2.0);
  EXPECT_GT(*std::min_element(even.begin(), even.end()), 0.4);
}

TEST(WriteRandomModel, RefusesWhatItCannotWriteAndLeavesNothing) {
  const ScratchFolder scratch;
  const auto error = [&](const MakeModelOptions& options) {
    const auto result = MakeModel(options, scratch.File("m"));
    return result.ok() ? "" : result.error().message;
  };
  MakeModelOptions options = Tiny("tiny-qwen3moe");
  options.type = "q9_9";
  EXPECT_TRUE(error(options).starts_with("type 'q9_9' is not known, wanted one of: F32, F16")) << error(options);
  options.type = "q4_0";
  options.hugging_face = true;
  EXPECT_EQ(error(options), "random model: type Q4_0 in a Hugging Face folder, wanted f32, f16 or bf16");
  options = Tiny("tiny-qwen3moe");
  options.top_k = 9;
  EXPECT_EQ(error(options), "random model: 9 experts per token, wanted 1 to 8 (the expert count)");
  options = Tiny("tiny-llama");
  options.n_experts = 4;
  const std::string is_dense = "shape 'tiny-llama' is dense: it takes no number, width, use or layout of experts";
  EXPECT_EQ(error(options), is_dense);
  options = Tiny("tiny-llama");
  options.zipf = 0.35;
  EXPECT_EQ(error(options), is_dense);
  options = Tiny("tiny-llama");
  options.merged_experts = false;
  EXPECT_EQ(error(options), is_dense);
  options = Tiny("tiny-llama");
  options.vocab_size = 299;
  EXPECT_EQ(error(options), "random vocabulary: 299 tokens, wanted 300 to 4194304");
  options = Tiny("tiny-llama");
  options.n_splits = 1000;
  EXPECT_EQ(error(options), "random model: 1000 splits, wanted 1 to 999");
  options.n_splits = 100;
  EXPECT_EQ(error(options), "random model: 100 splits, but only 21 tensors");
  options = Tiny("tiny-llama");
  options.n_layers = 4000000000u;
  EXPECT_EQ(error(options), "random model: layer count is 4000000000, limit 1024");
  options = Tiny("tiny-qwen3moe");
  options.zipf = NAN;
  EXPECT_EQ(error(options), "random model: zipf nan, wanted -100 to 100");
  EXPECT_TRUE(scratch.IsEmpty());
  // A path in a folder that does not exist: nothing was written when it fails half way.
  const auto nowhere = MakeModel(Tiny("tiny-llama"), scratch.File("absent/m.gguf"));
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.error().code, Code::kIo);
  std::filesystem::create_directories(scratch.File("used/thing"));
  options = Tiny("tiny-llama");
  options.hugging_face = true;
  const auto used = MakeModel(options, scratch.File("used"));
  ASSERT_FALSE(used.ok());
  EXPECT_EQ(used.error().code, Code::kInvalidArgument);
}

TEST(FillRandom, HasUnitDeviationAroundTheCommonDirection) {
  EXPECT_EQ(std::accumulate(CommonDirection().begin(), CommonDirection().end(), 0.0f), 0.0f);
  std::vector<float> values(1 << 16);
  FillRandom(7, {.scale = 2, .common = 0.5f}, values);
  double mean = 0, power = 0, along = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    mean += values[i] / static_cast<double>(values.size());
    power += std::pow(values[i], 2) / static_cast<double>(values.size());
    along += values[i] * CommonDirection()[i % kCommonPeriod] / static_cast<double>(values.size());
  }
  // Standard error of a mean of 65,536 values of deviation 2: 0.008.
  EXPECT_NEAR(mean, 0, 0.03);
  EXPECT_NEAR(along, 1.0, 0.03);       // 2 * 0.5
  EXPECT_NEAR(power, 4 * 1.25, 0.15);  // 2^2 * (1 + 0.5^2)
}

TEST(RowMaker, PoolKeepsTheStatisticsAndTheDtypesAgree) {
  ThreadPool threads(1);
  RowMaker maker(5);
  const size_t rows = 1024, cols = 1024;  // at the limit: from the pool
  const ValueRule rule{.scale = 0.5f};
  maker.Prepare(rows, cols, DType::kF32, rule, threads);
  maker.Prepare(rows, cols, DType::kBF16, rule, threads);
  std::vector<float> scratch(cols), row(cols), again(cols);
  std::vector<uint16_t> half(cols);
  maker.MakeRow(1, 17, rows, cols, DType::kF32, rule, scratch, std::as_writable_bytes(std::span(row)).data());
  maker.MakeRow(1, 17, rows, cols, DType::kF32, rule, scratch, std::as_writable_bytes(std::span(again)).data());
  maker.MakeRow(1, 17, rows, cols, DType::kBF16, rule, scratch, std::as_writable_bytes(std::span(half)).data());
  EXPECT_EQ(row, again);
  double power = 0;
  for (size_t i = 0; i < cols; ++i) {
    EXPECT_EQ(F32ToBF16(row[i]), half[i]);
    power += std::pow(row[i], 2) / cols;
  }
  EXPECT_NEAR(power, 0.25, 0.05);  // 4 standard errors of 1,024 values
  maker.MakeRow(1, 18, rows, cols, DType::kF32, rule, scratch, std::as_writable_bytes(std::span(again)).data());
  EXPECT_NE(row, again);
}

TEST(RandomVocab, EncodesAnyTextAndComesBack) {
  for (const uint32_t size : {300u, 512u, 32000u, 151936u}) {
    const auto vocab = MakeRandomVocab(size);
    ASSERT_TRUE(vocab.ok());
    EXPECT_EQ(vocab->tokens.size(), size);
    EXPECT_EQ(vocab->merges.size(), size - 256 - 3);
    EXPECT_EQ(std::set<std::string>(vocab->tokens.begin(), vocab->tokens.end()).size(), size);
    EXPECT_EQ(vocab->tokens[static_cast<size_t>(vocab->turn_end)], "<|im_end|>");
    const auto tokenizer = Tokenizer::FromHuggingFace(RandomTokenizerJson(*vocab), RandomTokenizerConfigJson(*vocab),
                                                      {}, "tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->vocab_size(), size);
    const std::string text = "Hello the rain, in 2024 \xe2\x80\x94 \xc3\xa9\n\t\x7f \xf0\x9f\x99\x82";
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, {}), false), text);
    EXPECT_EQ(tokenizer->Encode("<|im_end|>", {.parse_special = true}), std::vector<int32_t>{vocab->turn_end});
    EXPECT_TRUE(tokenizer->IsEog(vocab->turn_end));
  }
}

TEST(RandomVocab, IsTheSameInGgufAndTokenizerJson) {
  const ScratchFolder scratch;
  MakeModelOptions options = Tiny("tiny-llama");
  options.vocab_size = 1000;
  ASSERT_TRUE(MakeModel(options, scratch.File("m.gguf")).ok());
  const auto file = GgufFile::Open(scratch.File("m.gguf"));
  ASSERT_TRUE(file.ok());
  const auto from_gguf = Tokenizer::FromGguf(*file);
  ASSERT_TRUE(from_gguf.ok()) << from_gguf.error().message;
  const auto vocab = MakeRandomVocab(1000);
  const auto from_json = Tokenizer::FromHuggingFace(RandomTokenizerJson(*vocab), {}, {}, "tokenizer.json");
  ASSERT_TRUE(from_json.ok());
  const std::string text = "the tea in the east\nisn't 1999 <|im_end|>";
  EXPECT_EQ(from_gguf->Encode(text, {.parse_special = true}), from_json->Encode(text, {.parse_special = true}));
  EXPECT_LT(from_gguf->Encode(text, {}).size(), text.size());  // merges are used
  EXPECT_FALSE(from_gguf->chat_template().empty());
}

}  // namespace
}  // namespace npumoe
