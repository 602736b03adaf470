// SPDX-License-Identifier: Apache-2.0
#include "format/gguf_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/files.h"
#include "format/gguf.h"

namespace npumoe {
namespace {

std::string TempPath(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("gguf_writer_" + std::to_string(::getpid()) + "_" + name))
      .string();
}

std::vector<std::byte> Pattern(size_t n, size_t seed) {
  std::vector<std::byte> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>((i * 7 + seed) % 251);
  return bytes;
}

// The whole of a small file, worked out by hand from the specification.
TEST(GgufWriter, WritesTheBytesOfTheSpecification) {
  const std::string path = TempPath("bytes.gguf");
  GgufWriter writer;
  writer.SetUint("a", 7);
  writer.AddTensor("t", DType::kF32, Shape::Of(2, 3));
  ASSERT_TRUE(writer.Begin(path).ok());
  const float values[6] = {1, 2, 3, 4, 5, 6};
  ASSERT_TRUE(writer.WriteTensorBytes(std::as_bytes(std::span(values))).ok());
  ASSERT_TRUE(writer.Finish().ok());

  std::string wanted("GGUF\x03\0\0\0", 8);
  wanted += std::string("\1\0\0\0\0\0\0\0", 8) + std::string("\1\0\0\0\0\0\0\0", 8);   // tensors, metadata
  wanted += std::string("\1\0\0\0\0\0\0\0a", 9) + std::string("\4\0\0\0\7\0\0\0", 8);  // a: u32 7
  wanted += std::string("\1\0\0\0\0\0\0\0t", 9) + std::string("\2\0\0\0", 4);          // t: two dimensions
  wanted += std::string("\3\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 16);                       // innermost first
  wanted += std::string("\0\0\0\0", 4) + std::string(8, '\0');                         // F32 at offset 0
  wanted.resize(96, '\0');                                                             // header of 82 bytes, padded
  wanted.append(reinterpret_cast<const char*>(values), sizeof(values));
  wanted.resize(128, '\0');
  EXPECT_EQ(ReadFile(path).value(), wanted);
  std::remove(path.c_str());
}

TEST(GgufWriter, EveryValueAndDtypeComesBackThroughTheReader) {
  const std::string path = TempPath("all.gguf");
  GgufWriter writer;
  writer.SetUint("u", 0xffffffffu);
  writer.SetUint16("u16", 65535);
  writer.SetInt("i", -5);
  writer.SetFloat("f", 1.5f);
  writer.SetBool("b", true);
  writer.SetString("s", std::string("x\0y", 3));
  writer.SetStrings("ss", std::vector<std::string>{"", "ab", "\xff"});
  writer.SetInts("is", std::vector<int32_t>{-1, 2});
  writer.SetFloats("fs", std::vector<float>{0.25f});
  writer.SetStrings("none", {});
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    writer.AddTensor(fmt::format("t{}", i), dtype, Shape::Of(1, 3, Info(dtype).block_elems * 2));
  }
  ASSERT_TRUE(writer.Begin(path).ok());
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto bytes = Pattern(Info(static_cast<DType>(i)).block_bytes * 6, i);
    const size_t cut = i % bytes.size();  // in two pieces
    ASSERT_TRUE(writer.WriteTensorBytes(std::span(bytes).first(cut)).ok());
    ASSERT_TRUE(writer.WriteTensorBytes(std::span(bytes).subspan(cut)).ok());
  }
  ASSERT_TRUE(writer.Finish().ok());

  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->version(), 3u);
  EXPECT_EQ(file->Uint("u").value(), 0xffffffffu);
  EXPECT_EQ(file->Uint("u16").value(), 65535u);
  EXPECT_EQ(std::get<int64_t>(*file->Find("i")), -5);
  EXPECT_EQ(file->Float("f").value(), 1.5);
  EXPECT_EQ(file->Bool("b").value(), true);
  EXPECT_EQ(file->String("s").value(), std::string_view("x\0y", 3));
  EXPECT_EQ(std::get<std::vector<std::string_view>>(std::get<GgufArray>(*file->Find("ss"))),
            (std::vector<std::string_view>{"", "ab", "\xff"}));
  EXPECT_EQ(std::get<std::vector<int64_t>>(std::get<GgufArray>(*file->Find("is"))), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(std::get<std::vector<double>>(std::get<GgufArray>(*file->Find("fs"))), (std::vector<double>{0.25}));
  EXPECT_TRUE(std::get<std::vector<std::string_view>>(std::get<GgufArray>(*file->Find("none"))).empty());
  ASSERT_EQ(file->tensors().size(), kDTypeCount);
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const TensorView* const view = file->FindTensor(fmt::format("t{}", i));
    ASSERT_NE(view, nullptr);
    EXPECT_EQ(view->dtype, dtype);
    EXPECT_EQ(view->shape, Shape::Of(1, 3, Info(dtype).block_elems * 2));
    const auto wanted = Pattern(Info(dtype).block_bytes * 6, i);
    EXPECT_EQ(std::memcmp(view->data, wanted.data(), wanted.size()), 0) << Info(dtype).name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % 32, 0u);
  }
  std::remove(path.c_str());
}

class GgufWriterErrors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = TempPath(testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    path_ = (folder_ / "m.gguf").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // The error, without the path in front.
  std::string Message(const Status& status, Code code = Code::kInvalidArgument) {
    if (status.ok()) return "ok";
    EXPECT_EQ(ToString(status.error().code), ToString(code));
    EXPECT_TRUE(status.error().message.starts_with(path_)) << status.error().message;
    return status.error().message.substr(path_.size());
  }

  std::filesystem::path folder_;
  std::string path_;
};

TEST_F(GgufWriterErrors, TheSameCallsGiveTheSameBytes) {
  std::string files[2];
  for (std::string& bytes : files) {
    GgufWriter writer;
    writer.SetString("general.architecture", "test");
    writer.SetInts("types", std::vector<int32_t>{3, 1});
    writer.AddTensor("a", DType::kQ4_0, Shape::Of(3, 32));
    ASSERT_TRUE(writer.Begin(path_).ok());
    ASSERT_TRUE(writer.WriteTensorBytes(Pattern(54, 1)).ok());
    ASSERT_TRUE(writer.Finish().ok());
    bytes = ReadFile(path_).value();
  }
  EXPECT_EQ(files[0], files[1]);
}

TEST_F(GgufWriterErrors, AFileWithoutTensorsOpens) {
  GgufWriter writer;
  ASSERT_TRUE(writer.Begin(path_).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const auto file = GgufFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->tensors().empty());
}

TEST_F(GgufWriterErrors, TooFewOrTooManyBytesLeaveNothing) {
  {
    GgufWriter writer;
    writer.AddTensor("a", DType::kF32, Shape::Of(2));
    ASSERT_TRUE(writer.Begin(path_).ok());
    EXPECT_EQ(Message(writer.Finish()), ": tensor 'a': 0 bytes, wanted 8");
    EXPECT_EQ(Message(writer.WriteTensorBytes(Pattern(5, 0))), "ok");
    EXPECT_EQ(Message(writer.WriteTensorBytes(Pattern(4, 0))), ": tensor 'a': 9 bytes, wanted 8");
    EXPECT_EQ(Message(writer.Finish()), ": tensor 'a': 5 bytes, wanted 8");
    EXPECT_EQ(Message(writer.WriteTensorBytes(Pattern(3, 0))), "ok");
    EXPECT_EQ(Message(writer.WriteTensorBytes(Pattern(1, 0))), ": 1 bytes after the last tensor");
    EXPECT_FALSE(std::filesystem::exists(path_));  // a temporary file until Finish
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(GgufWriterErrors, AnOldFileStaysUntilTheNewOneIsWhole) {
  ASSERT_TRUE(WriteFileAtomic(path_, "old").ok());
  {
    GgufWriter writer;
    writer.AddTensor("a", DType::kF32, Shape::Of(2));
    ASSERT_TRUE(writer.Begin(path_).ok());
    EXPECT_EQ(ReadFile(path_).value(), "old");
  }
  EXPECT_EQ(ReadFile(path_).value(), "old");
}

TEST_F(GgufWriterErrors, BeginReportsTheFirstBadTensor) {
  const auto error = [&](std::string_view name, DType dtype, const Shape& shape) {
    GgufWriter writer;
    writer.AddTensor(name, dtype, shape);
    writer.AddTensor("later", DType::kQ8_0, Shape::Of(1));
    return Message(writer.Begin(path_));
  };
  EXPECT_EQ(error("t", DType::kQ8_0, Shape::Of(2, 33)),
            ": tensor 't': Q8_0 [2, 33]: row of 33 elements is not whole Q8_0 blocks of 32");
  EXPECT_EQ(error("t", DType::kF32, Shape{}), ": tensor 't': F32 []: wanted 1 to 4 dimensions");
  EXPECT_EQ(error("t", DType::kF32, Shape::Of(0, 4)), ": tensor 't': F32 [0, 4]: dimension 0 is 0");
  EXPECT_EQ(error("", DType::kF32, Shape::Of(4)), ": tensor '': F32 [4]: name of 0 bytes, wanted 1 to 63");
  EXPECT_EQ(error(std::string(64, 'n'), DType::kF32, Shape::Of(4)).substr(77),
            "F32 [4]: name of 64 bytes, wanted 1 to 63");
  EXPECT_EQ(error("t", DType::kF32, Shape::Of(size_t{1} << 62, 4)),
            ": tensor 't': F32 [4611686018427387904, 4]: size 16 * 4611686018427387904 overflows");
  EXPECT_EQ(error("t", DType::kF32, Shape::Of(size_t{1} << 61)),
            ": tensor 't': F32 [2305843009213693952]: the file is larger than 2^63 bytes");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(GgufWriterErrors, AFolderThatIsMissingIsAnIoError) {
  path_ = (folder_ / "none" / "m.gguf").string();
  GgufWriter writer;
  EXPECT_EQ(Message(writer.Begin(path_), Code::kIo), ": cannot write: No such file or directory");
}

TEST(GgufWriterDeathTest, NamesAndKeysAreUnique) {
  GgufWriter writer;
  writer.SetUint("k", 1);
  writer.AddTensor("t", DType::kF32, Shape::Of(1));
  EXPECT_DEATH(writer.SetString("k", "2"), "check failed");
  EXPECT_DEATH(writer.AddTensor("t", DType::kF16, Shape::Of(2)), "check failed");
}

}  // namespace
}  // namespace npumoe
