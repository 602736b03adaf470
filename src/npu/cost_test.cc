// SPDX-License-Identifier: Apache-2.0
#include "npu/cost.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/check.h"
#include "graph/builder.h"
#include "npumoe/estimate.h"

namespace npumoe {
namespace {

// `n` convolutions of width x width, 1 x 1, behind each other.
Graph ConvChain(size_t n, size_t width, size_t rows) {
  GraphBuilder b;
  b.BeginFunction("main");
  ValueId x = b.Input("x", {ElemType::kF16, {1, width, 1, rows}});
  for (size_t i = 0; i < n; ++i) {
    const uint32_t weight =
        b.AddConstant({ElemType::kF16, {width, width, 1, 1}}, std::vector<std::byte>(2 * width * width));
    x = b.Conv1x1(x, b.UseConstant(weight, "w"));
  }
  b.Output("y", x);
  return std::move(b).Finish().value();
}

TEST(Cost, OfAGraphAndOfTheSameOpsAskedForIsOne) {
  for (const NpuSpec& spec : AllSpecs()) {
    for (const size_t rows : {1u, 32u, 4096u}) {
      const Graph graph = ConvChain(3, 256, rows);
      const Cost cost = DispatchCost(CountWork(graph, graph.functions[0], spec), spec);
      const OpEstimate asked =
          EstimateOp({spec.name, "conv1x1", fmt::format("{}x256x256*3", rows), "fp16", "coreml", false}).value();
      // The graph has a few bytes of strides and pads beside its weights.
      EXPECT_NEAR(asked.seconds, cost.seconds, 1e-3 * cost.seconds) << spec.name << " " << rows;
      EXPECT_NEAR(asked.joules, cost.joules, 1e-3 * cost.joules) << spec.name << " " << rows;
    }
  }
}

TEST(AddProduct, FewRowsAreSlowAndOperandsThatDoNotFitAreReadAgain) {
  NpuSpec spec = AllSpecs()[0];
  spec.half_rate_rows.value = 32;
  spec.on_chip_bytes.value = 1000;
  const auto work = [&](const Product& product) {
    Work counted;
    AddProduct(product, spec, counted);
    return counted;
  };
  const Work narrow = work({32, 10, 10, 2, 200});
  EXPECT_EQ(narrow.flops, 2 * 32 * 10 * 10 * 2);
  EXPECT_EQ(narrow.paced_flops, 2 * narrow.flops);  // half the rate
  EXPECT_EQ(narrow.moved_bytes, 0);
  // Rows of 800 bytes and a weight of 1,600: the rows stay. Of 4,000 and 1,600, each passes or stays by parts.
  EXPECT_EQ(work({20, 20, 40, 1, 1600}).moved_bytes, 0);
  EXPECT_DOUBLE_EQ(work({100, 20, 40, 1, 1600}).moved_bytes, std::min(1600 * 3.0, 4000 * 0.6));
  EXPECT_EQ(work({100, 20, 40, 1, 400}).moved_bytes, 400 * 3.0);  // stored smaller, read again as stored
  EXPECT_EQ(work({0, 20, 40, 1, 1600}), Work{});
}

TEST(CountWork, ScoresOfAttentionMoveAroundSoftmax) {
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {1, 4, 32, 64}});
  b.Output("y", b.Add(OpKind::kSoftmax, {{"x", {x}}, {"axis", {b.Int(-1)}}})[0]);
  const Graph graph = std::move(b).Finish().value();
  const NpuSpec& spec = AllSpecs()[0];
  const Work work = CountWork(graph, graph.functions[0], spec);
  EXPECT_DOUBLE_EQ(work.moved_bytes, 2 * 4 * 32 * 64 * spec.score_moves.value);
}

TEST(DispatchCost, IsTheSumOfItsPartsOnBothPaths) {
  const NpuSpec& spec = **FindSpec("m2-max");
  Work work;
  AddProduct({512, 4096, 4096, 1, 2.0 * 4096 * 4096}, spec, work);
  work.weight_bytes = 2.0 * 4096 * 4096;
  work.io_bytes = 2.0 * 2 * 512 * 4096;
  for (const NpuPath path : {NpuPath::kCoreMl, NpuPath::kDirect}) {
    const CostParts parts = PartsOf(work, spec, path);
    EXPECT_EQ(DispatchCost(work, spec, path).seconds, parts.Seconds());
    EXPECT_GT(parts.moves, 0);
    EXPECT_GT(parts.compute, parts.weights);
  }
  // Core ML costs more before any work; arrays that the host converts cost more by the byte.
  const CostParts coreml = PartsOf(work, spec), direct = PartsOf(work, spec, NpuPath::kDirect);
  EXPECT_GT(coreml.floor, direct.floor);
  EXPECT_LT(coreml.io, direct.io);
}

TEST(CpuExpertCost, FewRowsAreFarFromTheFullRate) {
  const NpuSpec& spec = **FindSpec("m2-max");
  constexpr double kFlops = 6.0 * 2048 * 768, kBytes = 3.0 * 2048 * 768;
  EXPECT_EQ(CpuExpertCost(0, kFlops, kBytes, spec).seconds, 0);
  const double one = CpuExpertCost(1, kFlops, kBytes, spec).seconds,
               many = CpuExpertCost(512, kFlops, kBytes, spec).seconds;
  EXPECT_GT(one, kBytes / spec.cpu_bytes_per_second.value);
  EXPECT_GT(one, 2 * many / 512);
  EXPECT_NEAR(many, 512 * kFlops / spec.cpu_flops_per_second.value, 0.05 * many);
}

}  // namespace
}  // namespace npumoe
