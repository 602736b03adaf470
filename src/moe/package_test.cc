// SPDX-License-Identifier: Apache-2.0
// Every kind of graph that plans turn into, as a Core ML package: written, read back, the same graph, the same outputs.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/test_effort.h"
#include "graph/mlpackage/mlpackage.h"
#include "graph/reference.h"
#include "model/random_model.h"
#include "model/test_files.h"
#include "moe/planner.h"
#include "moe/stage_graph.h"
#include "moe/uniform_stats.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

Array RandomInput(Random& random, const ValueType& type) {
  Array array;
  array.type = type;
  for (size_t i = 0; i < type.elems(); ++i) {
    array.floats.push_back(F16ToF32(F32ToF16(static_cast<float>(random.Gaussian()))));
  }
  return array;
}

struct Counts {
  std::map<std::string, size_t> ops;
  size_t graphs = 0, functions = 0;
};

// `run`: also the smallest function on random inputs, bit for bit.
void ExpectRoundTrip(const Graph& graph, const ScratchFolder& folder, Counts& counts, bool run = true) {
  const std::string path = folder.File("stage.mlpackage");
  const auto written = WritePackage(graph, path);
  ASSERT_TRUE(written.ok()) << written.error().message;
  // Functions chosen by name came with version 9; nothing in these graphs needs more.
  EXPECT_EQ(written->specification_version, 9);
  const auto package = ReadPackage(path);
  ASSERT_TRUE(package.ok()) << package.error().message;
  EXPECT_EQ(HashGraph(package->graph), HashGraph(graph));
  // Each weight once, however many functions use it. Tables of blobs and small constants take the rest.
  EXPECT_LE(std::filesystem::file_size(path + "/Data/com.apple.CoreML/weights/weight.bin"),
            graph.WeightBytes() + 128 * graph.constants.size());
  ++counts.graphs;
  counts.functions += graph.functions.size();
  for (const Function& function : graph.functions) {
    for (const Op& op : function.ops) ++counts.ops[std::string(MilName(op.kind))];
  }
  if (!run) return;
  Random random(5);
  const Function &ours = graph.functions[0], &theirs = package->graph.functions[0];
  std::vector<Array> inputs;
  for (const ValueId id : ours.inputs) inputs.push_back(RandomInput(random, ours.values[id].type));
  const auto wanted = RunReference(graph, ours, inputs, Rounding::kF16);
  const auto got = RunReference(package->graph, theirs, inputs, Rounding::kF16);
  ASSERT_TRUE(wanted.ok() && got.ok());
  ASSERT_EQ(wanted->size(), got->size());
  for (size_t i = 0; i < got->size(); ++i) EXPECT_EQ((*got)[i].floats, (*wanted)[i].floats) << i;
}

TEST(PlannedPackages, OfTheDemoModel) {
  const auto model = Model::Open(std::string(NM_SOURCE_DIR) + "/models/demo-moe.gguf", {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  const std::vector<uint32_t> batches{32, 512};
  const RoutingStats stats = UniformStats(model->config(), batches);
  const ScratchFolder folder;
  Counts counts;
  // The planner keeps experts as small as these on the CPU; the paper's plan takes them to the NPU whatever it costs.
  for (const WeightFormat format : {WeightFormat::kFp16, WeightFormat::kInt8, WeightFormat::kLut6}) {
    PlanRequest request;
    request.placement = Placement::kTiersGroups;
    request.chunk_tokens = 32;
    request.moe_batch_tokens = 512;
    request.prompt_tokens = 128;
    request.expert_weights = request.attention_weights = format;
    const auto made = MakePlan(model->config(), stats, **FindSpec("m2-max"), request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    const Plan& plan = made->plan;
    for (uint32_t layer = 0; layer < plan.layers.size(); ++layer) {
      const LayerWeights& weights = model->weights().layers[layer];
      for (const ExpertGroup& group : plan.layers[layer].groups) {
        ExpectRoundTrip(
            BuildExpertGroup(model->config(), weights, group, format, plan.layers[layer].expert_scale).value(), folder,
            counts, layer == 0);
      }
      ExpectRoundTrip(BuildAttentionStage(model->config(), weights, model->config().IsMoeLayer(layer),
                                          plan.chunk_tokens, plan.kv_buckets, format)
                          .value(),
                      folder, counts, layer == 0);
    }
  }
  EXPECT_GE(counts.graphs, 6 * model->config().n_layers);
  EXPECT_GE(counts.functions, counts.graphs);
  EXPECT_GT(counts.ops["constexpr_affine_dequantize"], 0u);
  EXPECT_GT(counts.ops["constexpr_lut_to_dense"], 0u);
}

// One layer with the published widths and fewer experts, so that it fits in memory.
void ExpectLayerOf(std::string_view shape, uint32_t expert_dim, WeightFormat format) {
  SCOPED_TRACE(shape);
  const ScratchFolder folder;
  RandomModelSpec spec;
  spec.config = ShapeByName(shape).value();
  spec.config.n_layers = 1;
  spec.config.dense_layer.resize(1);
  spec.config.n_experts = 2;
  spec.config.top_k = 2;
  spec.config.vocab_size = 512;
  if (expert_dim != 0) spec.config.expert_dim = expert_dim;
  spec.matrix_dtype = DType::kQ8_0;
  const std::string path = folder.File("model.gguf");
  const auto bytes = WriteRandomModel(spec, path);
  ASSERT_TRUE(bytes.ok()) << bytes.error().message;
  const auto model = Model::Open(path, {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  const LayerWeights& weights = model->weights().layers[0];
  Counts counts;
  const ExpertGroup group{{0, 1}, {1, 64, 512}};
  ExpectRoundTrip(BuildExpertGroup(model->config(), weights, group, format, 2.0f).value(), folder, counts);
  const std::vector<uint32_t> lengths{0, 512, 1024};
  ExpectRoundTrip(BuildAttentionStage(model->config(), weights, true, 2, lengths, format).value(), folder, counts);
  EXPECT_EQ(counts.functions, 6u);
}

// Published widths differ from those below in nothing but their size.
#if !defined(NM_DEBUG_CHECKS)
TEST(PlannedPackages, OfOneLayerOfQwen3) { ExpectLayerOf("qwen3-30b-a3b", 0, WeightFormat::kFp16); }
TEST(PlannedPackages, OfOneLayerOfQwen3InPalettes) { ExpectLayerOf("qwen3-30b-a3b", 0, WeightFormat::kLut4); }
TEST(PlannedPackages, OfOneLayerOfPhiTiny) { ExpectLayerOf("phi-tiny-moe", 0, WeightFormat::kInt8); }
// 6,400 in the published model: 315 MB for two experts, a tenth here.
TEST(PlannedPackages, OfOneLayerOfPhi35) { ExpectLayerOf("phi-3.5-moe", 640, WeightFormat::kFp16); }
#endif

TEST(PlannedPackages, OfEveryFamily) {
  for (const char* shape : {"tiny-qwen3moe", "tiny-phimoe", "tiny-mixtral", "tiny-qwen2moe", "tiny-olmoe"}) {
    for (const WeightFormat format :
         {WeightFormat::kFp16, WeightFormat::kInt8, WeightFormat::kLut8, WeightFormat::kLut6, WeightFormat::kLut4}) {
      ExpectLayerOf(shape, 0, format);
    }
  }
}

}  // namespace
}  // namespace npumoe
