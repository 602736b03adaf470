// SPDX-License-Identifier: Apache-2.0
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace npumoe {
namespace {

TEST(DType, BytesPerBlockAreTheFormats) {
  // 256 elements in bytes: bits per weight of each format times 32.
  const std::pair<DType, size_t> kWant[] = {
      {DType::kF32, 1024}, {DType::kF16, 512},    {DType::kBF16, 512},   {DType::kQ8_0, 272},
      {DType::kQ4_0, 144}, {DType::kQ4_1, 160},   {DType::kQ5_0, 176},   {DType::kQ5_1, 192},
      {DType::kQ2_K, 84},  {DType::kQ3_K, 110},   {DType::kQ4_K, 144},   {DType::kQ5_K, 176},
      {DType::kQ6_K, 210}, {DType::kIQ4_NL, 144}, {DType::kIQ4_XS, 136}, {DType::kMXFP4, 136},
  };
  ASSERT_EQ(std::size(kWant), kDTypeCount);
  for (const auto& [dtype, bytes] : kWant) EXPECT_EQ(RowBytes(dtype, 256).value(), bytes) << Info(dtype).name;
}

TEST(DType, NamesAndIdsFindTheirTypeAndNoOther) {
  std::set<std::string_view> names;
  std::set<uint32_t> ids;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(Info(dtype).name), dtype);
    EXPECT_EQ(DTypeFromGguf(Info(dtype).gguf_type), dtype);
    names.insert(Info(dtype).name);
    ids.insert(Info(dtype).gguf_type);
  }
  EXPECT_EQ(names.size(), kDTypeCount);
  EXPECT_EQ(ids.size(), kDTypeCount);
  EXPECT_EQ(DTypeFromName("q4_k"), DType::kQ4_K);
  EXPECT_EQ(DTypeFromName("iq4_nl"), DType::kIQ4_NL);
  EXPECT_EQ(DTypeFromName("q4_"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
  EXPECT_EQ(DTypeFromGguf(14), DType::kQ6_K);
  EXPECT_EQ(DTypeFromGguf(9), std::nullopt);  // Q8_1 is no storage type
  EXPECT_EQ(DTypeFromGguf(UINT32_MAX), std::nullopt);
}

TEST(RowBytes, WantsWholeBlocksAndNoOverflow) {
  EXPECT_EQ(RowBytes(DType::kQ4_0, 0).value(), 0u);
  EXPECT_EQ(RowBytes(DType::kQ4_0, 32).value(), 18u);
  const auto odd = RowBytes(DType::kQ4_K, 288);
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().code, Code::kCorruptFile);
  EXPECT_EQ(odd.error().message, "row of 288 elements is not whole Q4_K blocks of 256");
  EXPECT_TRUE(RowBytes(DType::kF32, SIZE_MAX / 4).ok());
  EXPECT_FALSE(RowBytes(DType::kF32, SIZE_MAX / 4 + 1).ok());
}

}  // namespace
}  // namespace npumoe
