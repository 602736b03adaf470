// SPDX-License-Identifier: Apache-2.0
// Convolutions, matrix products and attention against values worked out by hand, in both modes.
#include <gtest/gtest.h>

#include <cmath>

#include "graph/op_test.h"

namespace npumoe {
namespace {

struct ConvArgs {
  std::vector<int32_t> strides, pad, dilations;
  const char* pad_type = "valid";
  int32_t groups = 1;
};

Operands ConvOperands(OneOp& t, ValueId x, ValueId weight, const ConvArgs& args) {
  return {{"x", {x}},
          {"weight", {weight}},
          {"strides", {t.b.Ints(args.strides)}},
          {"pad_type", {t.b.String(args.pad_type)}},
          {"pad", {t.b.Ints(args.pad)}},
          {"dilations", {t.b.Ints(args.dilations)}},
          {"groups", {t.b.Int(args.groups)}}};
}

TEST(Conv, PointwiseIsAMatrixProductPerColumn) {
  OneOp t;
  const ValueId x = t.F16({1, 2, 1, 3}, {1, 2, 3, 4, 5, 6}), weight = t.Const16({2, 2, 1, 1}, {1, 2, 0, -1});
  ExpectFloats(t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{1, 1}, {0, 0, 0, 0}, {1, 1}})), {1, 2, 1, 3},
               {9, 12, 15, -4, -5, -6});
}

TEST(Conv, GroupsSeeTheirOwnChannels) {
  OneOp t;
  // Two groups of two channels in, one out each, and a bias.
  const ValueId x = t.F16({1, 4, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), weight = t.Const16({2, 2, 1, 1}, {1, 10, 2, -1});
  auto operands = ConvOperands(t, x, weight, {{1, 1}, {0, 0, 0, 0}, {1, 1}, "valid", 2});
  operands.push_back({"bias", {t.Const16({2}, {100, 0.5f})}});
  ExpectFloats(t.Run(OpKind::kConv, operands), {1, 2, 1, 2}, {131, 142, 3.5f, 4.5f});
}

TEST(Conv, OneAxisWithStrideDilationAndPad) {
  OneOp t;
  // Padded: 0 1 2 3 4 5 0 0; taps 0 and 2 of the kernel (1, 10), every second place: 0+20, 2+40, 4+0.
  const ValueId x = t.F16({1, 1, 5}, {1, 2, 3, 4, 5}), weight = t.Const16({1, 1, 2}, {1, 10});
  ExpectFloats(t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{2}, {1, 2}, {2}, "custom"})), {1, 1, 3}, {20, 42, 4});
}

TEST(Conv, SamePutsTheOddElementAtTheEndAndSameLowerAtTheBeginning) {
  for (const bool lower : {false, true}) {
    OneOp t;
    const ValueId x = t.F16({1, 1, 3}, {1, 2, 3}), weight = t.Const16({1, 1, 2}, {1, 10});
    const auto results =
        t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{1}, {0, 0}, {1}, lower ? "same_lower" : "same"}));
    ExpectFloats(results, {1, 1, 3}, lower ? std::vector<float>{10, 21, 32} : std::vector<float>{21, 32, 3});
  }
}

TEST(Conv, TwoAndThreeAxes) {
  OneOp t;
  const ValueId x = t.F16({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), weight = t.Const16({1, 1, 2, 2}, {1, 2, 3, 4});
  ExpectFloats(t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{1, 1}, {0, 0, 0, 0}, {1, 1}})), {1, 1, 1, 2},
               {37, 47});
  OneOp u;
  const ValueId y = u.F16({1, 1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const ValueId cube = u.Const16({1, 1, 2, 2, 2}, {1, 0, 0, 0, 0, 0, 0, 10});
  ExpectFloats(u.Run(OpKind::kConv, ConvOperands(u, y, cube, {{1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}})),
               {1, 1, 1, 1, 1}, {81});
}

TEST(Conv, HalfModeSumsInF32AndRoundsOnce) {
  OneOp t;
  // 2048 + 1 + 1: rounded after every term it would stay 2048. 65504 * 2 overflows.
  const ValueId x = t.F16({1, 3, 1, 2}, {2048, 65504, 1, 65504, 1, 0}), weight = t.Const16({1, 3, 1, 1}, {1, 1, 1});
  const float inf = std::numeric_limits<float>::infinity();
  ExpectFloats(t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{1, 1}, {0, 0, 0, 0}, {1, 1}})), {1, 1, 1, 2},
               {2050, 131008}, {2050, inf});
}

TEST(Conv, RefusesWhatDoesNotFit) {
  const auto error = [](std::vector<size_t> x, std::vector<size_t> w, const ConvArgs& args) {
    OneOp t;
    const ValueId xv = t.F16(x, std::vector<float>(ValueType{ElemType::kF16, x}.elems()));
    const ValueId wv = t.Const16(w, std::vector<float>(ValueType{ElemType::kF16, w}.elems()));
    return t.Error(OpKind::kConv, ConvOperands(t, xv, wv, args));
  };
  const std::string at = "graph: function 'main', op 0 (conv), parameter ";
  EXPECT_EQ(error({1, 2}, {1, 2}, {{1}, {0, 0}, {1}}), at + "'x': rank 2, wanted 3 to 5");
  EXPECT_EQ(error({1, 2, 3}, {1, 2}, {{1}, {0, 0}, {1}}), at + "'weight': rank 2, wanted 3 as x has");
  EXPECT_EQ(error({1, 2, 3}, {1, 3, 1}, {{1}, {0, 0}, {1}}), at + "'weight': 3 input channels in 1 groups, x has 2");
  EXPECT_EQ(error({1, 2, 3}, {1, 1, 1}, {{1}, {0, 0}, {1}, "valid", 2}),
            at + "'groups': 2, wanted a divisor of 2 input and 1 output channels");
  EXPECT_EQ(error({1, 2, 3}, {1, 2, 1}, {{0}, {0, 0}, {1}}), at + "'strides': value 0, wanted 1 or more");
  EXPECT_EQ(error({1, 2, 3}, {1, 2, 1}, {{1, 1}, {0, 0}, {1}}), at + "'strides': has 2 values, wanted 1");
  EXPECT_EQ(error({1, 2, 3}, {1, 2, 3}, {{1}, {0, 0}, {2}}),
            at + "'weight': kernel spans 5 elements, padded input has 3");
  EXPECT_EQ(error({1, 2, 3}, {1, 2, 1}, {{1}, {0, 0}, {1}, "full"}),
            at + "'pad_type': 'full', wanted valid, custom, same or same_lower");
  EXPECT_EQ(error({1, 2, 3}, {1, 2, 1}, {{1}, {0, -1}, {1}, "custom"}),
            at + "'pad': values 0 and -1, wanted 0 or more");
}

TEST(Conv, TakesAConstantWeightOfTheOtherFloatTypeButNoRunTimeOne) {
  OneOp t;
  const ValueId x = t.F16({1, 1, 1}, {3});
  const ValueId weight = t.Const({ElemType::kF32, {1, 1, 1}}, RawBytes(std::vector<float>{2}));
  ExpectFloats(t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{1}, {0, 0}, {1}})), {1, 1, 1}, {6});
  OneOp f;
  const ValueId y = f.F16({1, 1, 1}, {3}), w = f.F32({1, 1, 1}, {2});
  EXPECT_EQ(f.Error(OpKind::kConv, ConvOperands(f, y, w, {{1}, {0, 0}, {1}})),
            "graph: function 'main', op 0 (conv), parameter 'weight': wanted fp16 as x has, got fp32[1, 1, 1]");
}

TEST(Conv, TakesARunTimeWeightWithoutHolesOnly) {
  OneOp t;
  const ValueId x = t.F16({1, 1, 3}, {1, 2, 3}), weight = t.F16({1, 1, 2}, {1, 10});
  ExpectFloats(t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{1}, {0, 0}, {1}})), {1, 1, 2}, {21, 32});
  OneOp f;
  const ValueId y = f.F16({1, 1, 3}, {1, 2, 3}), w = f.F16({1, 1, 2}, {1, 10});
  EXPECT_EQ(f.Error(OpKind::kConv, ConvOperands(f, y, w, {{1}, {0, 0}, {2}})),
            "graph: function 'main', op 0 (conv), parameter 'weight': is a run-time value, wanted a constant where "
            "dilations are not 1");
}

TEST(Linear, MultipliesByTheTransposedWeight) {
  OneOp t;
  const ValueId x = t.F16({2, 2}, {1, 2, 3, 4}), weight = t.Const16({3, 2}, {1, 0, 0, 1, 1, 1});
  ExpectFloats(t.Run(OpKind::kLinear, {{"x", {x}}, {"weight", {weight}}, {"bias", {t.Const16({3}, {0, 10, -1})}}}),
               {2, 3}, {1, 12, 2, 3, 14, 6});
}

TEST(SumsOfProducts, AccumulateInF32UnderHalfAndInDoubleOtherwise) {
  // 2^24 + 1 - 2^24: f32 loses the one.
  const std::vector<float> a{4096, 1, 4096}, b{4096, 1, -4096};
  {
    OneOp t;
    const ValueId x = t.F16({1, 3}, a), weight = t.Const16({1, 3}, b);
    ExpectFloats(t.Run(OpKind::kLinear, {{"x", {x}}, {"weight", {weight}}}), {1, 1}, {1}, {0});
  }
  {
    OneOp t;
    const ValueId x = t.F16({1, 3, 1}, a), weight = t.Const16({1, 3, 1}, b);
    ExpectFloats(t.Run(OpKind::kConv, ConvOperands(t, x, weight, {{1}, {0, 0}, {1}})), {1, 1, 1}, {1}, {0});
  }
}

TEST(Linear, RefusesAnActivationAsWeight) {
  OneOp t;
  const ValueId x = t.F16({2, 2}, {1, 2, 3, 4});
  EXPECT_EQ(
      t.Error(OpKind::kLinear, {{"x", {x}}, {"weight", {x}}}),
      "graph: function 'main', op 0 (linear), parameter 'weight': must be a constant or decoded from one, got the "
      "run-time value 'in_1'");
}

Operands MatMulOperands(OneOp& t, ValueId x, ValueId y, bool tx, bool ty) {
  return {{"x", {x}}, {"y", {y}}, {"transpose_x", {t.b.Bool(tx)}}, {"transpose_y", {t.b.Bool(ty)}}};
}

TEST(MatMul, AllFourTranspositionsAgree) {
  // [1 2 3; 4 5 6] times [1 0; 0 1; 1 1] = [4 5; 10 11].
  const std::vector<float> x{1, 2, 3, 4, 5, 6}, xt{1, 4, 2, 5, 3, 6}, y{1, 0, 0, 1, 1, 1}, yt{1, 0, 1, 0, 1, 1};
  for (const bool tx : {false, true}) {
    for (const bool ty : {false, true}) {
      OneOp t;
      const ValueId a = tx ? t.F16({3, 2}, xt) : t.F16({2, 3}, x), b = ty ? t.F16({2, 3}, yt) : t.F16({3, 2}, y);
      ExpectFloats(t.Run(OpKind::kMatMul, MatMulOperands(t, a, b, tx, ty)), {2, 2}, {4, 5, 10, 11});
    }
  }
}

TEST(MatMul, BroadcastsLeadingAxes) {
  OneOp t;
  const ValueId x = t.F16({2, 1, 1, 2}, {1, 2, 3, 4}), y = t.F16({3, 2, 1}, {1, 1, 10, 1, 0, 5});
  ExpectFloats(t.Run(OpKind::kMatMul, MatMulOperands(t, x, y, false, false)), {2, 3, 1, 1}, {3, 12, 10, 7, 34, 20});
}

TEST(MatMul, VectorsLoseTheirAxis) {
  {
    OneOp t;
    const ValueId x = t.F16({2}, {1, 2}), y = t.F16({2, 3}, {1, 2, 3, 4, 5, 6});
    ExpectFloats(t.Run(OpKind::kMatMul, MatMulOperands(t, x, y, false, false)), {3}, {9, 12, 15});
  }
  {
    OneOp t;
    const ValueId x = t.F16({2, 3}, {1, 2, 3, 4, 5, 6}), y = t.F16({3}, {1, 0, -1});
    ExpectFloats(t.Run(OpKind::kMatMul, MatMulOperands(t, x, y, false, false)), {2}, {-2, -2});
  }
  {
    OneOp t;
    const ValueId x = t.F16({2}, {3, 4}), y = t.F16({2}, {3, 4});
    ExpectFloats(t.Run(OpKind::kMatMul, MatMulOperands(t, x, y, false, false)), {}, {25});
  }
}

TEST(MatMul, OfWholeNumbers) {
  OneOp t;
  const ValueId x = t.I32({1, 2}, {3, -4}), y = t.I32({2, 1}, {5, 6});
  ExpectInts(t.Run(OpKind::kMatMul, MatMulOperands(t, x, y, false, false)), {1, 1}, {-9});
}

TEST(MatMul, RefusesWhatDoesNotFit) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(t.Error(OpKind::kMatMul, MatMulOperands(t, x, x, false, false)),
            "graph: function 'main', op 0 (matmul), parameter 'y': 2 rows, wanted 3 as x has columns (fp16[2, 3] times "
            "fp16[2, 3])");
  OneOp v;
  const ValueId y = v.F16({2}, {1, 2});
  EXPECT_EQ(v.Error(OpKind::kMatMul, MatMulOperands(v, y, y, true, false)),
            "graph: function 'main', op 0 (matmul), parameter 'transpose_x': is true for an x of rank 1");
}

TEST(Einsum, BothForms) {
  OneOp t;
  // chw,whr->chr: for every h, [c, w] times [w, r].
  const ValueId x = t.F16({1, 2, 2}, {1, 2, 3, 4}), y = t.F16({2, 2, 1}, {1, 10, 100, 1000});
  ExpectFloats(t.Run(OpKind::kEinsum, {{"values", {x, y}}, {"equation", {t.b.String("chw,whr->chr")}}}), {1, 2, 1},
               {201, 4030});
  OneOp u;
  // nchw,nwhu->nchu with other letters.
  const ValueId p = u.F16({1, 2, 1, 2}, {1, 2, 3, 4}), q = u.F16({1, 2, 1, 1}, {1, 10});
  ExpectFloats(u.Run(OpKind::kEinsum, {{"values", {p, q}}, {"equation", {u.b.String("abcd, adce -> abce")}}}),
               {1, 2, 1, 1}, {21, 43});
  OneOp bad;
  const ValueId z = bad.F16({1, 1}, {1});
  EXPECT_EQ(bad.Error(OpKind::kEinsum, {{"values", {z, z}}, {"equation", {bad.b.String("ij,jk->ik")}}}),
            "graph: function 'main', op 0 (einsum), parameter 'equation': 'ij,jk->ik', wanted the form nchw,nwhu->nchu "
            "or chw,whr->chr");
}

TEST(Attention, WeightsValuesBySoftmaxOfScaledScores) {
  OneOp t;
  // One head, width 1: scores are q * k; ln 3 makes the weights 1/4 and 3/4.
  const ValueId q = t.F32({1, 1, 1}, {1}), k = t.F32({1, 2, 1}, {0, std::log(3.0f)}),
                v = t.F32({1, 2, 2}, {0, 4, 8, 4});
  const auto results = t.Run(OpKind::kScaledDotProductAttention, {{"query", {q}}, {"key", {k}}, {"value", {v}}});
  ASSERT_EQ(results.f32.size(), 1u);
  EXPECT_EQ(results.f32[0].type.dims, (std::vector<size_t>{1, 1, 2}));
  EXPECT_NEAR(results.f32[0].floats[0], 6, 1e-6);
  EXPECT_NEAR(results.f32[0].floats[1], 4, 1e-6);
}

TEST(Attention, MasksByBoolAndByNumber) {
  for (const bool additive : {false, true}) {
    OneOp t;
    // Two heads, two rows, two keys; row 0 sees key 0 alone.
    const ValueId q = t.F16({2, 2, 1}, {0, 0, 0, 0}), k = t.F16({2, 2, 1}, {1, 2, 3, 4}),
                  v = t.F16({2, 2, 1}, {2, 4, 10, 20});
    const ValueId mask = additive ? t.F16({2, 2}, {0, -30000, 0, 0}) : t.Bools({2, 2}, {1, 0, 1, 1});
    ExpectFloats(t.Run(OpKind::kScaledDotProductAttention,
                       {{"query", {q}}, {"key", {k}}, {"value", {v}}, {"attn_mask", {mask}}}),
                 {2, 2, 1}, {2, 3, 10, 15});
  }
}

TEST(Attention, ScalesByTheRootOfTheWidth) {
  OneOp t;
  // Width 4: q . k = 4 ln 3, halved to 2 ln 3 = ln 9.
  const float l = std::log(3.0f);
  const ValueId q = t.F32({1, 1, 4}, {1, 1, 1, 1}), k = t.F32({1, 2, 4}, {0, 0, 0, 0, l, l, l, l});
  const ValueId v = t.F32({1, 2, 1}, {0, 10});
  const auto results = t.Run(OpKind::kScaledDotProductAttention, {{"query", {q}}, {"key", {k}}, {"value", {v}}});
  ASSERT_EQ(results.f32.size(), 1u);
  EXPECT_NEAR(results.f32[0].floats[0], 9, 1e-5);
}

TEST(Attention, RefusesGroupedHeadsAndMisfitMasks) {
  OneOp t;
  const ValueId q = t.F16({2, 1, 1}, {1, 1}), k = t.F16({1, 1, 1}, {1});
  EXPECT_EQ(t.Error(OpKind::kScaledDotProductAttention, {{"query", {q}}, {"key", {k}}, {"value", {k}}}),
            "graph: function 'main', op 0 (scaled_dot_product_attention), parameter 'key': wanted fp16[2, 1, 1], got "
            "fp16[1, 1, 1]");
  OneOp m;
  const ValueId a = m.F16({1, 1, 1}, {1}), mask = m.F16({1, 3}, {0, 0, 0});
  EXPECT_EQ(m.Error(OpKind::kScaledDotProductAttention,
                    {{"query", {a}}, {"key", {a}}, {"value", {a}}, {"attn_mask", {mask}}}),
            "graph: function 'main', op 0 (scaled_dot_product_attention), parameter 'attn_mask': fp16[1, 3] does not "
            "broadcast to the scores [1, 1, 1]");
}

}  // namespace
}  // namespace npumoe
