// SPDX-License-Identifier: Apache-2.0
// The table of machines. Sources are public measurements by third parties unless they say otherwise; none of these
// numbers was measured by this project on such a machine. Where several exist, the Core ML path and 1x1 convolutions or
// GEMM count (3x3 convolution figures hide Winograd).
#include "npu/spec.h"

#include <array>
#include <bit>

#include "base/check.h"
#include "graph/hash.h"

namespace npumoe {
namespace {

constexpr double kMillisecond = 1e-3, kGiga = 1e9, kTera = 1e12;
constexpr size_t kMiB = size_t{1} << 20, kGiB = size_t{1} << 30;

// What is the same on every generation, or known of one only and assumed of the others.
NpuSpec Common() {
  NpuSpec s;
  s.wake_seconds = {0.5 * kMillisecond, "published: ane-guide ch. 31, plateau of the first dispatch after 100 ms (M1)"};
  s.idle_seconds = {0.1, "published: ane-guide ch. 31 (M1)"};
  s.int8_speedup = {1.0, "published: no int8 arithmetic before A17 Pro and M4"};
  s.io_bytes_per_second = {60 * kGiga, "assumed: surface-backed fp16 arrays move at the rate of the memory"};
  s.large_operand_bytes = {32.0 * kMiB, "published: 4096^3 GEMM rows of AFORGE against smaller ones"};
  s.large_operand_factor = {1.4, "derived: 25.5 ms measured against 18.3 ms predicted (M2 Max)"};
  s.load_seconds = {10 * kMillisecond, "published: cached loads of 5-30 ms (ORION, more-ane-transformers)"};
  s.max_axis = 16384;  // see Numbers() for where the limits come from
  s.max_channels = 65536;
  s.max_matmul_axis = 16384;
  s.max_program_weight_bytes = size_t{1000} * 1000 * 1000;
  s.max_programs = 120;
  s.max_resident_bytes = 32 * kGiB;
  s.last_axis_multiple = 32;
  s.streams_int8 = true;
  s.cpu_bytes_per_second = {100 * kGiga, "assumed: four performance cores of M2 class"};
  s.copy_bytes_per_second = {100 * kGiga,
                             "published: memcpy with two to four threads (whisper.cpp benchmark, M2 Ultra)"};
  return s;
}

NpuSpec M1() {
  NpuSpec s = Common();
  s.name = "m1";
  s.title = "Apple M1";
  s.dispatch_seconds = {0.35 * kMillisecond,
                        "assumed: Core ML on top of the 0.19-0.23 ms of the private path (ane-guide ch. 2)"};
  s.flops_per_second = {11 * kTera, "published: rate of the rated 11 TOPS read as fp16; fused chains reach 8.1-12"};
  s.weight_bytes_per_second = {60.9 * kGiga, "published: anemll-bench, 1,050.7 MB fp16 head"};
  s.watts_base = {1.08, "derived: fit of 6 rows (ane-guide, AFORGE), residual 0.30 W"};
  s.watts_per_tflops = {0.54, "derived: same fit"};
  s.watts_per_gbps = {0.006, "derived: same fit"};
  s.max_resident_bytes = size_t{3200} * 1000 * 1000;
  s.streams_int8 = false;
  s.cpu_flops_per_second = {1.4 * kTera, "published: Accelerate on M1 Pro and M1 Max (whisper.cpp benchmark, nod.ai)"};
  s.cpu_bytes_per_second = {60 * kGiga, "assumed: 68 GB/s of memory, shared"};
  s.cpu_watts = {8.1, "published: M1 Max sgemm, one client (nod.ai)"};
  s.copy_bytes_per_second = {50 * kGiga, "assumed: 68 GB/s of memory"};
  return s;
}

NpuSpec M2Max() {
  NpuSpec s = Common();
  s.name = "m2-max";
  s.title = "Apple M2 Max";
  s.dispatch_seconds = {0.30 * kMillisecond, "assumed: Core ML floor as measured on M4 Max (0.27-0.30 ms)"};
  s.flops_per_second = {14 * kTera, "derived: fit of 8 AFORGE rows, reduced for pure 1x1 convolutions"};
  s.weight_bytes_per_second = {60 * kGiga,
                               "published: 62.0 (anemll-bench), 59.9 (grouped convolutions, Anemll-PhiMoe)"};
  s.watts_base = {1.4, "derived: fit of 9 M2 rows (AFORGE, ane-guide), residual 0.7 W"};
  s.watts_per_tflops = {0.48, "derived: same fit"};
  s.watts_per_gbps = {0.014, "derived: same fit"};
  s.cpu_flops_per_second = {2.2 * kTera, "published: numpy with Accelerate, N = 512..4096 (AFORGE)"};
  s.cpu_watts = {19, "published: package power of the same rows (AFORGE)"};
  return s;
}

NpuSpec M2Ultra() {
  NpuSpec s = M2Max();
  s.name = "m2-ultra";
  s.title = "Apple M2 Ultra";
  // Public Core ML showed no gain from a second die; the spec keeps to one program in flight.
  s.weight_bytes_per_second = {61.7 * kGiga, "published: anemll-bench issue 2, one stream"};
  s.cpu_flops_per_second = {1.45 * kTera, "derived: llama.cpp pull request 6210, TinyLlama F16 prompt, 4 threads"};
  s.cpu_bytes_per_second = {198 * kGiga, "published: memcpy with 8 threads (whisper.cpp benchmark)"};
  s.cpu_watts = {38, "assumed: twice the M2 Max"};
  s.copy_bytes_per_second = {179 * kGiga, "published: memcpy with 4 threads (whisper.cpp benchmark)"};
  return s;
}

NpuSpec M3Max() {
  NpuSpec s = Common();
  s.name = "m3-max";
  s.title = "Apple M3 Max";
  s.dispatch_seconds = {0.28 * kMillisecond, "assumed: between M2 Max and M4 Max"};
  s.flops_per_second = {16.5 * kTera, "published: 16.8 on M3 Pro at 2,048 positions (maderix/ANE)"};
  s.weight_bytes_per_second = {120.2 * kGiga, "published: anemll-bench"};
  s.watts_base = {0.9, "assumed: middle of M2 Max and M4 Max"};
  s.watts_per_tflops = {0.58, "assumed: middle of M2 Max and M4 Max"};
  s.watts_per_gbps = {0.014, "assumed: as M2 Max"};
  s.cpu_flops_per_second = {2.7 * kTera, "assumed: middle of M2 Max and M4 Max"};
  s.cpu_watts = {13, "assumed: middle of M2 Max and M4 Max"};
  return s;
}

NpuSpec M4() {
  NpuSpec s = Common();
  s.name = "m4";
  s.title = "Apple M4";
  s.dispatch_seconds = {0.28 * kMillisecond, "assumed: as M4 Max"};
  s.flops_per_second = {18.6 * kTera, "published: maderix/ANE"};
  s.int8_speedup = {1.88, "published: 35.1 TOPS with int8 weights and activations (maderix/ANE)"};
  s.weight_bytes_per_second = {64.2 * kGiga, "published: anemll-bench"};
  s.watts_base = {0.4, "derived: fit of 3 M4 Max rows (AFORGE), residual 0.27 W"};
  s.watts_per_tflops = {0.68, "derived: same fit"};
  s.watts_per_gbps = {0.014, "assumed: as M2 Max"};
  s.max_axis = 65536;
  s.max_matmul_axis = 65536;
  s.cpu_flops_per_second = {1.8 * kTera, "assumed: half an M4 Max and a little"};
  s.cpu_bytes_per_second = {90 * kGiga, "assumed: 120 GB/s of memory, shared"};
  s.cpu_watts = {10, "assumed"};
  s.copy_bytes_per_second = {69 * kGiga, "published: memcpy of one thread on M4 Max (whisper.cpp benchmark)"};
  return s;
}

NpuSpec M4Max() {
  NpuSpec s = M4();
  s.name = "m4-max";
  s.title = "Apple M4 Max";
  s.dispatch_seconds = {0.285 * kMillisecond, "published: 0.27-0.30 ms a predict, surface-backed arrays (rcarback)"};
  s.flops_per_second = {10.9 * kTera,
                        "published: Core ML 1x1 convolutions at 128 positions (rcarback), 10.9 (maderix/ANE)"};
  s.weight_bytes_per_second = {109 * kGiga, "published: 107-110 alone (rcarback), 118.9 (anemll-bench)"};
  s.cpu_flops_per_second = {3.2 * kTera, "published: sgemm 3.0-3.4 (AFORGE)"};
  s.cpu_bytes_per_second = {125 * kGiga, "published: 121-129 with four threads (rcarback)"};
  s.cpu_watts = {7.8, "published: sgemm (AFORGE)"};
  s.copy_bytes_per_second = {150 * kGiga, "published: memcpy (whisper.cpp benchmark)"};
  return s;
}

NpuSpec M5() {
  NpuSpec s = M4();
  s.name = "m5";
  s.title = "Apple M5";
  s.dispatch_seconds = {0.25 * kMillisecond, "assumed: Core ML on top of 0.07-0.11 ms of the private path (AFORGE)"};
  s.flops_per_second = {12.4 * kTera, "published: maderix/ANE at 64 positions; GEMM 2048 reaches 8.6 (AFORGE)"};
  s.weight_bytes_per_second = {70.2 * kGiga, "published: anemll-bench"};
  s.watts_base = {1.9, "derived: fit of 5 M5 Pro rows (AFORGE), residual 0.18 W"};
  s.watts_per_tflops = {0.57, "derived: same fit"};
  s.cpu_flops_per_second = {2.0 * kTera, "published: about 2.0 on M5 Air"};
  s.cpu_bytes_per_second = {110 * kGiga, "assumed: 153 GB/s of memory, shared"};
  s.cpu_watts = {12, "assumed"};
  s.copy_bytes_per_second = {70 * kGiga, "assumed: as M4"};
  return s;
}

NpuSpec M5Pro() {
  NpuSpec s = M5();
  s.name = "m5-pro";
  s.title = "Apple M5 Pro";
  s.flops_per_second = {15 * kTera, "derived: fit of 5 rows (AFORGE)"};
  s.weight_bytes_per_second = {130 * kGiga, "published: GEMV rows of 113-143 GB/s (AFORGE)"};
  s.cpu_flops_per_second = {1.9 * kTera, "published: sgemm (AFORGE)"};
  s.cpu_bytes_per_second = {130 * kGiga, "published: memory reads of the CPU (AFORGE)"};
  s.cpu_watts = {16, "published: sgemm (AFORGE)"};
  s.copy_bytes_per_second = {100 * kGiga, "assumed"};
  return s;
}

const std::array<NpuSpec, 8>& Table() {
  static const std::array<NpuSpec, 8> table{M1(), M2Max(), M2Ultra(), M3Max(), M4(), M4Max(), M5(), M5Pro()};
  return table;
}

}  // namespace

std::span<const NpuSpec> AllSpecs() { return Table(); }

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
      measured("wake_seconds", "s", s.wake_seconds),
      measured("idle_seconds", "s", s.idle_seconds),
      measured("flops_per_second", "FLOP/s", s.flops_per_second),
      measured("int8_speedup", "", s.int8_speedup),
      measured("weight_bytes_per_second", "B/s", s.weight_bytes_per_second),
      measured("io_bytes_per_second", "B/s", s.io_bytes_per_second),
      measured("large_operand_bytes", "B", s.large_operand_bytes),
      measured("large_operand_factor", "", s.large_operand_factor),
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
            s.name == "m1"             ? "published: address window of 3.5 GiB (eiln/ane)"
            : s.name.starts_with("m2") ? "published: address window of 34 GB"
                                       : "assumed: as M2"),
      limit("last_axis_multiple", "", s.last_axis_multiple,
            "published: the last axis should be a multiple of 32 (64 bytes of fp16)"),
      limit("streams_int8", "", s.streams_int8 ? 1 : 0,
            s.streams_int8 ? "published: affine int8 weights stream from M2 on (ane-guide)"
                           : "published: affine int8 weights unfold to fp16 on M1 (ane-guide)"),
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
  for (const NpuSpec& spec : Table()) names += fmt::format("{}{}", names.empty() ? "" : ", ", spec.name);
  return names;
}

Result<const NpuSpec*> FindSpec(std::string_view name) {
  for (const NpuSpec& spec : Table()) {
    if (spec.name == name) return &spec;
  }
  return MakeError(Code::kNotFound, "npu: no spec named '{}', wanted one of {}", name, SpecNames());
}

NpuSpec SpecOfChip(std::string_view chip) {
  const NpuSpec* nearest = &Table().back();
  for (const NpuSpec& spec : Table()) {
    if (spec.title == chip) return spec;
  }
  const std::string_view generation = chip.substr(0, chip.find(' ', chip.find(' ') + 1));  // "Apple M2"
  for (const NpuSpec& spec : Table()) {
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
