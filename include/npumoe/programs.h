// SPDX-License-Identifier: Apache-2.0
// Programs of a plan as packages, and compiled ones kept on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/plan.h"
#include "npumoe/result.h"

namespace npumoe {

struct EngineOptions;

// Where compiled programs and measured numbers of this machine are kept when no folder is named:
// ~/Library/Caches/npumoe on a Mac, else $XDG_CACHE_HOME/npumoe or ~/.cache/npumoe; empty without a home.
std::string DefaultCacheFolder();

// Compiled programs above this go, the least recently used first: room for one 30B model with 8-bit weights and its
// successor.
inline constexpr uint64_t kDefaultCacheBytes = uint64_t{64} << 30;

struct CachedProgram {
  std::string key;   // 32 hex digits
  std::string what;  // for people: "experts_3_0, m2-max, ane"
  uint64_t size_bytes = 0;
  int64_t used_at = 0;  // seconds since 1970
  std::string failure;  // why it cannot be used; empty for a program that can. "damaged" for what is no entry
  bool in_use = false;  // by a process
};

// Least recently used first; empty when there is no such folder.
std::vector<CachedProgram> ListPrograms(const std::string& cache_folder);

struct RemovedPrograms {
  uint64_t n_programs = 0, size_bytes = 0;
};
// Removes what `wanted` says and no process uses. kIo when the folder cannot be written.
Result<RemovedPrograms> RemovePrograms(const std::string& cache_folder,
                                       const std::function<bool(const CachedProgram&)>& wanted);

struct CompileOptions {
  // Packages are written here; empty: only compiled, where there is Core ML, or else beside the model (SidecarPath).
  std::string out_dir;
  uint32_t n_parallel = 2;  // packages in work at once; each takes memory for its weights
};

struct CompiledProgram {
  std::string name;     // "attention_0", "experts_3_1"
  std::string package;  // its path; empty when none is written
  uint64_t size_bytes = 0;
  bool kept = false;    // it was there already, made from the same model and plan
  std::string failure;  // why it cannot be used: a limit of the NPU, the words of Core ML
};

struct CompileReport {
  std::string npu, plan;  // the spec's name; where the plan came from
  bool compiled = false;  // by Core ML, too
  PlanLengths lengths;
  std::vector<CompiledProgram> programs;  // in layer order
};

// Called once when the plan is there, with n_done 0 and nothing in `done`, then after each program, from one thread at
// a time; false stops (kCancelled: what is done stays and is kept next time).
using CompileProgressFn = std::function<bool(const CompiledProgram& done, size_t n_done, size_t n_total)>;

// Makes all programs of a plan: `options.npu` says which plan, as for Engine::Open. A program that the NPU refuses is
// reported and does not stop the others. `go_on` is asked while a plan is made; kCancelled soon after it said no.
Result<CompileReport> CompilePrograms(const std::string& model_path, const EngineOptions& options,
                                      const CompileOptions& compile, const CompileProgressFn& progress,
                                      const GoOnFn& go_on = {});

// What NpuOptions::compiler runs: compiles `package`, loads every function and runs it once. `units`: "ane", "gpu",
// "cpu".
Status CompilePackage(const std::string& package, const std::string& compiled, std::string_view units);

}  // namespace npumoe
