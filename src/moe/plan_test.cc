// SPDX-License-Identifier: Apache-2.0
#include "moe/plan.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace npumoe {
namespace {

using nlohmann::json;

ModelConfig ThreeExperts() {
  ModelConfig config;
  config.n_layers = 2;
  config.n_experts = 3;
  config.dense_layer = {false, true};
  return config;
}

Plan SmallPlan() {
  Plan plan;
  plan.model_hash = "m";
  plan.stats_hash = "s";
  plan.spec_hash = "h";
  plan.npu = "m4";
  plan.placement = Placement::kTiersGroups;
  plan.chunk_tokens = 128;
  plan.moe_batch_tokens = 128;
  plan.kv_buckets = {0, 128, 256};
  plan.order = PrefillOrder::kChunkMajor;
  plan.mode = OverflowMode::kReroute;
  plan.objective = Objective::kEnergyDelay;
  plan.per_run_capacity = false;
  plan.expert_weights = WeightFormat::kInt8;
  plan.attention_weights = WeightFormat::kLut6;
  plan.layers.resize(2);
  plan.layers[0].groups = {{{0, 2}, {32, 64}}};
  plan.layers[0].cpu_experts = {1};
  plan.layers[0].attention = AttentionPlace::kCpu;
  plan.layers[0].expert_scale = 4;
  plan.expected_seconds = 0.125;
  plan.expected_joules = 1.5;
  return plan;
}

TEST(Plan, SurvivesAFile) {
  const std::string text = ToJson(SmallPlan());
  const auto read = ParsePlan(text, "plan.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->model_hash, "m");
  EXPECT_EQ(read->stats_hash, "s");
  EXPECT_EQ(read->spec_hash, "h");
  EXPECT_TRUE(read->calibrated);
  EXPECT_EQ(read->placement, Placement::kTiersGroups);
  EXPECT_EQ(read->npu, "m4");
  EXPECT_EQ(read->chunk_tokens, 128u);
  EXPECT_EQ(read->moe_batch_tokens, 128u);
  EXPECT_EQ(read->kv_buckets, (std::vector<uint32_t>{0, 128, 256}));
  EXPECT_EQ(read->order, PrefillOrder::kChunkMajor);
  EXPECT_EQ(read->mode, OverflowMode::kReroute);
  EXPECT_EQ(read->objective, Objective::kEnergyDelay);
  EXPECT_FALSE(read->per_run_capacity);
  EXPECT_EQ(read->expert_weights, WeightFormat::kInt8);
  EXPECT_EQ(read->attention_weights, WeightFormat::kLut6);
  ASSERT_EQ(read->layers.size(), 2u);
  ASSERT_EQ(read->layers[0].groups.size(), 1u);
  EXPECT_EQ(read->layers[0].groups[0].experts, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(read->layers[0].groups[0].capacities, (std::vector<uint32_t>{32, 64}));
  EXPECT_EQ(read->layers[0].cpu_experts, (std::vector<uint32_t>{1}));
  EXPECT_EQ(read->layers[0].attention, AttentionPlace::kCpu);
  EXPECT_EQ(read->layers[0].expert_scale, 4);
  EXPECT_EQ(read->expected_seconds, 0.125);
  EXPECT_EQ(read->expected_joules, 1.5);
  EXPECT_EQ(ToJson(*read), text);
}

TEST(Plan, EveryFieldIsNeededAndTyped) {
  const json good = json::parse(ToJson(SmallPlan()));
  const auto refuses = [](const json& document, const std::string& field) {
    const auto read = ParsePlan(document.dump(), "plan.json");
    ASSERT_FALSE(read.ok()) << field;
    EXPECT_EQ(read.error().code, Code::kCorruptFile) << field;
    EXPECT_EQ(read.error().message.find("plan.json"), 0u) << read.error().message;
    EXPECT_NE(read.error().message.find("'" + field + "'"), std::string::npos) << read.error().message;
  };
  const auto each_field = [&](const json::json_pointer& object) {
    for (const auto& [key, value] : good[object].items()) {
      json bad = good;
      bad[object].erase(key);
      if (key != "whole_tokens") refuses(bad, key);  // which older plans lack
      bad[object][key] = json::object();
      refuses(bad, key);
    }
  };
  each_field(json::json_pointer(""));
  each_field(json::json_pointer("/layers/0"));
  each_field(json::json_pointer("/layers/0/groups/0"));
}

TEST(Plan, RefusesUnknownNamesAndNumbersOutOfRange) {
  const json good = json::parse(ToJson(SmallPlan()));
  const auto message = [&](const char* where, const json& value) {
    json bad = good;
    bad[json::json_pointer(where)] = value;
    const auto read = ParsePlan(bad.dump(), "p");
    return read.ok() ? std::string() : read.error().message;
  };
  EXPECT_EQ(message("/order", "sideways"), "p: field 'order': 'sideways' is unknown");
  EXPECT_EQ(message("/chunk_tokens", -1), "p: field 'chunk_tokens': wanted a whole number below 2^32, got number");
  EXPECT_EQ(message("/chunk_tokens", uint64_t{1} << 32),
            "p: field 'chunk_tokens': wanted a whole number below 2^32, got number");
  EXPECT_EQ(message("/layers/0/expert_scale", 0), "p: field 'expert_scale': wanted 1 to 65536, got 0");
}

// As no planner could have written them.
TEST(Plan, RefusesFieldsThatContradictEachOther) {
  const auto message = [](const json& changes) {
    json bad = json::parse(ToJson(SmallPlan()));
    bad.update(changes);
    const auto read = ParsePlan(bad.dump(), "p");
    return read.ok() ? std::string() : read.error().message;
  };
  for (const char* field : {"expected_seconds", "expected_joules"}) {
    const std::string begin = fmt::format("p: field '{}': wanted ", field);
    EXPECT_EQ(message({{field, -1}}), begin + "0 to 1000000000, got -1");
    EXPECT_EQ(message({{field, 1e300}}), begin + "0 to 1000000000, got 1e+300");
    EXPECT_EQ(message({{field, nullptr}}), begin + "a number, got null");  // how NaN is written
    EXPECT_EQ(message({{field, "fast"}}), begin + "a number, got string");
    EXPECT_EQ(message({{field, 0}}), "");
  }
  const json ours = {{"placement", "ours"}, {"order", "layer-major"}, {"per_run_capacity", true}, {"joule_price", 2}};
  const auto of_ours = [&](const json& changes) {
    json all = ours;
    all.update(changes);
    return message(all);
  };
  EXPECT_EQ(of_ours(json::object()), "");
  EXPECT_EQ(of_ours({{"moe_batch_tokens", 1024}}), "");
  EXPECT_EQ(of_ours({{"joule_price", 0}, {"objective", "energy"}}),
            "p: field 'joule_price': wanted above 0 with placement ours, objective energy and order layer-major, got 0");
  EXPECT_EQ(of_ours({{"joule_price", 0}}), "");
  EXPECT_EQ(of_ours({{"joule_price", 0}, {"objective", "energy"}, {"expected_joules", 0}}), "");
  EXPECT_EQ(of_ours({{"objective", "time"}}),
            "p: field 'joule_price': wanted 0 with placement ours, objective time and order layer-major, got 2");
  EXPECT_EQ(of_ours({{"objective", "time"}, {"joule_price", 0}}), "");
  EXPECT_EQ(of_ours({{"objective", "time"}, {"order", "wavefront"}}), "");
  EXPECT_EQ(of_ours({{"order", "chunk-major"}}),
            "p: field 'order': wanted layer-major or wavefront with placement ours, got chunk-major");
  EXPECT_EQ(of_ours({{"per_run_capacity", false}}),
            "p: field 'per_run_capacity': wanted true with placement ours, got false");
  EXPECT_EQ(of_ours({{"moe_batch_tokens", 64}}),
            "p: field 'moe_batch_tokens': wanted at least 128 with placement ours and that chunk_tokens, got 64");
  EXPECT_EQ(message({{"joule_price", 2}}),
            "p: field 'joule_price': wanted 0 with placement tiers+groups, objective edp and order chunk-major, got 2");
  EXPECT_NE(message({{"order", "layer-major"}}), "");
  EXPECT_NE(message({{"per_run_capacity", true}}), "");
  EXPECT_NE(message({{"moe_batch_tokens", 256}}), "");
  EXPECT_EQ(message({{"calibrated", false}}), "p: field 'stats_hash': wanted nothing with calibrated false, got s");
  EXPECT_EQ(message({{"calibrated", false}, {"stats_hash", ""}}), "");
}

TEST(Plan, AnotherVersionIsRefusedWithTheReason) {
  json other = json::parse(ToJson(SmallPlan()));
  other["version"] = 7;
  const auto read = ParsePlan(other.dump(), "p");
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, Code::kUnsupported);
  EXPECT_EQ(read.error().message, "p: plan version 7, wanted 3: make it anew");
}

TEST(Plan, EveryTruncationIsAnError) {
  const std::string good = ToJson(SmallPlan());
  for (size_t n = 0; n + 2 < good.size(); ++n) {
    const auto read = ParsePlan(std::string_view(good).substr(0, n), "p");
    ASSERT_FALSE(read.ok()) << n;
    EXPECT_EQ(read.error().code, Code::kCorruptFile);
  }
}

std::string Problem(const Plan& plan) {
  const Status status = CheckPlan(plan, ThreeExperts());
  return status.ok() ? std::string() : status.error().message;
}

TEST(CheckPlan, WantsEveryExpertOnce) {
  EXPECT_EQ(Problem(SmallPlan()), "");
  Plan twice = SmallPlan();
  twice.layers[0].cpu_experts = {1, 2};
  EXPECT_EQ(Problem(twice), "plan: layer 0: expert 2 is placed twice");
  Plan missing = SmallPlan();
  missing.layers[0].cpu_experts.clear();
  EXPECT_EQ(Problem(missing), "plan: layer 0: expert 1 is placed nowhere");
  Plan unknown = SmallPlan();
  unknown.layers[0].cpu_experts = {3};
  EXPECT_EQ(Problem(unknown), "plan: layer 0: expert 3, the model has 3");
  Plan dense = SmallPlan();
  dense.layers[1].cpu_experts = {0};
  EXPECT_EQ(Problem(dense), "plan: layer 1: expert 0, the model has 0");
}

TEST(CheckPlan, WantsUsableGroupsAndLengths) {
  Plan layers = SmallPlan();
  layers.layers.pop_back();
  EXPECT_EQ(Problem(layers), "plan: 1 layers, the model has 2");
  Plan empty = SmallPlan();
  empty.layers[0].groups[0].capacities.clear();
  EXPECT_EQ(Problem(empty), "plan: layer 0: a group without experts or capacities");
  Plan zero = SmallPlan();
  zero.layers[0].groups[0].capacities = {0, 32};
  EXPECT_EQ(Problem(zero), "plan: layer 0: capacities are not ascending at 0");
  Plan falling = SmallPlan();
  falling.layers[0].groups[0].capacities = {64, 32};
  EXPECT_EQ(Problem(falling), "plan: layer 0: capacities are not ascending at 32");
  Plan buckets = SmallPlan();
  buckets.kv_buckets = {0, 128, 128};
  EXPECT_EQ(Problem(buckets), "plan: kv_buckets are not ascending at 128");
  buckets.kv_buckets = {};
  EXPECT_EQ(Problem(buckets), "plan: kv_buckets begin with nothing, wanted 0 as layers have attention on the npu");
  buckets.kv_buckets = {128};
  EXPECT_EQ(Problem(buckets), "plan: kv_buckets begin with 128, wanted 0 as layers have attention on the npu");
  for (LayerPlan& layer : buckets.layers) layer.attention = AttentionPlace::kCpu;
  EXPECT_EQ(Problem(buckets), "");
  Plan chunk = SmallPlan();
  chunk.chunk_tokens = 0;
  EXPECT_EQ(Problem(chunk), "plan: chunk_tokens 0 and moe_batch_tokens 128, wanted above 0");
}

TEST(FirstHalf, HoldsWholeChunksAndTheOddOne) {
  const auto first = [](uint32_t tokens) { return FirstHalf(PrefillOrder::kWavefront, 32, tokens); };
  EXPECT_EQ(first(1), 1u);
  EXPECT_EQ(first(32), 32u);
  EXPECT_EQ(first(33), 32u);
  EXPECT_EQ(first(64), 32u);
  EXPECT_EQ(first(65), 64u);
  EXPECT_EQ(first(4096), 2048u);
  EXPECT_EQ(FirstHalf(PrefillOrder::kLayerMajor, 32, 4096), 4096u);
}

TEST(FirstHalf, OfAPlanIsAllOfAShortBatch) {
  Plan plan = SmallPlan();  // chunks of 128 tokens
  plan.order = PrefillOrder::kWavefront;
  EXPECT_EQ(FirstHalf(plan, 256), 128u);
  plan.whole_tokens = 256;
  EXPECT_EQ(FirstHalf(plan, 200), 200u);
  EXPECT_EQ(FirstHalf(plan, 256), 256u);
  EXPECT_EQ(FirstHalf(plan, 257), 256u);
  EXPECT_EQ(FirstHalf(plan, 1024), 512u);
}

TEST(Plan, WithoutWholeTokensHasEveryBatchInHalves) {
  Plan plan = SmallPlan();
  plan.placement = Placement::kOurs;
  plan.per_run_capacity = true;
  plan.moe_batch_tokens = 1024;
  plan.order = PrefillOrder::kWavefront;
  plan.whole_tokens = 512;
  nlohmann::json document = nlohmann::json::parse(ToJson(plan));
  EXPECT_EQ(ParsePlan(document.dump(), "p")->whole_tokens, 512u);
  document.erase("whole_tokens");
  EXPECT_EQ(ParsePlan(document.dump(), "p")->whole_tokens, 0u);
  document["whole_tokens"] = -1;
  EXPECT_EQ(ParsePlan(document.dump(), "p").error().message,
            "p: field 'whole_tokens': wanted a whole number below 2^32, got number");
}

}  // namespace
}  // namespace npumoe
