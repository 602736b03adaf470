// SPDX-License-Identifier: Apache-2.0
// What the planner assumes of the graphs, against the graphs.
#include <gtest/gtest.h>

#include <vector>

#include "model/random_model.h"
#include "model/test_files.h"
#include "moe/attention_plan.h"
#include "moe/layer_cost.h"
#include "moe/stage_graph.h"
#include "npu/limits.h"

namespace npumoe {
namespace {

Model RandomModel(const ScratchFolder& folder, std::string_view shape) {
  RandomModelSpec spec;
  spec.config = ShapeByName(shape).value();
  spec.matrix_dtype = DType::kF32;
  spec.seed = 7;
  const std::string path = folder.File("model.gguf");
  const auto bytes = WriteRandomModel(spec, path);
  EXPECT_TRUE(bytes.ok()) << bytes.error().message;
  return Model::Open(path, {}).value();
}

TEST(PlannerModel, GroupWorkIsWhatTheGraphCounts) {
  const ScratchFolder folder;
  const Model model = RandomModel(folder, "tiny-qwen3moe");
  for (const char* name : {"m1", "m2-max"}) {  // int8 is unfolded on one and streamed on the other
    const NpuSpec& spec = **FindSpec(name);
    for (const WeightFormat format :
         {WeightFormat::kFp16, WeightFormat::kInt8, WeightFormat::kLut8, WeightFormat::kLut6, WeightFormat::kLut4}) {
      const ExpertGroup group{{1, 4, 6}, {32, 256, 1024, 2048}};
      const Graph graph = BuildExpertGroup(model.config(), model.weights().layers[1], group, format, 1).value();
      for (const uint32_t capacity : group.capacities) {
        const Work got = CountWork(graph, *graph.Find(CapacityFunction(capacity)), spec);
        const Work modelled = ExpertGroupWork(model.config(), 3, capacity, spec, format);
        EXPECT_EQ(modelled.io_bytes, got.io_bytes);
        EXPECT_NEAR(modelled.flops, got.flops, 0.001 * got.flops);
        EXPECT_NEAR(modelled.paced_flops, got.paced_flops, 0.001 * got.paced_flops);
        EXPECT_EQ(modelled.unpacked_bytes, got.unpacked_bytes);
        EXPECT_NEAR(modelled.moved_bytes, got.moved_bytes, 0.02 * got.moved_bytes);
        EXPECT_NEAR(modelled.weight_bytes, got.weight_bytes, 0.02 * got.weight_bytes);  // and its small constants
      }
      const size_t bound = 3 * ExpertWeightBytes(model.config(), format) + kGraphConstantBytes;
      EXPECT_LE(graph.WeightBytes(), bound);
      EXPECT_GE(graph.WeightBytes() + kGraphConstantBytes, bound);
    }
  }
}

TEST(PlannerModel, AttentionThatFitsIsAccepted) {
  for (const char* shape : {"tiny-qwen3moe", "tiny-mixtral", "tiny-phimoe", "tiny-olmoe"}) {
    const ScratchFolder folder;
    const Model model = RandomModel(folder, shape);
    const ModelConfig& config = model.config();
    NpuSpec spec = **FindSpec("m2-max");
    const auto buckets = KvBuckets(spec, 64, 200);
    const Graph graph =
        BuildAttentionStage(config, model.weights().layers[0], true, 64, buckets, WeightFormat::kFp16).value();
    EXPECT_EQ(AttentionMisfit(config, spec, 64, WeightFormat::kFp16), "") << shape;
    EXPECT_TRUE(CheckLimits(graph, spec, shape).ok());
    for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kLut8, WeightFormat::kLut4}) {
      const Graph stored = BuildAttentionStage(config, model.weights().layers[0], true, 64, buckets, format).value();
      EXPECT_TRUE(CheckLimits(stored, spec, shape).ok());
      EXPECT_LE(stored.WeightBytes(), AttentionWeightBytes(config, true, format)) << shape << ToString(format);
      EXPECT_GE(stored.WeightBytes() + kGraphConstantBytes + 2 * size_t{16} * config.dim,
                AttentionWeightBytes(config, true, format));
    }
    EXPECT_LE(graph.WeightBytes(), AttentionWeightBytes(config, true, WeightFormat::kFp16)) << shape;
    // The tightest specs that the planner accepts are accepted by the device as well.
    size_t refused = 0;
    for (size_t limit = 16; limit <= 4096; limit *= 2) {
      for (size_t NpuSpec::*const field : {&NpuSpec::max_channels, &NpuSpec::max_axis, &NpuSpec::max_matmul_axis}) {
        NpuSpec tight = spec;
        tight.*field = limit;
        if (!AttentionMisfit(config, tight, 64, WeightFormat::kFp16).empty()) {
          ++refused;
          continue;
        }
        const auto lengths = KvBuckets(tight, 64, 200);
        const Graph stage =
            BuildAttentionStage(config, model.weights().layers[0], true, 64, lengths, WeightFormat::kFp16).value();
        const Status status = CheckLimits(stage, tight, shape);
        EXPECT_TRUE(status.ok()) << status.error().message;
      }
    }
    EXPECT_GT(refused, 0u);
  }
}

}  // namespace
}  // namespace npumoe
