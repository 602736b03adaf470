// SPDX-License-Identifier: Apache-2.0
#include "engine/weight_error.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <string>

#include "base/test_effort.h"
#include "engine/plan_document.h"
#include "engine/weight_choice.h"
#include "npumoe/make_model.h"

namespace npumoe {
namespace {

size_t Index(WeightFormat format) {
  return static_cast<size_t>(std::find(kWeightFormats.begin(), kWeightFormats.end(), format) - kWeightFormats.begin());
}

class WeightErrorTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  Model Open(const std::string& shape) {
    path_ =
        (std::filesystem::temp_directory_path() / ("npumoe_weights_" + std::to_string(::getpid()) + ".gguf")).string();
    MakeModelOptions options;
    options.shape = shape;
    options.seed = 5;
    EXPECT_TRUE(MakeModel(options, path_).ok());
    return Model::Open(path_, {}).value();
  }
  static std::vector<int32_t> Tokens(const Model& model, size_t n) {
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<int32_t>((i * 7919 + 13) % model.config().vocab_size));
    return tokens;
  }

  std::string path_;
};

// The graphs against the CPU: with fp16 weights nothing but fp16's rounding (2^-11 a step, a few tens of steps that add
// as squares), whatever the family puts into a stage; and the more, the fewer the bits.
TEST_F(WeightErrorTest, IsFp16sOwnAndGrowsAsBitsGetFewer) {
  constexpr const char* kShapes[] = {"tiny-qwen2moe", "tiny-phimoe", "tiny-qwen3moe", "tiny-mixtral", "tiny-olmoe"};
  for (const char* shape : std::span(kShapes).first(AllOrFew(5, 2))) {
    SCOPED_TRACE(shape);
    const Model model = Open(shape);
    const auto errors = MeasureWeightErrors(model, Tokens(model, 40), 2);
    ASSERT_TRUE(errors.ok()) << errors.error().message;
    EXPECT_EQ(errors->n_tokens, 40u);
    EXPECT_EQ(errors->layers.size(), std::min<size_t>(kSampleLayers, model.config().n_layers));
    EXPECT_GT(errors->n_experts, 0u);
    for (const auto* of : {&errors->attention, &errors->experts, &errors->gate_up, &errors->down}) {
      const auto rms = [&](WeightFormat format) { return (*of)[Index(format)].rms; };
      EXPECT_GT(rms(WeightFormat::kFp16), 0);
      EXPECT_LT(rms(WeightFormat::kFp16), 5e-3);
      EXPECT_LT(2 * rms(WeightFormat::kFp16), rms(WeightFormat::kLut8));
      EXPECT_LT(2 * rms(WeightFormat::kLut8), rms(WeightFormat::kLut6));
      EXPECT_LT(2 * rms(WeightFormat::kLut6), rms(WeightFormat::kLut4));
      EXPECT_LT(rms(WeightFormat::kLut4), 0.4);
      for (const RelativeError& error : *of) EXPECT_GE(error.worst, error.rms);
    }
    // All projections at once are worse than a part of them.
    const size_t lut4 = Index(WeightFormat::kLut4);
    EXPECT_GT(errors->experts[lut4].rms, errors->gate_up[lut4].rms);
    EXPECT_GT(errors->experts[lut4].rms, errors->down[lut4].rms);
  }
}

TEST_F(WeightErrorTest, DoesNotDependOnThreadsAndTakesTheFirstTokens) {
  const Model model = Open("tiny-qwen3moe");
  const auto tokens = Tokens(model, kSampleTokens + 30);
  const auto one = MeasureWeightErrors(model, tokens, 1), three = MeasureWeightErrors(model, tokens, 3);
  const auto first = MeasureWeightErrors(model, std::span(tokens).first(kSampleTokens), 2);
  ASSERT_TRUE(one.ok() && three.ok() && first.ok());
  for (size_t i = 0; i < kWeightFormatCount; ++i) {
    EXPECT_EQ(one->experts[i].rms, three->experts[i].rms);
    EXPECT_EQ(one->attention[i].rms, three->attention[i].rms);
    EXPECT_EQ(one->experts[i].rms, first->experts[i].rms);
  }
}

TEST_F(WeightErrorTest, OneTokenIsEnoughAndNoneIsAnError) {
  const Model model = Open("tiny-mixtral");
  const auto one = MeasureWeightErrors(model, Tokens(model, 1), 1);
  ASSERT_TRUE(one.ok()) << one.error().message;
  EXPECT_GT(one->experts[Index(WeightFormat::kLut4)].rms, one->experts[Index(WeightFormat::kLut8)].rms);
  const auto none = MeasureWeightErrors(model, {}, 1);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message, "weight errors: no tokens: the text is empty");
}

TEST_F(WeightErrorTest, DenseModelsHaveThoseOfAttention) {
  const Model model = Open("tiny-llama");
  const auto errors = MeasureWeightErrors(model, Tokens(model, 20), 2);
  ASSERT_TRUE(errors.ok()) << errors.error().message;
  EXPECT_EQ(errors->n_experts, 0u);
  EXPECT_EQ(errors->experts[Index(WeightFormat::kLut4)].rms, 0);
  EXPECT_GT(errors->attention[Index(WeightFormat::kLut4)].rms, 0.01);
}

TEST_F(WeightErrorTest, TheChoiceKeepsToTheLimitAndToWhatPays) {
  const Model model = Open("tiny-qwen3moe");
  NpuSpec spec = **FindSpec("m2-max");
  // Weights are all that a dispatch costs, so that the fewest bytes are best.
  spec.weight_bytes_per_second.value = 1e6;
  PlanOptions options;
  options.expert_weights = options.attention_weights = "auto";
  PlanRequest request = ParsePlanOptions(options).value();
  request.placement = Placement::kBase;
  WeightErrors errors;
  for (auto* of : {&errors.attention, &errors.experts}) {
    (*of)[Index(WeightFormat::kFp16)].rms = 1e-3;
    (*of)[Index(WeightFormat::kInt8)].rms = 0.01;
    (*of)[Index(WeightFormat::kLut8)].rms = 0.008;
    (*of)[Index(WeightFormat::kLut6)].rms = 0.03;
    (*of)[Index(WeightFormat::kLut4)].rms = 0.12;
  }
  errors.attention[Index(WeightFormat::kLut6)].rms = 0.06;
  const auto chosen = [&](double limit, const NpuSpec& npu) {
    options.max_weight_error = limit;
    return MakePlanWithWeights(model, nullptr, npu, request, options, &errors).value();
  };
  const PlanWithReasons strict = chosen(0.05, spec), loose = chosen(0.5, spec), none = chosen(1e-4, spec);
  EXPECT_EQ(strict.plan.expert_weights, WeightFormat::kLut6);
  EXPECT_NE(strict.plan.attention_weights, WeightFormat::kLut6);
  EXPECT_NE(strict.plan.attention_weights, WeightFormat::kFp16);
  EXPECT_EQ(loose.plan.expert_weights, WeightFormat::kLut4);
  EXPECT_EQ(loose.plan.attention_weights, WeightFormat::kLut4);
  EXPECT_EQ(none.plan.expert_weights, WeightFormat::kFp16);
  EXPECT_EQ(none.plan.attention_weights, WeightFormat::kFp16);
  EXPECT_LT(loose.plan.expected_seconds, strict.plan.expected_seconds);
  // Weights that cost next to nothing are not worth an error.
  spec.weight_bytes_per_second.value = 1e15;
  const PlanWithReasons free = chosen(0.5, spec);
  EXPECT_EQ(free.plan.expert_weights, WeightFormat::kFp16);
  EXPECT_EQ(free.plan.attention_weights, WeightFormat::kFp16);
  // Every figure and both decisions are told.
  ASSERT_GE(strict.reasons.size(), 7u);
  EXPECT_EQ(strict.reasons[0].find("weights as fp16: relative error of experts' outputs 0.001"), 0u)
      << strict.reasons[0];
  EXPECT_EQ(strict.reasons[5].find("experts' weights are lut6: fp16 "), 0u) << strict.reasons[5];
  EXPECT_NE(strict.reasons[5].find("lut4 too inexact"), std::string::npos);
  EXPECT_NE(strict.reasons[5].find("simulated"), std::string::npos);
}

TEST_F(WeightErrorTest, DocumentsTellWhatWasMeasured) {
  Open("tiny-qwen3moe");
  PlanOptions options;
  options.expert_weights = "auto";
  const auto made = MakePlanDocument(path_, "", "", options);
  ASSERT_TRUE(made.ok()) << made.error().message;
  ASSERT_EQ(made->weight_errors.size(), kWeightFormatCount);
  EXPECT_EQ(made->weight_errors[4].format, "lut4");
  EXPECT_GT(made->weight_errors[4].experts, made->weight_errors[3].experts);
  EXPECT_EQ(made->attention_weights, "fp16");
  options.sample_text = "another text";
  const auto other = MakePlanDocument(path_, "", "", options);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->weight_errors[4].experts, made->weight_errors[4].experts);
  options.expert_weights = "fp16";
  EXPECT_TRUE(MakePlanDocument(path_, "", "", options)->weight_errors.empty());
  for (const double wrong : {0.0, -1.0, std::nan("")}) {
    options.max_weight_error = wrong;
    const auto refused = MakePlanDocument(path_, "", "", options);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace npumoe
