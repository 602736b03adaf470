// SPDX-License-Identifier: Apache-2.0
#include "npu/spec.h"

#include <gtest/gtest.h>

#include <string>

namespace npumoe {
namespace {

TEST(NpuSpec, EveryNumberSaysWhereItComesFrom) {
  for (const NpuSpec& s : AllSpecs()) {
    for (const Sourced* number :
         {&s.dispatch_seconds, &s.wake_seconds, &s.idle_seconds, &s.flops_per_second, &s.int8_speedup,
          &s.weight_bytes_per_second, &s.io_bytes_per_second, &s.large_operand_bytes, &s.large_operand_factor,
          &s.load_seconds, &s.watts_base, &s.watts_per_tflops, &s.watts_per_gbps, &s.cpu_flops_per_second,
          &s.cpu_bytes_per_second, &s.cpu_watts, &s.copy_bytes_per_second}) {
      EXPECT_GT(number->value, 0) << s.name << " " << number->source;
      const std::string source(number->source);
      EXPECT_TRUE(source.starts_with("published") || source.starts_with("derived") || source.starts_with("assumed"))
          << s.name << " '" << source << "'";
    }
    for (const size_t limit : {s.max_axis, s.max_channels, s.max_matmul_axis, s.max_program_weight_bytes,
                               s.max_programs, s.max_resident_bytes, s.last_axis_multiple}) {
      EXPECT_GT(limit, 0u) << s.name;
    }
  }
}

TEST(FindSpec, KnowsTheMachinesAndListsThemOtherwise) {
  for (const char* name : {"m1", "m2-max", "m2-ultra", "m3-max", "m4", "m4-max", "m5", "m5-pro"}) {
    const auto spec = FindSpec(name);
    ASSERT_TRUE(spec.ok()) << name;
    EXPECT_EQ((*spec)->name, name);
  }
  const auto unknown = FindSpec("m9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("m2-max"), std::string::npos);
}

}  // namespace
}  // namespace npumoe
