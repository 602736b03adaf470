// SPDX-License-Identifier: Apache-2.0
#include "engine/calibration_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace npumoe {
namespace {

constexpr float kLargestFp16 = 65504;
// 100 diverse prompts are the usual advice for calibration; 100 tokens each is assumed.
constexpr uint64_t kAdvisedTokens = 100 * 100;
constexpr uint64_t kAdvisedTokensPerExpert = 100;  // a share counted 100 times is known to about 1 / sqrt(100) = 10 %
constexpr uint64_t kAdvisedChunks = 10;            // likewise a mean load; its tails want more

std::vector<double> Shares(std::span<const uint64_t> tokens) {
  double total = 0;
  for (const uint64_t count : tokens) total += static_cast<double>(count);
  std::vector<double> shares(tokens.size());
  for (size_t i = 0; i < tokens.size() && total > 0; ++i) shares[i] = static_cast<double>(tokens[i]) / total;
  return shares;
}

// The largest total variation between two texts. Shares are worked out once: there may be a thousand texts.
double SourceDistance(const LayerRouting& layer) {
  std::vector<std::vector<double>> shares;
  for (const auto& tokens : layer.source_tokens) shares.push_back(Shares(tokens));
  double largest = 0;
  for (size_t a = 0; a < shares.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      double distance = 0;
      for (size_t expert = 0; expert < shares[a].size(); ++expert) {
        distance += std::abs(shares[a][expert] - shares[b][expert]);
      }
      largest = std::max(largest, distance / 2);
    }
  }
  return largest;
}

// Expected total variation between two samples of one popularity p with n choices each: every share's difference is
// near normal with variance 2 p (1 - p) / n, and |normal| has the mean sqrt(2 / pi) times its deviation; halve the sum.
double ChanceDistance(const LayerRouting& layer) {
  double n = 0, sum = 0;
  for (const uint64_t tokens : layer.tokens) n += static_cast<double>(tokens) / 2;
  for (const double share : Shares(layer.tokens)) sum += std::sqrt(share * (1 - share));
  return n > 0 ? std::min(1.0, sum / std::sqrt(std::numbers::pi * n)) : 1;
}

LayerSkew DescribeLayer(uint32_t index, const LayerRouting& layer) {
  LayerSkew out;
  const Skew skew = SkewOf(layer);
  out.layer = index;
  out.hottest_over_mean = skew.hottest_over_mean;
  out.effective_experts = skew.effective_experts;
  out.unseen = skew.unseen;
  out.half_distance = PopularityDistance(layer.half_tokens[0], layer.half_tokens[1]);
  out.chance_distance = ChanceDistance(layer);
  out.source_distance = SourceDistance(layer);
  const ActivationStage& stage = LargestStage(layer.range);
  out.largest_activation = layer.range.*stage.value;
  out.largest_stage = stage.name;
  return out;
}

void WarnOfLittleText(const RoutingStats& stats, std::vector<std::string>& warnings) {
  const uint64_t per_expert = stats.n_experts == 0 ? 0 : stats.n_tokens * stats.top_k / stats.n_experts;
  if (stats.n_tokens < kAdvisedTokens || per_expert < kAdvisedTokensPerExpert) {
    warnings.push_back(fmt::format(
        "little text: {} tokens, {} per expert on average; at least 100 diverse prompts, {} tokens and {} per "
        "expert, are advised",
        stats.n_tokens, per_expert, kAdvisedTokens, kAdvisedTokensPerExpert));
  }
  if (stats.sources.size() == 1) {
    warnings.push_back("one text: how popularity differs between domains is not known; give a file for each");
  }
}

void WarnOfFewChunks(const RoutingStats& stats, std::vector<std::string>& warnings) {
  const auto moe = std::find_if(stats.layers.begin(), stats.layers.end(),
                                [](const LayerRouting& layer) { return !layer.tokens.empty(); });
  if (moe == stats.layers.end()) return;
  std::string few;
  for (size_t l = 0; l < stats.chunk_tokens.size(); ++l) {
    uint64_t n_chunks = 0;
    for (const auto& [load, count] : moe->loads[l][0]) n_chunks += count;
    if (n_chunks < kAdvisedChunks) {
      few += fmt::format("{}{} ({})", few.empty() ? "" : ", ", stats.chunk_tokens[l], n_chunks);
    }
  }
  if (few.empty()) return;
  warnings.push_back(
      fmt::format("chunk lengths filled fewer than {} times: {}: their loads are uncertain", kAdvisedChunks, few));
}

void WarnOfLayers(const RoutingStats& stats, const std::vector<LayerSkew>& layers, std::vector<std::string>& warnings) {
  uint64_t unseen = 0;
  const LayerSkew* most = nullptr;
  for (const LayerSkew& layer : layers) {
    unseen += layer.unseen;
    if (most == nullptr || layer.unseen > most->unseen) most = &layer;
  }
  if (unseen > 0) {
    warnings.push_back(fmt::format(
        "{} of {} experts were never chosen, most of them in layer {} ({}): they keep a place in plans as rare ones",
        unseen, layers.size() * stats.n_experts, most->layer, most->unseen));
  }
  for (uint32_t layer = 0; layer < stats.layers.size(); ++layer) {
    const ActivationStage& stage = LargestStage(stats.layers[layer].range);
    const float largest = stats.layers[layer].range.*stage.value;
    if (largest <= kLargestFp16) continue;
    warnings.push_back(fmt::format("layer {}: '{}' reaches {:.3g}, fp16 holds up to {}: an NPU would overflow", layer,
                                   stage.name, largest, kLargestFp16));
  }
}

}  // namespace

CalibrationReport DescribeStats(const RoutingStats& stats) {
  CalibrationReport report;
  report.model_name = stats.model_name;
  report.n_tokens = stats.n_tokens;
  report.chunk_tokens = stats.chunk_tokens;
  report.complete = stats.complete;
  report.n_experts = stats.n_experts;
  report.top_k = stats.top_k;
  report.sources = stats.sources;
  for (uint32_t layer = 0; layer < stats.layers.size(); ++layer) {
    if (!stats.layers[layer].tokens.empty()) report.layers.push_back(DescribeLayer(layer, stats.layers[layer]));
  }
  if (!stats.complete) report.warnings.push_back("stopped early: these statistics hold what was read until then");
  WarnOfLittleText(stats, report.warnings);
  WarnOfFewChunks(stats, report.warnings);
  WarnOfLayers(stats, report.layers, report.warnings);
  return report;
}

Result<CalibrationReport> ReadCalibration(std::string_view json, std::string_view name) {
  NM_TRY_VAR(const RoutingStats stats, ParseRoutingStats(json, name));
  CalibrationReport report = DescribeStats(stats);
  report.json = json;
  return report;
}

}  // namespace npumoe
