// SPDX-License-Identifier: Apache-2.0
// Elementwise ops against values worked out by hand, in both modes.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/op_test.h"

namespace npumoe {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Binary, BroadcastsLikeNumpy) {
  OneOp t;
  const ValueId x = t.F16({2, 1, 3}, {1, 2, 3, 4, 5, 6}), y = t.F16({2, 1}, {10, 20});
  ExpectFloats(t.Run(OpKind::kAdd, {{"x", {x}}, {"y", {y}}}), {2, 2, 3},
               {11, 12, 13, 21, 22, 23, 14, 15, 16, 24, 25, 26});
}

TEST(Binary, AScalarMeetsATensor) {
  OneOp t;
  const ValueId x = t.F16({3}, {1, -2, 3});
  ExpectFloats(t.Run(OpKind::kMul, {{"x", {x}}, {"y", {t.b.Scalar(-2.0f)}}}), {3}, {-2, 4, -6});
}

TEST(Binary, EveryOpOnFloats) {
  const struct {
    OpKind kind;
    std::vector<float> wanted;
  } cases[] = {{OpKind::kMul, {6, -8}},    {OpKind::kAdd, {5, 2}},
               {OpKind::kSub, {1, -6}},    {OpKind::kRealDiv, {1.5f, -0.5f}},
               {OpKind::kMaximum, {3, 4}}, {OpKind::kMinimum, {2, -2}},
               {OpKind::kPow, {9, 16}}};
  for (const auto& c : cases) {
    OneOp t;
    const ValueId x = t.F16({2}, {3, -2}), y = t.F16({2}, {2, 4});
    ExpectFloats(t.Run(c.kind, {{"x", {x}}, {"y", {y}}}), {2}, c.wanted);
  }
}

TEST(Binary, EveryOpOnWholeNumbers) {
  const struct {
    OpKind kind;
    std::vector<int64_t> wanted;
  } cases[] = {{OpKind::kMul, {-14, 0}},    {OpKind::kAdd, {-5, 3}},     {OpKind::kSub, {-9, 3}},
               {OpKind::kRealDiv, {-3, 0}},  // towards zero; 0 for a divisor of 0
               {OpKind::kMaximum, {2, 3}},  {OpKind::kMinimum, {-7, 0}}, {OpKind::kPow, {49, 1}}};
  for (const auto& c : cases) {
    OneOp t;
    const ValueId x = t.I32({2}, {-7, 3}), y = t.I32({2}, {2, 0});
    ExpectInts(t.Run(c.kind, {{"x", {x}}, {"y", {y}}}), {2}, c.wanted);
  }
}

TEST(Binary, WholeNumbersWrapAt32Bits) {
  OneOp t;
  const ValueId x = t.I32({2}, {2147483647, 65536}), y = t.I32({2}, {2, 65536});
  ExpectInts(t.Run(OpKind::kMul, {{"x", {x}}, {"y", {y}}}), {2}, {-2, 0});
}

TEST(Binary, HalfRoundsTiesToEvenAndOverflowsToInfinity) {
  OneOp t;
  // Spacing of fp16 is 2 above 2048: 2049 and 2051 lie halfway. 65519 rounds down to the largest number, 65520 is the
  // tie that goes to infinity.
  const ValueId x = t.F16({5}, {2048, 2050, 65504, 65504, -65504}), y = t.F16({5}, {1, 1, 15, 16, -16});
  ExpectFloats(t.Run(OpKind::kAdd, {{"x", {x}}, {"y", {y}}}), {5}, {2049, 2051, 65519, 65520, -65520},
               {2048, 2052, 65504, kInf, -kInf});
}

TEST(Binary, HalfUnderflowsThroughSubnormalsToZero) {
  OneOp t;
  const float tiny = 0x1p-24f;  // the smallest fp16
  const ValueId x = t.F16({3}, {tiny, 3 * tiny, tiny});
  ExpectFloats(t.Run(OpKind::kMul, {{"x", {x}}, {"y", {t.b.Scalar(0.5f)}}}), {3}, {0x1p-25f, 0x1.8p-24f, 0x1p-25f},
               {0, 2 * tiny, 0});  // ties to even: 0.5 -> 0, 1.5 -> 2
}

TEST(Binary, F32IsNotRoundedToHalf) {
  OneOp t;
  const ValueId x = t.F32({1}, {2048}), y = t.F32({1}, {1});
  ExpectFloats(t.Run(OpKind::kAdd, {{"x", {x}}, {"y", {y}}}), {1}, {2049});
}

TEST(Binary, RefusesMixedTypesAndShapes) {
  {
    OneOp t;
    const ValueId x = t.F16({2}, {1, 2}), y = t.F32({2}, {1, 2});
    EXPECT_EQ(t.Error(OpKind::kMul, {{"x", {x}}, {"y", {y}}}),
              "graph: function 'main', op 0 (mul), parameter 'y': wanted fp16 as 'x' has, got fp32[2]");
  }
  {
    OneOp t;
    const ValueId x = t.F16({2}, {1, 2}), y = t.F16({3}, {1, 2, 3});
    EXPECT_EQ(t.Error(OpKind::kMul, {{"x", {x}}, {"y", {y}}}),
              "graph: function 'main', op 0 (mul), parameter 'y': fp16[3] does not broadcast with fp16[2]");
  }
  {
    OneOp t;
    const ValueId x = t.Bools({2}, {1, 0});
    EXPECT_EQ(t.Error(OpKind::kAdd, {{"x", {x}}, {"y", {x}}}),
              "graph: function 'main', op 0 (add), parameter 'x': wanted fp16, fp32 or int32, got bool[2]");
  }
  {
    OneOp t;
    const ValueId x = t.F16({2}, {1, 2});
    EXPECT_EQ(t.Error(OpKind::kAdd, {{"x", {x}}}), "graph: function 'main', op 0 (add), parameter 'y': is missing");
  }
  {
    OneOp t;
    const ValueId x = t.F16({2}, {1, 2});
    EXPECT_EQ(t.Error(OpKind::kAdd, {{"x", {x}}, {"y", {x}}, {"z", {x}}}),
              "graph: function 'main', op 0 (add), parameter 'z': is not a parameter of this op, or not of this form "
              "of it");
  }
}

TEST(Unary, EveryOp) {
  // Decimals by hand (sigmoid(1) = 1 / (1 + 1/e)), to f32 precision.
  const struct {
    OpKind kind;
    std::vector<float> wanted;  // of 0, 1, -2 (sqrt: of 0, 1, 4)
  } cases[] = {{OpKind::kSilu, {0, 0.7310585786f, -0.2384058440f}},
               {OpKind::kSigmoid, {0.5f, 0.7310585786f, 0.1192029220f}},
               {OpKind::kRelu, {0, 1, 0}},
               {OpKind::kTanh, {0, 0.7615941560f, -0.9640275801f}},
               {OpKind::kExp, {1, 2.7182818285f, 0.1353352832f}},
               {OpKind::kSin, {0, 0.8414709848f, -0.9092974268f}},
               {OpKind::kCos, {1, 0.5403023059f, -0.4161468365f}},
               {OpKind::kSqrt, {0, 1, 2}},
               {OpKind::kSquare, {0, 1, 4}}};
  for (const auto& c : cases) {
    OneOp t;
    const float last = c.kind == OpKind::kSqrt ? 4.0f : -2.0f;
    const auto results = t.Run(c.kind, {{"x", {t.F16({3}, {0, 1, last})}}});
    std::vector<float> rounded;
    for (const float v : c.wanted) rounded.push_back(F16ToF32(F32ToF16(v)));
    SCOPED_TRACE(MilName(c.kind));
    ExpectFloats(results, {3}, c.wanted, rounded);
  }
}

TEST(Unary, ExpOverflowsToInfinityInHalfOnly) {
  OneOp t;
  const auto results = t.Run(OpKind::kExp, {{"x", {t.F16({2}, {12, 11})}}});
  ASSERT_EQ(results.f32.size(), 1u);
  EXPECT_FLOAT_EQ(results.f32[0].floats[0], 162754.79f);
  EXPECT_EQ(results.f16[0].floats, (std::vector<float>{kInf, 59872}));  // e^11 = 59874.14, spacing 32
}

TEST(Unary, RefusesWholeNumbers) {
  OneOp t;
  EXPECT_EQ(t.Error(OpKind::kSilu, {{"x", {t.I32({1}, {1})}}}),
            "graph: function 'main', op 0 (silu), parameter 'x': wanted fp16 or fp32, got int32[1]");
}

TEST(Square, OfWholeNumbersWraps) {
  OneOp t;
  ExpectInts(t.Run(OpKind::kSquare, {{"x", {t.I32({2}, {-3, 65537})}}}), {2}, {9, 131073});
}

TEST(Rsqrt, AddsEpsilonFirst) {
  OneOp t;
  const ValueId x = t.F16({2}, {0, 3.75f});
  ExpectFloats(t.Run(OpKind::kRsqrt, {{"x", {x}}, {"epsilon", {t.b.Scalar(0.25f)}}}), {2}, {2, 0.5f});
}

TEST(Gelu, ThreeModes) {
  const struct {
    const char* mode;
    float wanted;  // of 1
  } cases[] = {
      {"EXACT", 0.8413447461f}, {"TANH_APPROXIMATION", 0.8411919906f}, {"SIGMOID_APPROXIMATION", 0.8457957660f}};
  for (const auto& c : cases) {
    OneOp t;
    const auto results = t.Run(OpKind::kGelu, {{"x", {t.F16({2}, {1, 0})}}, {"mode", {t.b.String(c.mode)}}});
    ASSERT_EQ(results.f32.size(), 1u);
    EXPECT_FLOAT_EQ(results.f32[0].floats[0], c.wanted) << c.mode;
    EXPECT_EQ(results.f32[0].floats[1], 0.0f);
    EXPECT_EQ(results.f16[0].floats[0], F16ToF32(F32ToF16(c.wanted)));
  }
  OneOp t;
  EXPECT_EQ(t.Error(OpKind::kGelu, {{"x", {t.F16({1}, {1})}}, {"mode", {t.b.String("FAST")}}}),
            "graph: function 'main', op 0 (gelu), parameter 'mode': 'FAST', wanted EXACT, TANH_APPROXIMATION or "
            "SIGMOID_APPROXIMATION");
}

TEST(Compare, GivesBools) {
  const struct {
    OpKind kind;
    std::vector<int64_t> wanted;
  } cases[] = {{OpKind::kLess, {1, 0, 0}},         {OpKind::kLessEqual, {1, 1, 0}}, {OpKind::kGreater, {0, 0, 1}},
               {OpKind::kGreaterEqual, {0, 1, 1}}, {OpKind::kEqual, {0, 1, 0}},     {OpKind::kNotEqual, {1, 0, 1}}};
  for (const auto& c : cases) {
    OneOp t;
    const ValueId x = t.F16({3}, {1, 2, 3}), y = t.F16({1}, {2});
    SCOPED_TRACE(MilName(c.kind));
    ExpectInts(t.Run(c.kind, {{"x", {x}}, {"y", {y}}}), {3}, c.wanted);
  }
}

TEST(Logical, EveryOp) {
  const struct {
    OpKind kind;
    std::vector<int64_t> wanted;
  } cases[] = {
      {OpKind::kLogicalAnd, {0, 0, 0, 1}}, {OpKind::kLogicalOr, {0, 1, 1, 1}}, {OpKind::kLogicalXor, {0, 1, 1, 0}}};
  for (const auto& c : cases) {
    OneOp t;
    const ValueId x = t.Bools({4}, {0, 0, 1, 1}), y = t.Bools({4}, {0, 1, 0, 1});
    SCOPED_TRACE(MilName(c.kind));
    ExpectInts(t.Run(c.kind, {{"x", {x}}, {"y", {y}}}), {4}, c.wanted);
  }
  OneOp t;
  ExpectInts(t.Run(OpKind::kLogicalNot, {{"x", {t.Bools({2}, {0, 1})}}}), {2}, {1, 0});
  OneOp f;
  EXPECT_EQ(f.Error(OpKind::kLogicalNot, {{"x", {f.F16({1}, {1})}}}),
            "graph: function 'main', op 0 (logical_not), parameter 'x': wanted bool, got fp16[1]");
}

TEST(Select, BroadcastsAllThree) {
  OneOp t;
  const ValueId cond = t.Bools({2, 1}, {1, 0}), a = t.F16({2}, {1, 2}), b = t.b.Scalar(9);
  ExpectFloats(t.Run(OpKind::kSelect, {{"cond", {cond}}, {"a", {a}}, {"b", {b}}}), {2, 2}, {1, 2, 9, 9});
}

TEST(Clip, HoldsBothEnds) {
  OneOp t;
  const ValueId x = t.F16({3}, {-5, 0.5f, 7});
  ExpectFloats(t.Run(OpKind::kClip, {{"x", {x}}, {"alpha", {t.b.Scalar(-1)}}, {"beta", {t.b.Scalar(6)}}}), {3},
               {-1, 0.5f, 6});
  OneOp f;
  const ValueId y = f.F16({1}, {1});
  EXPECT_EQ(f.Error(OpKind::kClip, {{"x", {y}}, {"alpha", {f.b.Scalar(0, ElemType::kF32)}}, {"beta", {f.b.Scalar(1)}}}),
            "graph: function 'main', op 0 (clip), parameter 'alpha': wanted fp16, got fp32");
}

TEST(Cast, BetweenFloatsRoundsInHalfModeOnly) {
  OneOp t;
  const ValueId x = t.F32({2}, {2049, 1e6f});
  const auto results = t.Run(OpKind::kCast, {{"x", {x}}, {"dtype", {t.b.String("fp16")}}});
  ExpectFloats(results, {2}, {2049, 1e6f}, {2048, kInf});
  EXPECT_EQ(results.f32[0].type.elem, ElemType::kF16);
}

TEST(Cast, ToWholeNumbersDropsTheFractionAndHoldsTheRange) {
  const struct {
    const char* dtype;
    std::vector<int64_t> wanted;  // of -1.9, 1.9, 300, NaN
  } cases[] = {{"int32", {-1, 1, 300, 0}}, {"int8", {-1, 1, 127, 0}},  {"uint8", {0, 1, 255, 0}},
               {"int16", {-1, 1, 300, 0}}, {"uint16", {0, 1, 300, 0}}, {"bool", {1, 1, 1, 0}}};
  for (const auto& c : cases) {
    OneOp t;
    const ValueId x = t.F32({4}, {-1.9f, 1.9f, 300, std::nanf("")});
    SCOPED_TRACE(c.dtype);
    ExpectInts(t.Run(OpKind::kCast, {{"x", {x}}, {"dtype", {t.b.String(c.dtype)}}}), {4}, c.wanted);
  }
}

TEST(Cast, BetweenWholeNumbersKeepsTheLowBits) {
  OneOp t;
  ExpectInts(t.Run(OpKind::kCast, {{"x", {t.I32({3}, {255, -1, 256})}}, {"dtype", {t.b.String("int8")}}}), {3},
             {-1, -1, 0});
  OneOp f;
  ExpectFloats(f.Run(OpKind::kCast, {{"x", {f.I32({2}, {-3, 2049})}}, {"dtype", {f.b.String("fp16")}}}), {2},
               {-3, 2049}, {-3, 2048});
  OneOp bad;
  EXPECT_EQ(bad.Error(OpKind::kCast, {{"x", {bad.I32({1}, {1})}}, {"dtype", {bad.b.String("fp64")}}}),
            "graph: function 'main', op 0 (cast), parameter 'dtype': type 'fp64' is not known");
}

TEST(Identity, Copies) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kIdentity, {{"x", {t.F16({2}, {1, -0.5f})}}}), {2}, {1, -0.5f});
}

TEST(Quantize, RoundsHalvesToEvenAndHoldsTheRange) {
  OneOp t;
  const ValueId x = t.F16({6}, {0.25f, 0.75f, 1.25f, -0.75f, 100, -100});
  const auto results =
      t.Run(OpKind::kQuantize, {{"input", {x}}, {"scale", {t.b.Scalar(0.5f)}}, {"output_dtype", {t.b.String("int8")}}});
  ExpectInts(results, {6}, {0, 2, 2, -2, 127, -128});  // 0.5 -> 0, 1.5 -> 2, 2.5 -> 2, -1.5 -> -2
}

TEST(Quantize, PerChannelWithZeroPointAndBack) {
  OneOp t;
  const ValueId x = t.F16({2, 2}, {1, 2, 1, 2}), scale = t.Const16({2}, {1, 0.5f});
  const ValueId zero = t.Const({ElemType::kU8, {2}}, {std::byte{10}, std::byte{20}});
  ExpectInts(t.Run(OpKind::kQuantize, {{"input", {x}},
                                       {"scale", {scale}},
                                       {"zero_point", {zero}},
                                       {"axis", {t.b.Int(-1)}},
                                       {"output_dtype", {t.b.String("uint8")}}}),
             {2, 2}, {11, 24, 11, 24});
  OneOp d;
  const ValueId q = d.Ints(ElemType::kU8, {2, 2}, {11, 24, 9, 16}), back = d.Const16({2}, {1, 0.5f});
  const ValueId point = d.Const({ElemType::kU8, {2}}, {std::byte{10}, std::byte{20}});
  ExpectFloats(
      d.Run(OpKind::kDequantize, {{"input", {q}}, {"scale", {back}}, {"zero_point", {point}}, {"axis", {d.b.Int(1)}}}),
      {2, 2}, {1, 2, -1, -2});
}

TEST(Quantize, RefusesAScaleOfTheWrongLength) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, {1, 2, 3, 4, 5, 6}), scale = t.Const16({2}, {1, 1});
  EXPECT_EQ(
      t.Error(OpKind::kQuantize,
              {{"input", {x}}, {"scale", {scale}}, {"axis", {t.b.Int(1)}}, {"output_dtype", {t.b.String("int8")}}}),
      "graph: function 'main', op 0 (quantize), parameter 'scale': has 2 values, axis 1 has 3");
}

}  // namespace
}  // namespace npumoe
