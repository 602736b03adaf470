// SPDX-License-Identifier: Apache-2.0
// Files on disk: getters, split files, alignment, load time and memory.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <filesystem>
#include <limits>

#include "base/files.h"
#include "format/counting_new.h"
#include "format/gguf.h"
#include "format/gguf_bytes.h"

namespace npumoe {
namespace {

class GgufFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              fmt::format("gguf_{}_{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Save(const std::string& name, const std::string& bytes) {
    EXPECT_TRUE(WriteFileAtomic((folder_ / name).string(), bytes).ok());
    return (folder_ / name).string();
  }
  std::string ErrorOf(const std::string& path, Code code = Code::kCorruptFile) {
    const auto file = GgufFile::Open(path);
    if (file.ok()) return "opened";
    EXPECT_EQ(ToString(file.error().code), ToString(code)) << file.error().message;
    std::string message = file.error().message;
    // Only names inside the folder are asserted.
    for (size_t at; (at = message.find(folder_.string() + "/")) != std::string::npos;) {
      message.erase(at, folder_.string().size() + 1);
    }
    return message;
  }

  std::filesystem::path folder_;
};

// Part `no` (from 0) of `count`, with one tensor of eight floats for each name.
GgufBytes Part(uint16_t no, uint16_t count, int32_t n_tensors, const std::vector<std::string>& names) {
  GgufBytes file;
  file.metadata = {Kv("split.no", kU16, Le(no)), Kv("split.count", kU16, Le(count)),
                   Kv("split.tensors.count", kI32, Le(n_tensors))};
  if (no == 0) file.metadata.push_back(Kv("general.architecture", kString, Str("test")));
  for (const std::string& name : names) {
    file.tensors.push_back(TensorInfoBytes(name, {8}, 0, file.data.size()));
    for (int i = 0; i < 8; ++i) file.data += Le(static_cast<float>(no) + 0.5f);
  }
  return file;
}

TEST_F(GgufFileTest, GettersCheckTypeSignAndRange) {
  const std::string path =
      Save("m.gguf",
           GgufBytes{.metadata = {Kv("u", kU32, U32(7)), Kv("i", kI32, Le<int32_t>(9)), Kv("n", kI8, "\xff"),
                                  Kv("f", kF32, Le(2.5f)), Kv("inf", kF32, Le(std::numeric_limits<float>::infinity())),
                                  Kv("nan", kF64, Le(std::nan(""))), Kv("b", kBool, "\1"), Kv("s", kString, Str("x")),
                                  KvArray("a", kU8, 1, "\1"), Kv("big", kU64, U64(UINT64_MAX))}}
               .Build());
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->size_bytes(), std::filesystem::file_size(path));
  EXPECT_EQ(file->path(), path);
  const auto error = [&](const auto& result, Code code) {
    EXPECT_FALSE(result.ok());
    if (result.ok()) return std::string();
    EXPECT_EQ(ToString(result.error().code), ToString(code));
    return result.error().message.substr(path.size());
  };
  EXPECT_EQ(file->Uint("u").value(), 7u);
  EXPECT_EQ(file->Uint("u", 7).value(), 7u);
  EXPECT_EQ(file->Uint("i").value(), 9u);
  EXPECT_EQ(file->Uint("big").value(), UINT64_MAX);
  EXPECT_EQ(error(file->Uint("u", 6), Code::kCorruptFile), ": key 'u': 7, wanted at most 6");
  EXPECT_EQ(error(file->Uint("n"), Code::kCorruptFile), ": key 'n': -1 is negative, wanted at least 0");
  EXPECT_EQ(error(file->Uint("b"), Code::kCorruptFile), ": key 'b': a bool, wanted an unsigned integer");
  EXPECT_EQ(error(file->Uint("f"), Code::kCorruptFile), ": key 'f': a float, wanted an unsigned integer");
  EXPECT_EQ(error(file->Uint("a"), Code::kCorruptFile), ": key 'a': an array, wanted an unsigned integer");
  EXPECT_EQ(error(file->Uint("none"), Code::kNotFound), ": key 'none' is missing");
  EXPECT_EQ(file->Float("f").value(), 2.5);
  EXPECT_EQ(file->Float("u").value(), 7.0);
  EXPECT_EQ(file->Float("n").value(), -1.0);
  EXPECT_EQ(error(file->Float("b"), Code::kCorruptFile), ": key 'b': a bool, wanted a float");
  EXPECT_EQ(error(file->Float("inf"), Code::kCorruptFile), ": key 'inf': inf, wanted a finite number");
  EXPECT_EQ(error(file->Float("nan"), Code::kCorruptFile), ": key 'nan': nan, wanted a finite number");
  EXPECT_EQ(error(file->Float("none"), Code::kNotFound), ": key 'none' is missing");
  EXPECT_EQ(file->Bool("b").value(), true);
  EXPECT_EQ(error(file->Bool("u"), Code::kCorruptFile), ": key 'u': an unsigned integer, wanted a bool");
  EXPECT_EQ(file->String("s").value(), "x");
  EXPECT_EQ(error(file->String("n"), Code::kCorruptFile), ": key 'n': a signed integer, wanted a string");
  EXPECT_EQ(file->Find("none"), nullptr);
  EXPECT_EQ(file->FindTensor("none"), nullptr);
}

TEST_F(GgufFileTest, MissingFilesFoldersAndEmptyFilesAreErrors) {
  EXPECT_EQ(ErrorOf((folder_ / "none.gguf").string(), Code::kNotFound),
            "none.gguf: cannot open: No such file or directory");
  EXPECT_FALSE(GgufFile::Open(folder_.string()).ok());
  EXPECT_EQ(ErrorOf(Save("empty.gguf", "")), "empty.gguf: file is empty");
}

TEST_F(GgufFileTest, SplitFilesOpenByAnyPartAndMerge) {
  Save("m-00001-of-00003.gguf", Part(0, 3, 4, {"a", "b"}).Build());
  Save("m-00002-of-00003.gguf", Part(1, 3, 4, {"c"}).Build());
  Save("m-00003-of-00003.gguf", Part(2, 3, 4, {"output.weight"}).Build());
  for (const int number : {1, 2, 3}) {
    const auto file = GgufFile::Open((folder_ / fmt::format("m-{:05d}-of-00003.gguf", number)).string());
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file->path(), (folder_ / "m-00001-of-00003.gguf").string());
    EXPECT_EQ(file->String("general.architecture").value(), "test");
    ASSERT_EQ(file->tensors().size(), 4u);
    EXPECT_EQ(file->FindTensor("a")->f32()[0], 0.5f);
    EXPECT_EQ(file->FindTensor("c")->f32()[7], 1.5f);
    EXPECT_EQ(file->FindTensor("output.weight")->f32()[0], 2.5f);
    size_t total = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) total += entry.file_size();
    EXPECT_EQ(file->size_bytes(), total);
  }
}

TEST_F(GgufFileTest, ViewsSurviveAMove) {
  auto opened = GgufFile::Open(Save("m.gguf", Part(0, 1, 1, {"a"}).Build()));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const TensorView view = *opened->FindTensor("a");
  const std::string_view text = opened->String("general.architecture").value();
  const GgufFile moved = std::move(opened).value();
  EXPECT_EQ(moved.FindTensor("a")->data, view.data);
  EXPECT_EQ(view.f32()[3], 0.5f);
  EXPECT_EQ(text, "test");
}

TEST_F(GgufFileTest, AMissingPartIsNamed) {
  const std::string first = Save("m-00001-of-00003.gguf", Part(0, 3, 3, {"a"}).Build());
  const std::string third = Save("m-00003-of-00003.gguf", Part(2, 3, 3, {"c"}).Build());
  EXPECT_EQ(ErrorOf(first, Code::kNotFound),
            "m-00001-of-00003.gguf: part 2 of 3 is missing: no file 'm-00002-of-00003.gguf'");
  EXPECT_EQ(ErrorOf(third, Code::kNotFound),
            "m-00003-of-00003.gguf: part 2 of 3 is missing: no file 'm-00002-of-00003.gguf'");
}

TEST_F(GgufFileTest, PartsThatDisagreeAreRefused) {
  const std::string first = Save("m-00001-of-00002.gguf", Part(0, 2, 2, {"a"}).Build());
  Save("m-00002-of-00002.gguf", Part(1, 3, 2, {"b"}).Build());
  EXPECT_EQ(ErrorOf(first), "m-00002-of-00002.gguf: split.count 3, but the file names say 2");
  Save("m-00002-of-00002.gguf", Part(0, 2, 2, {"b"}).Build());
  EXPECT_EQ(ErrorOf(first), "m-00002-of-00002.gguf: split.no 0 (part 1), but the file name says part 2");
  Save("m-00002-of-00002.gguf", Part(1, 2, 5, {"b"}).Build());
  EXPECT_EQ(ErrorOf(first), "m-00002-of-00002.gguf: split.tensors.count 5, but another part says 2");
  Save("m-00002-of-00002.gguf", Part(1, 2, 2, {}).Build());
  EXPECT_EQ(ErrorOf(first), "m-00001-of-00002.gguf: 1 tensors in 2 parts, but split.tensors.count is 2");
  Save("m-00002-of-00002.gguf", Part(1, 2, 2, {"a"}).Build());
  EXPECT_EQ(ErrorOf(first), "m-00002-of-00002.gguf: tensor 'a' is also in an earlier part");
  Save("m-00002-of-00002.gguf", GgufBytes{}.Build());
  EXPECT_EQ(ErrorOf(first), "m-00002-of-00002.gguf: part of a split file, but key 'split.count' is missing");
  Save("m-00002-of-00002.gguf", "<html>");
  EXPECT_EQ(ErrorOf(first), "m-00002-of-00002.gguf: not a GGUF file: looks like an HTML page, not a model");
}

TEST_F(GgufFileTest, ThePartOfASwappedOrRenamedSplitIsRefused) {
  const std::string swapped = Save("m-00002-of-00002.gguf", Part(0, 2, 2, {"a"}).Build());
  EXPECT_EQ(ErrorOf(swapped), "m-00002-of-00002.gguf: split.no 0 (part 1), but the file name says part 2");
  EXPECT_EQ(ErrorOf(Save("plain.gguf", Part(0, 2, 2, {"a"}).Build()), Code::kInvalidArgument),
            "plain.gguf: one of 2 parts (split.count), but the name does not end in '-00001-of-00002.gguf', so the "
            "other parts cannot be found");
  EXPECT_EQ(ErrorOf(Save("x-00001-of-00002.gguf", GgufBytes{}.Build())),
            "x-00001-of-00002.gguf: the name says part 1 of 2, but the file has no split.count");
  EXPECT_EQ(ErrorOf(Save("x-00003-of-00002.gguf", Part(0, 2, 2, {"a"}).Build()), Code::kInvalidArgument),
            "x-00003-of-00002.gguf: the name says part 3 of 2");
  EXPECT_EQ(
      ErrorOf(Save("y-00001-of-00002.gguf", GgufBytes{.metadata = {Kv("split.count", kString, Str("2"))}}.Build())),
      "y-00001-of-00002.gguf: key 'split.count': a string, wanted an unsigned integer");
  EXPECT_TRUE(GgufFile::Open(Save("z-00001-of-00001.gguf", GgufBytes{}.Build())).ok());
  EXPECT_TRUE(GgufFile::Open(Save("one.gguf", Part(0, 1, 1, {"a"}).Build())).ok());
}

TEST_F(GgufFileTest, TensorsOffTheirAlignmentAreCopied) {
  GgufBytes file;
  file.metadata = {Kv("general.alignment", kU32, U32(1))};
  file.alignment = 1;
  file.tensors = {TensorInfoBytes("h", {1}, 1, 0), TensorInfoBytes("f", {2}, 0, 2), TensorInfoBytes("g", {1}, 0, 10)};
  file.data = Le<uint16_t>(0x3c00) + Le(1.5f) + Le(-2.0f) + Le(4.0f);
  const auto opened = GgufFile::Open(Save("m.gguf", file.Build()));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  for (const auto& [name, view] : opened->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % (view.dtype == DType::kF32 ? 4 : 2), 0u) << name;
  }
  EXPECT_EQ(opened->FindTensor("f")->f32()[0], 1.5f);
  EXPECT_EQ(opened->FindTensor("f")->f32()[1], -2.0f);
  EXPECT_EQ(opened->FindTensor("g")->f32()[0], 4.0f);
  EXPECT_EQ(std::memcmp(opened->FindTensor("h")->data, "\x00\x3c", 2), 0);
}

// A vocabulary of this length once took other readers many seconds, an element at a time.
TEST_F(GgufFileTest, LongArraysLoadInBulk) {
  constexpr size_t kTokens = 262144;
  std::string words, scores, types;
  for (size_t i = 0; i < kTokens; ++i) {
    words += Str(fmt::format("token{}", i));
    scores += Le(-static_cast<float>(i));
    types += Le<int32_t>(1);
  }
  GgufBytes file;
  file.metadata = {KvArray("tokenizer.ggml.tokens", kString, kTokens, words),
                   KvArray("tokenizer.ggml.merges", kString, kTokens, words),
                   KvArray("tokenizer.ggml.scores", kF32, kTokens, scores),
                   KvArray("tokenizer.ggml.token_type", kI32, kTokens, types)};
  const std::string path = Save("m.gguf", file.Build());
  const std::clock_t start = std::clock();  // processor time: other programs do not disturb it
  const auto opened = GgufFile::Open(path);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto& tokens =
      std::get<std::vector<std::string_view>>(std::get<GgufArray>(*opened->Find("tokenizer.ggml.tokens")));
  ASSERT_EQ(tokens.size(), kTokens);
  EXPECT_EQ(tokens[262143], "token262143");
  EXPECT_EQ(std::get<std::vector<double>>(std::get<GgufArray>(*opened->Find("tokenizer.ggml.scores")))[3], -3.0);
  EXPECT_LT(seconds, 0.5);  // measured: 0.01 in a release build
}

// All memory asked for, not only its peak, stays below a small multiple of the file for every kind of lie.
TEST_F(GgufFileTest, MemoryIsBoundedByTheFile) {
  const std::string tail(4096, '\0');
  std::vector<std::string> files = {
      Header(3, 0, UINT64_MAX) + tail,
      Header(3, UINT64_MAX, 0) + tail,
      Header(3, 4096 / 33, 0) + tail,
      Header(3, 0, 4096 / 14) + tail,
      Header(3, 0, 1) + U64(uint64_t{1} << 47) + tail,
      Header(3, 0, 1) + Kv("k", kString, U64(uint64_t{1} << 63)) + tail,
      Header(3, 1, 0) + TensorInfoBytes("t", {uint64_t{1} << 40, 1}, 0, 0) + tail,
  };
  for (const uint32_t type : {kU8, kI16, kF32, kBool, kString, kF64}) {
    for (const uint64_t count : {uint64_t{1} << 40, UINT64_MAX, uint64_t{4096}, uint64_t{512}}) {
      files.push_back(Header(3, 0, 1) + KvArray("k", type, count, "") + tail);
    }
  }
  for (const std::string& bytes : files) {
    const size_t before = AllocatedBytes();
    { const auto parsed = ParseGguf(std::as_bytes(std::span(bytes)), "m"); }
    EXPECT_LT(AllocatedBytes() - before, 12 * bytes.size()) << ErrorOf(Save("m.gguf", bytes));
  }
}

// A million keys are read in the time that a million keys take: no text for messages is made of those that are good.
TEST_F(GgufFileTest, KeysAskForNoMoreThanTheyTake) {
  std::string bytes = Header(3, 0, 1000);
  for (uint32_t i = 1000; i < 2000; ++i) bytes += Kv(std::string(60, '\xFF') + std::to_string(i), kU32, U32(i));
  const size_t before = AllocatedBytes();
  { ASSERT_TRUE(ParseGguf(std::as_bytes(std::span(bytes)), "m").ok()); }
  EXPECT_LT(AllocatedBytes() - before, 4 * bytes.size());
}

}  // namespace
}  // namespace npumoe
