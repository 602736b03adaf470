// SPDX-License-Identifier: Apache-2.0
// NpuSpec: what one machine's NPU and CPU can do, every number with its source or the word assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/result.h"

namespace npumoe {

// Where a number comes from; `assumed` numbers are printed as such.
struct Sourced {
  double value = 0;
  std::string source;  // "measured: ...", "published: ...", "derived: ...", "assumed: ..."
};

struct NpuSpec {
  std::string name;   // "m2-max"
  std::string title;  // "Apple M2 Max"
  uint32_t n_dies = 1;     // programs in flight at once, one per die

  // Time of one dispatch: npu/cost.h says how these go together.
  Sourced dispatch_seconds;         // floor of one call through Core ML with surface-backed arrays
  Sourced direct_dispatch_seconds;  // floor of one call on the direct (private) path
  Sourced wake_seconds;             // added after the device was idle for longer than idle_seconds
  Sourced idle_seconds;
  Sourced flops_per_second;          // fp16, one long product after the other: the marginal rate
  Sourced int8_speedup;              // of arithmetic with int8 weights and activations; 1 = none
  Sourced half_rate_rows;            // a product of so many rows runs at half the rate
  Sourced weight_bytes_per_second;   // weight streaming, one die
  Sourced unpack_bytes_per_second;   // fp16 bytes that palettes unpack to
  Sourced on_chip_bytes;             // of a product whose operands are both larger, weights are read again and again
  Sourced score_moves;               // times that the scores of attention cross memory around softmax
  Sourced io_bytes_per_second;       // inputs and outputs through Core ML, surface-backed fp16
  Sourced host_copy_bytes_per_second;  // inputs and outputs on the direct path, which the host converts from fp32
  Sourced load_seconds;  // loading a compiled program, plus its bytes at weight_bytes_per_second

  // Power while busy: watts = a + b * TFLOP/s + c * weight GB/s; 0 when idle.
  Sourced watts_base, watts_per_tflops, watts_per_gbps;

  // Limits that Compile enforces.
  size_t max_axis = 0;  // width or height of a tensor
  size_t max_channels = 0;
  size_t max_matmul_axis = 0;
  size_t max_program_weight_bytes = 0;  // baked weights of one program
  size_t max_programs = 0;              // loaded in one process
  size_t max_resident_bytes = 0;        // all loaded programs together
  size_t last_axis_multiple = 0;        // rows are padded to this
  bool streams_int8 = false;            // int8 weights stay int8 in memory (false: unfolded to fp16)

  // The CPU beside it.
  Sourced cpu_flops_per_second;   // effective, block-quantized GEMM with many rows
  Sourced cpu_bytes_per_second;   // weights, which every product reads once, however few its rows
  Sourced cpu_watts;              // package while busy
  Sourced copy_bytes_per_second;  // pack and scatter
};

// Every M1 to M5 with its Pro, Max and Ultra: "m1", "m1-pro", ..., "m5-max".
std::span<const NpuSpec> AllSpecs();

// One number of a spec by its field's name.
struct SpecNumber {
  std::string_view name, unit;  // "weight_bytes_per_second", "B/s"; no unit for a count or a factor
  double value = 0;
  std::string_view source;
};

// Every number, in the order of the fields.
std::vector<SpecNumber> Numbers(const NpuSpec& spec);

// 32 hex digits that change with the name and with any number: what a plan was priced for.
std::string SpecHash(const NpuSpec& spec);

std::string SpecNames();  // "m1, m2-max, ..."

// "m2-max" of the device "sim:m2-max"; nothing of one that is not simulated.
std::optional<std::string_view> SimulatedName(std::string_view device);

// kNotFound lists the known names.
Result<const NpuSpec*> FindSpec(std::string_view name);

// For a chip by the name it gives itself, "Apple M2 Max". One that is not in the table gets the numbers of the first of
// its generation that is, or else of the last in the table, and a title that says so.
NpuSpec SpecOfChip(std::string_view chip);

// The numbers of the NPU that a measurement can replace, by their field's name.
struct MeasurableField {
  std::string_view name;
  Sourced NpuSpec::*field;
};
std::span<const MeasurableField> MeasurableFields();

}  // namespace npumoe
