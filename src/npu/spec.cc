// SPDX-License-Identifier: Apache-2.0
#include "npu/spec.h"

#include <bit>

#include "base/check.h"
#include "graph/hash.h"

namespace npumoe {

std::vector<SpecNumber> Numbers(const NpuSpec& s) {
  const auto measured = [](std::string_view name, std::string_view unit, const Sourced& number) {
    return SpecNumber{name, unit, number.value, number.source};
  };
  const auto limit = [](std::string_view name, std::string_view unit, size_t value, std::string_view source) {
    return SpecNumber{name, unit, static_cast<double>(value), source};
  };
  const std::string_view axes = "published: ane-guide ch. 12, 17 and appendix A";
  return {
      limit("n_dies", "", s.n_dies, "published: public Core ML showed no gain from a second die"),
      measured("dispatch_seconds", "s", s.dispatch_seconds),
      measured("direct_dispatch_seconds", "s", s.direct_dispatch_seconds),
      measured("wake_seconds", "s", s.wake_seconds),
      measured("idle_seconds", "s", s.idle_seconds),
      measured("flops_per_second", "FLOP/s", s.flops_per_second),
      measured("int8_speedup", "", s.int8_speedup),
      measured("half_rate_rows", "", s.half_rate_rows),
      measured("weight_bytes_per_second", "B/s", s.weight_bytes_per_second),
      measured("unpack_bytes_per_second", "B/s", s.unpack_bytes_per_second),
      measured("on_chip_bytes", "B", s.on_chip_bytes),
      measured("score_moves", "", s.score_moves),
      measured("io_bytes_per_second", "B/s", s.io_bytes_per_second),
      measured("host_copy_bytes_per_second", "B/s", s.host_copy_bytes_per_second),
      measured("load_seconds", "s", s.load_seconds),
      measured("watts_base", "W", s.watts_base),
      measured("watts_per_tflops", "W s/TFLOP", s.watts_per_tflops),
      measured("watts_per_gbps", "W s/GB", s.watts_per_gbps),
      limit("max_axis", "", s.max_axis, axes),
      limit("max_channels", "", s.max_channels, axes),
      limit("max_matmul_axis", "", s.max_matmul_axis, axes),
      limit("max_program_weight_bytes", "B", s.max_program_weight_bytes,
            "published: 1.2 GB fell back to the CPU on M2 Ultra (the paper)"),
      limit("max_programs", "", s.max_programs, "published: 119 compiles, 126 loaded programs a process (ORION)"),
      limit("max_resident_bytes", "B", s.max_resident_bytes,
            s.name.starts_with("m1") ? "published: address window of 3.5 GiB (eiln/ane)"
            : s.name.starts_with("m2") ? "published: address window of 34 GB"
                                       : "assumed: as M2"),
      limit("last_axis_multiple", "", s.last_axis_multiple,
            "published: the last axis should be a multiple of 32 (64 bytes of fp16)"),
      limit("streams_int8", "", s.streams_int8 ? 1 : 0,
            s.streams_int8              ? "published: affine int8 weights stream from M2 on (ane-guide)"
            : s.name.starts_with("m1") ? "published: affine int8 weights unfold to fp16 on M1 (ane-guide)"
                                       : "published: int8 GEMV takes as long as fp16 on M5 Pro (AFORGE); ane-guide "
                                         "says that int8 streams"),
      measured("cpu_flops_per_second", "FLOP/s", s.cpu_flops_per_second),
      measured("cpu_bytes_per_second", "B/s", s.cpu_bytes_per_second),
      measured("cpu_watts", "W", s.cpu_watts),
      measured("copy_bytes_per_second", "B/s", s.copy_bytes_per_second),
  };
}

std::string SpecHash(const NpuSpec& spec) {
  ContentHash hash;
  hash.Add(spec.name);
  for (const SpecNumber& number : Numbers(spec)) {
    hash.Add(number.name);
    hash.Add(std::bit_cast<uint64_t>(number.value));
  }
  return hash.Hex();
}

std::string SpecNames() {
  std::string names;
  for (const NpuSpec& spec : AllSpecs()) names += fmt::format("{}{}", names.empty() ? "" : ", ", spec.name);
  return names;
}

std::optional<std::string_view> SimulatedName(std::string_view device) {
  constexpr std::string_view kPrefix = "sim:";
  if (!device.starts_with(kPrefix)) return std::nullopt;
  return device.substr(kPrefix.size());
}

Result<const NpuSpec*> FindSpec(std::string_view name) {
  for (const NpuSpec& spec : AllSpecs()) {
    if (spec.name == name) return &spec;
  }
  return MakeError(Code::kNotFound, "npu: no spec named '{}', wanted one of {}", name, SpecNames());
}

NpuSpec SpecOfChip(std::string_view chip) {
  const NpuSpec* nearest = &AllSpecs().back();
  for (const NpuSpec& spec : AllSpecs()) {
    if (spec.title == chip) return spec;
  }
  const std::string_view generation = chip.substr(0, chip.find(' ', chip.find(' ') + 1));  // "Apple M2"
  for (const NpuSpec& spec : AllSpecs()) {
    if (spec.title != generation && !spec.title.starts_with(std::string(generation) + " ")) continue;
    nearest = &spec;
    break;
  }
  NpuSpec spec = *nearest;
  spec.title = fmt::format("{} (assumed to be as {})", chip.empty() ? "unknown chip" : chip, nearest->title);
  return spec;
}

std::span<const MeasurableField> MeasurableFields() {
  static constexpr MeasurableField kFields[] = {
      {"dispatch_seconds", &NpuSpec::dispatch_seconds},
      {"wake_seconds", &NpuSpec::wake_seconds},
      {"flops_per_second", &NpuSpec::flops_per_second},
      {"weight_bytes_per_second", &NpuSpec::weight_bytes_per_second},
      {"io_bytes_per_second", &NpuSpec::io_bytes_per_second},
      {"load_seconds", &NpuSpec::load_seconds},
  };
  return kFields;
}

}  // namespace npumoe
