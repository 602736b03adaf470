// SPDX-License-Identifier: Apache-2.0
#include "npumoe/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/random.h"
#include "base/temporary_folder.h"
#include "engine/npu_device.h"
#include "engine/options.h"
#include "engine/system.h"
#include "graph/builder.h"
#include "graph/reference.h"
#include "model/random_model.h"
#include "model/weights.h"
#include "moe/stage_graph.h"
#include "npu/coreml.h"
#include "npu/cost.h"
#include "npu/program_cache.h"
#include "npu/spec_document.h"
#include "npumoe/programs.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

constexpr size_t kChunk = 64, kCache = 128;      // tokens and earlier positions of the stages that are compared
constexpr char kShape[] = "tiny-qwen3moe";

// A random model whose file lies in `folder`.
Result<Model> MakeRandomModel(TemporaryFolder& folder) {
  NM_TRY(folder.Make("npumoe-self-test"));
  const std::string path = folder.path() + "/model.gguf";
  RandomModelSpec spec;
  NM_TRY_VAR(spec.config, ShapeByName(kShape));
  NM_TRY(WriteRandomModel(spec, path));
  return Model::Open(path, {});
}

std::vector<std::byte> RandomHalves(size_t n, double sigma, Random& random) {
  std::vector<std::byte> bytes(n * sizeof(uint16_t));
  for (size_t i = 0; i < n; ++i) {
    const uint16_t half = F32ToF16(static_cast<float>(sigma * random.Gaussian()));
    std::memcpy(bytes.data() + i * sizeof(half), &half, sizeof(half));
  }
  return bytes;
}

// `n` convolutions of width x width behind each other; values keep their size.
Result<Graph> ConvChain(size_t n, size_t width, size_t rows) {
  Random random(width + rows);
  GraphBuilder b;
  b.BeginFunction("main");
  ValueId x = b.Input("x", {ElemType::kF16, {1, width, 1, rows}});
  const double sigma = 1 / std::sqrt(static_cast<double>(width));
  for (size_t i = 0; i < n; ++i) {
    const uint32_t weight = b.AddConstant({ElemType::kF16, {width, width, 1, 1}}, RandomHalves(width * width, sigma, random));
    x = b.Conv1x1(x, b.UseConstant(weight, "w"));
  }
  b.Output("y", x);
  return std::move(b).Finish();
}

Result<Graph> Relu(size_t channels, size_t rows) {
  GraphBuilder b;
  b.BeginFunction("main");
  b.Output("y", b.Unary(OpKind::kRelu, b.Input("x", {ElemType::kF16, {1, channels, 1, rows}})));
  return std::move(b).Finish();
}

class SelfTest {
 public:
  SelfTest(NpuDevice& device, SelfTestReport& report, const std::function<bool(const std::string&)>& progress,
           uint32_t n_runs)
      : device_(device), spec_(device.Spec()), report_(report), progress_(progress), n_runs_(n_runs) {}

  Status Run() {
    TemporaryFolder folder;
    NM_TRY_VAR(const Model model, MakeRandomModel(folder));
    const LayerWeights& weights = model.weights().layers[0];
    const uint32_t lengths[] = {0, kCache};
    NM_TRY(Compare(fmt::format("attention stage, {} tokens", kChunk),
                   BuildAttentionStage(model.config(), weights, true, kChunk, lengths, WeightFormat::kFp16)));
    ExpertGroup group;
    group.experts = {0, 1, 2, 3};
    group.capacities = {32, 64};
    for (const WeightFormat format : {WeightFormat::kFp16, WeightFormat::kInt8}) {
      NM_TRY(Compare(fmt::format("4 experts, {}", ToString(format)),
                     BuildExpertGroup(model.config(), weights, group, format, 1.0f)));
    }
    NM_TRY(Measure());
    report_.passed = std::ranges::all_of(report_.probes, [](const Probe& p) {
      return p.failure.empty() && (!p.compared || p.right);
    });
    return Ok{};
  }

 private:
  // All functions of a graph against the reference executor.
  Status Compare(const std::string& name, Result<Graph> graph) {
    if (!progress_(name)) return MakeError(Code::kCancelled, "self-test: stopped");
    NM_TRY(graph);
    const Graph kept = *graph;
    auto program = device_.Compile(std::move(*graph), "self-test");
    if (!program.ok()) return Failed(name, program.error());
    Random random(7);
    for (const Function& function : kept.functions) {
      Probe probe;
      probe.name = name + ", " + function.name;
      std::vector<Array> inputs;
      std::vector<std::vector<uint16_t>> in;
      for (const ValueId id : function.inputs) {
        const ValueType& type = function.values[id].type;
        Array& array = inputs.emplace_back(Array{type, {}, {}});
        std::vector<uint16_t>& halves = in.emplace_back();
        for (size_t i = 0; i < type.elems(); ++i) {
          halves.push_back(F32ToF16(static_cast<float>(0.5 * random.Gaussian())));
          array.floats.push_back(F16ToF32(halves.back()));
        }
      }
      NM_TRY_VAR(const auto wanted, RunReference(kept, function, inputs, Rounding::kF32));
      std::vector<std::vector<uint16_t>> out;
      RunMany(**program, function, CountWork(kept, function, spec_), in, n_runs_, out, probe);
      if (probe.failure.empty()) {
        probe.compared = true;
        double error = 0, size = 0;
        for (size_t o = 0; o < wanted.size(); ++o) {
          for (size_t i = 0; i < out[o].size(); ++i) {
            const double w = wanted[o].floats[i], got = F16ToF32(out[o][i]);
            error += (got - w) * (got - w);
            size += w * w;
          }
        }
        probe.relative_rms = std::sqrt(error / std::max(size, 1e-30));
        probe.right = probe.relative_rms <= kMaxProbeError;  // false for NaN
      }
      report_.probes.push_back(std::move(probe));
    }
    return Ok{};
  }

  Status Failed(const std::string& name, const Error& error) {
    if (error.code == Code::kIo) return error;
    Probe probe;
    probe.name = name;
    probe.failure = error.message;
    report_.probes.push_back(std::move(probe));
    return Ok{};
  }

  // Median time of a function, its outputs and where its ops run.
  void RunMany(NpuProgram& program, const Function& function, const Work& work,
               const std::vector<std::vector<uint16_t>>& in, uint32_t n_runs, std::vector<std::vector<uint16_t>>& out,
               Probe& probe) {
    std::vector<TensorRef> inputs;
    std::vector<MutableTensorRef> outputs;
    for (const auto& halves : in) inputs.push_back({halves.data(), halves.size()});
    out.clear();
    for (const ValueId id : function.outputs) out.emplace_back(function.values[id].type.elems());
    for (auto& halves : out) outputs.push_back({halves.data(), halves.size()});
    std::vector<double> seconds;
    const uint32_t n_warm = report_.simulated ? 0 : 1;  // the first one wakes the device
    for (uint32_t i = 0; i < n_warm + n_runs && probe.failure.empty(); ++i) {
      const auto ran = program.Run(function.name, inputs, outputs, 0);
      if (!ran.ok()) {
        probe.failure = ran.error().message;
      } else if (i >= n_warm) {
        seconds.push_back(static_cast<double>(ran->end - ran->begin) * 1e-9);
      }
    }
    if (!probe.failure.empty()) return;
    std::ranges::nth_element(seconds, seconds.begin() + n_runs / 2);
    probe.seconds = seconds[n_runs / 2];
    probe.n_runs = n_runs;
    probe.flops = work.flops;
    probe.weight_bytes = work.weight_bytes;
    probe.io_bytes = work.io_bytes;
    probe.placements = program.Placement(function.name);
  }

  // A probe that only measures. Nothing when it did not run.
  Result<std::optional<Probe>> Time(const std::string& name, Result<Graph> graph, uint32_t n_runs,
                                    Work* counted = nullptr) {
    if (!progress_(name)) return MakeError(Code::kCancelled, "self-test: stopped");
    NM_TRY(graph);
    const Function function = graph->functions[0];
    const Work work = CountWork(*graph, function, spec_);
    if (counted != nullptr) *counted = work;
    const ValueType& type = function.values[function.inputs[0]].type;
    auto program = device_.Compile(std::move(*graph), "self-test");
    if (!program.ok()) {
      NM_TRY(Failed(name, program.error()));
      return std::optional<Probe>();
    }
    Random random(3);
    std::vector<std::vector<uint16_t>> in(1), out;
    for (size_t i = 0; i < type.elems(); ++i) in[0].push_back(F32ToF16(static_cast<float>(random.Gaussian())));
    Probe probe;
    probe.name = name;
    RunMany(**program, function, work, in, n_runs, out, probe);
    report_.probes.push_back(probe);
    return probe.failure.empty() ? std::optional(probe) : std::nullopt;
  }

  void Number(Sourced NpuSpec::*field, double value, const std::string& how) {
    if (!(value > 0) || !std::isfinite(value)) return;  // noise larger than what is measured
    measured_.*field = {value, "measured: " + how};
  }

  Status Measure() {
    measured_ = spec_;
    const auto io_seconds = [&](const Probe& p) { return p.io_bytes / measured_.io_bytes_per_second.value; };
    NM_TRY_VAR(const auto floor, Time("dispatch floor: relu of 32 x 32", Relu(32, 32), 2 * n_runs_ + 1));
    if (floor) Number(&NpuSpec::dispatch_seconds, floor->seconds, "relu of 32 x 32 fp16, median");
    const double floor_seconds = measured_.dispatch_seconds.value;
    NM_TRY_VAR(const auto io, Time("inputs and outputs: relu of 4096 x 2048", Relu(4096, 2048), n_runs_));
    if (io) {
      Number(&NpuSpec::io_bytes_per_second, io->io_bytes / (io->seconds - floor_seconds),
             "relu of 4,096 x 2,048 fp16, floor subtracted");
    }
    // Few rows: weights stream. The difference of two sizes is free of everything else.
    NM_TRY_VAR(const auto small, Time("weights: conv 2048 to 2048, 32 rows", ConvChain(1, 2048, 32), n_runs_));
    NM_TRY_VAR(const auto large, Time("weights: 3 x conv 4096 to 4096, 32 rows", ConvChain(3, 4096, 32), n_runs_));
    if (small && large) {
      Number(&NpuSpec::weight_bytes_per_second,
             (large->weight_bytes - small->weight_bytes) /
                 (large->seconds - io_seconds(*large) - small->seconds + io_seconds(*small)),
             "convolutions with 101 and 8 MB of weights, 32 rows, difference");
    }
    double best = 0;
    for (const size_t rows : {256, 512, 1024}) {
      Work work;
      NM_TRY_VAR(const auto chain, Time(fmt::format("arithmetic: 2 x conv 2048 to 2048, {} rows", rows),
                                        ConvChain(2, 2048, rows), n_runs_, &work));
      if (!chain) continue;
      // The spec's rate is the marginal one: what few rows and operands that do not fit cost is the model's to add.
      const CostParts parts = PartsOf(work, measured_);
      const double arithmetic = chain->seconds - parts.floor - parts.io - parts.moves;
      if (arithmetic > 0) best = std::max(best, work.paced_flops / arithmetic);
    }
    Number(&NpuSpec::flops_per_second, best,
           "two 1x1 convolutions of 2,048 channels, best of 256, 512 and 1,024 rows, by the cost model's shape");
    for (const SpecNumber& number : Numbers(measured_)) {
      if (!number.source.starts_with("measured")) continue;
      double table = 0;
      for (const SpecNumber& other : Numbers(spec_)) table = other.name == number.name ? other.value : table;
      report_.numbers.push_back({std::string(number.name), std::string(number.unit), number.value, table});
    }
    return Ok{};
  }

 public:
  const NpuSpec& measured() const { return measured_; }

 private:
  NpuDevice& device_;
  const NpuSpec& spec_;
  SelfTestReport& report_;
  const std::function<bool(const std::string&)>& progress_;
  const uint32_t n_runs_;
  NpuSpec measured_;
};

}  // namespace

Result<SelfTestReport> RunSelfTest(const EngineOptions& options,
                                   const std::function<bool(const std::string&)>& progress, uint32_t n_runs) {
  NM_TRY_VAR(const NpuSpec spec, SpecOfNpu(options.npu));
  NM_TRY_VAR(const auto device, MakeNpu(options.npu, spec, options.n_threads > 0 ? options.n_threads : CoreCount()));
  SelfTestReport report;
  report.device = options.npu.device;
  report.npu = spec.name;
  report.title = spec.title;
  report.chip = ChipName();
  report.os = DescribeCoreMl().os_version;
  report.simulated = !device->RealNow();
  SelfTest test(*device, report, progress, report.simulated ? 1 : std::max(1u, n_runs));
  NM_TRY(test.Run());
  const std::string folder = options.npu.cache_folder.empty() ? DefaultCacheFolder() : options.npu.cache_folder;
  // A failed test says nothing about speed, and the CPU or GPU are not the NPU.
  const bool is_npu = options.npu.device == "coreml" || options.npu.device == "coreml:ane";
  if (!report.simulated && report.passed && is_npu && !folder.empty()) {
    report.spec_path = folder + "/" + std::string(kMeasuredSpecFile);
    NM_TRY(WriteFileAtomic(report.spec_path, MeasuredSpecText(test.measured(), report.chip, report.os)));
  }
  return report;
}

}  // namespace npumoe
