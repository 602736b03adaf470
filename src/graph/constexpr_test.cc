// SPDX-License-Identifier: Apache-2.0
// Decoding of stored weights against values worked out by hand, in the forms of CoreML6 and of CoreML8.
#include <gtest/gtest.h>

#include "graph/op_test.h"

namespace npumoe {
namespace {

std::vector<std::byte> Raw(std::initializer_list<int> bytes) {
  std::vector<std::byte> out;
  for (const int b : bytes) out.push_back(static_cast<std::byte>(b));
  return out;
}

TEST(ArrayOf, UnpacksSubByteTypesLeastSignificantBitFirst) {
  // The byte strings are those that coremltools wrote for these values.
  const struct {
    ElemType elem;
    std::vector<std::byte> data;
    std::vector<int64_t> wanted;
  } cases[] = {
      {ElemType::kI4, Raw({0xf8, 0x37, 0x01}), {-8, -1, 7, 3, 1}},
      {ElemType::kU4, Raw({0x21, 0x0f}), {1, 2, 15}},
      {ElemType::kU3, Raw({0xd1, 0x58, 0x1f, 0x01}), {1, 2, 3, 4, 5, 6, 7, 0, 1}},
      {ElemType::kU6, Raw({0x81, 0x30, 0xfc, 0x21}), {1, 2, 3, 63, 33}},
      {ElemType::kU2, Raw({0x39, 0x01}), {1, 2, 3, 0, 1}},
      {ElemType::kU1, Raw({0x81, 0x01}), {1, 0, 0, 0, 0, 0, 0, 1, 1}},
      {ElemType::kI8, Raw({0xff, 0x80}), {-1, -128}},
      {ElemType::kU8, Raw({0xff, 0x80}), {255, 128}},
      {ElemType::kI16, Raw({0xff, 0xff}), {-1}},
      {ElemType::kU16, Raw({0xff, 0xff}), {65535}},
      {ElemType::kI32, Raw({0xfe, 0xff, 0xff, 0xff}), {-2}},
      {ElemType::kU32, Raw({0xfe, 0xff, 0xff, 0xff}), {4294967294}},
      {ElemType::kBool, Raw({0, 1, 2}), {0, 1, 1}},
  };
  for (const auto& c : cases) {
    Constant constant;
    constant.type.elem = c.elem;
    constant.type.dims = {c.wanted.size()};
    constant.data = c.data;
    EXPECT_EQ(constant.type.bytes(), c.data.size()) << ToString(c.elem);
    EXPECT_EQ(ArrayOf(constant).ints, c.wanted) << ToString(c.elem);
  }
  Constant halves;
  halves.type.dims = {2};
  halves.data = Raw({0x00, 0x34, 0x00, 0xc0});
  EXPECT_EQ(ArrayOf(halves).floats, (std::vector<float>{0.25f, -2}));
}

TEST(AffineDequantize, PerTensorAndPerChannel) {
  OneOp t;
  const ValueId data = t.Const({ElemType::kI8, {2, 2}}, Raw({1, 0xff, 10, 127}));
  const ValueId zero = t.Const({ElemType::kI8, {}}, Raw({1})), scale = t.Const16({2}, {0.5f, 2});
  ExpectFloats(t.Run(OpKind::kConstexprAffineDequantize,
                     {{"quantized_data", {data}}, {"zero_point", {zero}}, {"scale", {scale}}, {"axis", {t.b.Int(0)}}}),
               {2, 2}, {0, -1, 18, 252});
  OneOp u;
  const ValueId q = u.Const({ElemType::kU8, {2, 2}}, Raw({200, 1, 0, 255}));
  const ValueId points = u.Const({ElemType::kU8, {2}}, Raw({100, 1})), s = u.Const16({}, {0.25f});
  ExpectFloats(u.Run(OpKind::kConstexprAffineDequantize,
                     {{"quantized_data", {q}}, {"zero_point", {points}}, {"scale", {s}}, {"axis", {u.b.Int(-1)}}}),
               {2, 2}, {25, 0, -25, 63.5f});
}

TEST(AffineDequantize, RoundsToHalfInHalfMode) {
  OneOp t;
  // 127 * fp16(0.1) = 127 * 0.0999755859375 = 12.6968994140625; fp16 spacing there is 1/128.
  const ValueId data = t.Const({ElemType::kI8, {1}}, Raw({127})), zero = t.Const({ElemType::kI8, {}}, Raw({0}));
  ExpectFloats(t.Run(OpKind::kConstexprAffineDequantize, {{"quantized_data", {data}},
                                                          {"zero_point", {zero}},
                                                          {"scale", {t.Const16({}, {0.1f})}},
                                                          {"axis", {t.b.Int(0)}}}),
               {1}, {12.6968994140625f}, {12.6953125f});
}

TEST(AffineDequantize, RefusesARunTimeValueAndAMisfitScale) {
  OneOp t;
  const ValueId data = t.Ints(ElemType::kI8, {2}, {1, 2}), zero = t.Const({ElemType::kI8, {}}, Raw({0}));
  EXPECT_EQ(
      t.Error(OpKind::kConstexprAffineDequantize, {{"quantized_data", {data}},
                                                   {"zero_point", {zero}},
                                                   {"scale", {t.Const16({}, {1})}},
                                                   {"axis", {t.b.Int(0)}}}),
      "graph: function 'main', op 0 (constexpr_affine_dequantize), parameter 'quantized_data': must be a constant "
      "or decoded from one, got the run-time value 'in_1'");
  OneOp s;
  const ValueId q = s.Const({ElemType::kI8, {2}}, Raw({1, 2})), z = s.Const({ElemType::kI8, {}}, Raw({0}));
  EXPECT_EQ(
      s.Error(OpKind::kConstexprAffineDequantize, {{"quantized_data", {q}},
                                                   {"zero_point", {z}},
                                                   {"scale", {s.Const16({3}, {1, 1, 1})}},
                                                   {"axis", {s.b.Int(0)}}}),
      "graph: function 'main', op 0 (constexpr_affine_dequantize), parameter 'scale': wanted a scalar or 2 values "
      "for axis 0, got fp16[3]");
}

TEST(LutToDense, PackedBytesOfCoreML6) {
  OneOp t;
  // 2-bit fields 1 2 3 0 1 in the bytes of the format's own example.
  const ValueId indices = t.Const({ElemType::kU8, {2}}, Raw({0x39, 0x01}));
  const ValueId shape = t.Const({ElemType::kU32, {2}}, RawBytes(std::vector<uint32_t>{5, 1}));
  ExpectFloats(t.Run(OpKind::kConstexprLutToDense,
                     {{"indices", {indices}}, {"lut", {t.Const16({4}, {-1, 0.5f, 2, 8})}}, {"shape", {shape}}}),
               {5, 1}, {0.5f, 2, 8, -1, 0.5f});
  OneOp bad;
  const ValueId few = bad.Const({ElemType::kU8, {1}}, Raw({0x39}));
  const ValueId five = bad.Const({ElemType::kU32, {1}}, RawBytes(std::vector<uint32_t>{5}));
  EXPECT_EQ(
      bad.Error(OpKind::kConstexprLutToDense,
                {{"indices", {few}}, {"lut", {bad.Const16({4}, {-1, 0.5f, 2, 8})}}, {"shape", {five}}}),
      "graph: function 'main', op 0 (constexpr_lut_to_dense), parameter 'indices': wanted uint8[2] for 5 fields of "
      "2 bits, got uint8[1]");
}

TEST(LutToDense, TablesPerBlockOfCoreML8) {
  OneOp t;
  // [2, 2] of 1 bit: 1 0 / 1 1; one table per row.
  const ValueId indices = t.Const({ElemType::kU1, {2, 2}}, Raw({0x0d}));
  ExpectFloats(t.Run(OpKind::kConstexprLutToDense,
                     {{"indices", {indices}}, {"lut", {t.Const16({2, 1, 2, 1}, {10, 11, 20, 21})}}}),
               {2, 2}, {11, 10, 21, 21});
}

TEST(LutToDense, VectorEntriesLieAlongTheirAxis) {
  for (const int axis : {0, 1}) {
    OneOp t;
    const ValueId indices = t.Const({ElemType::kU1, {1, 2}}, Raw({0x02}));  // 0 1
    const auto results = t.Run(
        OpKind::kConstexprLutToDense,
        {{"indices", {indices}}, {"lut", {t.Const16({1, 1, 2, 2}, {1, 2, 3, 4})}}, {"vector_axis", {t.b.Int(axis)}}});
    if (axis == 0) ExpectFloats(results, {2, 2}, {1, 3, 2, 4});
    if (axis == 1) ExpectFloats(results, {1, 4}, {1, 2, 3, 4});
  }
  OneOp bad;
  const ValueId indices = bad.Const({ElemType::kU1, {1, 2}}, Raw({0x02}));
  EXPECT_EQ(bad.Error(OpKind::kConstexprLutToDense,
                      {{"indices", {indices}}, {"lut", {bad.Const16({1, 1, 2, 2}, {1, 2, 3, 4})}}}),
            "graph: function 'main', op 0 (constexpr_lut_to_dense), parameter 'vector_axis': is missing");
}

TEST(SparseToDense, BothForms) {
  OneOp t;
  const ValueId mask = t.Const({ElemType::kU1, {2, 2}}, Raw({0x0a}));  // 0 1 0 1
  ExpectFloats(t.Run(OpKind::kConstexprSparseToDense, {{"nonzero_data", {t.Const16({2}, {3, 4})}}, {"mask", {mask}}}),
               {2, 2}, {0, 3, 0, 4});
  OneOp u;
  const ValueId bytes = u.Const({ElemType::kU8, {2}}, Raw({0x80, 0x01}));
  const ValueId shape = u.Const({ElemType::kU32, {1}}, RawBytes(std::vector<uint32_t>{9}));
  ExpectFloats(u.Run(OpKind::kConstexprSparseToDense,
                     {{"nonzero_data", {u.Const16({2}, {3, 4})}}, {"mask", {bytes}}, {"shape", {shape}}}),
               {9}, {0, 0, 0, 0, 0, 0, 0, 3, 4});
  for (const int ones : {0x01, 0x0b}) {
    OneOp bad;
    const ValueId m = bad.Const({ElemType::kU1, {2, 2}}, Raw({ones}));
    EXPECT_EQ(bad.Error(OpKind::kConstexprSparseToDense, {{"nonzero_data", {bad.Const16({2}, {3, 4})}}, {"mask", {m}}}),
              std::string("graph: function 'main', op 0 (constexpr_sparse_to_dense), parameter 'nonzero_data': has 2 "
                          "values, the mask has ") +
                  (ones == 0x01 ? "1 ones" : "more ones"));
  }
}

TEST(ConstexprCast, WidensHalf) {
  OneOp t;
  const auto results = t.Run(OpKind::kConstexprCast,
                             {{"source_val", {t.Const16({2}, {0.5f, -3})}}, {"output_dtype", {t.b.String("fp32")}}});
  ExpectFloats(results, {2}, {0.5f, -3});
  EXPECT_EQ(results.f16[0].type.elem, ElemType::kF32);
}

TEST(BlockwiseShiftScale, BlocksAlongTheInnerAxis) {
  OneOp t;
  // int4 [1, 4] in two blocks of two, no offset: symmetric.
  const ValueId data = t.Const({ElemType::kI4, {1, 4}}, Raw({0xf8, 0x37}));  // -8 -1 7 3
  ExpectFloats(
      t.Run(OpKind::kConstexprBlockwiseShiftScale, {{"data", {data}}, {"scale", {t.Const16({1, 2}, {0.5f, 2})}}}),
      {1, 4}, {-4, -0.5f, 14, 6});
  OneOp u;
  const ValueId q = u.Const({ElemType::kU4, {2, 2}}, Raw({0x21, 0xf0}));  // 1 2 / 0 15
  const ValueId offset = u.Const({ElemType::kU4, {2, 1}}, Raw({0x81}));   // 1 8
  ExpectFloats(u.Run(OpKind::kConstexprBlockwiseShiftScale,
                     {{"data", {q}}, {"scale", {u.Const16({2, 1}, {1, 10})}}, {"offset", {offset}}}),
               {2, 2}, {0, 1, -80, 70});
  OneOp bad;
  const ValueId d = bad.Const({ElemType::kI4, {1, 4}}, Raw({0xf8, 0x37}));
  EXPECT_EQ(
      bad.Error(OpKind::kConstexprBlockwiseShiftScale, {{"data", {d}}, {"scale", {bad.Const16({1, 3}, {1, 2, 3})}}}),
      "graph: function 'main', op 0 (constexpr_blockwise_shift_scale), parameter 'scale': 3 blocks along axis 1 of 4");
}

// Apple's example in the documentation of the op: 4 x 6 places, 9 of them stored.
TEST(LutToSparse, ScalarEntries) {
  OneOp t;
  // 110000 110001 011010 000100, least significant bit first.
  const ValueId mask = t.Const({ElemType::kU1, {4, 6}}, Raw({0xc3, 0x68, 0x21}));
  const ValueId data = t.Const({ElemType::kU1, {9}}, Raw({0x36, 0x01}));  // 0 1 1 0 1 1 0 0 1
  const auto results =
      t.Run(OpKind::kConstexprLutToSparse,
            {{"indices_mask", {mask}}, {"indices_nonzero_data", {data}}, {"lut", {t.Const16({1, 1, 2, 1}, {2, 3})}}});
  ASSERT_EQ(results.f16.size(), 2u);
  EXPECT_EQ(results.f16[0].type, (ValueType{ElemType::kU1, {4, 6}}));
  EXPECT_EQ(results.f16[0].ints, (std::vector<int64_t>{1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1,  //
                                                       0, 1, 1, 0, 1, 0, 0, 0, 0, 1, 0, 0}));
  EXPECT_EQ(results.f16[1].type, (ValueType{ElemType::kF16, {9}}));
  EXPECT_EQ(results.f16[1].floats, (std::vector<float>{2, 3, 3, 2, 3, 3, 2, 2, 3}));
}

TEST(LutToSparse, VectorEntriesWidenTheMask) {
  OneOp t;
  // Places (1 0 / 1 1) hold 0 1 0; entries (5, 6) and (7, 8) along axis 0.
  const ValueId mask = t.Const({ElemType::kU1, {2, 2}}, Raw({0x0d}));
  const ValueId data = t.Const({ElemType::kU1, {3}}, Raw({0x02}));
  const auto results = t.Run(OpKind::kConstexprLutToSparse, {{"indices_mask", {mask}},
                                                             {"indices_nonzero_data", {data}},
                                                             {"lut", {t.Const16({1, 1, 2, 2}, {5, 6, 7, 8})}},
                                                             {"vector_axis", {t.b.Int(0)}}});
  ASSERT_EQ(results.f16.size(), 2u);
  EXPECT_EQ(results.f16[0].type.dims, (std::vector<size_t>{4, 2}));
  EXPECT_EQ(results.f16[0].ints, (std::vector<int64_t>{1, 0, 1, 0, 1, 1, 1, 1}));
  EXPECT_EQ(results.f16[1].floats, (std::vector<float>{5, 6, 7, 5, 8, 6}));
}

// Apple's example: scales and offsets per column.
TEST(SparseBlockwiseShiftScale, ShiftsAndScalesWhatIsStored) {
  OneOp t;
  const ValueId mask = t.Const({ElemType::kU1, {4, 4}}, Raw({0x73, 0x3c}));  // 1100 1110 0011 1100
  const ValueId data = t.Const({ElemType::kI8, {9}}, Raw({10, 11, 3, 4, 5, 6, 7, 8, 9}));
  const ValueId offset = t.Const({ElemType::kI8, {1, 4}}, Raw({1, 2, 3, 4}));
  const auto results =
      t.Run(OpKind::kConstexprSparseBlockwiseShiftScale, {{"data_mask", {mask}},
                                                          {"nonzero_data", {data}},
                                                          {"scale", {t.Const16({1, 4}, {0.5f, 2, 4, 8})}},
                                                          {"offset", {offset}}});
  ASSERT_EQ(results.f16.size(), 2u);
  EXPECT_EQ(results.f16[0].type, (ValueType{ElemType::kU1, {4, 4}}));
  EXPECT_EQ(results.f16[0].ints, (std::vector<int64_t>{1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(results.f16[1].floats, (std::vector<float>{4.5f, 18, 1, 4, 8, 12, 24, 3.5f, 14}));
}

TEST(SparseOps, ChainIntoADenseTensor) {
  OneOp t;
  const ValueId mask = t.Const({ElemType::kU1, {2, 2}}, Raw({0x06}));  // 0 1 / 1 0
  const ValueId data = t.Const({ElemType::kU1, {2}}, Raw({0x02}));     // 0 1
  const auto sparse = t.b.Add(
      OpKind::kConstexprLutToSparse,
      {{"indices_mask", {mask}}, {"indices_nonzero_data", {data}}, {"lut", {t.Const16({1, 1, 2, 1}, {-1, 7})}}});
  ExpectFloats(t.Run(OpKind::kConstexprSparseToDense, {{"nonzero_data", {sparse[1]}}, {"mask", {sparse[0]}}}), {2, 2},
               {0, -1, 7, 0});
}

TEST(SparseOps, RefuseAMaskThatDoesNotFit) {
  OneOp t;
  const ValueId mask = t.Const({ElemType::kU1, {2, 2}}, Raw({0x07}));
  const ValueId data = t.Const({ElemType::kU1, {2}}, Raw({0x02}));
  EXPECT_EQ(
      t.Error(
          OpKind::kConstexprLutToSparse,
          {{"indices_mask", {mask}}, {"indices_nonzero_data", {data}}, {"lut", {t.Const16({1, 1, 2, 1}, {-1, 7})}}}),
      "graph: function 'main', op 0 (constexpr_lut_to_sparse), parameter 'indices_nonzero_data': has 2 values, the "
      "mask has 3 ones");
}

TEST(Constexpr, ResultsMayBeWeightsAndFeedOtherDecodingOps) {
  OneOp t;
  // Palette of int8 values, then shifted and scaled, then the weight of a linear.
  const ValueId indices = t.Const({ElemType::kU1, {1, 2}}, Raw({0x02}));  // 0 1
  const ValueId lut = t.Const({ElemType::kI8, {1, 1, 2, 1}}, Raw({0xfe, 3}));
  const ValueId q = t.b.Add(OpKind::kConstexprLutToDense, {{"indices", {indices}}, {"lut", {lut}}})[0];
  const ValueId w =
      t.b.Add(OpKind::kConstexprBlockwiseShiftScale, {{"data", {q}}, {"scale", {t.Const16({1, 1}, {0.5f})}}})[0];
  ExpectFloats(t.Run(OpKind::kLinear, {{"x", {t.F16({1, 2}, {10, 100})}}, {"weight", {w}}}), {1, 1}, {140});
}

}  // namespace
}  // namespace npumoe
