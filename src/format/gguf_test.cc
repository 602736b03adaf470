// SPDX-License-Identifier: Apache-2.0
#include "format/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "format/gguf_bytes.h"

namespace npumoe {
namespace {

Result<GgufContents> Parse(std::string_view bytes, std::string_view name = "m.gguf") {
  return ParseGguf(std::as_bytes(std::span(bytes)), name);
}

// The error of a file that must not parse.
std::string ErrorOf(std::string_view bytes, Code code = Code::kCorruptFile) {
  const auto parsed = Parse(bytes);
  if (parsed.ok()) return "parsed";
  EXPECT_EQ(ToString(parsed.error().code), ToString(code)) << parsed.error().message;
  return parsed.error().message;
}

std::string WithMetadata(const std::vector<std::string>& records) { return GgufBytes{.metadata = records}.Build(); }

std::string WithTensors(const std::vector<std::string>& records, size_t data_bytes = 256) {
  return GgufBytes{.tensors = records, .data = std::string(data_bytes, '\1')}.Build();
}

// One record of every kind; the last tensor ends on the alignment, so that every cut loses something.
std::string TinyGguf() {
  GgufBytes file;
  file.metadata = {
      Kv("general.architecture", kString, Str("test")),
      Kv("u8", kU8, Le<uint8_t>(200)),
      Kv("i8", kI8, Le<int8_t>(-2)),
      Kv("u16", kU16, Le<uint16_t>(60000)),
      Kv("i16", kI16, Le<int16_t>(-300)),
      Kv("u32", kU32, U32(4000000000u)),
      Kv("i32", kI32, Le<int32_t>(-70000)),
      Kv("f32", kF32, Le(0.5f)),
      Kv("yes", kBool, Le<uint8_t>(1)),
      Kv("no", kBool, Le<uint8_t>(0)),
      Kv("u64", kU64, U64(1ull << 63)),
      Kv("i64", kI64, Le<int64_t>(-5000000000)),
      Kv("f64", kF64, Le(0.1)),
      KvArray("words", kString, 2, Str("a") + Str("")),
      KvArray("flags", kBool, 3, std::string("\1\0\1", 3)),
      KvArray("bytes", kU8, 3, "\x01\x02\xff"),
      KvArray("ints", kI32, 2, Le<int32_t>(-1) + Le<int32_t>(7)),
      KvArray("floats", kF32, 1, Le(1.25f)),
  };
  file.tensors = {TensorInfoBytes("a", {2, 3}, 0, 0), TensorInfoBytes("b", {32, 2}, 8, 32),
                  TensorInfoBytes("c", {8}, 0, 128)};
  for (int i = 0; i < 160; ++i) file.data += static_cast<char>(i);
  return file.Build();
}

TEST(Gguf, ReadsEveryValueType) {
  const std::string bytes = TinyGguf();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto& m = file->metadata;
  ASSERT_EQ(m.size(), 18u);
  EXPECT_EQ(m.find("general.architecture")->second, GgufValue(std::string_view("test")));
  EXPECT_EQ(m.find("u8")->second, GgufValue(uint64_t{200}));
  EXPECT_EQ(m.find("i8")->second, GgufValue(int64_t{-2}));
  EXPECT_EQ(m.find("u16")->second, GgufValue(uint64_t{60000}));
  EXPECT_EQ(m.find("i16")->second, GgufValue(int64_t{-300}));
  EXPECT_EQ(m.find("u32")->second, GgufValue(uint64_t{4000000000u}));
  EXPECT_EQ(m.find("i32")->second, GgufValue(int64_t{-70000}));
  EXPECT_EQ(m.find("f32")->second, GgufValue(0.5));
  EXPECT_EQ(m.find("yes")->second, GgufValue(true));
  EXPECT_EQ(m.find("no")->second, GgufValue(false));
  EXPECT_EQ(m.find("u64")->second, GgufValue(uint64_t{1} << 63));
  EXPECT_EQ(m.find("i64")->second, GgufValue(int64_t{-5000000000}));
  EXPECT_EQ(m.find("f64")->second, GgufValue(0.1));
  EXPECT_EQ(m.find("words")->second, GgufValue(GgufArray(std::vector<std::string_view>{"a", ""})));
  EXPECT_EQ(m.find("flags")->second, GgufValue(GgufArray(std::vector<bool>{true, false, true})));
  EXPECT_EQ(m.find("bytes")->second, GgufValue(GgufArray(std::vector<uint64_t>{1, 2, 255})));
  EXPECT_EQ(m.find("ints")->second, GgufValue(GgufArray(std::vector<int64_t>{-1, 7})));
  EXPECT_EQ(m.find("floats")->second, GgufValue(GgufArray(std::vector<double>{1.25})));
}

TEST(Gguf, ReadsTensorsOutermostDimensionFirst) {
  const std::string bytes = TinyGguf();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->version, 3u);
  EXPECT_EQ(file->data_offset, bytes.size() - 160);
  ASSERT_EQ(file->tensors.size(), 3u);
  const TensorView& a = file->tensors.find("a")->second;
  EXPECT_EQ(a.dtype, DType::kF32);
  EXPECT_EQ(a.shape, Shape::Of(3, 2));
  EXPECT_EQ(a.data[0], std::byte{0});
  const TensorView& b = file->tensors.find("b")->second;
  EXPECT_EQ(b.dtype, DType::kQ8_0);
  EXPECT_EQ(b.shape, Shape::Of(2, 32));
  EXPECT_EQ(b.data[0], std::byte{32});
  EXPECT_EQ(file->tensors.find("c")->second.data[31], std::byte{159});
}

TEST(Gguf, EveryTruncationIsAnErrorNotACrash) {
  const std::string good = TinyGguf();
  for (size_t n = 0; n < good.size(); ++n) {
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(n));  // exact size, for sanitizers
    const auto file = Parse(std::string_view(cut.data(), cut.size()));
    ASSERT_FALSE(file.ok()) << n;
    EXPECT_EQ(file.error().code, Code::kCorruptFile) << n << ": " << file.error().message;
  }
}

// Whatever a changed byte does, views stay inside the file and errors stay one printable line.
TEST(Gguf, EveryByteChangedIsHandled) {
  const std::string good = TinyGguf();
  size_t n_errors = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    const auto old = static_cast<uint8_t>(good[at]);
    for (const int change : {0x00, 0xff, 0x80, 0x01, old ^ 0x01, old ^ 0x80, old + 1, old - 1}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(change);
      const auto file = Parse(bytes);
      if (!file.ok()) {
        ++n_errors;
        const std::string& message = file.error().message;
        EXPECT_TRUE(message.starts_with("m.gguf: ")) << message;
        for (const char c : message) ASSERT_TRUE(c >= 0x20 && c < 0x7f) << at << ": " << message;
        continue;
      }
      for (const auto& [name, view] : file->tensors) {
        const auto size_bytes = ByteSize(view.dtype, view.shape);
        ASSERT_TRUE(size_bytes.ok());
        const auto begin = reinterpret_cast<const char*>(view.data);
        ASSERT_TRUE(begin >= bytes.data() && begin + *size_bytes <= bytes.data() + bytes.size()) << at;
      }
    }
  }
  EXPECT_GT(n_errors, good.size());  // most bytes of a header matter
}

TEST(Gguf, AnEmptyHeaderAndVersion2Load) {
  EXPECT_TRUE(Parse(Header(3, 0, 0)).ok());
  const auto file = Parse(Header(2, 0, 0) + std::string(8, '\0'));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->version, 2u);
  EXPECT_TRUE(file->metadata.empty() && file->tensors.empty());
}

TEST(Gguf, SaysWhatAForeignFileIs) {
  EXPECT_EQ(ErrorOf(""), "m.gguf: file is empty");
  EXPECT_EQ(ErrorOf("\n <!DOCTYPE html><html>"), "m.gguf: not a GGUF file: looks like an HTML page, not a model");
  EXPECT_NE(ErrorOf("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n").find("Git LFS pointer"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{\"error\": \"not found\"}").find("looks like JSON text"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string("PK\3\4", 4)).find("ZIP"), std::string::npos);
  EXPECT_NE(ErrorOf("tjgg\3\0\0\0").find("old GGML format"), std::string::npos);
  EXPECT_EQ(ErrorOf("FUGG" + Header(3, 0, 0)), "m.gguf: not a GGUF file: starts with 'FUGG', wanted 'GGUF'");
  EXPECT_EQ(ErrorOf("GG"), "m.gguf: file ends at byte 2 inside the header of 24 bytes");
}

TEST(Gguf, RefusesOtherVersionsAndByteOrders) {
  EXPECT_EQ(ErrorOf(Header(0, 0, 0), Code::kUnsupported), "m.gguf: GGUF version 0, wanted 2 or 3");
  EXPECT_EQ(ErrorOf(Header(1, 0, 0), Code::kUnsupported), "m.gguf: GGUF version 1, wanted 2 or 3");
  EXPECT_EQ(ErrorOf(Header(4, 0, 0), Code::kUnsupported), "m.gguf: GGUF version 4, wanted 2 or 3");
  EXPECT_EQ(ErrorOf(Header(0x03000000, 0, 0), Code::kUnsupported),
            "m.gguf: file has the other byte order (big endian), wanted little endian");
}

TEST(Gguf, CountsAreComparedWithTheFile) {
  EXPECT_EQ(ErrorOf(Header(3, 0, UINT64_MAX)),
            "m.gguf: 18446744073709551615 metadata records do not fit into the 0 bytes after the header");
  EXPECT_EQ(ErrorOf(Header(3, uint64_t{1} << 40, 0) + std::string(64, '\0')),
            "m.gguf: 1099511627776 tensor records do not fit into the 64 bytes after the header");
}

TEST(Gguf, LengthsAreComparedWithTheFile) {
  const std::string tail(32, 'x');
  EXPECT_EQ(ErrorOf(Header(3, 0, 1) + U64(0xffffffffffff) + tail),
            "m.gguf: the key of metadata record 0 of 1 has 281474976710655 bytes, file has 32 left");
  EXPECT_EQ(ErrorOf(Header(3, 0, 1) + U64(0x8000000000000001) + tail),
            "m.gguf: the key of metadata record 0 of 1 has 9223372036854775809 bytes, file has 32 left");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("k", kString, U64(uint64_t{1} << 63))})),
            "m.gguf: the string of key 'k' has 9223372036854775808 bytes, file has 19 left");
  EXPECT_EQ(ErrorOf(WithMetadata({KvArray("k", kString, 2, Str("a") + U64(UINT64_MAX))})),
            "m.gguf: key 'k': string 1 of 2 runs past the end of the file (96 bytes)");
  EXPECT_NE(ErrorOf(WithTensors({U64(UINT64_MAX) + std::string(40, 'x')})).find("the name of tensor 0 of 1 has"),
            std::string::npos);
}

TEST(Gguf, ArrayCountsAreComparedWithTheFile) {
  for (const uint32_t type : {kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kU64, kI64, kF64}) {
    for (const uint64_t count : {uint64_t{1} << 40, uint64_t{1} << 61, UINT64_MAX, uint64_t{65}}) {
      const std::string bytes = Header(3, 0, 1) + KvArray("k", type, count, std::string(64, '\0'));
      EXPECT_TRUE(ErrorOf(bytes).starts_with(fmt::format("m.gguf: key 'k': array of {} elements of at least", count)))
          << type << ": " << ErrorOf(bytes);
    }
  }
}

TEST(Gguf, RefusesBadMetadata) {
  EXPECT_EQ(ErrorOf(WithMetadata({KvArray("k", kArray, 1, U32(0) + U64(0))})),
            "m.gguf: key 'k': arrays of arrays are not supported");
  EXPECT_EQ(ErrorOf(WithMetadata({KvArray("k", 13, 0, "")})), "m.gguf: key 'k': array element type 13, wanted 0 to 12");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("k", 13, U64(0))})), "m.gguf: key 'k': value type 13, wanted 0 to 12");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("k", 99, U64(0))})), "m.gguf: key 'k': value type 99, wanted 0 to 12");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("k", UINT32_MAX, U64(0))})),
            "m.gguf: key 'k': value type 4294967295, wanted 0 to 12");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("", kU32, U32(1))})), "m.gguf: metadata record 0 of 1 has an empty key");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("k", kU32, U32(1)), Kv("k", kU32, U32(1))})), "m.gguf: key 'k' occurs twice");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("k", kBool, "\2")})), "m.gguf: key 'k': bool is 2, wanted 0 or 1");
  EXPECT_EQ(ErrorOf(WithMetadata({KvArray("k", kBool, 2, "\1\7")})), "m.gguf: key 'k': bool 1 is 7, wanted 0 or 1");
  EXPECT_EQ(ErrorOf(WithMetadata({Kv(std::string(65536, 'k'), kU32, U32(1))})),
            "m.gguf: the key of metadata record 0 of 1 has 65536 bytes, wanted at most 65535");
}

TEST(Gguf, KeysOfAnyBytesLoadAndArePrintedEscaped) {
  const std::string key = "a\n\x1b[31m\xff\xc3\xa9";
  const std::string bytes = WithMetadata({Kv(key, kString, Str("\xfe\0"))});
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->metadata.contains(key));
  EXPECT_EQ(ErrorOf(WithMetadata({Kv(key, 99, "")})),
            "m.gguf: key 'a\\x0a\\x1b[31m\\xff\xc3\xa9': value type 99, wanted 0 to 12");
  const auto named = Parse("", "bad\nname.gguf");
  EXPECT_EQ(named.error().message, "bad\\x0aname.gguf: file is empty");
}

TEST(Gguf, AlignmentIsAPowerOfTwo) {
  for (const uint32_t alignment : {0u, 3u, 13u, 33u, 0x80000000u, 131072u}) {
    EXPECT_EQ(ErrorOf(WithMetadata({Kv("general.alignment", kU32, U32(alignment))})),
              fmt::format("m.gguf: general.alignment {}, wanted a power of two up to 65536", alignment));
  }
  EXPECT_EQ(ErrorOf(WithMetadata({Kv("general.alignment", kI32, U32(32))})),
            "m.gguf: general.alignment is not an unsigned integer");
  for (const uint32_t alignment : {1u, 8u, 64u, 4096u}) {
    GgufBytes file;
    file.metadata = {Kv("general.alignment", kU32, U32(alignment))};
    file.alignment = alignment;
    const uint64_t second = std::max<uint64_t>(alignment, 4);
    file.tensors = {TensorInfoBytes("a", {1}, 0, 0), TensorInfoBytes("b", {1}, 0, second)};
    file.data = std::string(second, '\1') + "wxyz";
    const std::string bytes = file.Build();
    const auto parsed = Parse(bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed->data_offset % alignment, 0u);
    EXPECT_EQ(std::memcmp(parsed->tensors.find("b")->second.data, "wxyz", 4), 0) << alignment;
  }
}

TEST(Gguf, OffsetsFollowTheAlignmentOfTheFile) {
  // Packed with alignment 16 or 1 although the file does not say so.
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("a", {4}, 0, 0), TensorInfoBytes("b", {4}, 0, 16)})),
            "m.gguf: tensor 'b': data offset 16, wanted 32 (after the tensor before it, alignment 32)");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("a", {1}, 0, 0), TensorInfoBytes("b", {1}, 0, 4)})), "parsed");
  // A gap, another order, the same place twice.
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("a", {4}, 0, 0), TensorInfoBytes("b", {4}, 0, 64)})), "parsed");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("a", {4}, 0, 32), TensorInfoBytes("b", {4}, 0, 0)})), "parsed");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("a", {16}, 0, 0), TensorInfoBytes("b", {4}, 0, 32)})), "parsed");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("a", {4}, 0, 1)})), "parsed");
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("a", {4}, 0, UINT64_MAX)})),
            "m.gguf: tensor 'a': offset 18446744073709551615 lies outside the file of 320 bytes");
}

TEST(Gguf, RefusesBadDimensions) {
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {1, 0}, 0, 0)})), "m.gguf: tensor 't': dimension 1 is 0");
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {0}, 0, 0)})), "m.gguf: tensor 't': dimension 0 is 0");
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {}, 0, 0)})), "m.gguf: tensor 't': 0 dimensions, wanted 1 to 4");
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {1, 1, 1, 1, 1}, 0, 0)})),
            "m.gguf: tensor 't': 5 dimensions, wanted 1 to 4");
  EXPECT_EQ(ErrorOf(WithTensors({Str("t") + U32(UINT32_MAX) + std::string(64, '\1')})),
            "m.gguf: tensor 't': 4294967295 dimensions, wanted 1 to 4");
}

TEST(Gguf, SizesDoNotWrap) {
  const uint64_t huge = UINT64_MAX;
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {huge}, 0, 0)})),
            "m.gguf: tensor 't': dimension 0 of 18446744073709551615 overflows");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("t", {huge, huge}, 0, 0)})), "parsed");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("t", {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0)})), "parsed");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("t", {8589934588, 8589934588}, 0, 0)})), "parsed");
  // 2^62 + 1 floats are 2^64 + 4 bytes; SIZE_MAX / 4 floats round up to 0 bytes.
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {(uint64_t{1} << 62) + 1}, 0, 0)})),
            "m.gguf: tensor 't': size 4611686018427387905 * 4 overflows");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("t", {UINT64_MAX / 4}, 0, 0), TensorInfoBytes("u", {4}, 0, 0)})),
            "parsed");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("t", {4, (uint64_t{1} << 42) + 1}, 0, 0)})), "parsed");
  EXPECT_NE(ErrorOf(WithTensors({TensorInfoBytes("t", {32, (uint64_t{1} << 59) + 1}, 8, 0)})), "parsed");
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {1024}, 0, 0)})),
            "m.gguf: tensor 't': F32 [1024] takes 4096 bytes, file has 320");
}

TEST(Gguf, RefusesUnknownTensorTypesByNameAndId) {
  const std::string unknown = ErrorOf(WithTensors({TensorInfoBytes("t", {32}, 255, 0)}), Code::kUnsupported);
  EXPECT_TRUE(unknown.starts_with("m.gguf: tensor 't': tensor type 255 is not supported, wanted one of F32 F16 BF16"))
      << unknown;
  const std::string iq2 = ErrorOf(WithTensors({TensorInfoBytes("t", {256}, 17, 0)}), Code::kUnsupported);
  EXPECT_TRUE(iq2.starts_with("m.gguf: tensor 't': tensor type 17 (IQ2_XS) is not supported")) << iq2;
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {33}, 8, 0)})),
            "m.gguf: tensor 't': row of 33 elements is not whole Q8_0 blocks of 32");
}

TEST(Gguf, RefusesBadTensorNames) {
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("t", {8}, 0, 0), TensorInfoBytes("t", {8}, 0, 32)})),
            "m.gguf: tensor 't' occurs twice");
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes("", {8}, 0, 0)})), "m.gguf: tensor 0 of 1 has an empty name");
  EXPECT_EQ(ErrorOf(WithTensors({TensorInfoBytes(std::string(65, 'n'), {8}, 0, 0)})),
            "m.gguf: the name of tensor 0 of 1 has 65 bytes, wanted at most 64");
  EXPECT_TRUE(Parse(WithTensors({TensorInfoBytes(std::string(64, 'n'), {8}, 0, 0)})).ok());
}

TEST(Gguf, EveryTensorLiesInsideTheFile) {
  const std::vector<std::string> tensors = {TensorInfoBytes("a", {9}, 0, 0), TensorInfoBytes("b", {9}, 0, 64)};
  const size_t whole = WithTensors(tensors, 128).size();
  EXPECT_TRUE(Parse(WithTensors(tensors, 128)).ok());
  EXPECT_TRUE(Parse(WithTensors(tensors, 128 + 7)).ok());  // bytes after the end do no harm
  EXPECT_TRUE(Parse(WithTensors(tensors, 64 + 36)).ok());  // some writers do not pad the last tensor
  EXPECT_EQ(
      ErrorOf(WithTensors(tensors, 64 + 35)),
      fmt::format("m.gguf: tensor 'b': data ends at byte {}, file has {}: it is cut off", whole - 28, whole - 29));
  EXPECT_EQ(
      ErrorOf(WithTensors(tensors, 127)),
      fmt::format("m.gguf: file ends at byte {} inside the padding after the last tensor, wanted {}: it is cut off",
                  whole - 1, whole));
  EXPECT_NE(ErrorOf(WithTensors(tensors, 64)), "parsed");
  EXPECT_NE(ErrorOf(WithTensors(tensors, 0)), "parsed");
}

TEST(Gguf, TypesArePerTensor) {
  GgufBytes file;
  uint64_t offset = 0;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const DTypeInfo& info = Info(static_cast<DType>(i));
    file.tensors.push_back(TensorInfoBytes(info.name, {info.block_elems, 2}, info.gguf_type, offset));
    offset = (offset + 2 * info.block_bytes + 31) / 32 * 32;
  }
  file.data = std::string(offset, '\0');
  const std::string bytes = file.Build();
  const auto parsed = Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  ASSERT_EQ(parsed->tensors.size(), 16u);
  for (const auto& [name, view] : parsed->tensors) {
    EXPECT_EQ(Info(view.dtype).name, name);
    EXPECT_EQ(view.shape, Shape::Of(2, Info(view.dtype).block_elems));
  }
}

}  // namespace
}  // namespace npumoe
