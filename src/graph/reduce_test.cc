// SPDX-License-Identifier: Apache-2.0
// Reductions, norms, softmax and cumsum against values worked out by hand, in both modes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/op_test.h"

namespace npumoe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Softmax, AlongANegativeAxis) {
  OneOp t;
  const float l = std::log(3.0f);
  const auto results = t.Run(OpKind::kSoftmax, {{"x", {t.F32({2, 2}, {0, l, l, l})}}, {"axis", {t.b.Int(-1)}}});
  ASSERT_EQ(results.f32.size(), 1u);
  EXPECT_NEAR(results.f32[0].floats[0], 0.25, 1e-7);
  EXPECT_NEAR(results.f32[0].floats[1], 0.75, 1e-7);
  EXPECT_EQ(results.f32[0].floats[2], 0.5f);
}

TEST(Softmax, OfLargeValuesStaysFiniteAndAlongTheFirstAxis) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kSoftmax, {{"x", {t.F16({2, 2}, {60000, 0, 60000, -60000})}}, {"axis", {t.b.Int(0)}}}),
               {2, 2}, {0.5f, 1, 0.5f, 0});
}

TEST(Softmax, RefusesAnAxisOutOfRange) {
  OneOp t;
  EXPECT_EQ(t.Error(OpKind::kSoftmax, {{"x", {t.F16({2}, {1, 2})}}, {"axis", {t.b.Int(1)}}}),
            "graph: function 'main', op 0 (softmax), parameter 'axis': axis 1 of a value of rank 1");
  OneOp i;
  EXPECT_EQ(i.Error(OpKind::kSoftmax, {{"x", {i.F16({2}, {1, 2})}}, {"axis", {i.Vec({0})}}}),
            "graph: function 'main', op 0 (softmax), parameter 'axis': wanted an int32 scalar, got int32[1]");
}

TEST(Reduce, EveryKindOverTwoAxes) {
  const struct {
    OpKind kind;
    std::vector<float> wanted;
  } cases[] = {{OpKind::kReduceSum, {14, 22}},
               {OpKind::kReduceMean, {3.5f, 5.5f}},
               {OpKind::kReduceMax, {6, 8}},
               {OpKind::kReduceMin, {1, 3}},
               {OpKind::kReduceSumSquare, {66, 138}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(MilName(c.kind));
    OneOp t;
    const ValueId x = t.F16({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
    ExpectFloats(t.Run(c.kind, {{"x", {x}}, {"axes", {t.Vec({-1, 0})}}, {"keep_dims", {t.b.Bool(true)}}}), {1, 2, 1},
                 c.wanted);
    OneOp u;
    const ValueId y = u.F16({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
    ExpectFloats(u.Run(c.kind, {{"x", {y}}, {"axes", {u.Vec({0, 2})}}, {"keep_dims", {u.b.Bool(false)}}}), {2},
                 c.wanted);
    OneOp w;
    const ValueId z = w.I32({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
    std::vector<int64_t> whole(c.wanted.begin(), c.wanted.end());  // 3.5 -> 3, 5.5 -> 5
    ExpectInts(w.Run(c.kind, {{"x", {z}}, {"axes", {w.Vec({0, 2})}}, {"keep_dims", {w.b.Bool(false)}}}), {2}, whole);
  }
}

TEST(Reduce, OverAllAxesGivesAScalarAndOverflowsInHalf) {
  OneOp t;
  const ValueId x = t.F16({2, 1}, {65504, 65504});
  ExpectFloats(t.Run(OpKind::kReduceSum, {{"x", {x}}, {"axes", {t.Vec({0, 1})}}, {"keep_dims", {t.b.Bool(false)}}}), {},
               {131008}, {kInfinity});
}

TEST(Reduce, MeanSumsWiderThanHalf) {
  OneOp t;
  // The sum overflows fp16, the mean does not.
  const ValueId x = t.F16({2}, {65504, 65504});
  ExpectFloats(t.Run(OpKind::kReduceMean, {{"x", {x}}, {"axes", {t.Vec({0})}}, {"keep_dims", {t.b.Bool(true)}}}), {1},
               {65504});
}

TEST(Reduce, RefusesNoAxesAndTheSameTwice) {
  OneOp t;
  const ValueId x = t.F16({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(t.Error(OpKind::kReduceSum, {{"x", {x}}, {"axes", {t.Vec({0, -2})}}, {"keep_dims", {t.b.Bool(true)}}}),
            "graph: function 'main', op 0 (reduce_sum), parameter 'axes': names axis 0 twice");
  OneOp e;
  const ValueId y = e.F16({2}, {1, 2});
  EXPECT_EQ(e.Error(OpKind::kReduceSum, {{"x", {y}}, {"axes", {e.Vec({})}}, {"keep_dims", {e.b.Bool(true)}}}),
            "graph: constant 0: empty, shape int32[0]");
}

TEST(ReduceArgmax, TakesTheFirstOfEqualOnes) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, {1, 5, 5, 7, 2, 7});
  ExpectInts(t.Run(OpKind::kReduceArgmax, {{"x", {x}}, {"axis", {t.b.Int(-1)}}, {"keep_dims", {t.b.Bool(false)}}}), {2},
             {1, 0});
}

TEST(LayerNorm, NormalisesScalesAndShifts) {
  OneOp t;
  // Row (1, 3) has mean 2 and variance 1, row (-4, -8) mean -6 and variance 4.
  const ValueId x = t.F16({2, 2}, {1, 3, -4, -8});
  ExpectFloats(t.Run(OpKind::kLayerNorm, {{"x", {x}},
                                          {"axes", {t.Vec({-1})}},
                                          {"gamma", {t.Const16({2}, {2, 10})}},
                                          {"beta", {t.Const16({2}, {0.5f, 0})}},
                                          {"epsilon", {t.b.Scalar(0)}}}),
               {2, 2}, {-1.5f, 10, 2.5f, -10});
}

TEST(LayerNorm, EpsilonAndInnerAxis) {
  OneOp t;
  // Columns (0, 6) and (1, 1): variance 9 and epsilon 16 give 3 / 5.
  const ValueId x = t.F16({1, 2, 2}, {0, 1, 6, 1});
  ExpectFloats(t.Run(OpKind::kLayerNorm, {{"x", {x}}, {"axes", {t.Vec({1})}}, {"epsilon", {t.b.Scalar(16)}}}),
               {1, 2, 2}, {-0.6f, 0, 0.6f, 0}, {F16ToF32(F32ToF16(-0.6f)), 0, F16ToF32(F32ToF16(0.6f)), 0});
}

TEST(LayerNorm, GammaFollowsTheOrderOfTheAxes) {
  OneOp t;
  // axes (1, 0) over x [2, 3]: gamma is [3, 2]. Values +-1 stay themselves.
  const ValueId x = t.F16({2, 3}, {1, 1, 1, -1, -1, -1});
  ExpectFloats(t.Run(OpKind::kLayerNorm, {{"x", {x}},
                                          {"axes", {t.Vec({1, 0})}},
                                          {"gamma", {t.Const16({3, 2}, {1, 2, 3, 4, 5, 6})}},
                                          {"epsilon", {t.b.Scalar(0)}}}),
               {2, 3}, {1, 3, 5, -2, -4, -6});
}

TEST(LayerNorm, RefusesAGammaOfTheWrongShape) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(
      t.Error(
          OpKind::kLayerNorm,
          {{"x", {x}}, {"axes", {t.Vec({0})}}, {"gamma", {t.Const16({3}, {1, 2, 3})}}, {"epsilon", {t.b.Scalar(0)}}}),
      "graph: function 'main', op 0 (layer_norm), parameter 'gamma': wanted the shape [2] of x along axes, got "
      "fp16[3]");
}

TEST(L2Norm, CoversTheLastThreeAxes) {
  OneOp t;
  // 9 + 20.25 + 6.75 of epsilon = 36 in the first batch.
  const ValueId x = t.F16({2, 1, 1, 2}, {3, 4.5f, 0, 0});
  ExpectFloats(t.Run(OpKind::kL2Norm, {{"x", {x}}, {"epsilon", {t.b.Scalar(6.75f)}}}), {2, 1, 1, 2},
               {0.5f, 0.75f, 0, 0});
  OneOp r;
  EXPECT_EQ(r.Error(OpKind::kL2Norm, {{"x", {r.F16({1, 2}, {3, 4})}}, {"epsilon", {r.b.Scalar(0)}}}),
            "graph: function 'main', op 0 (l2_norm), parameter 'x': rank 2, wanted 3 or more");
}

TEST(Cumsum, FourVariants) {
  const struct {
    bool exclusive, reverse;
    std::vector<float> wanted;
  } cases[] = {{false, false, {1, 3, 6}}, {true, false, {0, 1, 3}}, {false, true, {6, 5, 3}}, {true, true, {5, 3, 0}}};
  for (const auto& c : cases) {
    OneOp t;
    ExpectFloats(t.Run(OpKind::kCumsum, {{"x", {t.F16({3}, {1, 2, 3})}},
                                         {"axis", {t.b.Int(0)}},
                                         {"exclusive", {t.b.Bool(c.exclusive)}},
                                         {"reverse", {t.b.Bool(c.reverse)}}}),
                 {3}, c.wanted);
  }
  OneOp w;
  ExpectInts(w.Run(OpKind::kCumsum, {{"x", {w.I32({2, 2}, {2147483647, 1, 1, 1})}},
                                     {"axis", {w.b.Int(0)}},
                                     {"exclusive", {w.b.Bool(false)}},
                                     {"reverse", {w.b.Bool(false)}}}),
             {2, 2}, {2147483647, 1, -2147483648, 2});
}

TEST(Reduce, ProductsNormsAndLogarithms) {
  const struct {
    OpKind kind;
    std::vector<float> wanted;  // of (1 -2 4 / 0.5 8 1) by row
  } cases[] = {
      {OpKind::kReduceProd, {-8, 4}},
      {OpKind::kReduceL1Norm, {7, 9.5f}},
      {OpKind::kReduceL2Norm, {4.5825757f, 8.0777472f}},     // sqrt(21), sqrt(65.25)
      {OpKind::kReduceLogSum, {1.0986123f, 2.2512918f}},     // log(3), log(9.5)
      {OpKind::kReduceLogSumExp, {4.0509458f, 8.0014640f}},  // log(e + e^-2 + e^4), log(e^0.5 + e^8 + e)
  };
  for (const auto& c : cases) {
    OneOp t;
    const ValueId x = t.F32({2, 3}, {1, -2, 4, 0.5f, 8, 1});
    const auto results = t.Run(c.kind, {{"x", {x}}, {"axes", {t.Vec({-1})}}, {"keep_dims", {t.b.Bool(false)}}});
    ASSERT_EQ(results.f32.size(), 1u);
    for (size_t i = 0; i < 2; ++i) EXPECT_FLOAT_EQ(results.f32[0].floats[i], c.wanted[i]) << MilName(c.kind);
  }
  OneOp ints;
  const ValueId x = ints.I32({3}, {-3, 5, -7});
  ExpectInts(ints.Run(OpKind::kReduceProd, {{"x", {x}}, {"axes", {ints.Vec({0})}}, {"keep_dims", {ints.b.Bool(true)}}}),
             {1}, {105});
  OneOp norm;
  const ValueId y = norm.I32({3}, {-3, 5, -7});
  ExpectInts(
      norm.Run(OpKind::kReduceL1Norm, {{"x", {y}}, {"axes", {norm.Vec({0})}}, {"keep_dims", {norm.b.Bool(true)}}}), {1},
      {15});
}

TEST(Reduce, ArgminTakesTheFirst) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, {4, 1, 1, -1, 0, -1});
  ExpectInts(t.Run(OpKind::kReduceArgmin, {{"x", {x}}, {"axis", {t.b.Int(1)}}, {"keep_dims", {t.b.Bool(false)}}}), {2},
             {1, 0});
}

}  // namespace
}  // namespace npumoe
