// SPDX-License-Identifier: Apache-2.0
// What `npumoe bench` measures and how it is shown, as llama-bench shows it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/engine.h"

namespace npumoe {

struct BenchTest {
  uint32_t n_prompt = 0, n_gen = 0, n_depth = 0;  // tokens: read together, one at a time, and before either
};
std::string Label(const BenchTest& test);  // "pp512", "tg128 @ d4096", "pp512+tg128"

struct BenchResult {
  BenchTest test;
  std::string model_path, model_type;  // type: "qwen3moe 30.5B.A3.3B Q4_0"
  uint64_t model_size_bytes = 0, n_params = 0;
  uint32_t n_threads = 0, n_batch = 0, n_ubatch = 0;
  KvType kv_type = KvType::kF16;
  std::string test_time;             // UTC, ISO 8601
  std::vector<uint64_t> samples_ns;  // one per repetition, never empty
  double check_kl = 0;               // nats, between a prompt in one piece and in several
  uint64_t peak_resident_bytes = 0;  // of the process, after the test
};

struct Spread {
  double mean = 0, stddev = 0;  // of a sample: divided by n - 1; 0 for one value
};
Spread SpreadOf(const std::vector<double>& values);
std::vector<double> TokensPerSecond(const BenchResult& result);

enum class BenchFormat { kMarkdown, kJson, kJsonLines, kCsv };
// Columns of a Markdown table beyond the usual ones, shown where they do not hold the default.
struct BenchColumns {
  bool ubatch = false;
  bool kv_type = false;  // two: of keys and of values
};
// What stands before the first row, one row, between rows and at the end, so that rows show as they are measured.
std::string BenchHead(BenchFormat format, const BenchColumns& columns);
std::string BenchRow(BenchFormat format, const BenchColumns& columns, bool is_first, const BenchResult& result);
// `check` is the sentence that says what was verified before timing.
std::string BenchFoot(BenchFormat format, std::string_view check);

// "qwen3moe 30.5B.A3.3B Q4_0".
std::string ModelType(const ModelInfo& info);

}  // namespace npumoe
