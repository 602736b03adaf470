// SPDX-License-Identifier: Apache-2.0
#include "npu/spec.h"

#include <gtest/gtest.h>

#include <string>

namespace npumoe {
namespace {

TEST(NpuSpec, EveryNumberSaysWhereItComesFrom) {
  for (const NpuSpec& s : AllSpecs()) {
    for (const SpecNumber& number : Numbers(s)) {
      EXPECT_TRUE(number.value > 0 || number.name == "streams_int8") << s.name << " " << number.name;
      const std::string source(number.source);
      EXPECT_TRUE(source.starts_with("published") || source.starts_with("derived") || source.starts_with("assumed"))
          << s.name << " " << number.name << " '" << source << "'";
    }
  }
}

TEST(SpecHash, ChangesWithEveryNumber) {
  const NpuSpec& spec = AllSpecs()[1];
  const std::string hash = SpecHash(spec);
  EXPECT_EQ(hash.size(), 32u);
  size_t changed = 0;
  const auto expect_other = [&](const NpuSpec& other) {
    EXPECT_NE(SpecHash(other), hash);
    ++changed;
  };
  for (Sourced NpuSpec::*const field :
       {&NpuSpec::dispatch_seconds, &NpuSpec::wake_seconds, &NpuSpec::idle_seconds, &NpuSpec::flops_per_second,
        &NpuSpec::direct_dispatch_seconds, &NpuSpec::int8_speedup, &NpuSpec::half_rate_rows,
        &NpuSpec::weight_bytes_per_second, &NpuSpec::unpack_bytes_per_second, &NpuSpec::on_chip_bytes,
        &NpuSpec::score_moves, &NpuSpec::io_bytes_per_second, &NpuSpec::host_copy_bytes_per_second,
        &NpuSpec::load_seconds, &NpuSpec::watts_base,
        &NpuSpec::watts_per_tflops, &NpuSpec::watts_per_gbps, &NpuSpec::cpu_flops_per_second,
        &NpuSpec::cpu_bytes_per_second, &NpuSpec::cpu_watts, &NpuSpec::copy_bytes_per_second}) {
    NpuSpec other = spec;
    (other.*field).value *= 1.001;
    expect_other(other);
  }
  for (size_t NpuSpec::*const field :
       {&NpuSpec::max_axis, &NpuSpec::max_channels, &NpuSpec::max_matmul_axis, &NpuSpec::max_program_weight_bytes,
        &NpuSpec::max_programs, &NpuSpec::max_resident_bytes, &NpuSpec::last_axis_multiple}) {
    NpuSpec other = spec;
    ++(other.*field);
    expect_other(other);
  }
  NpuSpec other = spec;
  other.streams_int8 = !other.streams_int8;
  expect_other(other);
  other = spec;
  ++other.n_dies;
  expect_other(other);
  EXPECT_EQ(changed, Numbers(spec).size());  // a field that is new is a number that is hashed
  other = spec;
  other.name = "m9";
  EXPECT_NE(SpecHash(other), hash);
}

TEST(SimulatedName, IsWhatFollowsThePrefix) {
  EXPECT_EQ(SimulatedName("sim:m2-max"), "m2-max");
  EXPECT_EQ(SimulatedName("sim:"), "");
  for (const char* other : {"", "m2-max", "coreml", "SIM:m2-max"}) EXPECT_EQ(SimulatedName(other), std::nullopt) << other;
}

TEST(FindSpec, KnowsTheMachinesAndListsThemOtherwise) {
  for (const char* name : {"m1", "m1-pro", "m1-max", "m1-ultra", "m2", "m2-pro", "m2-max", "m2-ultra", "m3", "m3-pro",
                           "m3-max", "m3-ultra", "m4", "m4-pro", "m4-max", "m5", "m5-pro", "m5-max"}) {
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
