// SPDX-License-Identifier: Apache-2.0
#include "kernels/integer_strip.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/every_way_test.h"
#include "kernels/matmul.h"
#include "kernels/test_weights.h"
#include "tensor/blocks.h"

namespace npumoe {
namespace {

constexpr DType kIntegerTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,   DType::kQ5_1,
                                   DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kMXFP4};

class IntegerStripTest : public EveryWay {};
NM_FOR_EVERY_WAY(IntegerStripTest);

// 32 weights as the definition wants them: d * code + m, one d and m for each half (the same, but in Q6_K).
struct Group32 {
  std::array<float, 32> codes;
  float d[2], m[2];
};

constexpr uint16_t kOneF16 = 0x3c00;

// Scales of group `part` of the block, and `plain`, the block with all scales one and all offsets zero: dequantized, it
// is its codes.
template <typename Block>
void SetPlainHead(Block& plain, size_t part, Group32& out) {
  if constexpr (requires { plain.e; }) {
    out.d[0] = out.d[1] = Mxfp4Scale(plain.e);
    plain.e = 128;
  } else if constexpr (requires { plain.dmin; }) {
    const K4Scales scales = UnpackK4Scales(plain.scales);
    out.d[0] = out.d[1] = F16ToF32(plain.d) * static_cast<float>(scales.scales[part]);
    out.m[0] = out.m[1] = -F16ToF32(plain.dmin) * static_cast<float>(scales.mins[part]);
    plain.d = kOneF16;
    plain.dmin = 0;
    PackK4Scales({{1, 1, 1, 1, 1, 1, 1, 1}, {}}, plain.scales);
  } else {
    out.d[0] = out.d[1] = F16ToF32(plain.d);
    plain.d = kOneF16;
    if constexpr (requires { plain.m; }) {
      out.m[0] = out.m[1] = F16ToF32(plain.m);
      plain.m = 0;
    }
    if constexpr (requires { plain.scales; }) {  // Q6_K
      for (size_t half = 0; half < 2; ++half) out.d[half] *= static_cast<float>(plain.scales[2 * part + half]);
      std::fill(std::begin(plain.scales), std::end(plain.scales), int8_t{1});
    }
  }
}

template <typename Block>
Group32 GroupOf(DType dtype, const std::byte* row, size_t group) {
  const size_t elems = Info(dtype).block_elems, part = group % (elems / 32);
  Block plain;
  std::memcpy(&plain, row + group * 32 / elems * sizeof(Block), sizeof(Block));
  Group32 out = {};
  SetPlainHead(plain, part, out);
  std::vector<float> codes(elems);
  DequantizeRow(dtype, reinterpret_cast<const std::byte*>(&plain), codes);
  std::copy_n(codes.begin() + 32 * part, 32, out.codes.begin());
  return out;
}

Group32 GroupOf(DType dtype, const std::byte* row, size_t group) {
  switch (dtype) {
    case DType::kQ8_0:
      return GroupOf<BlockQ8_0>(dtype, row, group);
    case DType::kQ4_0:
      return GroupOf<BlockQ4_0>(dtype, row, group);
    case DType::kQ4_1:
      return GroupOf<BlockQ4_1>(dtype, row, group);
    case DType::kQ5_0:
      return GroupOf<BlockQ5_0>(dtype, row, group);
    case DType::kQ5_1:
      return GroupOf<BlockQ5_1>(dtype, row, group);
    case DType::kQ4_K:
      return GroupOf<BlockQ4K>(dtype, row, group);
    case DType::kQ5_K:
      return GroupOf<BlockQ5K>(dtype, row, group);
    case DType::kQ6_K:
      return GroupOf<BlockQ6K>(dtype, row, group);
    case DType::kIQ4_NL:
      return GroupOf<BlockIQ4NL>(dtype, row, group);
    default:
      return GroupOf<BlockMXFP4>(dtype, row, group);
  }
}

bool HasOffsets(DType dtype) {
  return dtype == DType::kQ4_1 || dtype == DType::kQ5_1 || dtype == DType::kQ4_K || dtype == DType::kQ5_K;
}

// The definition in integer_strip.h, step by step in scalar code.
float IntegerDot(DType dtype, const float* x, const std::byte* row, size_t k, Activations activations) {
  const float largest = static_cast<float>(LargestInteger(activations));
  const size_t n_halves = dtype == DType::kQ6_K ? 2 : 1, width = 32 / n_halves;
  float acc = 0.0f;
  for (size_t b = 0; b < k / 32; ++b, x += 32) {
    float max = 0.0f;
    for (size_t i = 0; i < 32; ++i) max = std::max(max, std::abs(x[i]));
    const float inverse = largest / max;
    uint32_t scale_bits = std::bit_cast<uint32_t>(max / largest);
    if (activations == Activations::k8Bits) scale_bits &= ~3u;
    const float scale = std::bit_cast<float>(scale_bits);
    const Group32 w = GroupOf(dtype, row, b);
    for (size_t half = 0; half < n_halves; ++half) {
      int64_t sum = 0, sum_x = 0;
      for (size_t i = width * half; i < width * (half + 1); ++i) {
        const auto q = static_cast<int64_t>(std::nearbyint(x[i] * inverse));
        sum += q * static_cast<int64_t>(w.codes[i]);
        sum_x += q;
      }
      acc = std::fma(static_cast<float>(sum) * scale, w.d[half], acc);
      if (HasOffsets(dtype)) acc = std::fma(scale * static_cast<float>(sum_x), w.m[half], acc);
    }
  }
  return acc;
}

// y of one product of all rows, [m, n].
std::vector<float> Multiply(DType dtype, const std::vector<float>& x, const std::vector<std::byte>& w, size_t n,
                            size_t k, Activations activations) {
  ThreadPool pool(1);
  MatMul matmul(pool, k, activations);
  const size_t m = x.size() / k;
  std::vector<float> y(m * n);
  const MatMulJob job = {ConstMatView(x.data(), m, k, k), TensorView{dtype, Shape::Of(n, k), w.data()},
                         MatView{y.data(), m, n, n}};
  matmul.Run({&job, 1});
  return y;
}

TEST_P(IntegerStripTest, GivesTheBitsOfItsDefinition) {
  for (const DType dtype : kAllDTypes) {
    const bool integers = std::count(std::begin(kIntegerTypes), std::end(kIntegerTypes), dtype) != 0;
    ASSERT_EQ(HasIntegerStrip(dtype), integers && UsesIntegers(GetParam())) << Info(dtype).name;
  }
  if (!UsesIntegers(GetParam())) return;
  Random random(9);
  for (const DType dtype : kIntegerTypes) {
    // More than one piece of K; every height of a tile and then some; whole and cut sixteens of weight rows.
    const size_t k = Info(dtype).block_elems == 32 ? 1056 : 1280, n = 37, row_bytes = RowBytes(dtype, k).value();
    const std::vector<std::byte> w = RandomRow(random, dtype, n * k);
    const std::vector<float> all = RandomFloats(random, 8 * k);
    std::vector<float> want(8 * n);
    for (size_t row = 0; row < 8; ++row) {
      for (size_t i = 0; i < n; ++i) {
        want[row * n + i] = IntegerDot(dtype, all.data() + row * k, w.data() + i * row_bytes, k, activations_);
      }
    }
    for (size_t m = 1; m <= 8; ++m) {
      const std::vector<float> x(all.begin(), all.begin() + m * k);
      const std::vector<float> y = Multiply(dtype, x, w, n, k, activations_);
      for (size_t i = 0; i < m * n; ++i) {
        ASSERT_EQ(y[i], want[i]) << Info(dtype).name << " row " << i / n << " of " << m << ", n " << i % n;
      }
    }
  }
}

// Matrix products of bytes take rows two by two: every number of rows up to more than three tiles, and around a panel.
TEST_P(IntegerStripTest, MatrixProductsGiveTheBitsOfDotProducts) {
  if (!HasByteMatrices()) return;
  Random random(16);
  const size_t panel = IntegerPanelRows(activations_), most = 2 * panel + 3;
  for (const DType dtype : kIntegerTypes) {
    const size_t k = Info(dtype).block_elems == 32 ? 544 : 768;  // more than one piece of K
    const std::vector<std::byte> w = RandomRow(random, dtype, 41 * k);
    const std::vector<float> all = RandomFloats(random, most * k);
    std::vector<std::pair<size_t, size_t>> shapes;  // rows of x, of w
    for (size_t m = 1; m <= 21; ++m) shapes.emplace_back(m, 1 + m * 7 % 41);
    for (size_t n = 1; n <= 41; ++n) shapes.emplace_back(1 + n * 5 % 13, n);
    for (const size_t m : {panel - 1, panel, panel + 1, panel + 3, most}) shapes.emplace_back(m, 20);
    for (const auto& [m, n] : shapes) {
      const std::vector<float> x(all.begin(), all.begin() + m * k);
      const std::vector<float> got = Multiply(dtype, x, w, n, k, activations_);
      AllowByteMatrices(false);
      const std::vector<float> want = Multiply(dtype, x, w, n, k, activations_);
      AllowByteMatrices(true);
      ASSERT_EQ(got, want) << Info(dtype).name << " m " << m << " n " << n;
    }
  }
}

// Where the codes of a block begin and end, in bytes.
std::pair<size_t, size_t> CodesOf(DType dtype) {
  const size_t end = Info(dtype).block_bytes;
  if (dtype == DType::kQ6_K) return {0, offsetof(BlockQ6K, scales)};
  if (dtype == DType::kMXFP4) return {offsetof(BlockMXFP4, qs), end};
  if (dtype == DType::kQ4_K || dtype == DType::kQ5_K) return {16, end};
  return {HasOffsets(dtype) ? 4 : 2, end};
}

// Weights and activations all at an end of their range, and all the signs that 16 bits of both halves can have: sums of
// fewer than 32 bits must not overflow.
TEST_P(IntegerStripTest, TheEndsOfEveryRangeGiveTheBitsOfTheDefinition) {
  if (!UsesIntegers(GetParam())) return;
  Random random(15);
  for (const DType dtype : kIntegerTypes) {
    const size_t k = 256, n = 17, row_bytes = RowBytes(dtype, k).value();
    std::vector<std::byte> w = RandomRow(random, dtype, n * k);
    const auto [first, end] = CodesOf(dtype);
    for (const uint8_t code : {uint8_t{0x00}, uint8_t{0x7f}, uint8_t{0x80}, uint8_t{0xff}}) {
      for (size_t at = 0; at < w.size(); at += Info(dtype).block_bytes) std::memset(&w[at + first], code, end - first);
      for (const float low : {1.0f, -1.0f, 128.0f / 32639.0f, -128.0f / 32639.0f}) {
        std::vector<float> x(k, low);
        for (size_t i = 0; i < k; i += 32) x[i] = low < 0.0f ? -1.0f : 1.0f;
        const std::vector<float> y = Multiply(dtype, x, w, n, k, activations_);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_EQ(y[i], IntegerDot(dtype, x.data(), w.data() + i * row_bytes, k, activations_))
              << Info(dtype).name << " codes " << int{code} << " x " << low << " n " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace npumoe
