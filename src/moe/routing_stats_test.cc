// SPDX-License-Identifier: Apache-2.0
#include "moe/routing_stats.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace npumoe {
namespace {

using nlohmann::json;

// Two experts, chunks of 2 and 4 tokens, top-1; layer 1 is dense. Eight tokens: expert 0 took 6, expert 1 took 2.
RoutingStats Small() {
  RoutingStats stats;
  stats.model_name = "tiny";
  stats.model_hash = "00ff";
  stats.n_layers = 2;
  stats.n_experts = 2;
  stats.top_k = 1;
  stats.chunk_tokens = {2, 4};
  stats.sources = {"prose", "code"};
  stats.n_tokens = 8;
  stats.layers.resize(2);
  LayerRouting& layer = stats.layers[0];
  layer.loads = {{{{1, 2}, {2, 2}}, {{0, 2}, {1, 2}}}, {{{2, 1}, {4, 1}}, {{0, 1}, {2, 1}}}};
  layer.tokens = {6, 2};
  layer.mean_output_norm = {1.5, 0.25};
  layer.co_activation = {6, 1, 1, 2};
  layer.half_tokens = {{4, 0}, {2, 2}};
  layer.source_tokens = {{5, 1}, {1, 1}};
  layer.range = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11.5f};
  return stats;
}

TEST(RoutingStats, SurviveAFile) {
  const std::string text = ToJson(Small());
  const auto read = ParseRoutingStats(text, "s.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  const LayerRouting& layer = read->layers[0];
  EXPECT_EQ(read->model_hash, "00ff");
  EXPECT_EQ(read->n_tokens, 8u);
  EXPECT_EQ(read->sources, (std::vector<std::string>{"prose", "code"}));
  EXPECT_EQ(layer.loads, Small().layers[0].loads);
  EXPECT_EQ(layer.tokens, (std::vector<uint64_t>{6, 2}));
  EXPECT_EQ(layer.mean_output_norm, (std::vector<double>{1.5, 0.25}));
  EXPECT_EQ(layer.co_activation, (std::vector<uint32_t>{6, 1, 1, 2}));
  EXPECT_EQ(layer.half_tokens, Small().layers[0].half_tokens);
  EXPECT_EQ(layer.source_tokens, Small().layers[0].source_tokens);
  EXPECT_EQ(layer.range.attention_in, 1);
  EXPECT_EQ(layer.range.residual, 6);
  EXPECT_EQ(layer.range.expert_out, 11.5f);
  EXPECT_TRUE(read->layers[1].tokens.empty());
  EXPECT_TRUE(read->layers[1].loads.empty());
  EXPECT_EQ(ToJson(*read), text);  // the same bytes: the file is sorted
}

TEST(RoutingStats, AnInfiniteRangeStaysAlarming) {
  RoutingStats stats = Small();
  stats.layers[0].range.hidden = std::numeric_limits<float>::infinity();
  const auto read = ParseRoutingStats(ToJson(stats), "s.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->layers[0].range.hidden, FLT_MAX);
}

TEST(RoutingStats, EveryFieldIsNeededAndTyped) {
  const json good = json::parse(ToJson(Small()));
  const auto refuses = [](const json& document, const std::string& field) {
    const auto read = ParseRoutingStats(document.dump(), "s.json");
    ASSERT_FALSE(read.ok()) << field;
    EXPECT_EQ(read.error().code, Code::kCorruptFile) << field;
    EXPECT_NE(read.error().message.find(field), std::string::npos) << field << ": " << read.error().message;
    EXPECT_EQ(read.error().message.find("s.json"), 0u);
  };
  for (const auto& [key, value] : good.items()) {
    json bad = good;
    bad.erase(key);
    refuses(bad, key);
    bad[key] = json::object({{"wrong", "type"}});
    refuses(bad, key);
  }
  for (const auto& [key, value] : good["layers"][0].items()) {
    json bad = good;
    bad["layers"][0].erase(key);
    refuses(bad, key);
    bad["layers"][0][key] = "wrong type";
    refuses(bad, key);
  }
  for (const auto& [key, value] : good["layers"][0]["range"].items()) {
    json bad = good;
    bad["layers"][0]["range"][key] = -1;
    refuses(bad, "range." + key);
  }
}

TEST(RoutingStats, RefuseNumbersBeyondTheirCaps) {
  const json good = json::parse(ToJson(Small()));
  const auto refuses = [&](const json::json_pointer& where, const json& value, const std::string& field) {
    json bad = good;
    bad[where] = value;
    const auto read = ParseRoutingStats(bad.dump(), "s.json");
    ASSERT_FALSE(read.ok()) << where.to_string();
    EXPECT_EQ(read.error().code, Code::kCorruptFile) << where.to_string();
    EXPECT_NE(read.error().message.find(field), std::string::npos) << read.error().message;
  };
  using P = json::json_pointer;
  refuses(P("/n_layers"), 4000000000u, "n_layers");
  refuses(P("/n_experts"), 1u << 20, "n_experts");
  refuses(P("/top_k"), 3, "top_k");
  refuses(P("/n_layers"), 3, "layers");
  refuses(P("/chunk_tokens"), {4, 2}, "chunk_tokens");
  refuses(P("/n_tokens"), -1, "n_tokens");
  refuses(P("/layers/0/loads/0/0/0/0"), 3, "loads");           // more rows than the chunk has
  refuses(P("/layers/0/loads/0/0/1/0"), 1, "loads");           // twice the same load
  refuses(P("/layers/0/loads/0/0/0/1"), UINT64_MAX, "loads");  // counts that would overflow
  refuses(P("/layers/0/loads/0/0/0"), {1, 2, 3}, "loads");
  refuses(P("/layers/0/loads/0"), json::array(), "loads");
  refuses(P("/layers/0/tokens"), {1, 2, 3}, "tokens");
  refuses(P("/layers/0/co_activation"), {1, 2}, "co_activation");
  refuses(P("/layers/0/half_tokens"), {{1, 2}}, "half_tokens");
  refuses(P("/layers/0/source_tokens/1"), {1}, "source_tokens");
  refuses(P("/layers/0/mean_output_norm/0"), -1, "mean_output_norm");
  // What was counted several ways must agree.
  refuses(P("/layers/0/tokens/0"), 7, "9 in all, wanted 8, n_tokens times top_k");
  refuses(P("/n_tokens"), 9, "8 in all, wanted 9, n_tokens times top_k");
  refuses(P("/layers/0/half_tokens/1/0"), 3, "7 in all for expert 0, wanted its 6 tokens");
  refuses(P("/layers/0/source_tokens/0/1"), 2, "3 in all for expert 1, wanted its 2 tokens");
  refuses(P("/layers/0/loads/0/1/0/1"), 1, "3 chunks of 2 tokens for expert 1, wanted 4 as for expert 0");
  refuses(P("/layers/0/loads/1/1/1/0"), 3, "9 rows in 2 chunks of 4 tokens, wanted 8");
}

TEST(RoutingStats, EveryTruncationIsAnErrorNotACrash) {
  const std::string good = ToJson(Small());
  for (size_t n = 0; n + 2 < good.size(); ++n) {
    const auto read = ParseRoutingStats(std::string_view(good).substr(0, n), "s.json");
    ASSERT_FALSE(read.ok()) << n;
    EXPECT_EQ(read.error().code, Code::kCorruptFile) << n;
  }
  const auto deep = ParseRoutingStats("{\"version\":" + std::string(100000, '['), "s.json");
  ASSERT_FALSE(deep.ok());
  EXPECT_EQ(deep.error().code, Code::kCorruptFile);
}

TEST(RoutingStats, AnotherVersionIsToldApartFromDamage) {
  json other = json::parse(ToJson(Small()));
  other["version"] = 2;
  const auto read = ParseRoutingStats(other.dump(), "s.json");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, Code::kUnsupported);
  EXPECT_EQ(read.error().message, "s.json: statistics version 2, wanted 1: calibrate anew");
}

TEST(RoutingStats, ChunkIndexIsTheLargestNotAbove) {
  RoutingStats stats;
  stats.chunk_tokens = {128, 256, 512};
  EXPECT_EQ(stats.ChunkIndex(1), 0u);
  EXPECT_EQ(stats.ChunkIndex(128), 0u);
  EXPECT_EQ(stats.ChunkIndex(255), 0u);
  EXPECT_EQ(stats.ChunkIndex(256), 1u);
  EXPECT_EQ(stats.ChunkIndex(4096), 2u);
}

TEST(SkewOf, ComparesTheHottestWithTheMean) {
  LayerRouting layer;
  layer.tokens = {6, 2, 0, 0};
  const Skew skew = SkewOf(layer);
  EXPECT_DOUBLE_EQ(skew.hottest_over_mean, 3.0);
  // exp(-(3/4 ln 3/4 + 1/4 ln 1/4)) = 4 / 3^(3/4)
  EXPECT_NEAR(skew.effective_experts, 4 / std::pow(3, 0.75), 1e-12);
  EXPECT_EQ(skew.unseen, 2u);
  layer.tokens = {5, 5, 5, 5};
  EXPECT_NEAR(SkewOf(layer).effective_experts, 4, 1e-12);
  layer.tokens = {0, 0};
  EXPECT_EQ(SkewOf(layer).unseen, 2u);
  EXPECT_EQ(SkewOf(layer).hottest_over_mean, 0);
}

TEST(PopularityDistance, IsTotalVariation) {
  const std::vector<uint64_t> a{3, 1}, b{1, 1}, c{6, 2}, d{1, 0}, e{0, 7}, none{0, 0};
  EXPECT_DOUBLE_EQ(PopularityDistance(a, b), 0.25);
  EXPECT_DOUBLE_EQ(PopularityDistance(a, c), 0);
  EXPECT_DOUBLE_EQ(PopularityDistance(d, e), 1);
  EXPECT_DOUBLE_EQ(PopularityDistance(a, none), 1);
  EXPECT_DOUBLE_EQ(PopularityDistance({}, {}), 1);
}

}  // namespace
}  // namespace npumoe
