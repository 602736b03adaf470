// SPDX-License-Identifier: Apache-2.0
// Gather, scatter and sorting against values worked out by hand.
#include <gtest/gtest.h>

#include "graph/op_test.h"

namespace npumoe {
namespace {

const std::vector<float> kSix{1, 2, 3, 4, 5, 6};

TEST(Gather, PutsTheIndicesShapeInPlaceOfTheAxis) {
  OneOp t;
  const ValueId x = t.F16({3, 2}, kSix), indices = t.I32({2, 2}, {2, 0, 1, -1});
  ExpectFloats(t.Run(OpKind::kGather, {{"x", {x}}, {"indices", {indices}}, {"axis", {t.b.Int(0)}}}), {2, 2, 2},
               {5, 6, 1, 2, 3, 4, 5, 6});
  OneOp s;
  ExpectFloats(s.Run(OpKind::kGather, {{"x", {s.F16({2, 3}, kSix)}},
                                       {"indices", {s.b.Int(1)}},
                                       {"axis", {s.b.Int(-1)}},
                                       {"batch_dims", {s.b.Int(0)}},
                                       {"validate_indices", {s.b.Bool(false)}}}),
               {2}, {2, 5});
}

TEST(Gather, SharesBatchAxes) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, kSix), indices = t.Ints(ElemType::kU16, {2, 2}, {0, 2, 1, 1});
  ExpectFloats(t.Run(OpKind::kGather,
                     {{"x", {x}}, {"indices", {indices}}, {"axis", {t.b.Int(1)}}, {"batch_dims", {t.b.Int(1)}}}),
               {2, 2}, {1, 3, 5, 5});
}

TEST(Gather, RefusesIndicesOutOfRange) {
  for (const int64_t index : {3, -4}) {
    OneOp t;
    const ValueId x = t.F16({3, 2}, kSix), indices = t.I32({1}, {index});
    EXPECT_EQ(t.Error(OpKind::kGather, {{"x", {x}}, {"indices", {indices}}, {"axis", {t.b.Int(0)}}}),
              "graph: function 'main', op 0 (gather), parameter 'indices': index " + std::to_string(index) +
                  " of 3 elements");
  }
  OneOp f;
  EXPECT_EQ(
      f.Error(OpKind::kGather, {{"x", {f.F16({3, 2}, kSix)}}, {"indices", {f.F16({1}, {0})}}, {"axis", {f.b.Int(0)}}}),
      "graph: function 'main', op 0 (gather), parameter 'indices': wanted whole numbers, got fp16[1]");
}

TEST(GatherAlongAxis, PicksPerElement) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, kSix), indices = t.I32({2, 2}, {2, 0, 1, 1});
  ExpectFloats(t.Run(OpKind::kGatherAlongAxis, {{"x", {x}}, {"indices", {indices}}, {"axis", {t.b.Int(-1)}}}), {2, 2},
               {3, 1, 5, 5});
  OneOp f;
  EXPECT_EQ(
      f.Error(OpKind::kGatherAlongAxis,
              {{"x", {f.F16({2, 3}, kSix)}}, {"indices", {f.I32({1, 2}, {0, 0})}}, {"axis", {f.b.Int(1)}}}),
      "graph: function 'main', op 0 (gather_along_axis), parameter 'indices': int32[1, 2] does not fit x fp16[2, 3] "
      "outside of axis 1");
}

TEST(GatherNd, PicksByTuplesWithAndWithoutBatch) {
  OneOp t;
  const ValueId x = t.F16({2, 3}, kSix), indices = t.I32({2, 2}, {1, 0, 0, 2});
  ExpectFloats(t.Run(OpKind::kGatherNd, {{"x", {x}}, {"indices", {indices}}}), {2}, {4, 3});
  OneOp r;
  ExpectFloats(r.Run(OpKind::kGatherNd, {{"x", {r.F16({2, 3}, kSix)}}, {"indices", {r.I32({1, 1}, {1})}}}), {1, 3},
               {4, 5, 6});
  OneOp b;
  ExpectFloats(
      b.Run(OpKind::kGatherNd,
            {{"x", {b.F16({2, 3}, kSix)}}, {"indices", {b.I32({2, 1}, {2, 0})}}, {"batch_dims", {b.b.Int(1)}}}),
      {2}, {3, 4});
}

TEST(Scatter, WritesSlicesInOrder) {
  const struct {
    const char* mode;
    std::vector<float> wanted;  // columns 2 and 0 of ones get (10, 20) and (30, 40)
  } cases[] = {{"update", {20, 2, 10, 40, 2, 30}},
               {"add", {22, 2, 12, 42, 2, 32}},
               {"sub", {-18, 2, -8, -38, 2, -28}},
               {"mul", {40, 2, 20, 80, 2, 60}},
               {"div", {0.1f, 2, 0.2f, 0.05f, 2, 2.0f / 30}},
               {"max", {20, 2, 10, 40, 2, 30}},
               {"min", {2, 2, 2, 2, 2, 2}}};
  for (const auto& c : cases) {
    OneOp t;
    const ValueId data = t.F32({2, 3}, {2, 2, 2, 2, 2, 2}), updates = t.F32({2, 2}, {10, 20, 30, 40});
    SCOPED_TRACE(c.mode);
    ExpectFloats(t.Run(OpKind::kScatter, {{"data", {data}},
                                          {"indices", {t.I32({2}, {2, 0})}},
                                          {"updates", {updates}},
                                          {"axis", {t.b.Int(1)}},
                                          {"mode", {t.b.String(c.mode)}},
                                          {"validate_indices", {t.b.Bool(false)}}}),
                 {2, 3}, c.wanted);
  }
}

TEST(Scatter, RefusesUpdatesOfTheWrongShapeAndUnknownModes) {
  OneOp t;
  const ValueId data = t.F16({2, 3}, kSix);
  EXPECT_EQ(t.Error(OpKind::kScatter, {{"data", {data}},
                                       {"indices", {t.I32({1}, {0})}},
                                       {"updates", {data}},
                                       {"axis", {t.b.Int(1)}},
                                       {"mode", {t.b.String("add")}}}),
            "graph: function 'main', op 0 (scatter), parameter 'updates': wanted fp16[2, 1], got fp16[2, 3]");
  OneOp m;
  const ValueId x = m.F16({1}, {1});
  EXPECT_EQ(
      m.Error(OpKind::kScatter, {{"data", {x}},
                                 {"indices", {m.I32({1}, {0})}},
                                 {"updates", {x}},
                                 {"axis", {m.b.Int(0)}},
                                 {"mode", {m.b.String("xor")}}}),
      "graph: function 'main', op 0 (scatter), parameter 'mode': 'xor', wanted update, add, sub, mul, div, max, min");
}

TEST(ScatterAlongAxis, AddsDuplicatesOneAfterAnother) {
  OneOp t;
  const ValueId data = t.F16({2, 3}, kSix), updates = t.F16({2, 2}, {10, 20, 30, 40});
  ExpectFloats(t.Run(OpKind::kScatterAlongAxis, {{"data", {data}},
                                                 {"indices", {t.I32({2, 2}, {1, 1, 0, 2})}},
                                                 {"updates", {updates}},
                                                 {"axis", {t.b.Int(1)}},
                                                 {"mode", {t.b.String("add")}}}),
               {2, 3}, {1, 32, 3, 34, 5, 46});
}

TEST(ScatterNd, WritesByTuples) {
  OneOp t;
  const ValueId data = t.I32({2, 3}, {1, 2, 3, 4, 5, 6}), updates = t.I32({2}, {-1, -2});
  ExpectInts(t.Run(OpKind::kScatterNd, {{"data", {data}},
                                        {"indices", {t.I32({2, 2}, {0, 1, 1, -1})}},
                                        {"updates", {updates}},
                                        {"mode", {t.b.String("update")}}}),
             {2, 3}, {1, -1, 3, 4, 5, -2});
}

TEST(TopK, LargestFirstTiesToTheLowerIndex) {
  OneOp t;
  const auto results = t.Run(OpKind::kTopK, {{"x", {t.F16({2, 4}, {1, 7, 7, 3, 5, 5, 5, 5})}},
                                             {"k", {t.b.Int(3)}},
                                             {"axis", {t.b.Int(-1)}},
                                             {"ascending", {t.b.Bool(false)}},
                                             {"sort", {t.b.Bool(true)}},
                                             {"return_indices", {t.b.Bool(true)}},
                                             {"output_indices_dtype", {t.b.String("int32")}}});
  ExpectFloats(results, {2, 3}, {7, 7, 3, 5, 5, 5});
  ExpectInts(results, {2, 3}, {1, 2, 3, 0, 1, 2}, 1);
}

TEST(TopK, SmallestFirstAlongTheFirstAxisWithoutIndices) {
  OneOp t;
  const auto results = t.Run(OpKind::kTopK, {{"x", {t.F16({3, 2}, {3, 1, 2, 6, 1, 5})}},
                                             {"k", {t.b.Int(2)}},
                                             {"axis", {t.b.Int(0)}},
                                             {"ascending", {t.b.Bool(true)}},
                                             {"return_indices", {t.b.Bool(false)}}});
  ExpectFloats(results, {2, 2}, {1, 1, 2, 5});
  EXPECT_EQ(results.f32.size(), 1u);
  OneOp f;
  EXPECT_EQ(
      f.Error(
          OpKind::kTopK,
          {{"x", {f.F16({2}, {1, 2})}}, {"k", {f.b.Int(3)}}, {"axis", {f.b.Int(0)}}, {"ascending", {f.b.Bool(true)}}}),
      "graph: function 'main', op 0 (topk), parameter 'k': 3, wanted 1 to 2");
}

TEST(Argsort, IsStableBothWays) {
  OneOp t;
  ExpectInts(t.Run(OpKind::kArgsort,
                   {{"x", {t.F16({4}, {2, 1, 2, 0})}}, {"axis", {t.b.Int(0)}}, {"ascending", {t.b.Bool(true)}}}),
             {4}, {3, 1, 0, 2});
  OneOp d;
  ExpectInts(d.Run(OpKind::kArgsort,
                   {{"x", {d.I32({4}, {2, 1, 2, 0})}}, {"axis", {d.b.Int(-1)}}, {"ascending", {d.b.Bool(false)}}}),
             {4}, {0, 2, 1, 3});
}

}  // namespace
}  // namespace npumoe
