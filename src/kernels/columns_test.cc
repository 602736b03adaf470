// SPDX-License-Identifier: Apache-2.0
#include "kernels/columns.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/target_test.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint16_t kGuard = 0xbeef;

class Columns : public EveryTarget {};
NM_FOR_EVERY_TARGET(Columns);

// Values of every kind of fp16 result: normal, subnormal, zero, ties, overflow, infinite and not a number.
float AnyFloat(Random& random) {
  const auto sign = static_cast<uint32_t>(random.Below(2)) << 31;
  switch (random.Below(8)) {
    case 0:
      return std::bit_cast<float>(static_cast<uint32_t>(random.Below(uint64_t{1} << 32)));  // any bits
    case 1:
      return std::bit_cast<float>(sign | static_cast<uint32_t>(0x33000000 + random.Below(0x06000000)));
    case 2:
      return std::bit_cast<float>(sign | static_cast<uint32_t>(0x477fe000 + random.Below(0x3000)));  // near 65504
    case 3:
      return std::bit_cast<float>(sign | (static_cast<uint32_t>(random.Below(0x40000)) << 12));  // ties
    default:
      return static_cast<float>(random.Gaussian());
  }
}

const float kSpecials[] = {0.0f,
                           -0.0f,
                           1.0f,
                           65504.0f,    // the largest
                           65519.996f,  // rounds down to it
                           65520.0f,    // rounds to infinity
                           -65520.0f,
                           1e30f,
                           kInf,
                           -kInf,
                           0x1.0p-14f,    // the smallest normal
                           0x1.ffcp-15f,  // the largest subnormal
                           0x1.ffep-15f,  // a tie that rounds up to the smallest normal
                           0x1.0p-24f,    // the smallest subnormal
                           0x1.0p-25f,    // a tie that rounds to zero
                           0x1.000002p-25f,
                           0x1.8p-24f,  // a tie that rounds to even
                           -0x1.0p-26f,
                           0x1.0p-130f,     // subnormal in f32
                           1.00048828125f,  // ties around 1
                           1.00146484375f,
                           std::numeric_limits<float>::quiet_NaN()};

struct Rows {
  Rows(size_t n, size_t channels) : data(n * (channels + 3), -77.0f), stride(channels + 3) {
    // Neighbouring rows of the list are far apart and in no order.
    for (size_t i = 0; i < n; ++i) pointers.push_back(data.data() + (i * 7 % n) * stride);
    if (n % 7 == 0) {
      for (size_t i = 0; i < n; ++i) pointers[i] = data.data() + (n - 1 - i) * stride;
    }
  }
  std::span<const float* const> In() const { return {pointers.data(), pointers.size()}; }
  std::span<float* const> Out() const { return {pointers.data(), pointers.size()}; }
  bool GuardsIntact() const {
    for (size_t i = stride; i <= data.size(); i += stride) {
      if (data[i - 1] != -77.0f || data[i - 2] != -77.0f || data[i - 3] != -77.0f) return false;
    }
    return true;
  }
  std::vector<float> data;
  size_t stride;
  std::vector<float*> pointers;
};

// How far behind `p` the next cache line starts.
size_t OffsetOfLine(const uint16_t* p) { return (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64 / sizeof(*p); }

void CheckPack(size_t n, size_t channels, size_t width, Random& random) {
  Rows rows(n, channels);
  for (float* row : rows.pointers) {
    for (size_t c = 0; c < channels; ++c) row[c] = AnyFloat(random);
  }
  // Half of the time from a cache line on: whole lines are then written past the cache.
  std::vector<uint16_t> buffer(channels * width + 65, kGuard);
  const size_t offset = random.Below(2) == 0 ? OffsetOfLine(buffer.data()) : 1;
  PackColumns(rows.In(), channels, width, buffer.data() + offset);
  const std::span<const uint16_t> got(buffer.data() + offset, channels * width + 1);
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = 0; i < width; ++i) {
      const uint16_t want = i < n ? F32ToF16(rows.pointers[i][c]) : 0;
      ASSERT_EQ(got[c * width + i], want)
          << n << " rows, " << channels << " channels, width " << width << ": channel " << c << ", column " << i;
    }
  }
  ASSERT_EQ(got.back(), kGuard);
}

void CheckUnpack(size_t n, size_t channels, size_t width, bool add, Random& random) {
  const float scale = add ? 0.75f : 4.0f;
  // Exactly as long as it is, so that a sanitizer sees a read beyond it.
  std::vector<uint16_t> columns(channels * width);
  bool finite = true;
  for (size_t c = 0; c < channels; ++c) {
    for (size_t i = 0; i < width; ++i) {
      uint16_t& half = columns[c * width + i];
      half = static_cast<uint16_t>(random.Below(1 << 16));
      // Mostly finite, or the answer would never be true; later columns may hold anything.
      if (i < n && random.Below(4 * channels * width) != 0) half &= 0xfbff;
      if (i < n && (half & 0x7c00) == 0x7c00) finite = false;
    }
  }
  Rows rows(n, channels);
  ASSERT_EQ(add ? AddColumns(columns.data(), channels, width, scale, rows.Out())
                : UnpackColumns(columns.data(), channels, width, scale, rows.Out()),
            finite);
  for (size_t i = 0; i < n; ++i) {
    for (size_t c = 0; c < channels; ++c) {
      const float value = F16ToF32(columns[c * width + i]) * scale;
      const float want = add ? -77.0f + value : value, got = rows.pointers[i][c];
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want))
          << n << " rows, " << channels << " channels, width " << width << ": row " << i << ", channel " << c;
    }
  }
  ASSERT_TRUE(rows.GuardsIntact());
}

void CheckHalves(size_t n, size_t channels, size_t width, Random& random) {
  std::vector<uint16_t> columns(channels * width);
  for (uint16_t& half : columns) half = static_cast<uint16_t>(random.Below(1 << 16) & 0xfbff);
  const bool finite = n == 0 || channels == 0 || random.Below(2) == 0;
  if (!finite) columns[random.Below(channels) * width + random.Below(n)] = 0x7c00;
  const size_t stride = (channels + 31) / 32 * 32 + (random.Below(2) == 0 ? 0 : 3);  // rows at cache lines, or not
  std::vector<uint16_t> buffer(n * stride + 64, kGuard);
  std::vector<uint16_t*> rows;
  for (size_t i = 0; i < n; ++i) rows.push_back(buffer.data() + OffsetOfLine(buffer.data()) + i * stride);
  ASSERT_EQ(UnpackHalves(columns.data(), channels, width, rows), finite);
  for (size_t i = 0; i < n; ++i) {
    for (size_t c = 0; c < stride; ++c) {
      ASSERT_EQ(rows[i][c], c < channels ? columns[c * width + i] : kGuard)
          << n << " rows, " << channels << " channels, width " << width << ": row " << i << ", channel " << c;
    }
  }
}

TEST_P(Columns, PackOfAHandWorkedCase) {
  const float a[] = {1, 2, 3}, b[] = {-0.5f, 65520, 0x1.0p-24f};
  const float* rows[] = {a, b};
  std::vector<uint16_t> out(9, kGuard);
  PackColumns(rows, 3, 3, out.data());
  EXPECT_EQ(out, (std::vector<uint16_t>{0x3c00, 0xb800, 0, 0x4000, 0x7c00, 0, 0x4200, 0x0001, 0}));
}

TEST_P(Columns, UnpackOfAHandWorkedCase) {
  const uint16_t columns[] = {0x3c00, 0xb800, 0x7e00, 0x4000, 0x0001, 0x7c00};  // [2 channels, width 3]
  float a[2] = {}, b[2] = {}, c[2] = {};
  float* rows[] = {a, b, c};
  EXPECT_TRUE(UnpackColumns(columns, 2, 3, 2.0f, std::span(rows).first(2)));
  EXPECT_EQ(a[0], 2.0f);
  EXPECT_EQ(a[1], 4.0f);
  EXPECT_EQ(b[0], -1.0f);
  EXPECT_EQ(b[1], 0x1.0p-23f);
  EXPECT_TRUE(AddColumns(columns, 2, 3, 1.0f, std::span(rows).first(1)));
  EXPECT_EQ(a[0], 3.0f);
  EXPECT_EQ(a[1], 6.0f);
  EXPECT_FALSE(UnpackColumns(columns, 2, 3, 1.0f, rows));  // the third column: NaN and infinity
  EXPECT_EQ(c[1], kInf);
}

TEST_P(Columns, PackMatchesScalarAtEveryTail) {
  Random random(1);
  for (size_t n = 0; n <= 35; ++n) {
    for (size_t channels = 1; channels <= 67; channels += channels < 18 ? 1 : 7) {
      for (const size_t width : {n, n + 1, size_t{40}, size_t{67}}) {
        CheckPack(n, channels, width, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Columns, UnpackMatchesScalarAtEveryTail) {
  Random random(2);
  for (size_t n = 0; n <= 35; ++n) {
    for (size_t channels = 1; channels <= 67; channels += channels < 18 ? 1 : 7) {
      for (const size_t width : {n, n + 1, size_t{40}, size_t{67}}) {
        CheckUnpack(n, channels, width, /*add=*/n % 2 == 1, random);
        CheckHalves(n, channels, width, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Columns, ManyTilesMatchScalar) {
  Random random(3);
  for (const size_t channels : {256, 257, 519, 768}) {
    CheckPack(70, channels, 96, random);
    CheckUnpack(70, channels, 96, false, random);
    CheckUnpack(71, channels, 73, true, random);
    CheckPack(300, channels, 320, random);
    CheckUnpack(300, channels, 301, false, random);
    CheckHalves(290, channels, 512, random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(Columns, PackRoundsSpecialValuesAsTheScalarDefinition) {
  // Each at every place of a vector, and in the tail behind it.
  constexpr size_t kChannels = 35;
  for (const float special : kSpecials) {
    for (size_t at = 0; at < kChannels; ++at) {
      std::vector<float> row(kChannels, 1.0f);
      row[at] = special;
      const float* rows[] = {row.data()};
      std::vector<uint16_t> out(kChannels);
      PackColumns(rows, kChannels, 1, out.data());
      ASSERT_EQ(out[at], F32ToF16(special)) << special << " at " << at;
      ASSERT_EQ(out[at == 0 ? 1 : 0], 0x3c00);
    }
  }
}

TEST_P(Columns, EveryNanBecomesTheQuietOneOfItsSign) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff812345u, 0x7fa00000u, 0xffc00000u}) {
    const std::vector<float> row(33, std::bit_cast<float>(bits));
    const float* rows[] = {row.data()};
    std::vector<uint16_t> out(33);
    PackColumns(rows, 33, 1, out.data());
    for (const uint16_t half : out) ASSERT_EQ(half, (bits >> 31) != 0 ? 0xfe00 : 0x7e00) << bits;
  }
}

TEST_P(Columns, UnpackGivesEveryHalfItsScalarValue) {
  std::vector<uint16_t> columns(1 << 16);  // [4096 channels, width 16]
  for (size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<uint16_t>(i);
  Rows rows(16, 4096);
  EXPECT_FALSE(UnpackColumns(columns.data(), 4096, 16, 1.0f, rows.Out()));
  for (size_t i = 0; i < columns.size(); ++i) {
    const float value = F16ToF32(static_cast<uint16_t>(i)), got = rows.pointers[i % 16][i / 16];
    // The multiplication makes a signalling NaN quiet.
    const uint32_t want = std::bit_cast<uint32_t>(value) | (value == value ? 0 : 0x00400000u);
    ASSERT_EQ(std::bit_cast<uint32_t>(got), want) << i;
  }
}

TEST_P(Columns, AllFiniteFindsOneBadValueAnywhere) {
  for (size_t n = 0; n <= 300; n += n < 40 ? 1 : 13) {
    std::vector<uint16_t> halves(n, 0xfbff);  // -65504
    ASSERT_TRUE(AllFinite(halves)) << n;
    for (size_t at = 0; at < n; ++at) {
      for (const uint16_t bad : std::initializer_list<uint16_t>{0x7c00, 0xfc00, 0x7e00, 0xfc01}) {
        halves[at] = bad;
        ASSERT_FALSE(AllFinite(halves)) << n << " at " << at;
      }
      halves[at] = 0x7bff;
    }
  }
}

}  // namespace
}  // namespace npumoe
