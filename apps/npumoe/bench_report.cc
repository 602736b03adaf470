// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "apps/npumoe/bench.h"
#include "apps/npumoe/machine.h"
#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

using Json = nlohmann::ordered_json;

std::vector<double> AsDoubles(const std::vector<uint64_t>& values) { return {values.begin(), values.end()}; }

// Keys of llama-bench first, in its order, then ours.
Json ToJson(const BenchResult& result) {
  const BuildInfo build = GetBuildInfo();
  const std::string_view kv_type = KvTypeName(result.kv_type);
  const Spread ns = SpreadOf(AsDoubles(result.samples_ns)), ts = SpreadOf(TokensPerSecond(result));
  return {{"build_commit", build.commit},
          {"build_number", nullptr},  // llama.cpp counts its commits; we name the version instead
          {"cpu_info", CpuName()},
          {"gpu_info", ""},
          {"backends", "CPU"},
          {"model_filename", ReplaceInvalidUtf8(result.model_path)},
          {"model_type", ReplaceInvalidUtf8(result.model_type)},
          {"model_size", result.model_size_bytes},
          {"model_n_params", result.n_params},
          {"n_batch", result.n_batch},
          {"n_ubatch", result.n_ubatch},
          {"n_threads", result.n_threads},
          {"type_k", kv_type},
          {"type_v", kv_type},
          {"n_gpu_layers", 0},
          {"n_prompt", result.test.n_prompt},
          {"n_gen", result.test.n_gen},
          {"n_depth", result.test.n_depth},
          {"test_time", result.test_time},
          {"avg_ns", std::llround(ns.mean)},
          {"stddev_ns", std::llround(ns.stddev)},
          {"avg_ts", ts.mean},
          {"stddev_ts", ts.stddev},
          {"samples_ns", result.samples_ns},
          {"samples_ts", TokensPerSecond(result)},
          {"build_version", build.version},
          {"compiler", build.compiler},
          {"simd_target", build.simd_target},
          {"blas", build.blas},
          {"os_info", OsName()},
          {"clock", "real"},
          {"check_kl", result.check_kl},
          {"peak_resident_bytes", result.peak_resident_bytes}};
}

std::string CsvField(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>() : value.is_null() ? "" : value.dump();
  if (value.is_string() || text.find(',') != std::string::npos) {
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
    return quoted + "\"";
  }
  return text;
}

std::string CsvLine(const Json& row, bool names) {
  std::string line;
  for (const auto& [key, value] : row.items()) {
    line += (line.empty() ? "" : ",") + (names ? key : CsvField(value));
  }
  return line + "\n";
}

// Markdown cannot hold a bar inside a cell.
std::string Cell(std::string_view text) {
  std::string cell = OneLine(text);
  for (size_t at = 0; (at = cell.find('|', at)) != std::string::npos; at += 2) cell.insert(at, 1, '\\');
  return cell;
}

std::string MarkdownRow(const BenchResult& result, const BenchColumns& columns) {
  const Spread ts = SpreadOf(TokensPerSecond(result));
  std::string speed = fmt::format("{:.2f} ± {:.2f}", ts.mean, ts.stddev);
  speed.insert(0, speed.size() < 21 ? 21 - speed.size() : 0, ' ');  // ± is two bytes and one column
  const std::string_view kv_type = KvTypeName(result.kv_type);
  return fmt::format("| {:<30} | {:>10} | {:>10} | {:<10} | {:>7} |{}{} {:>15} | {} |\n", Cell(result.model_type),
                     FormatBytes(result.model_size_bytes), FormatCount(result.n_params), "CPU", result.n_threads,
                     columns.ubatch ? fmt::format(" {:>8} |", result.n_ubatch) : "",
                     columns.kv_type ? fmt::format(" {:>6} | {:>6} |", kv_type, kv_type) : "", Label(result.test),
                     speed);
}

std::string ShortCount(uint64_t count) {
  return count >= 999'950'000 ? fmt::format("{:.1f}B", static_cast<double>(count) / 1e9)
         : count >= 999'950   ? fmt::format("{:.1f}M", static_cast<double>(count) / 1e6)
                              : fmt::format("{:.1f}K", static_cast<double>(count) / 1e3);
}

}  // namespace

std::string Label(const BenchTest& test) {
  std::string label = test.n_prompt > 0 ? fmt::format("pp{}", test.n_prompt) : "";
  if (test.n_gen > 0) label += fmt::format("{}tg{}", label.empty() ? "" : "+", test.n_gen);
  if (test.n_depth > 0) label += fmt::format(" @ d{}", test.n_depth);
  return label;
}

std::string ModelType(const ModelInfo& info) {
  const std::string active = info.n_experts > 0 ? ".A" + ShortCount(info.n_active_params) : "";
  return fmt::format("{} {}{} {}", info.family, ShortCount(info.n_params), active, info.type);
}

Spread SpreadOf(const std::vector<double>& values) {
  Spread spread;
  const auto n = static_cast<double>(values.size());
  spread.mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  if (values.size() > 1) spread.stddev = std::sqrt(squares / (n - 1));
  return spread;
}

std::vector<double> TokensPerSecond(const BenchResult& result) {
  std::vector<double> speeds;
  const double n_tokens = static_cast<double>(result.test.n_prompt) + result.test.n_gen;
  for (const uint64_t ns : result.samples_ns) speeds.push_back(n_tokens * 1e9 / static_cast<double>(ns));
  return speeds;
}

std::string BenchHead(BenchFormat format, const BenchColumns& columns) {
  if (format == BenchFormat::kJson) return "[\n";
  if (format != BenchFormat::kMarkdown) return "";
  return fmt::format("| {:<30} | {:>10} | {:>10} | {:<10} | {:>7} |{}{} {:>15} | {:>20} |\n", "model", "size", "params",
                     "backend", "threads", columns.ubatch ? " n_ubatch |" : "",
                     columns.kv_type ? " type_k | type_v |" : "", "test", "t/s") +
         fmt::format("| {:-<30} | {:->9}: | {:->9}: | {:-<10} | {:->6}: |{}{} {:->14}: | {:->19}: |\n", "", "", "", "",
                     "", columns.ubatch ? " -------: |" : "", columns.kv_type ? " -----: | -----: |" : "", "", "");
}

std::string BenchRow(BenchFormat format, const BenchColumns& columns, bool is_first, const BenchResult& result) {
  switch (format) {
    case BenchFormat::kMarkdown:
      return MarkdownRow(result, columns);
    case BenchFormat::kJson:
      return (is_first ? "" : ",\n") + ToJson(result).dump(2);
    case BenchFormat::kJsonLines:
      return ToJson(result).dump() + "\n";
    case BenchFormat::kCsv: {
      const Json row = ToJson(result);
      return (is_first ? CsvLine(row, true) : "") + CsvLine(row, false);
    }
  }
  return "";
}

std::string BenchFoot(BenchFormat format, std::string_view check) {
  if (format == BenchFormat::kJson) return "\n]\n";
  if (format != BenchFormat::kMarkdown) return "";
  const BuildInfo build = GetBuildInfo();
  return fmt::format("\nbuild: {} ({})\nmachine: {}, {} cores, {}, {}, {}, real time\ncheck: {}\n", build.commit,
                     build.version, CpuName(), std::thread::hardware_concurrency(), OsName(), build.compiler,
                     SimdAndBlas(build), check);
}

}  // namespace npumoe
