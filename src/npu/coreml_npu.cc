// SPDX-License-Identifier: Apache-2.0
#include "npu/coreml_npu.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/child_process.h"
#include "graph/builder.h"
#include "graph/hash.h"
#include "graph/mlpackage/mlpackage.h"
#include "npu/keep_warm.h"
#include "npu/limits.h"
#include "npu/program_cache.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::array<std::pair<ComputeUnits, std::string_view>, 3> kUnits{{
    {ComputeUnits::kCpuAndNeuralEngine, "ane"},
    {ComputeUnits::kCpuAndGpu, "gpu"},
    {ComputeUnits::kCpuOnly, "cpu"},
}};

// Of what lies in a cache entry; a change makes old entries unknown.
constexpr std::string_view kCoreMl = "coreml";
constexpr uint64_t kEntryVersion = 1;

bool HasNames(const Graph& graph) { return graph.functions.size() > 1 || graph.functions[0].name != "main"; }

// Where in an entry the compiled form of a function lies: all in one, or one each where the system has no functions.
std::string CompiledName(const Graph& graph, const Function& function, bool has_functions) {
  return has_functions || !HasNames(graph) ? "program.mlmodelc" : function.name + ".mlmodelc";
}

// One function as a package of its own.
Graph Alone(const Graph& graph, const Function& function) {
  Graph alone{graph.constants, {function}};
  alone.functions[0].name = "main";
  return alone;
}

class CoreMlProgram final : public NpuProgram {
 public:
  struct Loaded {
    std::string name;
    CoreMlFunction interface;
    std::string path;  // of the compiled form
    std::unique_ptr<CoreMlModel> model;
  };

  CoreMlProgram(std::string key, KeepWarm& warm, Clock::time_point start, size_t weight_bytes, ComputeUnits units,
                CacheLease lease, std::vector<Loaded> functions)
      : key_(std::move(key)),
        warm_(warm),
        start_(start),
        weight_bytes_(weight_bytes),
        units_(units),
        lease_(std::move(lease)),
        functions_(std::move(functions)) {}

  Result<Interval> Run(std::string_view name, std::span<const TensorRef> inputs,
                       std::span<const MutableTensorRef> outputs, Nanos) override {
    const auto at = std::ranges::find(functions_, name, &Loaded::name);
    if (at == functions_.end()) return MakeError(Code::kInvalidArgument, "npu: {}: no function '{}'", key_, name);
    in_.clear();
    out_.clear();
    for (const TensorRef& input : inputs) in_.push_back({input.data, input.elems * sizeof(uint16_t)});
    for (const MutableTensorRef& output : outputs) out_.push_back({output.data, output.elems * sizeof(uint16_t)});
    return warm_.Use([&]() -> Result<Interval> {
      const Nanos begin = (Clock::now() - start_).count();
      if (const Status ran = at->model->Run(in_, out_); !ran.ok()) {
        return MakeError(ran.error().code, "npu: {}: {}", key_, ran.error().message);
      }
      return Interval{begin, (Clock::now() - start_).count(), 0, /*simulated=*/false};
    });
  }

  std::vector<OpPlacement> Placement(std::string_view name) const override {
    const auto at = std::ranges::find(functions_, name, &Loaded::name);
    if (at == functions_.end()) return {};
    auto placed = PlaceCoreMl(at->path, at->interface.name, units_);
    return placed.ok() ? std::move(*placed) : std::vector<OpPlacement>();
  }

  size_t ResidentBytes() const override { return weight_bytes_; }

 private:
  std::string key_;
  KeepWarm& warm_;
  Clock::time_point start_;
  size_t weight_bytes_;
  ComputeUnits units_;
  CacheLease lease_;  // the compiled files are mapped while the program is loaded
  std::vector<Loaded> functions_;
  std::vector<CoreMlInput> in_;
  std::vector<CoreMlOutput> out_;
};

// Zeros through a loaded function: the first run is the slow one, and the one that fails.
Status RunOnZeros(CoreMlModel& model, const CoreMlFunction& function) {
  std::vector<std::vector<std::byte>> tensors;
  std::vector<CoreMlInput> in;
  std::vector<CoreMlOutput> out;
  for (const auto& input : function.inputs) {
    const auto& zeros = tensors.emplace_back(input.type.bytes());
    in.push_back({zeros.data(), zeros.size()});
  }
  for (const auto& output : function.outputs) {
    auto& bytes = tensors.emplace_back(output.type.bytes());
    out.push_back({bytes.data(), bytes.size()});
  }
  return model.Run(in, out);
}

class CoreMlNpu final : public NpuDevice {
 public:
  CoreMlNpu(CoreMlNpuOptions options, CoreMlSystem system)
      : options_(std::move(options)),
        system_(std::move(system)),
        cache_(options_.cache_folder, options_.cache_bytes),
        start_(Clock::now()),
        warm_(options_.spec.idle_seconds.value / 2, options_.keep_warm_seconds, [this] { Touch(); }) {}

  const NpuSpec& Spec() const override { return options_.spec; }
  std::optional<Nanos> RealNow() const override { return (Clock::now() - start_).count(); }
  std::string Note() const override { return cache_.note(); }

  Status Prepare(const Graph& graph, std::string_view key) override {
    NM_TRY(CompiledForm(graph, key));
    return Ok{};
  }

  Result<std::unique_ptr<NpuProgram>> Compile(Graph graph, std::string_view key) override {
    NM_TRY_VAR(CacheLease lease, CompiledForm(graph, key));
    std::vector<CoreMlProgram::Loaded> functions;
    for (const Function& function : graph.functions) {
      const CoreMlFunction interface = InterfaceOf(function, system_.has_functions && HasNames(graph));
      const std::string path = lease.folder() + "/" + CompiledName(graph, function, system_.has_functions);
      auto model = LoadCoreMl(path, interface, options_.units);
      Status warm = model.ok() ? RunOnZeros(**model, interface) : Status(model.error());
      if (!warm.ok()) return MakeError(Code::kDevice, "npu: {}: {}", key, warm.error().message);
      functions.push_back({function.name, interface, path, std::move(*model)});
    }
    return std::unique_ptr<NpuProgram>(new CoreMlProgram(std::string(key), warm_, start_, graph.WeightBytes(), options_.units,
                                                         std::move(lease), std::move(functions)));
  }

 private:
  // The graph's entry of the cache, made now if it has none. An entry may be a verdict, which is an error then.
  Result<CacheLease> CompiledForm(const Graph& graph, std::string_view key) {
    NM_TRY(ValidateGraph(graph));
    if (options_.units == ComputeUnits::kCpuAndNeuralEngine) NM_TRY(CheckLimits(graph, options_.spec, key));
    const std::string hash = ProgramKey(graph, options_.spec.name, system_.os_version, options_.units);
    if (auto found = cache_.Find(hash)) {
      if (found->failure().empty()) return std::move(*found);
      return MakeError(Code::kDevice, "npu: {}: {} (remembered; 'npumoe cache rm --failed' forgets)", key,
                       found->failure());
    }
    const std::string what = fmt::format("{}, {}, {}", key, options_.spec.name, ToString(options_.units));
    std::string failure;
    auto made = cache_.Make(hash, what, [&](const std::string& folder) -> Status {
      if (system_.has_functions || !HasNames(graph)) {
        return CompileOne(graph, folder, "program.mlmodelc", failure);
      }
      for (const Function& function : graph.functions) {
        const std::string name = CompiledName(graph, function, /*has_functions=*/false);
        NM_TRY(CompileOne(Alone(graph, function), folder, name, failure));
      }
      return Ok{};
    });
    if (!made.ok() && !failure.empty()) {
      // Remembered, so that nobody waits for it again; that remembering fails is no news.
      static_cast<void>(cache_.MakeFailure(hash, what, failure));
      return MakeError(Code::kDevice, "npu: {}: {}", key, failure);
    }
    return made;
  }

  // Runs a program of one op. On the thread of warm_ only; that it fails is no news.
  void Touch() {
    if (!has_tried_tiny_) {
      has_tried_tiny_ = true;
      MakeTiny();
    }
    if (tiny_) static_cast<void>(RunOnZeros(*tiny_, tiny_interface_));
  }

  void MakeTiny() {
    constexpr size_t kWidth = 32;  // what the last axis is padded to anyway
    GraphBuilder b;
    b.BeginFunction("main");
    b.Output("y", b.Unary(OpKind::kRelu, b.Input("x", {ElemType::kF16, {1, kWidth, 1, kWidth}})));
    const auto graph = std::move(b).Finish();
    auto form = graph.ok() ? CompiledForm(*graph, "keep-warm") : Result<CacheLease>(graph.error());
    if (!form.ok()) return;
    tiny_interface_ = InterfaceOf(graph->functions[0], false);
    auto model = LoadCoreMl(form->folder() + "/program.mlmodelc", tiny_interface_, options_.units);
    if (model.ok()) tiny_ = std::move(*model);
  }

  // `failure` is set when the package is to blame, not the disk.
  Status CompileOne(const Graph& graph, const std::string& folder, const std::string& name, std::string& failure) {
    const std::string package = folder + "/package.mlpackage";
    NM_TRY(WritePackage(graph, package));
    Status status = Ok{};
    if (options_.compiler.empty()) {
      status = CompileAndTry(package, folder + "/" + name, options_.units);
      if (!status.ok() && status.error().code != Code::kIo) failure = status.error().message;
    } else {
      std::vector<std::string> argv = options_.compiler;
      argv.insert(argv.end(), {package, folder + "/" + name, std::string(ToString(options_.units))});
      NM_TRY_VAR(const ChildOutcome outcome, RunChild(argv, options_.compile_seconds));
      // Ctrl-C reaches the child too: that says nothing about the package.
      if (outcome.signal == SIGINT || outcome.signal == SIGTERM || outcome.signal == SIGHUP) {
        return MakeError(Code::kCancelled, "npu: the compiling process was interrupted");
      }
      if (!outcome.ok()) {
        std::string reason = outcome.output.substr(0, outcome.output.find('\n'));
        if (reason.empty() || outcome.exit_code < 0) {
          reason = "the compiling process: " + outcome.Describe(options_.compile_seconds);
        }
        failure = reason;
        status = MakeError(Code::kDevice, "{}", reason);
      }
    }
    std::error_code ignored;
    fs::remove_all(package, ignored);
    return status;
  }

  const CoreMlNpuOptions options_;
  const CoreMlSystem system_;
  ProgramCache cache_;
  const Clock::time_point start_;
  std::unique_ptr<CoreMlModel> tiny_;  // what keeps the device awake; made when first needed
  CoreMlFunction tiny_interface_;
  bool has_tried_tiny_ = false;
  KeepWarm warm_;  // last: its thread uses all of the above
};

}  // namespace

std::string_view ToString(ComputeUnits units) {
  return std::ranges::find(kUnits, units, [](const auto& pair) { return pair.first; })->second;
}

Result<ComputeUnits> ParseComputeUnits(std::string_view name) {
  const auto* const at = std::ranges::find(kUnits, name, [](const auto& pair) { return pair.second; });
  if (at != kUnits.end()) return at->first;
  return MakeError(Code::kInvalidArgument, "compute units: '{}' is unknown, wanted ane, gpu or cpu", name);
}

bool IsCoreMlName(std::string_view device) {
  return device == kCoreMl || device.starts_with(std::string(kCoreMl) + ":");
}

Result<ComputeUnits> CoreMlUnits(std::string_view device) {
  if (!IsCoreMlName(device)) return MakeError(Code::kInvalidArgument, "npu '{}': wanted coreml[:ane|:gpu|:cpu]", device);
  device.remove_prefix(kCoreMl.size());
  if (device.empty()) return ComputeUnits::kCpuAndNeuralEngine;
  return ParseComputeUnits(device.substr(1));
}

std::string ProgramKey(const Graph& graph, std::string_view spec_name, std::string_view os_version,
                       ComputeUnits units) {
  ContentHash hash;
  hash.Add(kEntryVersion);
  hash.Add(HashGraph(graph));
  hash.Add(spec_name);
  hash.Add(os_version);
  hash.Add(ToString(units));
  return hash.Hex();
}

CoreMlFunction InterfaceOf(const Function& function, bool by_name) {
  CoreMlFunction interface;
  if (by_name) interface.name = function.name;
  for (const ValueId id : function.inputs) {
    interface.inputs.push_back({function.values[id].name, function.values[id].type});
  }
  for (const ValueId id : function.outputs) {
    interface.outputs.push_back({function.values[id].name, function.values[id].type});
  }
  return interface;
}

Status CompileAndTry(const std::string& package_path, const std::string& compiled_path, ComputeUnits units) {
  NM_TRY_VAR(const Package package, ReadPackage(package_path));
  NM_TRY(CompileCoreMl(package_path, compiled_path));
  for (const Function& function : package.graph.functions) {
    const CoreMlFunction interface = InterfaceOf(function, package.metadata.multi_function);
    NM_TRY_VAR(const auto model, LoadCoreMl(compiled_path, interface, units));
    NM_TRY(RunOnZeros(*model, interface));
  }
  return Ok{};
}

Result<std::unique_ptr<NpuDevice>> MakeCoreMlNpu(CoreMlNpuOptions options) {
  CoreMlSystem system = DescribeCoreMl();
  if (!system.available) return MakeError(Code::kUnsupported, "npu coreml: Core ML is not on this system, wanted macOS");
  return std::unique_ptr<NpuDevice>(new CoreMlNpu(std::move(options), std::move(system)));
}

}  // namespace npumoe
