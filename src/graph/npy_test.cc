// SPDX-License-Identifier: Apache-2.0
// .npy files: headers as NumPy writes them, values by hand, broken ones.
#include "graph/npy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "base/files.h"
#include "graph/op_test.h"

namespace npumoe {
namespace {

// A file of the version, with the dictionary padded as NumPy pads it.
std::string File(const std::string& dictionary, const std::vector<std::byte>& data, int version = 1) {
  std::string header = dictionary;
  const size_t before = version == 1 ? 10 : 12;
  header.append(63 - (before + header.size()) % 64, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  for (size_t i = 0; i < (version == 1 ? 2u : 4u); ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
  return bytes;
}

std::string Dictionary(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }";
}

Result<Array> Parse(const std::string& bytes) {
  return ParseNpy(std::as_bytes(std::span(bytes.data(), bytes.size())), "f");
}

Array MakeArray(ElemType elem, std::vector<size_t> dims, std::vector<float> floats, std::vector<int64_t> ints) {
  Array array;
  array.type.elem = elem;
  array.type.dims = std::move(dims);
  array.floats = std::move(floats);
  array.ints = std::move(ints);
  return array;
}

TEST(Npy, ReadsEveryNumberType) {
  const auto ints = [](const std::string& bytes) {
    const auto array = Parse(bytes);
    EXPECT_TRUE(array.ok()) << array.error().message;
    return array.ok() ? array->ints : std::vector<int64_t>();
  };
  using Ints = std::vector<int64_t>;
  EXPECT_EQ(ints(File(Dictionary("|i1", "(2,)"), RawBytes(std::vector<int8_t>{-1, 7}))), (Ints{-1, 7}));
  EXPECT_EQ(ints(File(Dictionary("|u1", "(2,)"), RawBytes(std::vector<uint8_t>{255, 7}))), (Ints{255, 7}));
  EXPECT_EQ(ints(File(Dictionary("<i2", "(1,)"), RawBytes(std::vector<int16_t>{-300}))), (Ints{-300}));
  EXPECT_EQ(ints(File(Dictionary("<u2", "(1,)"), RawBytes(std::vector<uint16_t>{65535}))), (Ints{65535}));
  EXPECT_EQ(ints(File(Dictionary("<i4", "()"), RawBytes(std::vector<int32_t>{-70000}))), (Ints{-70000}));
  EXPECT_EQ(ints(File(Dictionary("<i8", "(1, 1)"), RawBytes(std::vector<int64_t>{-5}))), (Ints{-5}));
  EXPECT_EQ(ints(File(Dictionary("|b1", "(2,)"), RawBytes(std::vector<uint8_t>{0, 1}))), (Ints{0, 1}));
  for (const int version : {1, 2, 3}) {
    const auto half = Parse(File(Dictionary("<f2", "(2, 1)"), HalfBytes({0.25f, -2}), version));
    ASSERT_TRUE(half.ok()) << half.error().message;
    EXPECT_EQ(half->type, (ValueType{ElemType::kF16, {2, 1}}));
    EXPECT_EQ(half->floats, (std::vector<float>{0.25f, -2}));
  }
  const auto wide = Parse(File(Dictionary("<f8", "(1,)"), RawBytes(std::vector<double>{0.1})));
  ASSERT_TRUE(wide.ok());
  EXPECT_EQ(wide->type.elem, ElemType::kF32);
  EXPECT_EQ(wide->floats[0], 0.1f);
}

TEST(Npy, TurnsFortranOrderAround) {
  // [[1, 2, 3], [4, 5, 6]] column by column.
  const auto array = Parse(File(Dictionary("<f4", "(2, 3)", "True"), RawBytes(std::vector<float>{1, 4, 2, 5, 3, 6})));
  ASSERT_TRUE(array.ok()) << array.error().message;
  EXPECT_EQ(array->floats, (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

TEST(Npy, NamesWhatIsWrong) {
  const auto data = RawBytes(std::vector<float>{1, 2});
  const std::string good = File(Dictionary("<f4", "(2,)"), data);
  const std::pair<std::string, const char*> cases[] = {
      {"", "f: not an .npy file"},
      {"PK\x03\x04", "f: not an .npy file"},
      {good.substr(0, 9), "f: ends inside its header"},
      {good.substr(0, 100), "f: header of 118 bytes, the file has 100"},
      {good.substr(0, good.size() - 1), "f: 7 bytes of data, shape [2] of <f4 needs 8"},
      {good + "x", "f: 9 bytes of data, shape [2] of <f4 needs 8"},
      {File(Dictionary(">f4", "(2,)"), data), "f: type '>f4', wanted little-endian numbers"},
      {File(Dictionary("<c8", "(1,)"), data), "f: type '<c8', wanted"},
      {File("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }", data),
       "f: header is not a dictionary"},
      {File("{'descr': '<f4', 'shape': (2,), }", data), "f: header is not a dictionary"},
      {File("[1, 2]", data), "f: header is not a dictionary"},
      {File(Dictionary("<f4", "(-2,)"), data), "f: header is not a dictionary"},
      {File(Dictionary("<f4", "(99999999999999999999,)"), data), "f: header is not a dictionary"},
      {File(Dictionary("<f4", "(1, 1, 1, 1, 1, 2)"), data), "f: rank 6"},
      {File(Dictionary("<f4", "(0,)"), {}), "f: empty, shape fp32[0]"},
      {File(Dictionary("<f4", "(4294967296, 4294967296)"), data), "larger than 2147483648 bytes"},
      {File(Dictionary("<i8", "(1,)"), RawBytes(std::vector<int64_t>{1LL << 40})),
       "f: a value of type <i8 does not fit"},
      {File(Dictionary("<f4", "(2,)"), data, 4), "f: .npy version 4, wanted 1 to 3"},
  };
  for (const auto& [bytes, wanted] : cases) {
    const auto array = Parse(bytes);
    ASSERT_FALSE(array.ok()) << wanted;
    EXPECT_NE(array.error().message.find(wanted), std::string::npos) << array.error().message;
  }
  for (size_t n = 0; n < good.size(); ++n) ASSERT_FALSE(Parse(good.substr(0, n)).ok()) << n;
}

TEST(FitArray, RoundsFloatsAndRefusesTheRest) {
  const Array array = MakeArray(ElemType::kF32, {2}, {1.0f / 3, 70000}, {});
  const auto half = FitArray(array, {ElemType::kF16, {2}}, "x");
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(half->floats[0], 0.333251953125f);
  EXPECT_TRUE(std::isinf(half->floats[1]));
  EXPECT_EQ(FitArray(array, {ElemType::kF16, {2, 1}}, "x").error().message, "x: is fp32[2], wanted fp16[2, 1]");
  EXPECT_EQ(FitArray(array, {ElemType::kI32, {2}}, "x").error().message, "x: is fp32[2], wanted int32[2]");
  const Array whole = MakeArray(ElemType::kI32, {2}, {}, {1, 300});
  EXPECT_EQ(FitArray(whole, {ElemType::kU16, {2}}, "x").value().ints, whole.ints);
  EXPECT_EQ(FitArray(whole, {ElemType::kI8, {2}}, "x").error().message, "x: value 300 does not fit int8");
}

TEST(WriteNpy, IsReadBackAndStartsItsDataAtAMultipleOf64) {
  const std::string path = testing::TempDir() + "npumoe_write.npy";
  const Array arrays[] = {MakeArray(ElemType::kF16, {2, 3}, {1, -2, 0.5f, 0, 65504, 6e-8f}, {}),
                          MakeArray(ElemType::kF32, {1}, {0.1f}, {}), MakeArray(ElemType::kI32, {}, {}, {-9}),
                          MakeArray(ElemType::kBool, {3}, {}, {1, 0, 1}), MakeArray(ElemType::kU8, {2}, {}, {255, 0})};
  for (const Array& array : arrays) {
    ASSERT_TRUE(WriteNpy(path, array).ok());
    const auto read = ReadNpy(path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->type, array.type);
    EXPECT_EQ(read->ints, array.ints);
    for (size_t i = 0; i < array.floats.size(); ++i) EXPECT_NEAR(read->floats[i], array.floats[i], 1e-8) << i;
    EXPECT_EQ((*ReadFile(path)).size() % 64, array.type.bytes() % 64);
  }
  std::remove(path.c_str());
}

// Intermediates go when their last reader has run.
TEST(ReferencePeakBytes, CountsWhatLivesAtOnce) {
  GraphBuilder b;
  b.BeginFunction("main");
  ValueId v = b.Input("x", {ElemType::kF16, {1000}});
  for (int i = 0; i < 20; ++i) v = b.Unary(OpKind::kRelu, v);
  b.Output("y", v);
  const Graph graph = std::move(b).Finish().value();
  // The input, an operand and a result; the copy of the output stands beside the output.
  EXPECT_EQ(ReferencePeakBytes(graph.functions[0]), 3u * 4000);
}

}  // namespace
}  // namespace npumoe
