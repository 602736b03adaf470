// SPDX-License-Identifier: Apache-2.0
// Calibration of whole models: what is counted against a count of its own, layer by layer, and what must add up.
#include "npumoe/calibrate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "base/files.h"
#include "engine/forward.h"
#include "model/model_hash.h"
#include "model/random_model.h"
#include "moe/routing_stats.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

// Words that repeat and change, so that routing is neither constant nor even.
std::string SomeText(size_t n_words, uint32_t seed) {
  static constexpr const char* kWords[] = {"the", "river",   "42",  "runs(", "under",
                                           "old", "stones;", "and", "x=y",   "Zoe"};
  std::string text;
  for (size_t i = 0; i < n_words; ++i) text.append(kWords[(i * i + seed * (i / 3)) % 10]).append(" ");
  return text;
}

class Calibration : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("npumoe_calibrate_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Make(const std::string& shape, const std::function<void(ModelConfig&)>& change = {}) {
    RandomModelSpec spec;
    spec.config = ShapeByName(shape).value();
    spec.seed = 5;
    if (change) change(spec.config);
    const std::string path = (folder_ / (shape + std::to_string(n_made_++) + ".gguf")).string();
    const auto written = WriteRandomModel(spec, path);
    EXPECT_TRUE(written.ok()) << written.error().message;
    return path;
  }

  static Engine Open(const std::string& path, uint32_t chunk = 64, uint32_t threads = 2, uint32_t context = 512) {
    EngineOptions options;
    options.chunk_tokens = chunk;
    options.n_threads = threads;
    options.context_tokens = context;
    return Engine::Open(path, options).value();
  }

  static RoutingStats Stats(const CalibrationReport& report) { return ParseRoutingStats(report.json, "s").value(); }

  static RoutingStats Run(Engine& engine, const std::vector<CalibrationText>& texts,
                          const CalibrateOptions& options = {.chunk_tokens = {8, 32}}) {
    auto report = Calibrate(engine, texts, options, {});
    EXPECT_TRUE(report.ok()) << report.error().message;
    return report.ok() ? Stats(*report) : RoutingStats{};
  }

  static std::string ErrorOf(Engine& engine, const std::vector<CalibrationText>& texts,
                             const CalibrateOptions& options = {}) {
    const auto report = Calibrate(engine, texts, options, {});
    EXPECT_FALSE(report.ok());
    return report.ok() ? "" : report.error().message;
  }

  fs::path folder_;
  int n_made_ = 0;
};

// y = W x in double; W is an f32 [out, in].
std::vector<double> Times(const TensorView& w, std::span<const double> x) {
  std::vector<double> y(w.shape[0]);
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t i = 0; i < x.size(); ++i) y[row] += double{w.f32()[row * x.size() + i]} * x[i];
  }
  return y;
}

double Largest(std::span<const double> x) {
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  return largest;
}

// What one layer should have gathered.
struct Expected {
  std::vector<std::vector<uint32_t>> chosen;  // [tokens] ascending
  std::vector<double> norm_sums;              // [n_experts]
  double gate = 0, up = 0, hidden = 0, expert_out = 0, ffn_in = 0, residual = 0;
};

// Walks the layers in the open: the router's choice is the top_k largest logits (true of every rule without ties), an
// expert is three products in double.
std::vector<Expected> Walk(const Model& model, std::span<const int32_t> tokens) {
  const ModelConfig& config = model.config();
  Forward forward(model, 1, tokens.size());
  KvCache kv = KvCache::Make(config, DType::kF16, tokens.size()).value();
  const RopeTable rope = RopeTable::Make(config.rope_dim, config.rope_theta, config.rope_short_factors,
                                         config.rope_short_scale, config.rope_interleaved);
  forward.attention().SetPositions(rope, 0, tokens.size());
  RowBuffer x, normed;
  x.Allocate(tokens.size(), config.dim);
  normed.Allocate(tokens.size(), config.dim);
  for (size_t t = 0; t < tokens.size(); ++t) {
    DequantizeRow(model.weights().embedding.dtype, model.weights().embedding.Slice(static_cast<size_t>(tokens[t])).data,
                  x.Row(t));
  }
  const auto norm = [&](const TensorView& weight, const TensorView& bias) {
    for (size_t t = 0; t < tokens.size(); ++t) NormRow(config, x.Row(t), weight, bias, normed.Row(t));
  };
  const auto largest = [&](RowBuffer& rows, double& seen) {
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (const float v : rows.Row(t)) seen = std::max(seen, double{std::abs(v)});
    }
  };
  std::vector<Expected> layers(config.n_layers);
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) {
    const LayerWeights& weights = model.weights().layers[layer];
    Expected& out = layers[layer];
    largest(x, out.residual);
    norm(weights.attn_norm, weights.attn_norm_bias);
    forward.attention().Run(weights, kv.Layer(layer), 0, normed.Rows(tokens.size()), x.Rows(tokens.size()));
    largest(x, out.residual);
    norm(weights.ffn_norm, weights.ffn_norm_bias);
    largest(normed, out.ffn_in);
    if (config.IsMoeLayer(layer)) {
      forward.ffn().RouterLogits(weights, normed.Rows(tokens.size()));
      out.norm_sums.resize(config.n_experts);
      for (size_t t = 0; t < tokens.size(); ++t) {
        std::vector<std::pair<float, uint32_t>> ranked;
        for (uint32_t e = 0; e < config.n_experts; ++e) {
          const float bias = weights.router_bias.empty() ? 0 : weights.router_bias.f32()[e];
          ranked.push_back({-(forward.ffn().logits(tokens.size()).Row(t)[e] + bias), e});
        }
        std::sort(ranked.begin(), ranked.end());
        std::vector<uint32_t> chosen;
        const std::vector<double> in(normed.Row(t).begin(), normed.Row(t).end());
        for (uint32_t k = 0; k < config.top_k; ++k) {
          const uint32_t e = ranked[k].second;
          chosen.push_back(e);
          auto gate = Times(weights.expert_gate[e], in);
          const auto up = Times(weights.expert_up[e], in);
          out.gate = std::max(out.gate, Largest(gate));
          out.up = std::max(out.up, Largest(up));
          for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
          out.hidden = std::max(out.hidden, Largest(gate));
          const auto y = Times(weights.expert_down[e], gate);
          out.expert_out = std::max(out.expert_out, Largest(y));
          out.norm_sums[e] += std::sqrt(std::inner_product(y.begin(), y.end(), y.begin(), 0.0));
        }
        std::sort(chosen.begin(), chosen.end());
        out.chosen.push_back(chosen);
      }
    }
    EXPECT_TRUE(forward.ffn().Run(layer, weights, normed.Rows(tokens.size()), x.Rows(tokens.size())).ok());
    largest(x, out.residual);
  }
  return layers;
}

TEST_F(Calibration, MatchesACountOfItsOwnInEveryLayer) {
  const auto mixed = [](ModelConfig& config) {
    config.n_layers = 4;
    config.dense_layer = {true, false, true, false};
    config.ffn_dim = config.expert_dim;
  };
  const auto many = [](ModelConfig& config) {
    config.n_experts = 512;
    config.top_k = 1;
    config.dim = 64;
    config.expert_dim = 32;
  };
  const auto two = [](ModelConfig& config) { config.n_experts = 2; };
  for (const std::string& path : {Make("tiny-mixtral"), Make("tiny-phimoe"), Make("tiny-qwen3moe", mixed),
                                  Make("tiny-olmoe"), Make("tiny-qwen3moe", many), Make("tiny-qwen3moe", two)}) {
    Engine engine = Open(path, /*chunk=*/9);
    const std::string text = SomeText(25, 1);
    const auto tokens = engine.Tokenize(text, true, false);
    ASSERT_GT(tokens.size(), 40u);
    const RoutingStats stats = Run(engine, {{"a", text}});
    const Model model = Model::Open(path, {}).value();
    const auto expected = Walk(model, tokens);
    EXPECT_EQ(stats.n_tokens, tokens.size());
    EXPECT_EQ(stats.chunk_tokens, (std::vector<uint32_t>{8, 32}));
    for (uint32_t layer = 0; layer < stats.n_layers; ++layer) {
      SCOPED_TRACE(path + " layer " + std::to_string(layer));
      const LayerRouting& got = stats.layers[layer];
      const Expected& want = expected[layer];
      EXPECT_NEAR(got.range.ffn_in, want.ffn_in, 1e-5 * want.ffn_in);
      EXPECT_NEAR(got.range.residual, want.residual, 1e-5 * want.residual);
      EXPECT_EQ(got.tokens.empty(), want.chosen.empty());
      if (want.chosen.empty()) continue;
      std::vector<uint64_t> counts(stats.n_experts);
      for (const auto& chosen : want.chosen) {
        for (const uint32_t e : chosen) ++counts[e];
      }
      EXPECT_EQ(got.tokens, counts);
      for (size_t l = 0; l < 2; ++l) {
        const size_t length = stats.chunk_tokens[l];
        std::vector<LoadHistogram> histograms(stats.n_experts);
        for (size_t begin = 0; begin + length <= tokens.size(); begin += length) {
          std::vector<uint32_t> loads(stats.n_experts);
          for (size_t t = begin; t < begin + length; ++t) {
            for (const uint32_t e : want.chosen[t]) ++loads[e];
          }
          for (size_t e = 0; e < loads.size(); ++e) ++histograms[e][loads[e]];
        }
        EXPECT_EQ(got.loads[l], histograms) << length;
      }
      // Products of f32 with a few hundred terms: 1e-4 is a wide allowance.
      for (size_t e = 0; e < counts.size(); ++e) {
        const double mean = counts[e] == 0 ? 0 : want.norm_sums[e] / static_cast<double>(counts[e]);
        EXPECT_NEAR(got.mean_output_norm[e], mean, 1e-4 * mean) << e;
      }
      EXPECT_NEAR(got.range.gate, want.gate, 1e-4 * want.gate);
      EXPECT_NEAR(got.range.up, want.up, 1e-4 * want.up);
      EXPECT_NEAR(got.range.hidden, want.hidden, 1e-4 * want.hidden);
      EXPECT_NEAR(got.range.expert_out, want.expert_out, 1e-4 * want.expert_out);
    }
  }
}

// At position 0 rope turns nothing and attention returns the one value there is.
TEST_F(Calibration, OneTokenShowsEveryRangeOfAttention) {
  const std::string path = Make("tiny-mixtral", [](ModelConfig& config) {
    config.n_layers = 1;
    config.dense_layer = {false};
  });
  Engine engine = Open(path);
  const auto tokens = engine.Tokenize("a", true, false);
  const auto report = Calibrate(engine, std::vector<CalibrationText>{{"a", "a"}}, {.max_tokens = 1}, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  const RoutingStats stats = Stats(*report);
  EXPECT_EQ(stats.n_tokens, 1u);
  EXPECT_EQ(stats.chunk_tokens, std::vector<uint32_t>{1});
  EXPECT_TRUE(report->warnings[0].starts_with(
      "chunk lengths that no text filled are left out: 128, 256, 512, 1024, 2048, 4096 (longest text 1 tokens, window "
      "512); loads were counted for 1 instead"))
      << report->warnings[0];
  const Model model = Model::Open(path, {}).value();
  const ModelConfig& config = model.config();
  const LayerWeights& weights = model.weights().layers[0];
  std::vector<float> x(config.dim), normed(config.dim);
  DequantizeRow(model.weights().embedding.dtype, model.weights().embedding.Slice(static_cast<size_t>(tokens[0])).data,
                x);
  NormRow(config, x, weights.attn_norm, weights.attn_norm_bias, normed);
  const std::vector<double> in(normed.begin(), normed.end());
  const auto q = Times(weights.wq, in), k = Times(weights.wk, in), v = Times(weights.wv, in);
  std::vector<double> heads;
  for (uint32_t head = 0; head < config.n_heads; ++head) {
    const size_t from = size_t{head / (config.n_heads / config.n_kv_heads)} * config.head_dim;
    heads.insert(heads.end(), v.begin() + static_cast<ptrdiff_t>(from),
                 v.begin() + static_cast<ptrdiff_t>(from + config.head_dim));
  }
  const auto out = Times(weights.wo, heads);
  const ActivationRange& range = stats.layers[0].range;
  EXPECT_NEAR(range.attention_in, Largest(in), 1e-6 * Largest(in));
  EXPECT_NEAR(range.q, Largest(q), 1e-5 * Largest(q));
  EXPECT_NEAR(range.k, Largest(k), 1e-5 * Largest(k));
  EXPECT_NEAR(range.v, Largest(v), 1e-5 * Largest(v));
  EXPECT_NEAR(range.attention_out, Largest(out), 1e-3 * Largest(out));  // values pass through an fp16 cache
}

TEST_F(Calibration, CountsDoNotDependOnChunksOrThreads) {
  const std::string path = Make("tiny-qwen2moe");
  const std::vector<CalibrationText> texts{{"a", SomeText(60, 1)}, {"b", SomeText(31, 2)}};
  Engine one = Open(path, 512, 1), same = Open(path, 512, 3), other = Open(path, 7, 2);
  const auto first = Calibrate(one, texts, {.chunk_tokens = {8, 32}}, {});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Calibrate(same, texts, {.chunk_tokens = {32, 8, 8}}, {})->json, first->json);
  RoutingStats a = Stats(*first), b = Run(other, texts);
  for (uint32_t layer = 0; layer < a.n_layers; ++layer) {
    for (uint32_t e = 0; e < a.n_experts; ++e) {  // sums in another order
      EXPECT_NEAR(a.layers[layer].mean_output_norm[e], b.layers[layer].mean_output_norm[e], 1e-12);
    }
    b.layers[layer].mean_output_norm = a.layers[layer].mean_output_norm;
  }
  EXPECT_EQ(ToJson(a), ToJson(b));
  EXPECT_EQ(a.sources, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(a.model_hash, ModelHash(Model::Open(path, {}).value()));
}

TEST_F(Calibration, ATextLongerThanTheWindowStartsAnew) {
  const std::string path = Make("tiny-qwen3moe");
  Engine engine = Open(path, 16, 2, /*context=*/40);
  const std::string text = SomeText(60, 3);
  const size_t n = engine.Tokenize(text, true, false).size();
  ASSERT_GT(n, 100u);
  const auto report = Calibrate(engine, std::vector<CalibrationText>{{"a", text}}, {.chunk_tokens = {16, 64}}, {});
  ASSERT_TRUE(report.ok());
  const RoutingStats stats = Stats(*report);
  EXPECT_EQ(stats.n_tokens, n);
  EXPECT_EQ(stats.chunk_tokens, std::vector<uint32_t>{16});  // no window holds 64
  uint64_t chunks = 0;
  for (const auto& [load, count] : stats.layers[0].loads[0][0]) chunks += count;
  EXPECT_EQ(chunks, n / 40 * 2 + n % 40 / 16);
  EXPECT_NE(report->warnings[0].find("64 (longest text " + std::to_string(n) + " tokens, window 40)"),
            std::string::npos)
      << report->warnings[0];
  // A smaller window is another way to the same: its start is a first position again.
  Engine wide = Open(path, 16, 2, 512);
  EXPECT_EQ(
      Calibrate(wide, std::vector<CalibrationText>{{"a", text}}, {.chunk_tokens = {16, 64}, .window_tokens = 40}, {})
          ->json,
      report->json);
}

TEST_F(Calibration, KeepsWhatWasGatheredWhenStopped) {
  const std::string path = Make("tiny-qwen3moe");
  Engine engine = Open(path, 16);
  const std::vector<CalibrationText> texts{{"a", SomeText(40, 1)}, {"b", SomeText(40, 2)}};
  const size_t n_first = engine.Tokenize(texts[0].text, true, false).size();
  const size_t n_total = n_first + engine.Tokenize(texts[1].text, true, false).size();
  uint64_t last = 0;
  const auto stopped = Calibrate(engine, texts, {.chunk_tokens = {8}}, [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, n_total);
    EXPECT_GE(done, last);
    last = done;
    return done < n_first + 24;  // in the middle of the second chunk of b
  });
  ASSERT_TRUE(stopped.ok()) << stopped.error().message;
  EXPECT_FALSE(stopped->complete);
  EXPECT_EQ(stopped->n_tokens, n_first + 16);
  EXPECT_TRUE(std::any_of(stopped->warnings.begin(), stopped->warnings.end(),
                          [](const std::string& line) { return line.starts_with("stopped early"); }));
  const RoutingStats stats = Stats(*stopped);
  EXPECT_FALSE(stats.complete);
  // The same as reading that much and no more.
  RoutingStats whole = Run(engine, texts, {.chunk_tokens = {8}});
  EXPECT_EQ(stats.layers[0].source_tokens[0], whole.layers[0].source_tokens[0]);
  uint64_t of_b =
      std::accumulate(stats.layers[1].source_tokens[1].begin(), stats.layers[1].source_tokens[1].end(), uint64_t{0});
  EXPECT_EQ(of_b, 16u * stats.top_k);

  const auto at_once = Calibrate(engine, texts, {}, [](uint64_t, uint64_t) { return false; });
  ASSERT_FALSE(at_once.ok());
  EXPECT_EQ(at_once.error().code, Code::kCancelled);
  // The engine is as it was: nothing watches it any more.
  Session session = engine.NewSession().value();
  const std::vector<int32_t> tokens = engine.Tokenize("abc", true, false);
  EXPECT_TRUE(session.Append(tokens).ok());
}

TEST_F(Calibration, SharesTokensAmongTexts) {
  Engine engine = Open(Make("tiny-qwen3moe"));
  const std::vector<CalibrationText> texts{{"long", SomeText(60, 1)}, {"short", "x"}, {"middle", SomeText(50, 2)}};
  const uint64_t n_short = engine.Tokenize("x", true, false).size();
  const auto report = Calibrate(engine, texts, {.chunk_tokens = {4}, .max_tokens = 61}, {});
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->complete);
  EXPECT_EQ(report->n_tokens, 61u);
  const RoutingStats stats = Stats(*report);
  const auto of = [&](size_t source) {
    const auto& tokens = stats.layers[0].source_tokens[source];
    return std::accumulate(tokens.begin(), tokens.end(), uint64_t{0}) / stats.top_k;
  };
  EXPECT_EQ(of(1), n_short);
  EXPECT_EQ(of(2), (61 - n_short) / 2);
  EXPECT_EQ(of(0), 61 - n_short - (61 - n_short) / 2);
}

TEST_F(Calibration, RefusesWhatCannotBeCalibrated) {
  Engine engine = Open(Make("tiny-qwen3moe"));
  const std::vector<CalibrationText> good{{"a", "some text"}};
  EXPECT_EQ(ErrorOf(engine, {}), "calibration: the text is empty");
  EXPECT_EQ(ErrorOf(engine, {{"a", ""}, {"b", ""}}), "calibration: the text is empty");
  EXPECT_EQ(ErrorOf(engine, good, {.chunk_tokens = {}}), "calibration: 0 chunk lengths, wanted 1 to 64");
  EXPECT_EQ(ErrorOf(engine, good, {.chunk_tokens = {8, 0}}), "calibration: chunk length 0, wanted 1 to 16777216");
  EXPECT_EQ(ErrorOf(engine, good, {.chunk_tokens = {1u << 25}}),
            "calibration: chunk length 33554432, wanted 1 to 16777216");
  std::vector<uint32_t> lengths(65);
  std::iota(lengths.begin(), lengths.end(), 1u);
  EXPECT_EQ(ErrorOf(engine, good, {.chunk_tokens = lengths}), "calibration: 65 chunk lengths, wanted 1 to 64");
  EXPECT_EQ(ErrorOf(engine, std::vector<CalibrationText>(1025, good[0])), "calibration: 1025 texts, limit 1024");
  const std::string dense = Make("tiny-llama");
  Engine no_experts = Open(dense);
  EXPECT_EQ(ErrorOf(no_experts, good), dense + ": has no experts: nothing to calibrate");
}

TEST_F(Calibration, AnEmptyTextAmongOthersIsLeftOutAndSaid) {
  Engine engine = Open(Make("tiny-qwen3moe"));
  const auto report =
      Calibrate(engine, std::vector<CalibrationText>{{"none", ""}, {"a", SomeText(20, 1)}}, {.chunk_tokens = {8}}, {});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->sources, std::vector<std::string>{"a"});
  EXPECT_EQ(report->warnings[0], "text 'none' is empty: left out");
}

TEST_F(Calibration, ReportsSkewStabilityAndUnseenExperts) {
  Engine engine = Open(Make("tiny-qwen3moe", [](ModelConfig& config) { config.n_experts = 64; }));
  const std::vector<CalibrationText> texts{{"a", SomeText(60, 1)}, {"b", SomeText(60, 2)}, {"c", "only this"}};
  const auto report = Calibrate(engine, texts, {.chunk_tokens = {8}}, {});
  ASSERT_TRUE(report.ok());
  const RoutingStats stats = Stats(*report);
  ASSERT_EQ(report->layers.size(), 2u);
  for (const LayerSkew& layer : report->layers) {
    const LayerRouting& routing = stats.layers[layer.layer];
    EXPECT_DOUBLE_EQ(layer.hottest_over_mean, SkewOf(routing).hottest_over_mean);
    EXPECT_EQ(layer.unseen, std::count(routing.tokens.begin(), routing.tokens.end(), 0u));
    EXPECT_DOUBLE_EQ(layer.half_distance, PopularityDistance(routing.half_tokens[0], routing.half_tokens[1]));
    double largest = 0;
    for (const auto& [a, b] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)}) {
      largest = std::max(largest, PopularityDistance(routing.source_tokens[a], routing.source_tokens[b]));
    }
    EXPECT_NEAR(layer.source_distance, largest, 1e-12);
    EXPECT_GT(layer.chance_distance, 0);
    EXPECT_EQ(layer.largest_activation, routing.range.*LargestStage(routing.range).value);
  }
  const uint32_t unseen = report->layers[0].unseen + report->layers[1].unseen;
  ASSERT_GT(unseen, 0u);
  const auto has = [&](const std::string& part) {
    return std::any_of(report->warnings.begin(), report->warnings.end(),
                       [&](const std::string& line) { return line.find(part) != std::string::npos; });
  };
  EXPECT_TRUE(has(std::to_string(unseen) + " of 128 experts were never chosen"));
  EXPECT_TRUE(has("little text: " + std::to_string(report->n_tokens) + " tokens"));
  // What was written says the same when it is read again.
  const auto again = ReadCalibration(report->json, "s.json");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->json, report->json);
  EXPECT_EQ(again->sources, report->sources);
  EXPECT_EQ(again->chunk_tokens, std::vector<uint32_t>{8});
  EXPECT_EQ(again->layers[1].half_distance, report->layers[1].half_distance);
  EXPECT_EQ(again->layers[1].largest_stage, report->layers[1].largest_stage);
  EXPECT_EQ(ReadCalibration("{}", "s.json").error().code, Code::kCorruptFile);
}

RoutingStats TwoLayers() {
  RoutingStats stats;
  stats.model_name = "a<b>&\"c\"";
  stats.n_layers = 2;
  stats.n_experts = 4;
  stats.top_k = 1;
  stats.chunk_tokens = {8};
  stats.sources = {"t"};
  stats.n_tokens = 1600;
  LayerRouting moe;
  moe.loads = {{{{4, 2}}, {{3, 2}}, {{1, 2}}, {{0, 2}}}};
  moe.tokens = {800, 400, 400, 0};
  moe.mean_output_norm = {1, 1, 1, 0};
  moe.half_tokens = {{400, 200, 200, 0}, {400, 200, 200, 0}};
  moe.source_tokens = {{800, 400, 400, 0}};
  moe.range.hidden = 70000;
  stats.layers = {LayerRouting(), moe};
  return stats;
}

TEST(CalibrationReport, WarnsOfFp16AndKnowsChance) {
  const auto report = ReadCalibration(ToJson(TwoLayers()), "s");
  ASSERT_TRUE(report.ok()) << report.error().message;
  ASSERT_EQ(report->layers.size(), 1u);
  EXPECT_EQ(report->layers[0].layer, 1u);
  EXPECT_EQ(report->layers[0].half_distance, 0);
  // p = 1/2, 1/4, 1/4: sum sqrt(p (1 - p)) = 1/2 + sqrt(3)/2; n = 800 choices in each half.
  EXPECT_NEAR(report->layers[0].chance_distance, (0.5 + std::sqrt(3.0) / 2) / std::sqrt(M_PI * 800), 1e-12);
  EXPECT_EQ(report->layers[0].largest_activation, 70000);
  EXPECT_EQ(report->layers[0].largest_stage, "hidden");
  EXPECT_EQ(
      report->warnings,
      (std::vector<std::string>{
          "little text: 1600 tokens, 400 per expert on average; at least 100 diverse prompts, 10000 tokens and 100 "
          "per expert, are advised",
          "one text: how popularity differs between domains is not known; give a file for each",
          "chunk lengths filled fewer than 10 times: 8 (2): their loads are uncertain",
          "1 of 4 experts were never chosen, most of them in layer 1 (1): they keep a place in plans as rare ones",
          "layer 1: 'hidden' reaches 7e+04, fp16 holds up to 65504: an NPU would overflow"}));
}

TEST(CalibrationSvg, HasACellForEveryExpertAndMarksWhatIsSpecial) {
  const auto svg = CalibrationSvg(ToJson(TwoLayers()), "s");
  ASSERT_TRUE(svg.ok()) << svg.error().message;
  const auto count = [&](const std::string& part) {
    size_t n = 0;
    for (size_t at = svg->find(part); at != std::string::npos; at = svg->find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("Which experts a&lt;b&gt;&amp;&quot;c&quot; chooses"), 1u);
  EXPECT_EQ(count("1,600 tokens of 1 text, 1 of 4 experts per token<"), 1u);
  EXPECT_EQ(count("<title>layer 1, expert 0: 800 tokens, 2.00 x mean</title>"), 1u);
  EXPECT_EQ(count("<title>layer 1, expert 2: 400 tokens, 1.00 x mean</title>"), 1u);
  EXPECT_EQ(count("<title>layer 1, expert 3: never chosen</title>"), 1u);
  EXPECT_EQ(count("<title>layer 0: dense</title>"), 1u);
  EXPECT_EQ(count("<title>layer"), 5u);
  EXPECT_EQ(count("class=\"c8\" x="), 2u);  // 2 x mean: the cell and the legend
  RoutingStats stopped = TwoLayers();
  stopped.complete = false;
  EXPECT_NE(CalibrationSvg(ToJson(stopped), "s")->find("; stopped early<"), std::string::npos);
  EXPECT_EQ(CalibrationSvg("[]", "s").error().code, Code::kCorruptFile);
}

TEST(CalibrationSvg, DrawsAnyNumberOfExperts) {
  for (const uint32_t n_experts : {0u, 1u, 2u, 512u, 4096u}) {
    RoutingStats stats = TwoLayers();
    stats.n_experts = n_experts;
    stats.top_k = std::min(1u, n_experts);
    stats.n_tokens = 0;  // nobody was ever chosen
    stats.layers[1] = LayerRouting();
    if (n_experts > 0) {
      stats.layers[1].loads = {std::vector<LoadHistogram>(n_experts)};
      stats.layers[1].tokens.assign(n_experts, 0);
      stats.layers[1].mean_output_norm.assign(n_experts, 0);
      stats.layers[1].half_tokens.assign(2, std::vector<uint64_t>(n_experts));
      stats.layers[1].source_tokens.assign(1, std::vector<uint64_t>(n_experts));
    }
    const auto svg = CalibrationSvg(ToJson(stats), "s");
    ASSERT_TRUE(svg.ok()) << svg.error().message;
    EXPECT_EQ(svg->find("nan"), std::string::npos);
    EXPECT_TRUE(ReadCalibration(ToJson(stats), "s").ok());
  }
}

// The demo model with the text that comes with it: figures recorded when this test was written.
TEST(CalibrationOfTheDemoModel, HasSpecialistsForTheDomainsOfItsText) {
  const std::string root = NM_SOURCE_DIR;
  Engine engine = Engine::Open(root + "/models/demo-moe.gguf", {}).value();
  const std::string text = ReadFile(root + "/models/calibration.txt").value();
  const auto report = Calibrate(engine, std::vector<CalibrationText>{{"calibration.txt", text}}, {}, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->n_tokens, 11960u);
  EXPECT_EQ(report->chunk_tokens, (std::vector<uint32_t>{128, 256, 512, 1024}));  // the context is 1,024
  const double hottest[] = {5.45, 2.14, 1.71, 1.67, 2.16, 1.99}, halves[] = {0.344, 0.423, 0.355, 0.544, 0.476, 0.342};
  ASSERT_EQ(report->layers.size(), std::size(hottest));
  for (const LayerSkew& layer : report->layers) {
    // Machines differ in the last bits, and near-ties of the router then fall the other way.
    EXPECT_NEAR(layer.hottest_over_mean, hottest[layer.layer], 0.03) << layer.layer;
    EXPECT_NEAR(layer.half_distance, halves[layer.layer], 0.01) << layer.layer;
    EXPECT_EQ(layer.unseen, 0u) << layer.layer;
    EXPECT_LT(layer.largest_activation, 300) << layer.layer;
  }
}

}  // namespace
}  // namespace npumoe
