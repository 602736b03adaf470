// SPDX-License-Identifier: Apache-2.0
#include "moe/routing_stats_builder.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace npumoe {
namespace {

using Counts = std::vector<uint64_t>;

// Layer 0 is dense, layer 1 has experts.
RoutingShape Shape3() { return {.moe_layer = {false, true}, .n_experts = 3, .top_k = 2}; }

// `choices` of layer 1; the norm of expert e's output is e + 1, always.
void Feed(RoutingStatsBuilder& builder, const std::vector<uint32_t>& choices, uint32_t top_k = 2,
          uint32_t n_experts = 3) {
  std::vector<double> norms(n_experts);
  for (const uint32_t expert : choices) norms[expert] += expert + 1;
  const std::vector<LayerObservation> layers{{{}, {}, {}}, {choices, norms, {}}};
  builder.Add(static_cast<uint32_t>(choices.size() / top_k), layers);
}

TEST(RoutingStatsBuilder, CountsAHandMadeText) {
  RoutingStatsBuilder builder(Shape3(), {2, 4});
  builder.BeginSource("a", 5);
  Feed(builder, {0, 1, 0, 2, 0, 1});  // tokens 0 to 2
  Feed(builder, {2, 1, 0, 2});        // tokens 3 and 4
  const RoutingCounts counts = std::move(builder).Finish();
  const RoutingStats& stats = counts.stats;
  EXPECT_EQ(stats.n_tokens, 5u);
  EXPECT_EQ(stats.n_layers, 2u);
  EXPECT_EQ(stats.chunk_tokens, (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(counts.n_chunks, (Counts{2, 1}));
  EXPECT_EQ(stats.sources, std::vector<std::string>{"a"});
  const LayerRouting& dense = stats.layers[0];
  EXPECT_TRUE(dense.loads.empty() && dense.tokens.empty() && dense.co_activation.empty() && dense.half_tokens.empty());
  const LayerRouting& layer = stats.layers[1];
  EXPECT_EQ(layer.tokens, (Counts{4, 3, 3}));
  // Chunks of 2: tokens {0, 1} and {2, 3}; token 4 is left over. Chunks of 4: tokens 0 to 3.
  EXPECT_EQ(layer.loads[0][0], (LoadHistogram{{1, 1}, {2, 1}}));
  EXPECT_EQ(layer.loads[0][1], (LoadHistogram{{1, 1}, {2, 1}}));
  EXPECT_EQ(layer.loads[0][2], (LoadHistogram{{1, 2}}));
  EXPECT_EQ(layer.loads[1][0], (LoadHistogram{{3, 1}}));
  EXPECT_EQ(layer.loads[1][1], (LoadHistogram{{3, 1}}));
  EXPECT_EQ(layer.loads[1][2], (LoadHistogram{{2, 1}}));
  EXPECT_EQ(layer.co_activation, (std::vector<uint32_t>{4, 2, 2, 2, 3, 1, 2, 1, 3}));
  EXPECT_EQ(layer.half_tokens, (std::vector<Counts>{{3, 2, 1}, {1, 1, 2}}));
  EXPECT_EQ(layer.source_tokens, (std::vector<Counts>{{4, 3, 3}}));
  EXPECT_EQ(layer.mean_output_norm, (std::vector<double>{1, 2, 3}));
}

TEST(RoutingStatsBuilder, ChunksNeverCrossSequencesOrTexts) {
  RoutingStatsBuilder builder({.moe_layer = {false, true}, .n_experts = 3, .top_k = 1}, {2});
  builder.BeginSource("a", 4);
  Feed(builder, {0, 0, 0}, 1);  // one chunk of two, one token left
  builder.BeginSequence();
  Feed(builder, {1}, 1);  // another context: does not fill up the chunk before
  builder.BeginSource("unread", 7);
  builder.BeginSource("b", 2);
  Feed(builder, {2, 0}, 1);
  const RoutingCounts counts = std::move(builder).Finish();
  EXPECT_EQ(counts.n_chunks, Counts{2});
  EXPECT_EQ(counts.stats.sources, (std::vector<std::string>{"a", "b"}));
  const LayerRouting& layer = counts.stats.layers[1];
  EXPECT_EQ(layer.loads[0][0], (LoadHistogram{{1, 1}, {2, 1}}));
  EXPECT_EQ(layer.loads[0][1], (LoadHistogram{{0, 2}}));
  EXPECT_EQ(layer.loads[0][2], (LoadHistogram{{0, 1}, {1, 1}}));
  EXPECT_EQ(layer.source_tokens, (std::vector<Counts>{{3, 1, 0}, {1, 0, 1}}));
  EXPECT_EQ(layer.half_tokens, (std::vector<Counts>{{2, 0, 1}, {2, 1, 0}}));  // of each text
}

TEST(RoutingStatsBuilder, LengthsThatNothingFilledAreLeftOut) {
  RoutingStatsBuilder builder(Shape3(), {2, 4, 8});
  builder.BeginSource("a", 5);
  Feed(builder, {0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  const RoutingCounts counts = std::move(builder).Finish();
  EXPECT_EQ(counts.stats.chunk_tokens, (std::vector<uint32_t>{2, 4}));
  EXPECT_EQ(counts.unfilled, std::vector<uint32_t>{8});
  EXPECT_FALSE(counts.made_up_length);
  EXPECT_EQ(counts.stats.layers[1].loads.size(), 2u);
}

TEST(RoutingStatsBuilder, ShortTextsMakeOneLengthOfTheLongest) {
  RoutingStatsBuilder builder(Shape3(), {8, 16});
  builder.BeginSource("a", 6);
  Feed(builder, {0, 1});
  builder.BeginSequence();
  Feed(builder, {0, 1, 0, 2});
  builder.BeginSequence();
  Feed(builder, {1, 2, 1, 0});
  builder.BeginSequence();
  Feed(builder, {2, 1});
  const RoutingCounts counts = std::move(builder).Finish();
  EXPECT_TRUE(counts.made_up_length);
  EXPECT_EQ(counts.stats.chunk_tokens, std::vector<uint32_t>{2});
  EXPECT_EQ(counts.n_chunks, Counts{2});
  EXPECT_EQ(counts.unfilled, (std::vector<uint32_t>{8, 16}));
  const LayerRouting& layer = counts.stats.layers[1];
  EXPECT_EQ(layer.loads[0][0], (LoadHistogram{{1, 1}, {2, 1}}));
  EXPECT_EQ(layer.loads[0][1], (LoadHistogram{{1, 1}, {2, 1}}));
  EXPECT_EQ(layer.loads[0][2], (LoadHistogram{{1, 2}}));
}

TEST(RoutingStatsBuilder, NothingReadGivesEmptyCounts) {
  RoutingStatsBuilder builder(Shape3(), {2});
  builder.BeginSource("a", 5);
  const RoutingCounts counts = std::move(builder).Finish();
  EXPECT_EQ(counts.stats.n_tokens, 0u);
  EXPECT_TRUE(counts.stats.chunk_tokens.empty() && counts.stats.sources.empty());
  EXPECT_EQ(counts.stats.layers[1].mean_output_norm, (std::vector<double>{0, 0, 0}));
}

TEST(RoutingStatsBuilder, HalvesOfEveryLengthAndOfWhatAStopLeft) {
  for (uint32_t n = 1; n <= 200; ++n) {
    RoutingStatsBuilder builder({.moe_layer = {false, true}, .n_experts = 3, .top_k = 1}, {1});
    builder.BeginSource("a", n);
    Feed(builder, std::vector<uint32_t>(n, 2), 1);
    const RoutingCounts counts = std::move(builder).Finish();
    EXPECT_EQ(counts.stats.layers[1].half_tokens, (std::vector<Counts>{{0, 0, (n + 1) / 2}, {0, 0, n / 2}})) << n;
  }
  // 64 of 320 tokens: slices of 10, seven of them touched; the first four are the first half.
  RoutingStatsBuilder builder({.moe_layer = {false, true}, .n_experts = 3, .top_k = 1}, {1});
  builder.BeginSource("a", 320);
  Feed(builder, std::vector<uint32_t>(64, 1), 1);
  EXPECT_EQ(std::move(builder).Finish().stats.layers[1].half_tokens, (std::vector<Counts>{{0, 40, 0}, {0, 24, 0}}));
}

TEST(RoutingStatsBuilder, WidensRangesStageByStage) {
  RoutingStatsBuilder builder(Shape3(), {1});
  builder.BeginSource("a", 2);
  const std::vector<uint32_t> choices{0, 1};
  const std::vector<double> norms(3);
  std::vector<LayerObservation> layers{{{}, {}, {}}, {choices, norms, {}}};
  layers[0].range.q = 3;
  layers[1].range.hidden = 5;
  builder.Add(1, layers);
  layers[0].range.q = 2;
  layers[0].range.v = 1;
  layers[1].range.hidden = 7;
  builder.Add(1, layers);
  const RoutingStats stats = std::move(builder).Finish().stats;
  EXPECT_EQ(stats.layers[0].range.q, 3);
  EXPECT_EQ(stats.layers[0].range.v, 1);
  EXPECT_EQ(stats.layers[0].range.hidden, 0);
  EXPECT_EQ(stats.layers[1].range.hidden, 7);
  EXPECT_EQ(LargestStage(stats.layers[1].range).name, "hidden");
  EXPECT_EQ(LargestStage(stats.layers[0].range).name, "q");
}

// Sums that must hold whatever was routed, for 2 to 512 experts.
TEST(RoutingStatsBuilder, CountsAddUp) {
  for (const auto& [n_experts, top_k] :
       {std::pair(2u, 1u), std::pair(2u, 2u), std::pair(7u, 3u), std::pair(64u, 8u), std::pair(512u, 10u)}) {
    RoutingStatsBuilder builder({.moe_layer = {false, true}, .n_experts = n_experts, .top_k = top_k}, {3, 16});
    Random random(n_experts);
    uint64_t total = 0, chunks_of_3 = 0, chunks_of_16 = 0;
    for (const uint64_t n_tokens : {50, 1, 33}) {
      builder.BeginSource("text", n_tokens);
      for (uint64_t done = 0; done < n_tokens;) {
        const uint64_t n = std::min<uint64_t>(n_tokens - done, 1 + random.Below(9));
        std::vector<uint32_t> choices;
        for (uint64_t token = 0; token < n; ++token) {
          const uint64_t first = random.Below(n_experts);
          for (uint32_t k = 0; k < top_k; ++k) choices.push_back(static_cast<uint32_t>((first + k) % n_experts));
        }
        Feed(builder, choices, top_k, n_experts);
        done += n;
      }
      total += n_tokens;
      chunks_of_3 += n_tokens / 3;
      chunks_of_16 += n_tokens / 16;
    }
    const RoutingCounts counts = std::move(builder).Finish();
    const LayerRouting& layer = counts.stats.layers[1];
    EXPECT_EQ(counts.n_chunks, (Counts{chunks_of_3, chunks_of_16}));
    uint64_t tokens = 0, rows_in_16 = 0;
    for (uint32_t expert = 0; expert < n_experts; ++expert) {
      tokens += layer.tokens[expert];
      EXPECT_EQ(layer.half_tokens[0][expert] + layer.half_tokens[1][expert], layer.tokens[expert]);
      uint64_t of_sources = 0, mass = 0;
      for (const Counts& source : layer.source_tokens) of_sources += source[expert];
      EXPECT_EQ(of_sources, layer.tokens[expert]);
      for (const auto& [load, count] : layer.loads[1][expert]) {
        mass += count;
        rows_in_16 += load * count;
      }
      EXPECT_EQ(mass, chunks_of_16);
      EXPECT_EQ(layer.co_activation[size_t{expert} * n_experts + expert], layer.tokens[expert]);
      uint64_t pairs = 0;
      for (uint32_t other = 0; other < n_experts; ++other) {
        pairs += layer.co_activation[size_t{expert} * n_experts + other];
        EXPECT_EQ(layer.co_activation[size_t{expert} * n_experts + other],
                  layer.co_activation[size_t{other} * n_experts + expert]);
      }
      EXPECT_EQ(pairs, layer.tokens[expert] * top_k);
    }
    EXPECT_EQ(tokens, total * top_k);
    EXPECT_EQ(rows_in_16, chunks_of_16 * 16 * top_k);
    EXPECT_EQ(counts.stats.layers[1].source_tokens.size(), 3u);
    // What comes out goes through a file unchanged.
    const auto again = ParseRoutingStats(ToJson(counts.stats), "s");
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(ToJson(*again), ToJson(counts.stats));
  }
}

TEST(RoutingStatsBuilder, CoActivationOfTooManyExpertsIsNotGathered) {
  EXPECT_TRUE(RoutingStatsBuilder({std::vector<bool>(64, true), 512, 8}, {1}).has_co_activation());
  RoutingStatsBuilder builder({{true, true}, 4096, 1}, {1});
  EXPECT_FALSE(builder.has_co_activation());
  EXPECT_TRUE(std::move(builder).Finish().stats.layers[0].co_activation.empty());
}

}  // namespace
}  // namespace npumoe
