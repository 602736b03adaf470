// SPDX-License-Identifier: Apache-2.0
// Holds the block formats against llama.cpp's own library (npm node-llama-cpp): decoded values bit for bit, and the
// error of our encoder against its encoder. Skipped where the package is not installed:
//   npm install --prefix tools/oracle node-llama-cpp@3.21.1      or set NPUMOE_NODE_MODULES to a node_modules folder
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tensor/block_codecs.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

using DequantizeFn = void (*)(const void*, float*, int64_t);
using QuantizeChunkFn = size_t (*)(int type, const float*, void*, int64_t start, int64_t rows, int64_t per_row,
                                   const float* importance);

// The first copy of the library that this machine can load; the package carries one per platform.
void* OpenLibrary(const std::filesystem::path& node_modules) {
  std::error_code ignored;
  for (const auto& platform : std::filesystem::directory_iterator(node_modules / "@node-llama-cpp", ignored)) {
    for (const auto& build : std::filesystem::directory_iterator(platform.path() / "bins", ignored)) {
      for (const char* name : {"libggml-base.so", "libggml-base.dylib"}) {
        if (void* library = dlopen((build.path() / name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
      }
    }
  }
  return nullptr;
}

std::filesystem::path NodeModules() {
  const char* from_env = std::getenv("NPUMOE_NODE_MODULES");
  return from_env != nullptr ? from_env : std::filesystem::path(NM_SOURCE_DIR) / "tools/oracle/node_modules";
}

void* Library() {
  static void* const library = OpenLibrary(NodeModules());
  return library;
}

template <typename Fn>
Fn Symbol(const std::string& name) {
  void* symbol = dlsym(Library(), name.c_str());
  EXPECT_NE(symbol, nullptr) << name;
  return reinterpret_cast<Fn>(symbol);
}

DType TypeAt(size_t i) { return static_cast<DType>(i); }
std::string Name(DType dtype) { return std::string(Info(dtype).name); }

// The library's name for the decoder of a type: dequantize_row_q4_K, but dequantize_row_iq4_xs.
std::string DecoderName(DType dtype) {
  if (dtype == DType::kF16) return "ggml_fp16_to_fp32_row";
  if (dtype == DType::kBF16) return "ggml_bf16_to_fp32_row";
  std::string name = Name(dtype);
  const size_t keep = name.ends_with("_K") ? name.size() - 1 : name.size();
  for (size_t i = 0; i < keep; ++i) name[i] = static_cast<char>(std::tolower(name[i]));
  return "dequantize_row_" + name;
}

std::vector<float> OracleDecode(DType dtype, const std::vector<std::byte>& row, size_t n) {
  std::vector<float> out(n);
  if (dtype == DType::kF32) {  // the library has no function for it: the bytes are the values
    std::memcpy(out.data(), row.data(), n * sizeof(float));
    return out;
  }
  if (const auto decode = Symbol<DequantizeFn>(DecoderName(dtype))) {
    decode(row.data(), out.data(), static_cast<int64_t>(n));
  }
  return out;
}

std::vector<std::byte> OracleEncode(DType dtype, const std::vector<float>& row) {
  std::vector<std::byte> out(RowBytes(dtype, row.size()).value());
  if (const auto encode = Symbol<QuantizeChunkFn>("ggml_quantize_chunk")) {
    const size_t written = encode(static_cast<int>(Info(dtype).gguf_type), row.data(), out.data(), 0, 1,
                                  static_cast<int64_t>(row.size()), nullptr);
    EXPECT_EQ(written, out.size()) << Name(dtype);
  }
  return out;
}

// Equal bits, or both NaN (inf * 0: the sign of the NaN is the processor's choice).
void ExpectSameBits(DType dtype, const std::vector<std::byte>& row, size_t n, const std::string& what) {
  std::vector<float> ours(n);
  DequantizeRow(dtype, row.data(), ours);
  const std::vector<float> theirs = OracleDecode(dtype, row, n);
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(ours[i]) && std::isnan(theirs[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(ours[i]), std::bit_cast<uint32_t>(theirs[i]))
        << Name(dtype) << ", " << what << ", element " << i << ": " << ours[i] << " and " << theirs[i];
  }
}

// Rows that reach every branch of an encoder. All lengths are whole blocks of every format.
std::vector<float> MakeRow(const std::string& kind, uint32_t seed, size_t n) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> gaussian;
  std::vector<float> row(n);
  for (size_t i = 0; i < n; ++i) {
    const float x = gaussian(bits);
    if (kind == "gaussian") row[i] = x;
    if (kind == "weights") row[i] = 0.02f * x;
    if (kind == "huge") row[i] = 3e4f * x;
    if (kind == "tiny") row[i] = 1e-6f * x;        // the f16 scale is subnormal
    if (kind == "vanishing") row[i] = 1e-30f * x;  // the f16 scale is zero
    if (kind == "zeros") row[i] = i / 32 % 2 == 0 ? 0.0f : x;
    if (kind == "positive") row[i] = std::fabs(x) + 1.0f;
    if (kind == "negative") row[i] = -std::fabs(x) - 1.0f;
    if (kind == "constant") row[i] = 0.7f;
    if (kind == "spike") row[i] = i % 64 == 5 ? 100.0f * x : 0.01f * x;
    if (kind == "scaled groups") row[i] = x * std::ldexp(1.0f, static_cast<int>(i / 16 % 16) - 8);
  }
  return row;
}

const std::vector<std::string> kKinds{"gaussian", "weights",  "huge",     "tiny",  "vanishing",    "zeros",
                                      "positive", "negative", "constant", "spike", "scaled groups"};

class QuantOracle : public testing::TestWithParam<size_t> {
  void SetUp() override {
    if (Library() == nullptr) GTEST_SKIP() << "no loadable @node-llama-cpp library in " << NodeModules();
  }
};

TEST_P(QuantOracle, ReadsItsBlocksToTheSameBits) {
  constexpr size_t kRow = 4096;
  const DType dtype = TypeAt(GetParam());
  for (const std::string& kind : kKinds) {
    for (uint32_t seed = 1; seed <= 3; ++seed) {
      ExpectSameBits(dtype, OracleEncode(dtype, MakeRow(kind, seed, kRow)), kRow, kind);
    }
  }
}

// Byte offsets of the f16 fields of a block.
std::vector<size_t> HalfOffsets(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return {0};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108};
    case DType::kQ6_K:
      return {208};
    case DType::kF32:
    case DType::kMXFP4:
      return {};
  }
  return {};
}

TEST_P(QuantOracle, ReadsRandomBytesWithEveryScaleToTheSameBits) {
  constexpr size_t kBlocks = 1 << 16;  // one for every f16 pattern
  const DType dtype = TypeAt(GetParam());
  const DTypeInfo& info = Info(dtype);
  std::mt19937 bits(static_cast<uint32_t>(GetParam()) + 100);
  std::vector<std::byte> row(kBlocks * info.block_bytes);
  for (std::byte& b : row) b = static_cast<std::byte>(bits() >> 11);
  const std::vector<size_t> halves = HalfOffsets(dtype);
  for (size_t block = 0; block < kBlocks; ++block) {
    for (size_t field = 0; field < halves.size(); ++field) {
      // A different order per field, so that a wild minimum meets a tame scale too.
      const auto pattern = static_cast<uint16_t>(field == 0 ? block : block * 40503);
      std::memcpy(row.data() + block * info.block_bytes + halves[field], &pattern, sizeof(pattern));
    }
    if (dtype == DType::kMXFP4) row[block * info.block_bytes] = static_cast<std::byte>(block);
  }
  ExpectSameBits(dtype, row, kBlocks * info.block_elems, "random bytes");
}

double Rmse(DType dtype, const std::vector<float>& row, const std::vector<std::byte>& bytes) {
  std::vector<float> back(row.size());
  DequantizeRow(dtype, bytes.data(), back);
  double sum = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    sum += std::pow(static_cast<double>(row[i]) - static_cast<double>(back[i]), 2);
  }
  return std::sqrt(sum / static_cast<double>(row.size()));
}

// Plain squared error on normal rows, where both encoders (theirs without an importance matrix) aim at the same thing;
// on the others ours has to stay in its neighbourhood.
TEST_P(QuantOracle, WritesBlocksWithNoMoreErrorThanTheLibrary) {
  constexpr size_t kRow = 1 << 14;
  const DType dtype = TypeAt(GetParam());
  for (const std::string& kind : kKinds) {
    if (kind == "vanishing") continue;  // every scale is zero
    const std::vector<float> row = MakeRow(kind, 9, kRow);
    std::vector<std::byte> bytes(RowBytes(dtype, kRow).value());
    QuantizeRow(dtype, row, bytes.data());
    const double ours = Rmse(dtype, row, bytes);
    const double theirs = Rmse(dtype, row, OracleEncode(dtype, row));
    RecordProperty(kind, std::to_string(ours / theirs));
    EXPECT_LE(ours, theirs * (kind == "gaussian" || kind == "weights" ? 1.0 : 1.15)) << Name(dtype) << ", " << kind;
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, QuantOracle, testing::Range<size_t>(0, kDTypeCount),
                         [](const auto& test) { return Name(TypeAt(test.param)); });

}  // namespace
}  // namespace npumoe
