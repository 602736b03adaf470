// SPDX-License-Identifier: Apache-2.0
#include "npu/spec_document.h"

#include <gtest/gtest.h>

namespace npumoe {
namespace {

NpuSpec Measured() {
  NpuSpec spec = **FindSpec("m2-max");
  spec.dispatch_seconds = {0.00025, "measured: median of 31 empty programs"};
  spec.weight_bytes_per_second = {61e9, "measured: one product of 1 GB"};
  return spec;
}

TEST(SpecDocument, RoundTrip) {
  const std::string text = MeasuredSpecText(Measured(), "Apple M2 Max", "Version 15.1");
  NpuSpec spec = **FindSpec("m2-max");
  const auto applied = ApplyMeasuredSpec(text, "s.json", "Apple M2 Max", "Version 15.1", spec);
  ASSERT_TRUE(applied.ok()) << applied.error().message;
  EXPECT_EQ(SpecHash(spec), SpecHash(Measured()));
  EXPECT_NE(SpecHash(spec), SpecHash(**FindSpec("m2-max")));
  EXPECT_EQ(spec.dispatch_seconds.source, "measured: median of 31 empty programs");
  EXPECT_EQ(MeasuredSpecText(spec, "Apple M2 Max", "Version 15.1"), text);
  // What was not measured is not in it.
  EXPECT_EQ(text.find("flops_per_second"), std::string::npos);
}

TEST(SpecDocument, RefusesOtherMachinesAndBadNumbers) {
  const std::string text = MeasuredSpecText(Measured(), "Apple M2 Max", "Version 15.1");
  NpuSpec spec = **FindSpec("m2-max");
  const std::string before = SpecHash(spec);
  const auto message = [&](std::string_view broken, std::string_view chip = "Apple M2 Max",
                           std::string_view os = "Version 15.1") {
    const auto applied = ApplyMeasuredSpec(broken, "s.json", chip, os, spec);
    EXPECT_EQ(SpecHash(spec), before);
    return applied.ok() ? std::string("ok") : applied.error().message;
  };
  EXPECT_EQ(message(text, "Apple M4"), "s.json: measured on chip 'Apple M2 Max', this is 'Apple M4'");
  EXPECT_EQ(message(text, "Apple M2 Max", "Version 26.0"),
            "s.json: measured on os 'Version 15.1', this is 'Version 26.0'");
  const auto replaced = [&](std::string_view from, std::string_view to) {
    std::string broken = text;
    broken.replace(broken.find(from), from.size(), to);
    return broken;
  };
  EXPECT_EQ(message(replaced("61000000000.0", "-1")), "s.json: weight_bytes_per_second: wanted a positive number");
  EXPECT_EQ(message(replaced("61000000000.0", "\"x\"")), "s.json: weight_bytes_per_second: wanted a positive number");
  EXPECT_EQ(message(replaced("dispatch_seconds", "dispatch_second")), "s.json: unknown number 'dispatch_second'");
  EXPECT_EQ(message(replaced("\"version\": 1", "\"version\": 2")), "s.json: version 2, wanted 1");
  for (size_t n = 0; n + 2 < text.size(); ++n) EXPECT_EQ(message(text.substr(0, n)), "s.json: not a measured NPU spec");
}

TEST(SpecOfChip, NearestOfTheTable) {
  EXPECT_EQ(SpecHash(SpecOfChip("Apple M2 Max")), SpecHash(**FindSpec("m2-max")));
  EXPECT_EQ(SpecOfChip("Apple M1").title, "Apple M1");
  EXPECT_EQ(SpecOfChip("Apple M1 Pro").name, "m1-pro");
  EXPECT_EQ(SpecOfChip("Apple M1 Nano").name, "m1");
  EXPECT_EQ(SpecOfChip("Apple M1 Nano").title, "Apple M1 Nano (assumed to be as Apple M1)");
  EXPECT_EQ(SpecOfChip("Apple M9").title, "Apple M9 (assumed to be as " + AllSpecs().back().title + ")");
  EXPECT_EQ(SpecOfChip("").title, "unknown chip (assumed to be as " + AllSpecs().back().title + ")");
}

}  // namespace
}  // namespace npumoe
