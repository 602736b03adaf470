// SPDX-License-Identifier: Apache-2.0
// Ops that move elements, against values worked out by hand.
#include <gtest/gtest.h>

#include "graph/op_test.h"

namespace npumoe {
namespace {

const std::vector<float> kSixValues{1, 2, 3, 4, 5, 6};

TEST(Reshape, FillsInTheOneUnknownSize) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kReshape, {{"x", {t.F16({2, 3}, kSixValues)}}, {"shape", {t.Vec({3, -1, 1})}}}), {3, 2, 1},
               kSixValues);
  OneOp z;
  ExpectFloats(z.Run(OpKind::kReshape, {{"x", {z.F16({2, 3}, kSixValues)}}, {"shape", {z.Vec({0, 1, 3})}}}), {2, 1, 3}, kSixValues);
}

TEST(Reshape, RefusesWhatDoesNotHoldAllElements) {
  const std::string at = "graph: function 'main', op 0 (reshape), parameter 'shape': ";
  const auto error = [](std::initializer_list<int32_t> shape) {
    OneOp t;
    return t.Error(OpKind::kReshape, {{"x", {t.F16({2, 3}, kSixValues)}}, {"shape", {t.Vec(shape)}}});
  };
  EXPECT_EQ(error({4, -1}), at + "[4, -1] does not hold the 6 elements of x fp16[2, 3]");
  EXPECT_EQ(error({5}), at + "[5] does not hold the 6 elements of x fp16[2, 3]");
  EXPECT_EQ(error({-1, -1}), at + "[-1, -1] at 1, wanted sizes above 0 and at most one -1");
  EXPECT_EQ(error({6, -2}), at + "[6, -2] at 1, wanted sizes above 0 and at most one -1");
  EXPECT_EQ(error({2147483647, 2147483647, 2147483647}), at + "[2147483647, 2147483647, 2147483647] is too large");
  EXPECT_EQ(error({1, 1, 1, 1, 2, 3}),
            "graph: function 'main', op 0 (reshape): result: rank 6 of fp16[1, 1, 1, 1, 2, 3], at most 5");
}

TEST(Transpose, MovesAxes) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kTranspose, {{"x", {t.F16({1, 2, 3}, kSixValues)}}, {"perm", {t.Vec({2, 0, -2})}}}), {3, 1, 2},
               {1, 4, 2, 5, 3, 6});
  OneOp s;
  EXPECT_EQ(s.Error(OpKind::kTranspose, {{"x", {s.F16({2, 3}, kSixValues)}}, {"perm", {s.Vec({0})}}}),
            "graph: function 'main', op 0 (transpose), parameter 'perm': has 1 axes, wanted 2");
}

TEST(ExpandDims, CountsAxesInTheResultAndSqueezeTakesThemAway) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kExpandDims, {{"x", {t.F16({2, 3}, kSixValues)}}, {"axes", {t.Vec({0, -1})}}}), {1, 2, 3, 1},
               kSixValues);
  OneOp s;
  ExpectFloats(s.Run(OpKind::kSqueeze, {{"x", {s.F16({1, 6, 1}, kSixValues)}}, {"axes", {s.Vec({-1})}}}), {1, 6}, kSixValues);
  OneOp all;
  ExpectFloats(all.Run(OpKind::kSqueeze, {{"x", {all.F16({1, 6, 1}, kSixValues)}}}), {6}, kSixValues);
  OneOp bad;
  EXPECT_EQ(bad.Error(OpKind::kSqueeze, {{"x", {bad.F16({1, 6}, kSixValues)}}, {"axes", {bad.Vec({1})}}}),
            "graph: function 'main', op 0 (squeeze), parameter 'axes': axis 1 of fp16[1, 6] is not 1");
}

TEST(ExpandDims, RefusesMoreAxesThanAValueHas) {
  OneOp t;
  EXPECT_EQ(t.Error(OpKind::kExpandDims, {{"x", {t.F16({6}, kSixValues)}}, {"axes", {t.Vec({0, 1, 2, 3, 4, 5})}}}),
            "graph: function 'main', op 0 (expand_dims), parameter 'axes': adds 6 axes, a value has at most 5");
  OneOp s;
  EXPECT_EQ(s.Error(OpKind::kTranspose, {{"x", {s.F16({2, 3}, kSixValues)}}, {"perm", {s.Vec({0, 1, 2})}}}),
            "graph: function 'main', op 0 (transpose), parameter 'perm': names 3 axes of a value of rank 2");
}

TEST(Concat, AlongAnyAxisAndInterleaved) {
  for (const int axis : {0, -2}) {
    OneOp t;
    const ValueId x = t.F16({1, 2}, {1, 2}), y = t.F16({2, 2}, {3, 4, 5, 6});
    ExpectFloats(
        t.Run(OpKind::kConcat, {{"values", {x, y}}, {"axis", {t.b.Int(axis)}}, {"interleave", {t.b.Bool(false)}}}),
        {3, 2}, kSixValues);
  }
  {
    OneOp t;
    const ValueId x = t.F16({2, 1}, {1, 4}), y = t.F16({2, 2}, {2, 3, 5, 6});
    ExpectFloats(
        t.Run(OpKind::kConcat, {{"values", {x, y}}, {"axis", {t.b.Int(-1)}}, {"interleave", {t.b.Bool(false)}}}),
        {2, 3}, kSixValues);
  }
  OneOp t;
  const ValueId x = t.F16({3, 1}, {1, 2, 3}), y = t.F16({3, 1}, {4, 5, 6});
  ExpectFloats(t.Run(OpKind::kConcat, {{"values", {x, y}}, {"axis", {t.b.Int(0)}}, {"interleave", {t.b.Bool(true)}}}),
               {6, 1}, {1, 4, 2, 5, 3, 6});
}

TEST(Concat, RefusesMisfits) {
  OneOp t;
  const ValueId x = t.F16({1, 2}, {1, 2}), y = t.F16({2, 3}, kSixValues);
  EXPECT_EQ(t.Error(OpKind::kConcat, {{"values", {x, y}}, {"axis", {t.b.Int(0)}}, {"interleave", {t.b.Bool(false)}}}),
            "graph: function 'main', op 0 (concat), parameter 'values': fp16[2, 3] does not fit fp16[1, 2]");
  OneOp u;
  const ValueId a = u.F16({2}, {1, 2}), b = u.F32({2}, {1, 2});
  EXPECT_EQ(u.Error(OpKind::kConcat, {{"values", {a, b}}, {"axis", {u.b.Int(0)}}, {"interleave", {u.b.Bool(false)}}}),
            "graph: function 'main', op 0 (concat), parameter 'values': fp32[2] does not fit fp16[2]");
}

TEST(Stack, MakesAnAxis) {
  OneOp t;
  const ValueId x = t.F16({3}, {1, 3, 5}), y = t.F16({3}, {2, 4, 6});
  ExpectFloats(t.Run(OpKind::kStack, {{"values", {x, y}}, {"axis", {t.b.Int(-1)}}}), {3, 2}, kSixValues);
  OneOp u;
  const ValueId a = u.F16({3}, {1, 2, 3}), b = u.F16({3}, {4, 5, 6});
  ExpectFloats(u.Run(OpKind::kStack, {{"values", {a, b}}, {"axis", {u.b.Int(0)}}}), {2, 3}, kSixValues);
}

TEST(Split, EvenlyAndBySizes) {
  OneOp t;
  const auto even =
      t.Run(OpKind::kSplit, {{"x", {t.F16({2, 3}, kSixValues)}}, {"num_splits", {t.b.Int(3)}}, {"axis", {t.b.Int(-1)}}});
  ASSERT_EQ(even.f32.size(), 3u);
  EXPECT_EQ(even.f32[0].floats, (std::vector<float>{1, 4}));
  EXPECT_EQ(even.f32[2].floats, (std::vector<float>{3, 6}));
  OneOp u;
  const auto sizes =
      u.Run(OpKind::kSplit, {{"x", {u.F16({2, 3}, kSixValues)}}, {"split_sizes", {u.Vec({2, 1})}}, {"axis", {u.b.Int(1)}}});
  ASSERT_EQ(sizes.f16.size(), 2u);
  EXPECT_EQ(sizes.f16[0].floats, (std::vector<float>{1, 2, 4, 5}));
  EXPECT_EQ(sizes.f16[1].floats, (std::vector<float>{3, 6}));
}

TEST(Split, RefusesWhatDoesNotAddUp) {
  OneOp t;
  EXPECT_EQ(
      t.Error(OpKind::kSplit, {{"x", {t.F16({2, 3}, kSixValues)}}, {"num_splits", {t.b.Int(2)}}, {"axis", {t.b.Int(1)}}}),
      "graph: function 'main', op 0 (split), parameter 'num_splits': 2, wanted a divisor of 3");
  OneOp u;
  EXPECT_EQ(
      u.Error(OpKind::kSplit, {{"x", {u.F16({2, 3}, kSixValues)}}, {"split_sizes", {u.Vec({1, 1})}}, {"axis", {u.b.Int(1)}}}),
      "graph: function 'main', op 0 (split), parameter 'split_sizes': add up to 2, the axis has 3");
}

TEST(SliceByIndex, NegativeEndsStridesAndMasks) {
  {
    OneOp t;
    ExpectFloats(
        t.Run(OpKind::kSliceByIndex,
              {{"x", {t.F16({6}, kSixValues)}}, {"begin", {t.Vec({-5})}}, {"end", {t.Vec({-1})}}, {"stride", {t.Vec({2})}}}),
        {2}, {2, 4});
  }
  {
    OneOp t;  // backwards over everything
    ExpectFloats(t.Run(OpKind::kSliceByIndex, {{"x", {t.F16({6}, kSixValues)}},
                                               {"begin", {t.Vec({0})}},
                                               {"end", {t.Vec({0})}},
                                               {"stride", {t.Vec({-2})}},
                                               {"begin_mask", {t.Flags({true})}},
                                               {"end_mask", {t.Flags({true})}}}),
                 {3}, {6, 4, 2});
  }
  {
    OneOp t;  // x[1, :2] with the first axis gone
    ExpectFloats(t.Run(OpKind::kSliceByIndex, {{"x", {t.F16({2, 3}, kSixValues)}},
                                               {"begin", {t.Vec({1, 7})}},
                                               {"end", {t.Vec({0, 2})}},
                                               {"begin_mask", {t.Flags({false, true})}},
                                               {"squeeze_mask", {t.Flags({true, false})}}}),
                 {2}, {4, 5});
  }
  {
    OneOp t;  // the last step overshoots
    ExpectFloats(
        t.Run(OpKind::kSliceByIndex,
              {{"x", {t.F16({6}, kSixValues)}}, {"begin", {t.Vec({0})}}, {"end", {t.Vec({6})}}, {"stride", {t.Vec({4})}}}),
        {2}, {1, 5});
  }
  OneOp t;  // an end beyond the axis is its end
  ExpectFloats(
      t.Run(OpKind::kSliceByIndex, {{"x", {t.F16({6}, kSixValues)}}, {"begin", {t.Vec({4})}}, {"end", {t.Vec({100})}}}), {2},
      {5, 6});
}

TEST(SliceByIndex, RefusesEmptyRangesAndRunTimeOnes) {
  OneOp t;
  EXPECT_EQ(
      t.Error(OpKind::kSliceByIndex, {{"x", {t.F16({6}, kSixValues)}}, {"begin", {t.Vec({3})}}, {"end", {t.Vec({3})}}}),
      "graph: function 'main', op 0 (slice_by_index), parameter 'end': axis 0: range 3 to 3 by 1 of 6 elements is "
      "empty");
  OneOp z;
  EXPECT_EQ(
      z.Error(OpKind::kSliceByIndex,
              {{"x", {z.F16({6}, kSixValues)}}, {"begin", {z.Vec({3})}}, {"end", {z.Vec({4})}}, {"stride", {z.Vec({0})}}}),
      "graph: function 'main', op 0 (slice_by_index), parameter 'stride': is 0, wanted anything else");
  OneOp r;
  EXPECT_EQ(
      r.Error(OpKind::kSliceByIndex, {{"x", {r.F16({6}, kSixValues)}}, {"begin", {r.I32({1}, {3})}}, {"end", {r.Vec({4})}}}),
      "graph: function 'main', op 0 (slice_by_index), parameter 'begin': must be a constant, got the run-time value "
      "'in_2'");
}

TEST(SliceBySize, ConstantAndRunTimeBegin) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kSliceBySize,
                     {{"x", {t.F16({2, 3}, kSixValues)}}, {"begin", {t.Vec({1, 1})}}, {"size", {t.Vec({1, -1})}}}),
               {1, 2}, {5, 6});
  OneOp r;
  ExpectFloats(r.Run(OpKind::kSliceBySize,
                     {{"x", {r.F16({2, 3}, kSixValues)}}, {"begin", {r.I32({2}, {0, 1})}}, {"size", {r.Vec({2, 1})}}}),
               {2, 1}, {2, 5});
  OneOp late;
  EXPECT_EQ(
      late.Error(OpKind::kSliceBySize,
                 {{"x", {late.F16({2, 3}, kSixValues)}}, {"begin", {late.I32({2}, {0, 3})}}, {"size", {late.Vec({2, 1})}}}),
      "graph: function 'main', op 0 (slice_by_size), parameter 'begin': axis 1: 1 elements from 3 of 3");
  OneOp early;
  EXPECT_EQ(
      early.Error(OpKind::kSliceBySize,
                  {{"x", {early.F16({2, 3}, kSixValues)}}, {"begin", {early.Vec({0, 2})}}, {"size", {early.Vec({2, 2})}}}),
      "graph: function 'main', op 0 (slice_by_size), parameter 'size': axis 1: 2 elements from 2 of 3");
}

TEST(SliceUpdate, WritesTheRangeConstantOrNot) {
  for (const bool run_time : {false, true}) {
    OneOp t;
    const ValueId x = t.F16({2, 3}, kSixValues), update = t.F16({2, 1}, {-1, -2});
    const ValueId begin = run_time ? t.I32({2}, {0, 1}) : t.Vec({0, 1}),
                  end = run_time ? t.I32({2}, {2, 2}) : t.Vec({2, 2});
    ExpectFloats(t.Run(OpKind::kSliceUpdate, {{"x", {x}}, {"update", {update}}, {"begin", {begin}}, {"end", {end}}}),
                 {2, 3}, {1, -1, 3, 4, -2, 6});
  }
  OneOp t;
  const ValueId x = t.F16({2, 3}, kSixValues), update = t.F16({2, 2}, {-1, -2, -3, -4});
  EXPECT_EQ(t.Error(OpKind::kSliceUpdate,
                    {{"x", {x}}, {"update", {update}}, {"begin", {t.Vec({0, 1})}}, {"end", {t.Vec({2, 2})}}}),
            "graph: function 'main', op 0 (slice_update), parameter 'update': wanted fp16[2, 1], got fp16[2, 2]");
}

TEST(Tile, RepeatsWholeAxes) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kTile, {{"x", {t.F16({2, 1}, {1, 2})}}, {"reps", {t.Vec({2, 2})}}}), {4, 2},
               {1, 1, 2, 2, 1, 1, 2, 2});
  OneOp big;
  EXPECT_EQ(
      big.Error(OpKind::kTile, {{"x", {big.F16({2, 1}, {1, 2})}}, {"reps", {big.Vec({2147483647, 2147483647})}}}),
      "graph: function 'main', op 0 (tile): result: fp16[4294967294, 2147483647] is larger than 2147483648 bytes");
}

TEST(Pad, ThreeModes) {
  const struct {
    const char* mode;
    std::vector<float> wanted;
  } cases[] = {{"constant", {9, 9, 1, 2, 3, 9}}, {"reflect", {3, 2, 1, 2, 3, 2}}, {"replicate", {1, 1, 1, 2, 3, 3}}};
  for (const auto& c : cases) {
    OneOp t;
    ExpectFloats(t.Run(OpKind::kPad, {{"x", {t.F16({1, 3}, {1, 2, 3})}},
                                      {"pad", {t.Vec({2, 1})}},
                                      {"mode", {t.b.String(c.mode)}},
                                      {"constant_val", {t.b.Scalar(9)}}}),
                 {1, 6}, c.wanted);
  }
  OneOp t;
  EXPECT_EQ(t.Error(OpKind::kPad, {{"x", {t.F16({1, 3}, {1, 2, 3})}},
                                   {"pad", {t.Vec({0, 3})}},
                                   {"mode", {t.b.String("reflect")}},
                                   {"constant_val", {t.b.Scalar(0)}}}),
            "graph: function 'main', op 0 (pad), parameter 'pad': reflects 3 elements of an axis of 3, at most 2");
}

TEST(Fill, MakesAConstantTensor) {
  OneOp t;
  ExpectFloats(t.Run(OpKind::kFill, {{"shape", {t.Vec({2, 2})}}, {"value", {t.b.Scalar(-0.5f)}}}), {2, 2},
               {-0.5f, -0.5f, -0.5f, -0.5f});
  OneOp i;
  ExpectInts(i.Run(OpKind::kFill, {{"shape", {i.Vec({3})}}, {"value", {i.b.Int(7)}}}), {3}, {7, 7, 7});
}

TEST(BandPart, KeepsABand) {
  const struct {
    int lower, upper;
    std::vector<float> wanted;
  } cases[] = {{-1, 0, {1, 0, 0, 4, 5, 0}}, {0, -1, {1, 2, 3, 0, 5, 6}}, {0, 1, {1, 2, 0, 0, 5, 6}}};
  for (const auto& c : cases) {
    OneOp t;
    ExpectFloats(t.Run(OpKind::kBandPart,
                       {{"x", {t.F16({2, 3}, kSixValues)}}, {"lower", {t.b.Int(c.lower)}}, {"upper", {t.b.Int(c.upper)}}}),
                 {2, 3}, c.wanted);
  }
}

}  // namespace
}  // namespace npumoe
