// SPDX-License-Identifier: Apache-2.0
// The table of machines. Sources are public measurements by third parties unless they say otherwise; none of these
// numbers was measured by this project on such a machine. What docs/device_model.md calls the fit comes from
// spec_fit.inc: a number that no row of the chip itself speaks of is assumed from its generation.
#include <array>
#include <string>

#include "base/check.h"
#include "npu/spec.h"

namespace npumoe {
namespace {

constexpr double kMillisecond = 1e-3, kGiga = 1e9, kTera = 1e12;
constexpr size_t kGiB = size_t{1} << 30;

struct SharedFit {
  double half_rate_rows, unpack_gbps, score_moves;
};
struct PowerFit {
  std::string_view generation;
  double watts_base, watts_per_tflops, watts_per_gbps;
  int n_rows;
};
struct Fitted {
  double value;
  bool is_known;  // rows of this chip say more than the prior
};
struct ChipFit {
  std::string_view name;
  int n_rows;
  Fitted tflops, weight_gbps, direct_ms, coreml_ms, host_copy_gbps, on_chip_mb;
};
#include "npu/spec_fit.inc"

// The CPU beside an NPU. A source that is null: assumed from the other chips of its generation and kind.
struct Cpu {
  double tflops;
  const char* tflops_source;
  double weight_gbps;
  const char* weight_source;
  double watts;
  const char* watts_source;
  double copy_gbps;
  const char* copy_source;
};
struct Machine {
  std::string_view name, title;
  Cpu cpu;
};

constexpr const char* kMemcpy = "published: memcpy with two to four threads (whisper.cpp benchmark, M2 Ultra)";
constexpr const char* kAccelerate = "published: numpy with Accelerate, N = 512..4096 (AFORGE)";

constexpr Machine kMachines[] = {
    {"m1",
     "Apple M1",
     {1.4, "published: Accelerate on M1 Pro and M1 Max (whisper.cpp benchmark, nod.ai)", 60, nullptr, 8.1,
      "published: M1 Max sgemm, one client (nod.ai)", 50, nullptr}},
    {"m1-pro",
     "Apple M1 Pro",
     {1.5, "published: Accelerate 1.40-1.73 (whisper.cpp benchmark)", 100, nullptr, 8.1, nullptr, 100, nullptr}},
    {"m1-max",
     "Apple M1 Max",
     {1.4, "published: sgemm, one client (nod.ai)", 100, nullptr, 8.1, "published: sgemm, one client (nod.ai)", 100,
      nullptr}},
    {"m1-ultra", "Apple M1 Ultra", {1.4, nullptr, 200, nullptr, 16, nullptr, 179, nullptr}},
    {"m2", "Apple M2", {1.5, nullptr, 70, nullptr, 10, nullptr, 60, nullptr}},
    {"m2-pro", "Apple M2 Pro", {2.2, nullptr, 100, nullptr, 19, nullptr, 100, nullptr}},
    {"m2-max",
     "Apple M2 Max",
     {2.2, kAccelerate, 100, nullptr, 19, "published: package power of the same rows (AFORGE)", 100, kMemcpy}},
    {"m2-ultra",
     "Apple M2 Ultra",
     {1.29, "derived: llama.cpp pull request 6210, TinyLlama F16, 256 prompt tokens at 664 a second, 4 threads", 198,
      "published: memcpy with 8 threads (whisper.cpp benchmark)", 38, nullptr, 179,
      "published: memcpy with 4 threads (whisper.cpp benchmark)"}},
    {"m3", "Apple M3", {1.6, nullptr, 70, nullptr, 10, nullptr, 65, nullptr}},
    {"m3-pro", "Apple M3 Pro", {2.4, nullptr, 100, nullptr, 13, nullptr, 100, nullptr}},
    {"m3-max", "Apple M3 Max", {2.7, nullptr, 100, nullptr, 13, nullptr, 100, kMemcpy}},
    {"m3-ultra", "Apple M3 Ultra", {2.7, nullptr, 200, nullptr, 26, nullptr, 179, nullptr}},
    {"m4",
     "Apple M4",
     {1.8, nullptr, 90, nullptr, 10, nullptr, 69, "published: memcpy of one thread on M4 Max (whisper.cpp benchmark)"}},
    {"m4-pro", "Apple M4 Pro", {3.0, nullptr, 120, nullptr, 7.8, nullptr, 120, nullptr}},
    {"m4-max",
     "Apple M4 Max",
     {3.2, "published: sgemm 3.0-3.4 (AFORGE)", 125, "published: 121-129 with four threads (rcarback)", 7.8,
      "published: sgemm (AFORGE)", 150, "published: memcpy (whisper.cpp benchmark)"}},
    {"m5", "Apple M5", {2.0, "published: about 2.0 on M5 Air", 110, nullptr, 12, nullptr, 70, nullptr}},
    {"m5-pro",
     "Apple M5 Pro",
     {1.9, "published: sgemm (AFORGE)", 130, "published: memory reads of the CPU (AFORGE)", 16,
      "published: sgemm (AFORGE)", 100, nullptr}},
    {"m5-max", "Apple M5 Max", {1.9, nullptr, 200, nullptr, 16, nullptr, 150, nullptr}},
};
static_assert(std::size(kMachines) == std::size(kChipFit));

Sourced FromFit(const Fitted& fitted, double unit, const ChipFit& chip) {
  return {fitted.value * unit,
          fitted.is_known
              ? fmt::format("derived: fit, {} published rows of this chip (docs/device_model.md)", chip.n_rows)
              : fmt::format("assumed: from chips of {} (fit of docs/device_model.md)", chip.name.substr(0, 2))};
}

Sourced OfCpu(double value, double unit, const char* source) {
  return {value * unit, source != nullptr ? source : "assumed: from the other chips of its generation and kind"};
}

// What is the same on every generation, or known of one only and assumed of the others.
NpuSpec Common() {
  NpuSpec s;
  s.wake_seconds = {0.5 * kMillisecond, "published: ane-guide ch. 31, plateau of the first dispatch after 100 ms (M1)"};
  s.idle_seconds = {0.1, "published: ane-guide ch. 31 (M1)"};
  s.half_rate_rows = {kSharedFit.half_rate_rows, "derived: fit over all chips (docs/device_model.md)"};
  s.unpack_bytes_per_second = {kSharedFit.unpack_gbps * kGiga,
                               "derived: fit over all chips; palettes of M5 Pro and lut6 heads (docs/device_model.md)"};
  s.score_moves = {kSharedFit.score_moves, "derived: fit, one row of M2 Max (docs/device_model.md)"};
  s.io_bytes_per_second = {60 * kGiga, "assumed: surface-backed fp16 arrays move at the rate of the memory"};
  s.load_seconds = {10 * kMillisecond, "published: cached loads of 5-30 ms (ORION, more-ane-transformers)"};
  s.max_channels = 65536;  // see Numbers() for where the limits come from
  s.max_program_weight_bytes = size_t{1000} * 1000 * 1000;
  s.max_programs = 120;
  s.last_axis_multiple = 32;
  return s;
}

// What goes by generation.
void SetGeneration(std::string_view generation, NpuSpec& s) {
  const bool is_m1 = generation == "m1", is_late = generation == "m4" || generation == "m5";
  s.int8_speedup = {is_late ? 1.88 : 1.0, generation == "m4"
                                              ? "published: 35.1 TOPS with int8 weights and activations (maderix/ANE)"
                                          : is_late ? "assumed: as M4"
                                                    : "published: no int8 arithmetic before A17 Pro and M4"};
  s.max_axis = s.max_matmul_axis = is_late ? 65536 : 16384;
  s.max_resident_bytes = is_m1 ? size_t{3200} * 1000 * 1000 : 32 * kGiB;
  s.streams_int8 = !is_m1 && generation != "m5";
  for (const PowerFit& power : kPowerFit) {
    if (power.generation != generation) continue;
    const std::string source =
        power.n_rows > 0 ? fmt::format("derived: fit, {} rows with energy (docs/device_model.md)", power.n_rows)
        : is_m1          ? std::string("derived: 6 rows of ane-guide and AFORGE, residual 0.30 W")
                         : std::string("assumed: middle of M2 and M4");
    s.watts_base = {power.watts_base, source};
    s.watts_per_tflops = {power.watts_per_tflops, source};
    s.watts_per_gbps = {power.watts_per_gbps, source};
  }
}

NpuSpec MakeSpec(const Machine& machine, const ChipFit& fit) {
  NM_CHECK(machine.name == fit.name);
  NpuSpec s = Common();
  s.name = machine.name;
  s.title = machine.title;
  SetGeneration(fit.name.substr(0, 2), s);
  s.flops_per_second = FromFit(fit.tflops, kTera, fit);
  s.weight_bytes_per_second = FromFit(fit.weight_gbps, kGiga, fit);
  s.direct_dispatch_seconds = FromFit(fit.direct_ms, kMillisecond, fit);
  s.dispatch_seconds = FromFit(fit.coreml_ms, kMillisecond, fit);
  s.host_copy_bytes_per_second = FromFit(fit.host_copy_gbps, kGiga, fit);
  s.on_chip_bytes = FromFit(fit.on_chip_mb, 1e6, fit);
  s.cpu_flops_per_second = OfCpu(machine.cpu.tflops, kTera, machine.cpu.tflops_source);
  s.cpu_bytes_per_second = OfCpu(machine.cpu.weight_gbps, kGiga, machine.cpu.weight_source);
  s.cpu_watts = OfCpu(machine.cpu.watts, 1, machine.cpu.watts_source);
  s.copy_bytes_per_second = OfCpu(machine.cpu.copy_gbps, kGiga, machine.cpu.copy_source);
  return s;
}

std::array<NpuSpec, std::size(kMachines)> MakeTable() {
  std::array<NpuSpec, std::size(kMachines)> table;
  for (size_t i = 0; i < table.size(); ++i) table[i] = MakeSpec(kMachines[i], kChipFit[i]);
  return table;
}

}  // namespace

std::span<const NpuSpec> AllSpecs() {
  static const std::array<NpuSpec, std::size(kMachines)> table = MakeTable();
  return table;
}

}  // namespace npumoe
