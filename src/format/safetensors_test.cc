// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/files.h"
#include "format/counting_new.h"

namespace npumoe {
namespace {

std::string File(std::string_view header, std::string_view data = {}) {
  const uint64_t length = header.size();
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes + std::string(header) + std::string(data);
}

Result<SafetensorsContents> Parse(std::string_view bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes)), "m.safetensors");
}

// The error of a file that must not parse, without the name in front.
std::string ErrorOf(std::string_view bytes, Code code = Code::kCorruptFile) {
  const auto parsed = Parse(bytes);
  if (parsed.ok()) return "parsed";
  EXPECT_EQ(ToString(parsed.error().code), ToString(code)) << parsed.error().message;
  EXPECT_TRUE(parsed.error().message.starts_with("m.safetensors: ")) << parsed.error().message;
  for (const char c : parsed.error().message) EXPECT_GE(static_cast<uint8_t>(c), 0x20) << parsed.error().message;
  return parsed.error().message.substr(15);
}

std::string Entry(std::string_view name, std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape, offsets);
}

std::string Object(const std::vector<std::string>& entries) { return fmt::format("{{{}}}", fmt::join(entries, ",")); }

const std::string kGood = File(Object({Entry("w", "F32", "[2,1]", "[0,8]"), Entry("h", "F16", "[1]", "[8,10]"),
                                       R"("__metadata__":{"format":"pt"})", Entry("b", "BF16", "[3]", "[10,16]")}) +
                                   " ",
                               "abcdefghijklmnop");

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const auto file = Parse(kGood);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file->tensors.size(), 3u);
  const TensorView& w = file->tensors.find("w")->second;
  EXPECT_EQ(w.dtype, DType::kF32);
  EXPECT_EQ(w.shape, Shape::Of(2, 1));
  EXPECT_EQ(std::memcmp(w.data, "abcdefgh", 8), 0);
  EXPECT_EQ(file->tensors.find("h")->second.dtype, DType::kF16);
  EXPECT_EQ(std::memcmp(file->tensors.find("b")->second.data, "klmnop", 6), 0);
  EXPECT_EQ(file->metadata.at("format"), "pt");
}

TEST(Safetensors, ScalarsEmptyTensorsAndEmptyFilesLoad) {
  const std::string bytes = File(Object({Entry("scalar", "F32", "[]", "[0,4]"), Entry("none", "F16", "[0,7]", "[4,4]"),
                                         Entry("first", "F16", "[3,0]", "[0,0]")}),
                                 "wxyz");
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->tensors.find("scalar")->second.shape.rank, 0u);
  EXPECT_EQ(std::memcmp(file->tensors.find("scalar")->second.data, "wxyz", 4), 0);
  EXPECT_EQ(file->tensors.find("none")->second.shape, Shape::Of(0, 7));
  EXPECT_TRUE(Parse(File("{}")).ok());
  EXPECT_TRUE(Parse(File("{}      ")).ok());
}

TEST(Safetensors, EveryTruncationIsAnErrorNotACrash) {
  for (size_t n = 0; n < kGood.size(); ++n) {
    const std::vector<char> cut(kGood.begin(), kGood.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_NE(ErrorOf(std::string_view(cut.data(), cut.size())), "parsed") << n;
  }
}

TEST(Safetensors, EveryByteChangedIsHandled) {
  size_t n_errors = 0;
  for (size_t at = 0; at < kGood.size(); ++at) {
    const auto old = static_cast<uint8_t>(kGood[at]);
    for (const int change :
         std::initializer_list<int>{0x00, 0xff, 0x80, '"', '[', '{', '-', '9', 'e', old ^ 0x01, old + 1}) {
      std::string bytes = kGood;
      bytes[at] = static_cast<char>(change);
      const auto file = Parse(bytes);
      if (!file.ok()) {
        ++n_errors;
        const std::string& message = file.error().message;
        EXPECT_TRUE(message.starts_with("m.safetensors: ")) << message;
        for (const char c : message) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << message;
        continue;
      }
      for (const auto& [name, view] : file->tensors) {
        const auto begin = reinterpret_cast<const char*>(view.data);
        ASSERT_TRUE(begin >= bytes.data() &&
                    begin + ByteSize(view.dtype, view.shape).value() <= bytes.data() + bytes.size());
      }
    }
  }
  EXPECT_GT(n_errors, kGood.size());
}

TEST(Safetensors, HeaderLengthsAreCheckedWithNumbers) {
  EXPECT_EQ(ErrorOf(""), "file is empty");
  EXPECT_EQ(ErrorOf("1234567"), "file ends at byte 7 inside the header's length of 8 bytes");
  EXPECT_EQ(ErrorOf(std::string("\x80\x9b\x82\x07\0\0\0\0", 8)), "header of 126000000 bytes, wanted at most 100000000");
  EXPECT_EQ(ErrorOf(std::string(8, '\xff') + "{}"), "header of 18446744073709551615 bytes, wanted at most 100000000");
  EXPECT_EQ(ErrorOf(std::string("\x03\0\0\0\0\0\0\0{}", 10)), "header of 3 bytes, file has 2 after the length");
  EXPECT_EQ(ErrorOf(File("")), "header starts with '', wanted '{'");
  EXPECT_EQ(ErrorOf(File(" {}")), "header starts with ' ', wanted '{'");
  EXPECT_EQ(ErrorOf(File("[]")), "header starts with '[', wanted '{'");
}

TEST(Safetensors, SaysWhatAForeignFileIs) {
  EXPECT_EQ(ErrorOf("<!DOCTYPE html><html></html>"), "not a safetensors file: looks like an HTML page, not a model");
  EXPECT_NE(ErrorOf("version https://git-lfs.github.com/spec/v1\n").find("Git LFS pointer"), std::string::npos);
  EXPECT_EQ(ErrorOf(std::string("GGUF\3\0\0\0", 8) + std::string(16, '\0')), "not a safetensors file: is a GGUF file");
}

TEST(Safetensors, OffsetsAreCheckedBeforeDtypes) {
  const std::string data(8, 'x');
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F13", "[2]", "[0,99]")}), data)),
            "tensor 'w': data ends at byte 99, file has 8 bytes of data");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[2]", "[8,0]")}), data)),
            "tensor 'w': data begins at 8 but ends at 0");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[2]", "[0]")}), data)),
            "tensor 'w': data_offsets has 1 numbers, wanted 2");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[2]", "[0,4,8]")}), data)),
            "tensor 'w': data_offsets has 3 numbers, wanted 2");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[2]", "[-1,8]")}), data)),
            "header: tensor 'w': data_offsets: -1 is negative");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[2]", "[0,18446744073709551615]")}), data)),
            "tensor 'w': data ends at byte 18446744073709551615, file has 8 bytes of data");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[2]", "[0,18446744073709551616]")}), data)),
            "header: tensor 'w': data_offsets: unexpected number: no 64-bit integer");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F13", "[2]", "[0,8]")}), data), Code::kUnsupported),
            "tensor 'w': dtype 'F13' is not supported, wanted F32, F16 or BF16");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "I64", "[1]", "[0,8]")}), data), Code::kUnsupported),
            "tensor 'w': dtype 'I64' is not supported, wanted F32, F16 or BF16");
}

TEST(Safetensors, DataIsCoveredWithoutGapOrOverlap) {
  const std::string a = Entry("a", "F32", "[1]", "[0,4]");
  EXPECT_EQ(ErrorOf(File(Object({a, Entry("b", "F32", "[1]", "[8,12]")}), std::string(12, 'x'))),
            "tensor 'b': data begins at byte 8, wanted 4 (no gap, no overlap)");
  EXPECT_EQ(ErrorOf(File(Object({a, Entry("b", "F32", "[1]", "[2,6]")}), std::string(6, 'x'))),
            "tensor 'b': data begins at byte 2, wanted 4 (no gap, no overlap)");
  EXPECT_EQ(ErrorOf(File(Object({a, Entry("b", "F32", "[1]", "[0,4]")}), std::string(4, 'x'))),
            "tensor 'b': data begins at byte 0, wanted 4 (no gap, no overlap)");
  EXPECT_EQ(ErrorOf(File(Object({a}), "12345")), "tensors end at byte 4, file has 5 bytes of data");
  EXPECT_EQ(ErrorOf(File("{}", "1")), "tensors end at byte 0, file has 1 bytes of data");
}

TEST(Safetensors, ShapesMustMatchTheirBytes) {
  const std::string data(8, 'x');
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[1]", "[0,8]")}), data)),
            "tensor 'w': F32 [1] takes 4 bytes, data_offsets span 8");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[4611686018427387906]", "[0,8]")}), data)),
            "tensor 'w': size 4611686018427387906 * 4 overflows");
  EXPECT_NE(ErrorOf(File(Object({Entry("w", "F32", "[4294967296,4294967296,2]", "[0,8]")}), data)), "parsed");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[1,1,1,1,2]", "[0,8]")}), data), Code::kUnsupported),
            "tensor 'w': 5 dimensions, wanted at most 4");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[2.0]", "[0,8]")}), data)),
            "header: tensor 'w': shape: unexpected number: no 64-bit integer");
  EXPECT_EQ(ErrorOf(File(Object({Entry("w", "F32", "[-2]", "[0,8]")}), data)),
            "header: tensor 'w': shape: -2 is negative");
}

TEST(Safetensors, RefusesBrokenHeaders) {
  const std::string data(4, 'x');
  const std::string a = Entry("a", "F32", "[1]", "[0,4]");
  EXPECT_EQ(ErrorOf(File(Object({a, a}), data)), "header: key 'a' occurs twice");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", data)),
            "header: tensor 'a': dtype: occurs twice");
  EXPECT_EQ(ErrorOf(File(R"({"__metadata__":{"k":"1","k":"2"}})")), "header: __metadata__ key 'k' occurs twice");
  EXPECT_EQ(ErrorOf(File(R"({"__metadata__":{"k":1}})")), "header: __metadata__: 'k': unexpected number");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"dtype":"F32","shape":[1]}})", data)),
            "tensor 'a': data_offsets has 0 numbers, wanted 2");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", data)), "tensor 'a': shape is missing");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", data)), "tensor 'a': dtype is missing");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"strides":[1]}})", data)),
            "header: tensor 'a': strides: unknown field, wanted dtype, shape or data_offsets");
  EXPECT_EQ(ErrorOf(File(R"({"a":5})")), "header: tensor 'a': unexpected number");
  EXPECT_EQ(ErrorOf(File(R"({"a":null})")), "header: tensor 'a': unexpected null");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"dtype":7}})")), "header: tensor 'a': dtype: unexpected number");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"shape":"x"}})")), "header: tensor 'a': shape: unexpected string");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"shape":[true]}})")), "header: tensor 'a': shape: unexpected bool");
  EXPECT_EQ(ErrorOf(File(R"({"a":{"shape":[[1]]}})")), "header: tensor 'a': shape: unexpected array");
  EXPECT_EQ(ErrorOf(File("{\"a\":}")), "header: JSON is broken at byte 6");
  EXPECT_EQ(ErrorOf(File("{} {}")), "header: JSON is broken at byte 4");
  EXPECT_EQ(ErrorOf(File("{\"\xff\":{}}")), "header: JSON is broken at byte 3");
  EXPECT_EQ(ErrorOf(File(R"({"a\n\u001b":5})")), "header: tensor 'a\\x0a\\x1b': unexpected number");
}

TEST(Safetensors, DeepNestingIsRefusedAtOnce) {
  EXPECT_EQ(ErrorOf(File("{\"a\":" + std::string(1'000'000, '['))), "header: tensor 'a': unexpected array");
  std::string objects = "{";
  for (int i = 0; i < 200'000; ++i) objects += "\"a\":{";
  EXPECT_EQ(ErrorOf(File(objects)), "header: tensor 'a': a: unknown field, wanted dtype, shape or data_offsets");
}

TEST(Safetensors, MemoryIsBoundedByTheFile) {
  std::string many = "{";
  for (int i = 0; i < 2000; ++i) many += fmt::format("\"{}\":{{}},", i);
  for (const std::string& bytes : {std::string(8, '\xff') + "{}", File(many + "\"x\":{}}"),
                                   File("{\"a\":{\"shape\":[" + std::string(4000, '1') + "]}}"),
                                   File("{\"a\":" + std::string(100'000, '[')), File("{\"" + std::string(4000, 'x'))}) {
    const size_t before = AllocatedBytes();
    { const auto parsed = Parse(bytes); }
    EXPECT_LT(AllocatedBytes() - before, 64 * bytes.size() + 4096) << ErrorOf(bytes);
  }
}

class SafetensorsFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) /
        fmt::format("safetensors_{}_{}", ::getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Save(const std::string& name, const std::string& bytes) {
    EXPECT_TRUE(WriteFileAtomic((folder_ / name).string(), bytes).ok());
  }
  void SaveIndex(const std::string& weight_map) {
    Save("model.safetensors.index.json",
         R"({"metadata":{"total_size":8,"x":[[{"y":null}]]},"weight_map":)" + weight_map + "}");
  }
  std::string ErrorOfFolder(Code code = Code::kCorruptFile) {
    const auto opened = SafetensorsFolder::Open(folder_.string());
    if (opened.ok()) return "opened";
    EXPECT_EQ(ToString(opened.error().code), ToString(code)) << opened.error().message;
    EXPECT_TRUE(opened.error().message.starts_with(folder_.string())) << opened.error().message;
    return opened.error().message.substr(folder_.string().size());
  }

  std::filesystem::path folder_;
};

std::string OneTensor(std::string_view name, std::string_view data = "abcd") {
  return File(Object({Entry(name, "F32", "[1]", "[0,4]")}), data);
}

TEST_F(SafetensorsFolderTest, OneFileOpens) {
  Save("model.safetensors", OneTensor("w"));
  const auto folder = SafetensorsFolder::Open(folder_.string());
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  EXPECT_EQ(std::memcmp(folder->FindTensor("w")->data, "abcd", 4), 0);
  EXPECT_EQ(folder->FindTensor("v"), nullptr);
  EXPECT_EQ(folder->size_bytes(), OneTensor("w").size());
}

TEST_F(SafetensorsFolderTest, ShardsMerge) {
  SaveIndex(R"({"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"})");
  Save("model-00001-of-00002.safetensors", OneTensor("a", "1234"));
  Save("model-00002-of-00002.safetensors", OneTensor("b", "5678"));
  const auto folder = SafetensorsFolder::Open(folder_.string());
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  ASSERT_EQ(folder->tensors().size(), 2u);
  EXPECT_EQ(std::memcmp(folder->FindTensor("b")->data, "5678", 4), 0);
}

TEST_F(SafetensorsFolderTest, MissingFilesAreNamed) {
  EXPECT_EQ(ErrorOfFolder(Code::kNotFound), ": neither model.safetensors nor model.safetensors.index.json is there");
  SaveIndex(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  Save("s1.safetensors", OneTensor("a"));
  EXPECT_EQ(ErrorOfFolder(Code::kNotFound), "/model.safetensors.index.json: shard 's2.safetensors' is missing");
  Save("s2.safetensors", OneTensor("c"));
  EXPECT_EQ(ErrorOfFolder(), "/s2.safetensors: tensor 'b' is missing, but the index says that it is here");
  Save("s2.safetensors", OneTensor("a"));
  EXPECT_NE(ErrorOfFolder(), "opened");
  SaveIndex(R"({"a":"s1.safetensors","b":"s2.safetensors"})");
  Save("s2.safetensors",
       File(Object({Entry("b", "F32", "[1]", "[0,4]"), Entry("a", "F32", "[1]", "[4,8]")}), "abcdefgh"));
  EXPECT_EQ(ErrorOfFolder(), "/s2.safetensors: tensor 'a' is also in an earlier shard");
}

TEST_F(SafetensorsFolderTest, ShardNamesStayInTheFolder) {
  for (const char* const name :
       {"", ".", "..", "../x.safetensors", "/etc/passwd", "a/b.safetensors", "a\\\\b", "a\\u0000b"}) {
    SaveIndex(fmt::format(R"({{"w":"{}"}})", name));
    EXPECT_TRUE(ErrorOfFolder().ends_with("is not a plain name")) << ErrorOfFolder();
  }
}

TEST_F(SafetensorsFolderTest, BrokenIndexesAreRefused) {
  const std::string name = "/model.safetensors.index.json: ";
  const auto error = [&](const std::string& text) {
    Save("model.safetensors.index.json", text);
    const std::string message = ErrorOfFolder();
    EXPECT_TRUE(message.starts_with(name)) << message;
    return message.substr(std::min(name.size(), message.size()));
  };
  EXPECT_EQ(error("{}"), "key 'weight_map' is missing");
  EXPECT_EQ(error("[]"), "is an array, wanted an object");
  EXPECT_EQ(error("7"), "is a number, wanted an object");
  EXPECT_EQ(error(""), "JSON is broken at byte 1");
  EXPECT_EQ(error("{\"weight_map\":{}}"), "weight_map is empty");
  EXPECT_EQ(error("{\"weight_map\":[]}"), "weight_map is an array, wanted an object");
  EXPECT_EQ(error("{\"weight_map\":null}"), "weight_map is null, wanted an object");
  EXPECT_EQ(error("{\"weight_map\":{\"a\":1}}"), "weight_map: tensor 'a': a number, wanted a file name");
  EXPECT_EQ(error("{\"weight_map\":{\"a\":{}}}"), "weight_map: tensor 'a': an object, wanted a file name");
  EXPECT_EQ(error("{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}"), "weight_map: tensor 'a' occurs twice");
  EXPECT_EQ(error("{\"weight_map\":{\"a\":\"x\"},\"weight_map\":{}}"), "key 'weight_map' occurs twice");
  EXPECT_EQ(error("<html>"), "looks like an HTML page, not a model");
  EXPECT_EQ(error("version https://git-lfs.github.com/spec/v1\n"),
            "looks like a Git LFS pointer, not the file it points to: fetch it with git lfs pull");
  EXPECT_EQ(error("{\"metadata\":" + std::string(1'000'000, '[')), "JSON is broken at byte 1000013");
}

TEST_F(SafetensorsFolderTest, OddDataPositionsAreCopiedToAlignedMemory) {
  const std::string header = Object({Entry("h", "F16", "[1]", "[0,2]"), Entry("w", "F32", "[1]", "[2,6]")});
  for (size_t pad = 0; pad < 4; ++pad) {
    const float value = 1.5f;
    std::string data(6, '\1');
    std::memcpy(data.data() + 2, &value, 4);
    Save("model.safetensors", File(header + std::string(pad, ' '), data));
    const auto folder = SafetensorsFolder::Open(folder_.string());
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(folder->FindTensor("w")->data) % 4, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(folder->FindTensor("h")->data) % 2, 0u);
    EXPECT_EQ(folder->FindTensor("w")->f32()[0], 1.5f);
    EXPECT_EQ(std::memcmp(folder->FindTensor("h")->data, "\1\1", 2), 0);
  }
}

TEST_F(SafetensorsFolderTest, TheWriterRoundTripsInAnyOrder) {
  Tensor a = Tensor::Make(DType::kF16, Shape::Of(3)).value();
  Tensor b = Tensor::Make(DType::kF32, Shape::Of(2, 2)).value();
  Tensor c = Tensor::Make(DType::kBF16, Shape{}).value();
  std::memcpy(a.data(), "uvwxyz", 6);
  for (size_t i = 0; i < 4; ++i) b.f32()[i] = static_cast<float>(i) - 1.5f;
  std::memcpy(c.data(), "!?", 2);
  const std::string path = (folder_ / "model.safetensors").string();
  const NamedTensor one_order[] = {{"a\"\xc3\xa9", a.view()}, {"b", b.view()}, {"c", c.view()}};
  const NamedTensor other_order[] = {{"c", c.view()}, {"b", b.view()}, {"a\"\xc3\xa9", a.view()}};
  ASSERT_TRUE(WriteSafetensors(path, one_order).ok());
  const std::string bytes = ReadFile(path).value();
  ASSERT_TRUE(WriteSafetensors(path, other_order).ok());
  EXPECT_EQ(ReadFile(path).value(), bytes);
  EXPECT_EQ((bytes.size() - 24) % 8, 0u);  // 24 bytes of data after a header padded to 8
  const auto folder = SafetensorsFolder::Open(folder_.string());
  ASSERT_TRUE(folder.ok()) << folder.error().message;
  EXPECT_EQ(folder->tensors().size(), 3u);
  EXPECT_EQ(folder->FindTensor("b")->shape, Shape::Of(2, 2));
  EXPECT_EQ(folder->FindTensor("b")->f32()[3], 1.5f);
  EXPECT_EQ(std::memcmp(folder->FindTensor("a\"\xc3\xa9")->data, "uvwxyz", 6), 0);
  EXPECT_EQ(folder->FindTensor("c")->shape.rank, 0u);
  const auto contents = Parse(bytes);
  EXPECT_EQ(contents->metadata.at("format"), "pt");
}

TEST_F(SafetensorsFolderTest, TheWriterRefusesWhatTheFormatCannotHold) {
  const Tensor f = Tensor::Make(DType::kF32, Shape::Of(1)).value();
  const Tensor q = Tensor::Make(DType::kQ8_0, Shape::Of(32)).value();
  const std::string path = (folder_ / "model.safetensors").string();
  const auto error = [&](std::vector<NamedTensor> tensors) {
    const Status status = WriteSafetensors(path, tensors);
    EXPECT_FALSE(std::filesystem::exists(path));
    return status.ok() ? "written" : status.error().message.substr(path.size());
  };
  EXPECT_EQ(error({{"w", f.view()}, {"w", f.view()}}), ": tensor name 'w' is taken");
  EXPECT_EQ(error({{"__metadata__", f.view()}}), ": tensor name '__metadata__' is taken");
  EXPECT_EQ(error({{"w", q.view()}}), ": tensor 'w': dtype Q8_0, wanted F32, F16 or BF16");
  EXPECT_EQ(error({{"\xff", f.view()}}), ": tensor '\\xff': name is not UTF-8");
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace npumoe
