// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/package_info.h"

#include <fmt/core.h>

#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kSystems[] = {"macOS 12", "macOS 13", "macOS 14", "macOS 15", "macOS 26"};
constexpr int kFirstVersion = 6;  // of kSystems

std::string Bytes(uint64_t bytes) {
  return bytes < 1024 ? fmt::format("{} B", bytes) : fmt::format("{} ({} B)", FormatBytes(bytes), bytes);
}

std::string Tensors(std::string_view what, const std::vector<PackageTensor>& tensors) {
  std::string text;
  for (const PackageTensor& tensor : tensors) {
    text += fmt::format("  {:<16} {} {}\n", text.empty() ? what : "", OneLine(tensor.name), tensor.type);
  }
  return text;
}

std::string Function(const PackageFunctionInfo& function, bool is_default) {
  std::string text = fmt::format("function {}{}\n", OneLine(function.name), is_default ? " (default)" : "") +
                     Tensors("inputs", function.inputs) + Tensors("states", function.states) +
                     Tensors("outputs", function.outputs);
  std::string ops;
  for (const auto& [name, n] : function.ops) {
    ops += fmt::format("{}{} {}", ops.empty() ? "" : ", ", n, OneLine(name));
  }
  return text + fmt::format("  {:<16} {}{}\n", "ops", function.n_ops, fmt::format("{}{}", ops.empty() ? "" : ": ", ops));
}

Json TensorsJson(const std::vector<PackageTensor>& tensors) {
  Json list = Json::array();
  for (const PackageTensor& tensor : tensors) {
    list.push_back({{"name", ReplaceInvalidUtf8(tensor.name)}, {"type", tensor.type}});
  }
  return list;
}

}  // namespace

std::string DescribeForPeople(const PackageInfo& info) {
  const int system = info.specification_version - kFirstVersion;
  const bool known = system >= 0 && system < static_cast<int>(std::size(kSystems));
  std::string text =
      NamedLine(18, "file", info.path) + NamedLine(18, "format", "Core ML package") +
      NamedLine(18, "specification", fmt::format("{}{}", info.specification_version,
                                        known ? fmt::format(" ({} or newer)", kSystems[system]) : std::string())) +
      NamedLine(18, "opset", info.opset) +
      NamedLine(18, "functions", fmt::format("{}{}", info.functions.size(), info.multi_function ? ", chosen by name" : "")) +
      NamedLine(18, "model file", Bytes(info.model_bytes)) + NamedLine(18, "weight files", Bytes(info.weight_file_bytes));
  bool first = true;
  for (const auto& [key, value] : info.metadata) {
    text += NamedLine(18, first ? "metadata" : "", fmt::format("{}: {}", key, value));
    first = false;
  }
  first = true;
  for (const PackageWeights& weights : info.weights) {
    text += NamedLine(18, first ? "weights" : "",
                 fmt::format("{:>6} {:<8} {:>12}", weights.n_tensors, weights.type, FormatBytes(weights.size_bytes)));
    first = false;
  }
  for (const PackageFunctionInfo& function : info.functions) {
    text += Function(function, info.multi_function && function.name == info.default_function);
  }
  return text;
}

Json DescribeAsJson(const PackageInfo& info) {
  Json json = {{"path", ReplaceInvalidUtf8(info.path)},
               {"format", "mlpackage"},
               {"specification_version", info.specification_version},
               {"opset", ReplaceInvalidUtf8(info.opset)},
               {"multi_function", info.multi_function},
               {"default_function", ReplaceInvalidUtf8(info.default_function)},
               {"model_bytes", info.model_bytes},
               {"weight_file_bytes", info.weight_file_bytes}};
  json["metadata"] = Json::object();
  for (const auto& [key, value] : info.metadata) json["metadata"][ReplaceInvalidUtf8(key)] = ReplaceInvalidUtf8(value);
  json["weights"] = Json::array();
  for (const PackageWeights& weights : info.weights) {
    json["weights"].push_back(
        {{"type", weights.type}, {"n_tensors", weights.n_tensors}, {"size_bytes", weights.size_bytes}});
  }
  json["functions"] = Json::array();
  for (const PackageFunctionInfo& function : info.functions) {
    Json ops = Json::object();
    for (const auto& [name, n] : function.ops) ops[ReplaceInvalidUtf8(name)] = n;
    json["functions"].push_back({{"name", ReplaceInvalidUtf8(function.name)},
                                 {"inputs", TensorsJson(function.inputs)},
                                 {"outputs", TensorsJson(function.outputs)},
                                 {"states", TensorsJson(function.states)},
                                 {"n_ops", function.n_ops},
                                 {"ops", std::move(ops)}});
  }
  json["warnings"] = Json::array();
  for (const std::string& warning : info.warnings) json["warnings"].push_back(ReplaceInvalidUtf8(warning));
  return json;
}

}  // namespace npumoe
