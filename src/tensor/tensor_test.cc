// SPDX-License-Identifier: Apache-2.0
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>

// Sanitizers end the process on an impossible allocation unless told to return null, as malloc does.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace npumoe {
namespace {

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape::Of(2, 3, 5).elems(), 30u);
  EXPECT_EQ(Shape::Of(2, 3, 5).inner(), 5u);
  EXPECT_EQ(Shape::Of(2, 3, 5).ToString(), "[2, 3, 5]");
  EXPECT_EQ(Shape{}.elems(), 1u);  // a scalar
  EXPECT_EQ(Shape{}.inner(), 1u);
  EXPECT_EQ(Shape{}.ToString(), "[]");
  EXPECT_NE(Shape::Of(6), Shape::Of(6, 1));
}

TEST(ByteSize, MultipliesRowsAndRefusesOverflow) {
  EXPECT_EQ(ByteSize(DType::kQ4_0, Shape::Of(3, 64)).value(), 3u * 2 * 18);
  EXPECT_EQ(ByteSize(DType::kQ6_K, Shape::Of(2, 3, 512)).value(), 2u * 3 * 2 * 210);
  EXPECT_EQ(ByteSize(DType::kF16, Shape::Of(0, 64)).value(), 0u);
  EXPECT_FALSE(ByteSize(DType::kQ4_0, Shape::Of(3, 63)).ok());
  // 2^42 + 1 rows of 2^22 floats: 2^66 + 2^24 bytes would wrap to 2^24.
  const auto wraps = ByteSize(DType::kF32, Shape::Of((size_t{1} << 42) + 1, size_t{1} << 22));
  ASSERT_FALSE(wraps.ok());
  EXPECT_EQ(wraps.error().code, Code::kCorruptFile);
}

TEST(Tensor, IsZeroedAlignedAndOfItsSize) {
  Result<Tensor> made = Tensor::Make(DType::kF32, Shape::Of(3, 5));
  ASSERT_TRUE(made.ok());
  Tensor& tensor = made.value();
  EXPECT_EQ(tensor.size_bytes(), 60u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data()) % 64, 0u);
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(tensor.f32()[i], 0.0f);
  EXPECT_EQ(tensor.view().shape, Shape::Of(3, 5));
  EXPECT_EQ(tensor.view().data, tensor.data());
}

TEST(Tensor, TooLargeIsAnErrorNotACrash) {
  EXPECT_FALSE(Tensor::Make(DType::kF32, Shape::Of(SIZE_MAX / 4)).ok());  // SIZE_MAX - 3 bytes: the padding overflows
  EXPECT_FALSE(Tensor::Make(DType::kF32, Shape::Of(SIZE_MAX / 8)).ok());  // no machine has 2^63 bytes
}

TEST(TensorView, SliceIsTheNextOuterIndex) {
  Result<Tensor> made = Tensor::Make(DType::kF32, Shape::Of(2, 3, 4));
  ASSERT_TRUE(made.ok());
  for (size_t i = 0; i < 24; ++i) made.value().f32()[i] = static_cast<float>(i);
  const TensorView second = made.value().view().Slice(1);
  EXPECT_EQ(second.shape, Shape::Of(3, 4));
  EXPECT_EQ(second.f32()[0], 12.0f);
  EXPECT_EQ(second.Slice(2).f32()[3], 23.0f);
  EXPECT_TRUE(TensorView{}.empty());
}

TEST(MatView, RowsAreAStrideApart) {
  float data[12] = {};
  const MatView mat{data, 3, 2, 4};
  mat.Row(2)[1] = 7.0f;
  EXPECT_EQ(data[9], 7.0f);
  EXPECT_EQ(ConstMatView(mat).Row(2)[1], 7.0f);
}

}  // namespace
}  // namespace npumoe
