// SPDX-License-Identifier: Apache-2.0
#include "eval/share.h"

#include <gtest/gtest.h>

#include <vector>

namespace npumoe {
namespace {

TEST(WilsonShare, IsTheTextbooks) {
  // Newcombe 1998, table I, method 3: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
  struct Row {
    uint64_t right, n;
    double low, high;
  };
  for (const Row& row :
       {Row{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0.0, 0.1611}, {1, 29, 0.0061, 0.1718}}) {
    const Share share = WilsonShare(row.right, row.n);
    EXPECT_NEAR(share.low, row.low, 5e-5);
    EXPECT_NEAR(share.high, row.high, 5e-5);
    EXPECT_EQ(share.n, row.n);
  }
  EXPECT_EQ(WilsonShare(20, 20).high, 1);
  EXPECT_EQ(WilsonShare(0, 0).n, 0u);
}

TEST(MeanShare, OfYesAndNoIsWilsons) {
  std::vector<double> values(29, 0.0);
  values[3] = 1;
  const Share mean = MeanShare(values), wilson = WilsonShare(1, 29);
  EXPECT_NEAR(mean.value, wilson.value, 1e-12);
  EXPECT_NEAR(mean.low, wilson.low, 1e-12);
  EXPECT_NEAR(mean.high, wilson.high, 1e-12);
}

TEST(MeanShare, OfLessSpreadIsNarrower) {
  std::vector<double> halves(40, 0.25);
  for (size_t i = 0; i < 20; ++i) halves[i] = 0.75;
  const Share mean = MeanShare(halves), coin = WilsonShare(20, 40);
  EXPECT_EQ(mean.value, 0.5);
  // A quarter of the variance: as if four times as many had been asked.
  EXPECT_NEAR(mean.low, WilsonShare(80, 160).low, 1e-12);
  EXPECT_GT(mean.low, coin.low);
  EXPECT_EQ(MeanShare({}).n, 0u);
}

}  // namespace
}  // namespace npumoe
