// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/target_test.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

constexpr double kEps = 0x1.0p-24;  // one rounding of f32, relative
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class AttentionTest : public EveryTarget {};
NM_FOR_EVERY_TARGET(AttentionTest);

struct Setting {
  size_t n_heads = 1, n_kv_heads = 1, head_dim = 4, tokens = 1, window = 0;
  DType dtype = DType::kF32;
  size_t group() const { return n_heads / n_kv_heads; }
};

// A whole sequence: queries, and a cache filled through Store. Unused cache is NaN: nobody may read it.
struct Sequence {
  Sequence(const Setting& setting, uint64_t seed, double spread = 1.0)
      : s(setting),
        capacity(setting.tokens + 5),
        q(s.tokens * s.n_heads * s.head_dim),
        k(s.tokens * s.n_kv_heads * s.head_dim),
        v(k.size()),
        key_cache(s.n_kv_heads * capacity * s.head_dim, kNaN),
        value_cache(key_cache) {
    Random random(seed);
    for (float& x : q) x = static_cast<float>(spread * random.Gaussian());
    for (float& x : k) x = static_cast<float>(random.Gaussian());
    for (float& x : v) x = static_cast<float>(random.Gaussian());
    Fill();
  }

  KvView kv() {
    return {.dtype = s.dtype,
            .keys = reinterpret_cast<std::byte*>(key_cache.data()),
            .values = reinterpret_cast<std::byte*>(value_cache.data()),
            .n_kv_heads = s.n_kv_heads,
            .capacity = capacity,
            .head_dim = s.head_dim};
  }
  void Fill() {
    if (s.dtype != DType::kF32) {
      std::memset(key_cache.data(), 0xff, key_cache.size() * sizeof(float));  // NaN in f16, as value and as scale
      std::memset(value_cache.data(), 0xff, value_cache.size() * sizeof(float));
    }
    const size_t stride = s.n_kv_heads * s.head_dim;
    for (size_t p = 0; p < s.tokens; ++p) kv().Store(p, k.data() + p * stride, v.data() + p * stride);
  }
  AttentionParams params() const {
    return {.n_heads = s.n_heads,
            .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim))),
            .window = s.window};
  }
  // Attention of the whole sequence in chunks.
  std::vector<float> Run(size_t chunk, size_t n_threads) {
    ThreadPool pool(n_threads);
    Attention attention(pool, s.head_dim);
    const size_t cols = s.n_heads * s.head_dim;
    std::vector<float> out(s.tokens * cols, kNaN);
    for (size_t first = 0; first < s.tokens; first += chunk) {
      const size_t n = std::min(chunk, s.tokens - first);
      attention.Run(params(), {q.data() + first * cols, n, cols, cols}, kv(), first,
                    {out.data() + first * cols, n, cols, cols});
    }
    return out;
  }

  Setting s;
  size_t capacity;
  std::vector<float> q, k, v, key_cache, value_cache;
};

// What a cache of the dtype keeps of rows of head_dim elements.
std::vector<double> Cached(const Setting& s, const std::vector<float>& rows) {
  std::vector<double> kept;
  std::vector<std::byte> bytes(RowBytes(s.dtype, s.head_dim).value());
  std::vector<float> row(s.head_dim);
  for (size_t first = 0; first < rows.size(); first += s.head_dim) {
    QuantizeRow(s.dtype, {&rows[first], s.head_dim}, bytes.data());
    DequantizeRow(s.dtype, bytes.data(), row);
    kept.insert(kept.end(), row.begin(), row.end());
  }
  return kept;
}

// Largest error over bound of `got` against attention in double over keys and values as the cache rounds them. What a
// cache holds is taken exactly, so the bound is the same for all its types.
double WorstRatio(const Sequence& sequence, const std::vector<float>& got) {
  const Setting& s = sequence.s;
  const std::vector<double> keys = Cached(s, sequence.k), values = Cached(s, sequence.v);
  const double scale = static_cast<double>(sequence.params().scale);
  double worst = 0;
  for (size_t p = 0; p < s.tokens; ++p) {
    const size_t begin = s.window == 0 || p < s.window ? 0 : p - s.window + 1;
    for (size_t head = 0; head < s.n_heads; ++head) {
      const float* const q = &sequence.q[(p * s.n_heads + head) * s.head_dim];
      std::vector<double> score(p + 1), score_error(p + 1);
      double max = -1e300;
      const auto at = [&](size_t j) { return (j * s.n_kv_heads + head / s.group()) * s.head_dim; };
      for (size_t j = begin; j <= p; ++j) {
        double sum = 0, magnitude = 0;
        for (size_t i = 0; i < s.head_dim; ++i) {
          const double term = scale * q[i] * keys[at(j) + i];
          sum += term;
          magnitude += std::abs(term);
        }
        score[j] = sum;
        // q * scale rounds once; a chain of head_dim products and sums, each rounding at most the sum of magnitudes.
        score_error[j] = kEps * static_cast<double>(2 * s.head_dim + 1) * magnitude;
        max = std::max(max, sum);
      }
      double total = 0, error = 0;
      std::vector<double> weighted(s.head_dim), magnitude(s.head_dim);
      double widest = 0;
      for (size_t j = begin; j <= p; ++j) {
        const double weight = std::exp(score[j] - max);
        // exp turns the score's absolute error, and the rounding of score - max, into a relative one.
        widest = std::max(widest, score_error[j]);
        error += weight * (score_error[j] + kEps * std::abs(score[j] - max));
        total += weight;
        for (size_t i = 0; i < s.head_dim; ++i) {
          const double value = values[at(j) + i];
          weighted[i] += weight * value;
          magnitude[i] = std::max(magnitude[i], std::abs(value));
        }
      }
      for (size_t i = 0; i < s.head_dim; ++i) {
        const double want = weighted[i] / total;
        // Weights in numerator and denominator; the chains over the positions (products, sums, one rescaling per
        // tile of 64); exp, inverse and the last product.
        const double chain = 4 * static_cast<double>(p - begin + 1) + 4 * static_cast<double>(p / 64 + 1) + 20;
        const double bound = magnitude[i] * (2 * error / total + 2 * widest + chain * kEps);
        const double off = std::abs(got[(p * s.n_heads + head) * s.head_dim + i] - want);
        const double ratio = off == 0 ? 0 : off / bound;  // the bound of nothing but zeros is zero
        if (!(ratio <= worst)) worst = ratio;             // NaN counts as worst
        if (std::isnan(ratio)) return kNaN;
      }
    }
  }
  return worst;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(AttentionTest, TwoKeysShareByTheirSoftmax) {
  Setting s{.n_heads = 1, .n_kv_heads = 1, .head_dim = 2, .tokens = 2};
  Sequence sequence(s, 1);
  // With scale 1 the scores of the second query are 0 and log 3: weights 1/4 and 3/4.
  sequence.q = {5, 5, std::log(3.0f), 0};
  sequence.k = {0, 7, 1, 9};
  sequence.v = {8, 100, 4, 20};
  sequence.Fill();
  ThreadPool pool(1);
  Attention attention(pool, 2);
  std::vector<float> out(4);
  attention.Run({.n_heads = 1, .scale = 1.0f, .window = 0}, {sequence.q.data(), 2, 2, 2}, sequence.kv(), 0,
                {out.data(), 2, 2, 2});
  EXPECT_EQ(out[0], 8.0f);  // the first token sees itself only
  EXPECT_EQ(out[1], 100.0f);
  EXPECT_NEAR(out[2], 5.0, 5.0 * 8 * kEps);
  EXPECT_NEAR(out[3], 40.0, 40.0 * 8 * kEps);
}

TEST_P(AttentionTest, WindowOfTwoForgetsTheFirst) {
  Setting s{.n_heads = 1, .n_kv_heads = 1, .head_dim = 1, .tokens = 4, .window = 2};
  Sequence sequence(s, 1);
  sequence.q = {0, 0, 0, 0};  // equal weights
  sequence.v = {8, 16, 32, 64};
  sequence.Fill();
  EXPECT_EQ(sequence.Run(4, 1), (std::vector<float>{8, 12, 24, 48}));
  EXPECT_EQ(sequence.Run(1, 1), (std::vector<float>{8, 12, 24, 48}));
}

TEST_P(AttentionTest, HeadsReadTheirGroupsKeyValueHead) {
  Setting s{.n_heads = 6, .n_kv_heads = 2, .head_dim = 1, .tokens = 1};
  Sequence sequence(s, 1);
  sequence.v = {3, 5};
  sequence.Fill();
  EXPECT_EQ(sequence.Run(1, 1), (std::vector<float>{3, 3, 3, 5, 5, 5}));
}

TEST_P(AttentionTest, MatchesDoubleForEveryHeadDim) {
  for (size_t head_dim = 1; head_dim <= 67; ++head_dim) {
    Sequence sequence({.n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim, .tokens = 11}, head_dim);
    ASSERT_LE(WorstRatio(sequence, sequence.Run(11, 1)), 1.0) << head_dim;
  }
  for (const size_t head_dim : {80, 96, 128, 256}) {
    Sequence sequence({.n_heads = 3, .n_kv_heads = 1, .head_dim = head_dim, .tokens = 70}, head_dim);
    ASSERT_LE(WorstRatio(sequence, sequence.Run(70, 1)), 1.0) << head_dim;
  }
}

TEST_P(AttentionTest, MatchesDoubleForManyShapes) {
  const Setting settings[] = {
      {.n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .tokens = 300},
      {.n_heads = 8, .n_kv_heads = 1, .head_dim = 16, .tokens = 130},
      {.n_heads = 7, .n_kv_heads = 7, .head_dim = 40, .tokens = 65},
      {.n_heads = 250, .n_kv_heads = 1, .head_dim = 4, .tokens = 3},
      {.n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .tokens = 400, .window = 64},
      {.n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .tokens = 550, .window = 257},
      {.n_heads = 6, .n_kv_heads = 2, .head_dim = 8, .tokens = 200, .window = 1},
  };
  for (const Setting& s : settings) {
    for (const double spread : {1.0, 20.0}) {  // flat and peaked softmax
      Sequence sequence(s, 7, spread);
      ASSERT_LE(WorstRatio(sequence, sequence.Run(s.tokens, 1)), 1.0) << s.n_heads << " heads, " << s.tokens;
    }
  }
}

TEST_P(AttentionTest, HalfCacheIsTheRoundedCache) {
  for (const size_t head_dim : {5, 8, 17, 64}) {
    Sequence sequence({.n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim, .tokens = 90, .dtype = DType::kF16}, 3);
    ASSERT_LE(WorstRatio(sequence, sequence.Run(90, 1)), 1.0) << head_dim;
    const auto* const keys = reinterpret_cast<const uint16_t*>(sequence.key_cache.data());
    for (size_t i = 0; i < head_dim; ++i) {
      // position 2 of kv head 1
      ASSERT_EQ(keys[(sequence.capacity + 2) * head_dim + i], F32ToF16(sequence.k[(2 * 2 + 1) * head_dim + i])) << i;
    }
  }
}

// One kv head of `dim`, one position: the bytes that Store writes for keys, which equal those for values.
std::vector<std::byte> StoredBlocks(const std::vector<float>& row) {
  std::vector<std::byte> keys(RowBytes(DType::kQ8_0, row.size()).value()), values(keys);
  const KvView kv{.dtype = DType::kQ8_0,
                  .keys = keys.data(),
                  .values = values.data(),
                  .n_kv_heads = 1,
                  .capacity = 1,
                  .head_dim = row.size()};
  kv.Store(0, row.data(), row.data());
  EXPECT_EQ(keys, values);
  return keys;
}

TEST_P(AttentionTest, BlocksOfTheCacheAreThoseOfQuantizeRow) {
  Random random(17);
  std::vector<float> row(96);
  std::vector<std::byte> want(3 * 34);
  // Scales from zero and the subnormal ones, where codes are clamped, to the largest.
  for (int exponent = -40; exponent <= 22; ++exponent) {
    for (float& x : row) x = std::ldexp(static_cast<float>(2 * random.Uniform() - 1), exponent);
    row[5] = row[40] = 0.0f;
    row[41] = -0.0f;
    QuantizeRow(DType::kQ8_0, row, want.data());
    ASSERT_EQ(StoredBlocks(row), want) << exponent;
  }
}

TEST_P(AttentionTest, ABlockKeepsItsElementsToHalfAStep) {
  Random random(18);
  std::vector<float> row(64), kept(64);
  for (int round = 0; round < 200; ++round) {
    for (float& x : row) x = static_cast<float>(std::exp(random.Gaussian()) * random.Gaussian());
    DequantizeRow(DType::kQ8_0, StoredBlocks(row).data(), kept);
    for (size_t block = 0; block < 64; block += 32) {
      float largest = 0;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(row[i]));
      // Half of a scale that was itself rounded to 11 bits.
      const double step = static_cast<double>(largest) / 127 * (1 + 0x1p-11);
      for (size_t i = block; i < block + 32; ++i) {
        ASSERT_LE(std::abs(static_cast<double>(kept[i]) - static_cast<double>(row[i])), step / 2 * (1 + 0x1p-20));
      }
    }
  }
}

TEST_P(AttentionTest, ABlockWithoutAFiniteScaleIsNaN) {
  for (const float bad : {kNaN, -kNaN, kInf, -kInf, 127 * 65520.0f, -3e38f}) {
    for (const size_t at : {32, 47, 63}) {
      std::vector<float> row(96, 1.0f), kept(96);
      row[at] = bad;
      DequantizeRow(DType::kQ8_0, StoredBlocks(row).data(), kept);
      for (size_t i = 0; i < 96; ++i) {
        if (i / 32 == 1) {
          ASSERT_TRUE(std::isnan(kept[i])) << bad << " at " << at << ": " << i;
        } else {
          ASSERT_NEAR(kept[i], 1.0f, 0x1p-11) << i;
        }
      }
    }
  }
  std::vector<float> row(32, 127 * 65504.0f), kept(32);  // the largest that has a scale
  DequantizeRow(DType::kQ8_0, StoredBlocks(row).data(), kept);
  EXPECT_EQ(kept, row);
}

TEST_P(AttentionTest, NonFiniteKeysAndValuesComeOutOfABlockCache) {
  const Setting s{.n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .tokens = 70, .dtype = DType::kQ8_0};
  for (const bool in_keys : {true, false}) {
    Sequence sequence(s, 13);
    const std::vector<float> before = sequence.Run(1, 1);
    (in_keys ? sequence.k : sequence.v)[(40 * 2 + 1) * 64 + 3] = kInf;  // token 40, head 1, first block
    sequence.Fill();
    const std::vector<float> after = sequence.Run(1, 1), by_chunk = sequence.Run(70, 2);
    for (size_t i = 0; i < after.size(); ++i) {
      const bool hit = i / 128 >= 40 && i / 64 % 2 == 1 && (in_keys || i % 64 < 32);
      if (hit) {
        ASSERT_TRUE(std::isnan(after[i]) && std::isnan(by_chunk[i])) << i;
      } else {
        ASSERT_EQ(after[i], before[i]) << i;
      }
    }
  }
}

TEST_P(AttentionTest, BlockCacheIsTheRoundedCache) {
  const Setting settings[] = {
      {.n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .tokens = 90},
      {.n_heads = 3, .n_kv_heads = 1, .head_dim = 96, .tokens = 70},
      {.n_heads = 8, .n_kv_heads = 1, .head_dim = 64, .tokens = 130},
      {.n_heads = 2, .n_kv_heads = 2, .head_dim = 128, .tokens = 67},
      {.n_heads = 1, .n_kv_heads = 1, .head_dim = 256, .tokens = 66},
      {.n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .tokens = 300, .window = 64},
      {.n_heads = 60, .n_kv_heads = 1, .head_dim = 32, .tokens = 5},
  };
  for (Setting s : settings) {
    s.dtype = DType::kQ8_0;
    for (const double spread : {1.0, 20.0}) {
      Sequence sequence(s, 3, spread);
      ASSERT_LE(WorstRatio(sequence, sequence.Run(s.tokens, 1)), 1.0) << s.head_dim << " dims, wide";
      ASSERT_LE(WorstRatio(sequence, sequence.Run(1, 1)), 1.0) << s.head_dim << " dims, narrow";
    }
  }
}

TEST_P(AttentionTest, StoreRoundsToNearestEven) {
  // 1 + 2^-11 lies between 1 and 1 + 2^-10: to the even 1. 1 + 3 * 2^-11: to the even 1 + 2^-9. Then the largest
  // half, overflow, subnormals and infinity.
  std::vector<float> k{1 + 0x1p-11f, 1 + 0x3p-11f, 65504, 65520, 0x1p-24f, 0x1p-25f, -kInf, 0x3p-25f};
  for (int i = 0; i < 4; ++i) k.insert(k.end(), k.begin(), k.begin() + 8);  // vectors and tails
  k.resize(39);
  const uint16_t want[] = {0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0001, 0x0000, 0xfc00, 0x0002};
  std::vector<uint16_t> keys(39), values(39);
  const KvView kv{.dtype = DType::kF16,
                  .keys = reinterpret_cast<std::byte*>(keys.data()),
                  .values = reinterpret_cast<std::byte*>(values.data()),
                  .n_kv_heads = 1,
                  .capacity = 1,
                  .head_dim = 39};
  kv.Store(0, k.data(), k.data());
  for (size_t i = 0; i < 39; ++i) EXPECT_EQ(keys[i], want[i % 8]) << i;
  EXPECT_EQ(keys, values);
}

TEST_P(AttentionTest, ChunksAndThreadsChangeNoBit) {
  const Setting settings[] = {
      {.n_heads = 8, .n_kv_heads = 2, .head_dim = 24, .tokens = 150},
      {.n_heads = 12, .n_kv_heads = 1, .head_dim = 6, .tokens = 70},
      {.n_heads = 2, .n_kv_heads = 2, .head_dim = 9, .tokens = 540},
      {.n_heads = 4, .n_kv_heads = 1, .head_dim = 8, .tokens = 560, .window = 90},
      {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .tokens = 140, .dtype = DType::kF16},
      {.n_heads = 8, .n_kv_heads = 2, .head_dim = 64, .tokens = 150, .dtype = DType::kQ8_0},
      {.n_heads = 3, .n_kv_heads = 3, .head_dim = 32, .tokens = 540, .dtype = DType::kQ8_0},
      {.n_heads = 5, .n_kv_heads = 1, .head_dim = 96, .tokens = 130, .window = 70, .dtype = DType::kQ8_0},
  };
  for (const Setting& s : settings) {
    Sequence sequence(s, 11, 3.0);
    const std::vector<float> whole = sequence.Run(s.tokens, 1);
    for (const size_t chunk : {1, 7, 64}) {
      EXPECT_TRUE(SameBits(sequence.Run(chunk, 1), whole)) << s.n_heads << " heads, chunk " << chunk;
    }
    for (const size_t n_threads : {2, 4}) {
      EXPECT_TRUE(SameBits(sequence.Run(s.tokens, n_threads), whole)) << s.n_heads << " heads, " << n_threads;
    }
    EXPECT_TRUE(SameBits(sequence.Run(7, 4), whole)) << s.n_heads << " heads, chunks of 7 on 4 threads";
  }
}

TEST_P(AttentionTest, DecodeFarIntoTheContextMergesManySplits) {
  // 10 splits of 512 positions: more than the 8 partial results that 2 threads keep at once.
  Setting s{.n_heads = 2, .n_kv_heads = 1, .head_dim = 8, .tokens = 4700};
  Sequence sequence(s, 5);
  const size_t cols = 16, last = s.tokens - 1;
  const auto last_of_chunk = [&](size_t n_tokens, size_t n_threads) {
    ThreadPool pool(n_threads);
    Attention attention(pool, 8);
    const size_t first = s.tokens - n_tokens;
    std::vector<float> out(n_tokens * cols);
    attention.Run(sequence.params(), {sequence.q.data() + first * cols, n_tokens, cols, cols}, sequence.kv(), first,
                  {out.data(), n_tokens, cols, cols});
    return std::vector<float>(out.end() - static_cast<ptrdiff_t>(cols), out.end());
  };
  const std::vector<float> decoded = last_of_chunk(1, 1);
  EXPECT_TRUE(SameBits(last_of_chunk(1, 2), decoded));
  EXPECT_TRUE(SameBits(last_of_chunk(40, 1), decoded));
  EXPECT_TRUE(SameBits(last_of_chunk(40, 2), decoded));
  for (size_t i = 0; i < cols; ++i) {
    const size_t head = i / 8;
    double share = 0, sum = 0;
    for (size_t j = 0; j <= last; ++j) {
      double score = 0;
      for (size_t k = 0; k < 8; ++k) {
        score +=
            static_cast<double>(sequence.q[last * cols + head * 8 + k]) * static_cast<double>(sequence.k[j * 8 + k]);
      }
      const double weight = std::exp(score / std::sqrt(8.0));
      share += weight;
      sum += weight * static_cast<double>(sequence.v[j * 8 + i % 8]);
    }
    // A sum of n weights that average 1/n drifts by about sqrt(n) eps = 4e-6 of |v| < 5.
    EXPECT_NEAR(decoded[i], sum / share, 1e-5) << i;
  }
}

TEST_P(AttentionTest, StridesOfQueriesAndOutputsAreKept) {
  Setting s{.n_heads = 2, .n_kv_heads = 1, .head_dim = 3, .tokens = 5};
  Sequence sequence(s, 9);
  const std::vector<float> want = sequence.Run(5, 1);
  std::vector<float> q(5 * 10, kNaN), out(5 * 9, -77.0f);
  for (size_t t = 0; t < 5; ++t) std::copy_n(&sequence.q[t * 6], 6, &q[t * 10]);
  ThreadPool pool(1);
  Attention attention(pool, 8);  // room for more than head_dim
  attention.Run(sequence.params(), {q.data(), 5, 6, 10}, sequence.kv(), 0, {out.data(), 5, 6, 9});
  for (size_t t = 0; t < 5; ++t) {
    for (size_t i = 0; i < 9; ++i) EXPECT_EQ(out[t * 9 + i], i < 6 ? want[t * 6 + i] : -77.0f) << t << " " << i;
  }
}

TEST_P(AttentionTest, NothingToAttendIsNothingDone) {
  Sequence sequence({.n_heads = 2, .n_kv_heads = 1, .head_dim = 3, .tokens = 1}, 9);
  ThreadPool pool(2);
  Attention attention(pool, 3);
  float out = -77.0f;
  attention.Run(sequence.params(), {sequence.q.data(), 0, 6, 6}, sequence.kv(), 1, {&out, 0, 6, 6});
  EXPECT_EQ(out, -77.0f);
}

TEST_P(AttentionTest, NonFiniteInputsStayWhereTheyAre) {
  // A NaN in one query, an infinite score in another; the rest as before.
  Setting s{.n_heads = 2, .n_kv_heads = 1, .head_dim = 4, .tokens = 70};
  Sequence sequence(s, 13);
  const std::vector<float> before = sequence.Run(70, 1);
  sequence.q[5 * 8 + 1] = kNaN;  // token 5, head 0
  sequence.q[9 * 8 + 4] = kInf;  // token 9, head 1: scores +-inf
  const std::vector<float> after = sequence.Run(70, 1);
  for (size_t i = 0; i < after.size(); ++i) {
    const size_t token = i / 8, head = i / 4 % 2;
    if ((token == 5 && head == 0) || (token == 9 && head == 1)) {
      EXPECT_TRUE(std::isnan(after[i])) << i;
    } else {
      EXPECT_EQ(after[i], before[i]) << i;
    }
  }
}

TEST_P(AttentionTest, ScoresOfMinusInfinityGiveZeros) {
  Setting s{.n_heads = 1, .n_kv_heads = 1, .head_dim = 1, .tokens = 3};
  Sequence sequence(s, 13);
  sequence.q = {1, 1, 1};
  sequence.k = {-kInf, -kInf, 0};
  sequence.v = {4, 5, 6};
  sequence.Fill();
  EXPECT_EQ(sequence.Run(3, 1), (std::vector<float>{0, 0, 6}));
}

}  // namespace
}  // namespace npumoe
