// SPDX-License-Identifier: Apache-2.0
#include "engine/plan_document.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "model/model_hash.h"
#include "model/random_model.h"
#include "model/test_files.h"
#include "moe/uniform_stats.h"
#include "npu/spec.h"
#include "npumoe/npu.h"

namespace npumoe {
namespace {

using nlohmann::json;

class PlanDocumentTest : public testing::Test {
 protected:
  Model MakeModel(std::string_view shape, uint64_t seed) {
    RandomModelSpec spec;
    spec.config = ShapeByName(shape).value();
    spec.matrix_dtype = DType::kF32;
    spec.seed = seed;
    path_ = folder_.File("model.gguf");
    const auto bytes = WriteRandomModel(spec, path_);
    EXPECT_TRUE(bytes.ok()) << bytes.error().message;
    return Model::Open(path_, {}).value();
  }
  // As calibration would leave them, for `model`.
  static RoutingStats StatsOf(const Model& model) {
    const uint32_t lengths[] = {256, 2048};
    RoutingStats stats = UniformStats(model.config(), lengths);
    stats.model_hash = ModelHash(model);
    // Every chunk alike, so that all counts agree, as a file's must.
    constexpr uint32_t kChunks = 64;
    const uint32_t n = stats.n_experts;
    for (LayerRouting& layer : stats.layers) {
      if (layer.tokens.empty()) continue;
      layer.tokens.assign(n, stats.n_tokens * stats.top_k / n);
      layer.half_tokens.assign(2, std::vector<uint64_t>(n, layer.tokens[0] / 2));
      for (size_t i = 0; i < std::size(lengths); ++i) {
        layer.loads[i].assign(n, LoadHistogram{{lengths[i] * stats.top_k / n, kChunks}});
      }
    }
    return stats;
  }
  static std::string Problem(const Result<Plan>& plan) { return plan.ok() ? std::string() : plan.error().message; }

  ScratchFolder folder_;
  std::string path_;
};

TEST_F(PlanDocumentTest, WhatIsMadeIsAcceptedAndNothingElse) {
  const Model model = MakeModel("tiny-qwen3moe", 3);
  const RoutingStats stats = StatsOf(model);
  const NpuSpec& spec = **FindSpec("m2-max");
  const auto made = MakePlanFor(model, &stats, spec, {});
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(made->plan.calibrated);
  const std::string text = ToJson(made->plan);
  EXPECT_EQ(Problem(LoadPlan(text, "p", model, spec, nullptr)), "");
  EXPECT_EQ(Problem(LoadPlan(text, "p", model, spec, &stats)), "");
  EXPECT_EQ(PlannedNpu(text), "m2-max");
  EXPECT_EQ(PlannedNpu("{}"), "");
  EXPECT_EQ(PlannedNpu("no plan"), "");

  RoutingStats other = stats;
  ++other.n_tokens;
  EXPECT_EQ(Problem(LoadPlan(text, "p", model, spec, &other)),
            "p: stale: made for other routing statistics (hash " + StatsHash(stats) + ", this one has " +
                StatsHash(other) + "): make it anew with 'npumoe plan'");
  EXPECT_EQ(Problem(LoadPlan(text, "p", model, **FindSpec("m4"), nullptr)),
            "p: made for npu 'm2-max', wanted 'm4': make it anew with 'npumoe plan'");
  NpuSpec changed = spec;
  changed.dispatch_seconds.value *= 2;
  EXPECT_EQ(Problem(LoadPlan(text, "p", model, changed, nullptr)),
            "p: stale: made for other numbers of npu m2-max (hash " + SpecHash(spec) + ", this one has " +
                SpecHash(changed) + "): make it anew with 'npumoe plan'");
  const std::string hash = ModelHash(model);
  const Model another = MakeModel("tiny-qwen3moe", 4);
  EXPECT_EQ(Problem(LoadPlan(text, "p", another, spec, nullptr)), "p: stale: made for another model (hash " + hash +
                                                                      ", this one has " + ModelHash(another) +
                                                                      "): make it anew with 'npumoe plan'");
  const auto misled = MakePlanFor(another, &stats, spec, {});
  ASSERT_FALSE(misled.ok());
  EXPECT_EQ(misled.error().code, Code::kInvalidArgument);
  EXPECT_EQ(misled.error().message, "routing statistics: made of another model (hash " + hash + ", this one has " +
                                        ModelHash(another) + "): calibrate anew");
}

TEST_F(PlanDocumentTest, WithoutStatisticsItSaysSo) {
  const Model model = MakeModel("tiny-qwen3moe", 3);
  const NpuSpec& spec = **FindSpec("m2-max");
  const auto made = MakePlanFor(model, nullptr, spec, {});
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_FALSE(made->plan.calibrated);
  EXPECT_EQ(made->plan.stats_hash, "");
  EXPECT_EQ(made->plan.model_hash, ModelHash(model));
  EXPECT_NE(made->reasons.at(0).find("no routing statistics: every expert counts as equally popular"),
            std::string::npos);
  const std::string text = ToJson(made->plan);
  EXPECT_EQ(Problem(LoadPlan(text, "p", model, spec, nullptr)), "");
  const RoutingStats stats = StatsOf(model);
  EXPECT_EQ(Problem(LoadPlan(text, "p", model, spec, &stats)),
            "p: stale: made without routing statistics, which there are now: make it anew with 'npumoe plan'");
}

TEST_F(PlanDocumentTest, HugeLengthsAreRefused) {
  const Model model = MakeModel("tiny-qwen3moe", 3);
  const NpuSpec& spec = **FindSpec("m2-max");
  const auto made = MakePlanFor(model, nullptr, spec, {});
  ASSERT_TRUE(made.ok());
  const json good = json::parse(ToJson(made->plan));
  const auto message = [&](const char* where, const json& value) {
    json bad = good;
    bad[json::json_pointer(where)] = value;
    return Problem(LoadPlan(bad.dump(), "p", model, spec, nullptr));
  };
  const uint32_t context = model.config().context_length;
  ASSERT_LT(context, 60000u);
  const auto of_both = [&](uint32_t tokens) {  // no chunk is longer than a batch
    json bad = good;
    bad["chunk_tokens"] = bad["moe_batch_tokens"] = tokens;
    return Problem(LoadPlan(bad.dump(), "p", model, spec, nullptr));
  };
  EXPECT_EQ(of_both(4'000'000'000u),
            "p: plan: chunk_tokens 4000000000 and moe_batch_tokens 4000000000, limit 16777216");
  EXPECT_EQ(of_both(65536),
            "p: chunk_tokens is 65536, limit " + std::to_string((context + 31) / 32 * 32) + " (the context)");
  EXPECT_EQ(message("/moe_batch_tokens", 65536),
            "p: moe_batch_tokens is 65536, limit " + std::to_string((context + 31) / 32 * 32) + " (the context)");
  EXPECT_EQ(message("/kv_buckets", json::array({0, 16384})),
            "p: a cache of kv_buckets with its chunk is 16640, limit 16384 (axes of the NPU)");
  EXPECT_EQ(message("/kv_buckets", json::array({0, 4'000'000'000u})),
            "p: plan: kv_buckets hold 4000000000, limit 16777216");
  EXPECT_EQ(message("/kv_buckets", json(std::vector<uint32_t>(1'000'000, 1))),
            "p: field 'kv_buckets': 1000000 elements, limit 64");
  json group = {{"experts", {0}}, {"capacities", {4'000'000'000u}}};
  EXPECT_NE(message("/layers/0/groups", json::array({group})).find("capacities hold 4000000000, limit 16777216"),
            std::string::npos);
  json all = {{"experts", json::array()}, {"capacities", {8192}}};
  for (uint32_t e = 0; e < model.config().n_experts; ++e) all["experts"].push_back(e);
  json bad = good;
  bad["layers"][0]["groups"] = json::array({all});
  bad["layers"][0]["cpu_experts"] = json::array();
  EXPECT_EQ(Problem(LoadPlan(bad.dump(), "p", model, spec, nullptr)),
            "p: a capacity is 8192, limit " + std::to_string((made->plan.moe_batch_tokens + 31) / 32 * 32) +
                " (rows of a MoE batch or of the NPU's axes)");
}

TEST_F(PlanDocumentTest, IsWhatTheCommandLineShows) {
  const Model model = MakeModel("tiny-qwen3moe", 3);
  PlanOptions options;
  options.npu = "sim:m4";
  options.placement = "tiers+groups";
  const RoutingStats stats = StatsOf(model);
  const auto document = MakePlanDocument(path_, ToJson(stats), "s", options);
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_EQ(document->npu, "m4");
  EXPECT_EQ(document->placement, "tiers+groups");
  EXPECT_TRUE(document->calibrated);
  EXPECT_EQ(document->n_npu_experts, model.config().n_layers * model.config().n_experts);
  EXPECT_EQ(document->n_cpu_experts, 0u);
  const Plan plan = ParsePlan(document->json, "p").value();
  size_t programs = model.config().n_layers;
  for (const LayerPlan& layer : plan.layers) programs += layer.groups.size();
  EXPECT_EQ(document->n_programs, programs);
  EXPECT_EQ(document->expected_seconds, plan.expected_seconds);
  EXPECT_EQ(document->batch_tokens, 256u);

  const auto problem = [&](auto set) {
    PlanOptions wrong;
    set(wrong);
    const auto refused = MakePlanDocument(path_, "", "", wrong);
    EXPECT_FALSE(refused.ok());
    if (refused.ok()) return std::string();
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    return refused.error().message;
  };
  EXPECT_EQ(problem([](PlanOptions& o) { o.npu = "m9"; }),
            "npu: no spec named 'm9', wanted one of " + SpecNames());
  EXPECT_EQ(problem([](PlanOptions& o) { o.objective = "speed"; }),
            "objective: 'speed' is unknown, wanted one of time, energy, edp");
  EXPECT_EQ(problem([](PlanOptions& o) { o.placement = "best"; }),
            "placement: 'best' is unknown, wanted one of ours, cpu, naive, anemll, base, tiers, tiers+groups, all");
  EXPECT_EQ(problem([](PlanOptions& o) { o.mode = "drop"; }),
            "mode: 'drop' is unknown, wanted one of exact, prune, reroute");
  EXPECT_EQ(problem([](PlanOptions& o) { o.expert_weights = "lut5"; }),
            "expert weights: 'lut5' is unknown, wanted one of fp16, int8, lut8, lut6, lut4");
  EXPECT_EQ(problem([](PlanOptions& o) { o.n_tiers = 0; }), "planner: 0 tiers, wanted at least 1");
}

TEST_F(PlanDocumentTest, DenseModelsHaveAPlan) {
  const Model model = MakeModel("tiny-llama", 3);
  ASSERT_EQ(model.config().n_experts, 0u);
  PlanOptions options;
  options.placement = "anemll";  // attention on the NPU
  const auto document = MakePlanDocument(path_, "", "", options);
  ASSERT_TRUE(document.ok()) << document.error().message;
  EXPECT_EQ(document->n_npu_experts + document->n_cpu_experts, 0u);
  EXPECT_EQ(document->n_programs, model.config().n_layers);
  EXPECT_EQ(document->reasons.at(0), "the model has no experts: there is nothing to calibrate");
}

TEST(SidecarPath, LiesBesideTheModel) {
  EXPECT_EQ(SidecarPath("/m/qwen.gguf", "plan.json"), "/m/qwen.npumoe/plan.json");
  EXPECT_EQ(SidecarPath("qwen-00002-of-00003.gguf", "plan.json"), "qwen.npumoe/plan.json");
  EXPECT_EQ(SidecarPath("qwen-0002-of-00003.gguf", "x"), "qwen-0002-of-00003.npumoe/x");
  EXPECT_EQ(SidecarPath("/m/folder/", "plan.json"), "/m/folder.npumoe/plan.json");
  EXPECT_EQ(SidecarPath("/m/v1.5", "plan.json"), "/m/v1.5.npumoe/plan.json");
  EXPECT_NE(SidecarPath(".", "plan.json")[0], '.');
}

TEST(DescribeNpus, ListsEveryNumberWithItsSource) {
  const auto npus = DescribeNpus();
  ASSERT_EQ(npus.size(), AllSpecs().size());
  const auto m2_max = std::ranges::find(npus, "m2-max", &NpuDescription::name);
  ASSERT_NE(m2_max, npus.end());
  EXPECT_EQ(m2_max->title, "Apple M2 Max");
  std::set<std::string> names;
  for (const NpuProperty& property : m2_max->properties) {
    names.insert(property.name);
    EXPECT_NE(property.source.find(": "), std::string::npos) << property.name;
    if (property.name == "dispatch_seconds") {
      EXPECT_EQ(property.value, (*FindSpec("m2-max"))->dispatch_seconds.value);
    } else if (property.name == "max_programs") {
      EXPECT_EQ(property.value, 120);
    }
  }
  EXPECT_EQ(names.size(), 30u);
}

}  // namespace
}  // namespace npumoe
