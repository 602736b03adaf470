// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "base/check.h"
#include "base/temporary_folder.h"
#include "graph/mlpackage/mlpackage.h"
#include "graph/names.h"
#include "graph/npy.h"
#include "graph/op_reader.h"
#include "graph/reference.h"
#include "npu/coreml_npu.h"
#include "npu/limits.h"
#include "tensor/float16.h"
#include "npumoe/mlpackage.h"

namespace npumoe {
namespace {

template <typename Counts>
std::vector<std::pair<std::string, uint64_t>> MostFirst(const Counts& counts) {
  std::vector<std::pair<std::string, uint64_t>> list(counts.begin(), counts.end());
  std::ranges::stable_sort(list, [](const auto& a, const auto& b) { return a.second > b.second; });
  return list;
}

std::vector<PackageTensor> PackageTensors(const std::vector<PackageFunction::Feature>& features) {
  std::vector<PackageTensor> tensors;
  for (const auto& feature : features) tensors.push_back({feature.name, feature.type});
  return tensors;
}

std::vector<std::pair<std::string, std::string>> MetadataList(const PackageMetadata& metadata) {
  std::vector<std::pair<std::string, std::string>> list{{"description", metadata.short_description},
                                                        {"author", metadata.author},
                                                        {"version", metadata.version},
                                                        {"license", metadata.license}};
  std::erase_if(list, [](const auto& entry) { return entry.second.empty(); });
  list.insert(list.end(), metadata.user_defined.begin(), metadata.user_defined.end());
  return list;
}

// Constants that ops use, scalars and shapes aside.
std::vector<PackageWeights> WeightTable(const Graph& graph) {
  std::set<uint32_t> used;
  for (const Function& function : graph.functions) {
    for (const Op& op : function.ops) {
      for (const Operand& operand : op.operands) {
        for (const ValueId id : operand.values) {
          if (function.values[id].is_constant()) used.insert(function.values[id].constant);
        }
      }
    }
  }
  std::map<std::string_view, PackageWeights> sums;
  for (const uint32_t index : used) {
    const Constant& constant = graph.constants[index];
    const ElemType elem = constant.type.elem;
    const bool parameter = elem == ElemType::kI32 || elem == ElemType::kBool || elem == ElemType::kString;
    if (constant.type.dims.empty() || (parameter && constant.type.dims.size() == 1)) continue;
    PackageWeights& sum = sums[ToString(elem)];
    sum.type = ToString(elem);
    ++sum.n_tensors;
    sum.size_bytes += constant.data.size();
  }
  std::vector<PackageWeights> table;
  for (auto& [type, sum] : sums) table.push_back(std::move(sum));
  std::ranges::stable_sort(table, std::ranges::greater{}, &PackageWeights::size_bytes);
  return table;
}

std::string Times(uint64_t n) { return n == 1 ? "once" : fmt::format("{} times", n); }

// What Core ML places elsewhere than on the NPU, function by function.
std::vector<std::string> NpuWarnings(const PackageSummary& summary, const Graph* graph) {
  std::vector<std::string> warnings;
  for (const PackageFunction& function : summary.functions) {
    for (const auto& [name, n] : function.ops) {
      const auto kind = OpKindFromMilName(name);
      if (kind.ok() && !RunsOnNpu(*kind)) {
        warnings.push_back(
            fmt::format("function '{}': op {} ({}) leaves the NPU", ShownName(function.name), name, Times(n)));
      }
    }
    const Function* f = graph == nullptr ? nullptr : graph->Find(function.name);
    if (f == nullptr) continue;
    const auto wide = [&](const Op& op) {
      const ElemType elem = f->values[op.outputs[0]].type.elem;
      return !IsConstexpr(op.kind) && elem != ElemType::kF16 && elem != ElemType::kBool;
    };
    const auto n = static_cast<uint64_t>(std::count_if(f->ops.begin(), f->ops.end(), wide));
    if (n > 0) {
      warnings.push_back(
          fmt::format("function '{}': {} op{} with a result that is not fp16, which the NPU does not make",
                      function.name, n, n == 1 ? "" : "s"));
    }
  }
  return warnings;
}

// The arrays of `files` in the order of the function's inputs.
Result<std::vector<Array>> ReadInputs(const Function& function,
                                      const std::vector<std::pair<std::string, std::string>>& files) {
  std::vector<std::string> names;
  for (const ValueId id : function.inputs) names.push_back(function.values[id].name);
  std::map<std::string, std::string> by_name;
  for (const auto& [name, file] : files) {
    if (std::ranges::find(names, name) == names.end()) {
      return MakeError(Code::kInvalidArgument, "input '{}': function '{}' has no such input, it has {}", name,
                       function.name, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
    }
    if (!by_name.emplace(name, file).second) {
      return MakeError(Code::kInvalidArgument, "input '{}' is given twice", name);
    }
  }
  std::vector<Array> arrays;
  for (const ValueId id : function.inputs) {
    const Value& value = function.values[id];
    const auto file = by_name.find(value.name);
    if (file == by_name.end()) {
      return MakeError(Code::kInvalidArgument, "input '{}' ({}) of function '{}' is missing", value.name,
                       value.type.ToString(), function.name);
    }
    NM_TRY_VAR(Array array, ReadNpy(file->second));
    NM_TRY_VAR(array,
               FitArray(std::move(array), value.type, fmt::format("input '{}' from {}", value.name, file->second)));
    arrays.push_back(std::move(array));
  }
  return arrays;
}

Result<std::vector<PackageOutput>> WriteOutputs(const Function& function, std::vector<Array> arrays,
                                                const RunPackageOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.out_dir, error);
  if (error) return MakeError(Code::kIo, "{}: cannot write: {}", options.out_dir, error.message());
  std::vector<PackageOutput> outputs;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const std::string& name = function.values[function.outputs[i]].name;
    // Values that were not rounded to fp16 do not fit it.
    if (options.f32 && IsFloat(arrays[i].type.elem)) arrays[i].type.elem = ElemType::kF32;
    const std::string path = (std::filesystem::path(options.out_dir) / (name + ".npy")).string();
    const Status written = WriteNpy(path, arrays[i]);
    if (!written.ok()) {
      for (const PackageOutput& output : outputs) std::filesystem::remove(output.path, error);
      return written.error();
    }
    outputs.push_back({name, arrays[i].type.ToString(), path});
  }
  return outputs;
}

// Dense tensors of the types that Core ML takes and gives: fp16, fp32, int32.
std::vector<std::byte> BytesOf(const Array& array) {
  std::vector<std::byte> bytes(array.type.bytes());
  const auto store = [&](size_t i, auto value) { std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value)); };
  for (size_t i = 0; i < array.type.elems(); ++i) {
    if (array.type.elem == ElemType::kF16) store(i, F32ToF16(array.floats[i]));
    if (array.type.elem == ElemType::kF32) store(i, array.floats[i]);
    if (array.type.elem == ElemType::kI32) store(i, static_cast<int32_t>(array.ints[i]));
  }
  return bytes;
}

Array ArrayOf(const ValueType& type, std::span<const std::byte> bytes) {
  Array array{type, {}, {}};
  const auto load = [&](size_t i, auto value) {
    std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
    return value;
  };
  for (size_t i = 0; i < type.elems(); ++i) {
    if (type.elem == ElemType::kF16) array.floats.push_back(F16ToF32(load(i, uint16_t{})));
    if (type.elem == ElemType::kF32) array.floats.push_back(load(i, 0.0f));
    if (type.elem == ElemType::kI32) array.ints.push_back(load(i, int32_t{}));
  }
  return array;
}

Result<std::vector<Array>> RunWithCoreMl(const std::string& path, const Package& package, const Function& function,
                                         const std::vector<Array>& inputs, ComputeUnits units) {
  TemporaryFolder folder;
  NM_TRY(folder.Make("npumoe-exec"));
  const std::string compiled = folder.path() + "/program.mlmodelc";
  NM_TRY(CompileCoreMl(path, compiled));
  NM_TRY_VAR(const auto model, LoadCoreMl(compiled, InterfaceOf(function, package.metadata.multi_function), units));
  std::vector<std::vector<std::byte>> tensors;
  tensors.reserve(inputs.size() + function.outputs.size());
  std::vector<CoreMlInput> in;
  std::vector<CoreMlOutput> out;
  for (const Array& input : inputs) {
    const auto& bytes = tensors.emplace_back(BytesOf(input));
    in.push_back({bytes.data(), bytes.size()});
  }
  for (const ValueId id : function.outputs) {
    auto& bytes = tensors.emplace_back(function.values[id].type.bytes());
    out.push_back({bytes.data(), bytes.size()});
  }
  NM_TRY(model->Run(in, out));
  std::vector<Array> outputs;
  for (size_t i = 0; i < function.outputs.size(); ++i) {
    outputs.push_back(ArrayOf(function.values[function.outputs[i]].type, tensors[inputs.size() + i]));
  }
  return outputs;
}

}  // namespace

bool LooksLikePackage(const std::string& path) { return IsPackagePath(path); }

Result<PackageInfo> DescribePackage(const std::string& path) {
  NM_TRY_VAR(const PackageSummary summary, SummarizePackage(path));
  PackageInfo info;
  info.path = path;
  info.specification_version = summary.metadata.specification_version;
  info.opset = summary.metadata.opset;
  info.multi_function = summary.metadata.multi_function;
  info.default_function = summary.metadata.default_function;
  info.metadata = MetadataList(summary.metadata);
  info.model_bytes = summary.model_bytes;
  info.weight_file_bytes = summary.weight_file_bytes;
  for (const PackageFunction& function : summary.functions) {
    PackageFunctionInfo out{
        function.name,          PackageTensors(function.inputs), PackageTensors(function.outputs), PackageTensors(function.states), 0,
        MostFirst(function.ops)};
    for (const auto& [name, n] : function.ops) out.n_ops += n;
    info.functions.push_back(std::move(out));
  }
  const auto package = ReadPackage(path);
  if (package.ok()) {
    info.weights = WeightTable(package->graph);
    info.warnings = NpuWarnings(summary, &package->graph);
  } else if (package.error().code == Code::kUnsupported) {
    info.warnings = NpuWarnings(summary, nullptr);
    info.warnings.push_back("cannot be run here: " + package.error().message);
  } else {
    return package.error();
  }
  return info;
}

Result<std::vector<PackageOutput>> RunPackage(const std::string& path, const RunPackageOptions& options) {
  NM_TRY_VAR(const Package package, ReadPackage(path));
  const std::string& name = options.function.empty() ? package.metadata.default_function : options.function;
  const Function* function = package.graph.Find(name);
  if (function == nullptr) {
    std::vector<std::string> names;
    for (const Function& candidate : package.graph.functions) names.push_back(candidate.name);
    return MakeError(Code::kInvalidArgument, "{}: no function '{}', it has {}", path, name, fmt::join(names, ", "));
  }
  const uint64_t needed = ReferencePeakBytes(*function);
  if (needed > options.limit_bytes) {
    return MakeError(Code::kOutOfMemory, "{}: function '{}' needs {} bytes for its tensors, at most {}", path, name,
                     needed, options.limit_bytes);
  }
  NM_TRY_VAR(const auto inputs, ReadInputs(*function, options.inputs));
  if (!options.device.empty()) {
    if (options.f32) return MakeError(Code::kInvalidArgument, "{}: f32 is the reference executor's, not Core ML's", path);
    NM_TRY_VAR(const ComputeUnits units, CoreMlUnits(options.device));
    NM_TRY_VAR(auto outputs, RunWithCoreMl(path, package, *function, inputs, units));
    return WriteOutputs(*function, std::move(outputs), options);
  }
  const Rounding rounding = options.f32 ? Rounding::kF32 : Rounding::kF16;
  NM_TRY_VAR(auto outputs, RunReference(package.graph, *function, inputs, rounding));
  return WriteOutputs(*function, std::move(outputs), options);
}

}  // namespace npumoe
