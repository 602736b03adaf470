// SPDX-License-Identifier: Apache-2.0
#include "npu/simulated_device.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "npu/cost.h"
#include "npu/fast_executor.h"
#include "npu/limits.h"

namespace npumoe {
namespace {

Nanos ToNanos(double seconds) { return static_cast<Nanos>(std::llround(seconds * 1e9)); }

// What programs and their device share: the clock of the die and what is loaded.
struct DieState {
  const NpuSpec spec;
  ThreadPool pool;
  FastShared shared{pool};
  Nanos free_at = 0;    // end of the last dispatch
  Nanos loader_at = 0;  // end of the last load
  size_t n_programs = 0, resident_bytes = 0;
  bool has_run = false;  // the first dispatch begins the prompt

  DieState(const NpuSpec& s, size_t n_threads) : spec(s), pool(n_threads) {}

  // Takes the die for one dispatch that may start at `ready`.
  Interval Occupy(Nanos ready, const Work& work) {
    const Cost cost = DispatchCost(work, spec);
    const Nanos begin = std::max(ready, free_at);
    const bool asleep = free_at > 0 && begin - free_at > ToNanos(spec.idle_seconds.value);
    const Nanos end = begin + ToNanos(cost.seconds + (asleep ? spec.wake_seconds.value : 0));
    free_at = end;
    has_run = true;
    return {begin, end, cost.joules, /*simulated=*/true};
  }
};

class SimulatedProgram final : public NpuProgram {
 public:
  SimulatedProgram(DieState& die, std::unique_ptr<const Graph> graph, std::unique_ptr<FastExecutor> executor,
                   std::string key, Nanos loaded_at)
      : die_(die),
        graph_(std::move(graph)),
        executor_(std::move(executor)),
        key_(std::move(key)),
        loaded_at_(loaded_at) {
    for (const Function& function : graph_->functions) work_.push_back(CountWork(*graph_, function, die_.spec));
    ++die_.n_programs;
    die_.resident_bytes += ResidentBytes();
  }
  ~SimulatedProgram() override {
    --die_.n_programs;
    die_.resident_bytes -= ResidentBytes();
  }

  Result<Interval> Run(std::string_view function_name, std::span<const TensorRef> inputs,
                       std::span<const MutableTensorRef> outputs, Nanos ready) override {
    const Function* const function = graph_->Find(function_name);
    if (function == nullptr) {
      return MakeError(Code::kInvalidArgument, "npu: {}: no function '{}'", key_, function_name);
    }
    NM_TRY(CheckSizes(*function, "inputs", function->inputs, inputs));
    NM_TRY(CheckSizes(*function, "outputs", function->outputs, outputs));
    NM_TRY(executor_->Run(*function, inputs, outputs));
    const auto index = static_cast<size_t>(function - graph_->functions.data());
    return die_.Occupy(std::max(ready, loaded_at_), work_[index]);
  }

  size_t ResidentBytes() const override { return graph_->WeightBytes(); }
  size_t HostBytes() const override { return graph_->WeightBytes() + executor_->HostBytes(); }

 private:
  template <typename Ref>
  Status CheckSizes(const Function& function, std::string_view what, const std::vector<ValueId>& wanted,
                    std::span<const Ref> got) const {
    if (got.size() != wanted.size()) {
      return MakeError(Code::kInvalidArgument, "npu: {}: {} {} given, wanted {}", key_, got.size(), what,
                       wanted.size());
    }
    for (size_t i = 0; i < got.size(); ++i) {
      const Value& value = function.values[wanted[i]];
      if (got[i].elems == value.type.elems()) continue;
      return MakeError(Code::kInvalidArgument, "npu: {}: '{}' has {} elements, wanted {}", key_, value.name,
                       got[i].elems, value.type.elems());
    }
    return Ok{};
  }

  DieState& die_;
  std::unique_ptr<const Graph> graph_;
  std::unique_ptr<FastExecutor> executor_;  // borrows graph_
  std::string key_;
  Nanos loaded_at_;
  std::vector<Work> work_;  // [functions]
};

class SimulatedDevice final : public NpuDevice {
 public:
  SimulatedDevice(const NpuSpec& spec, size_t n_threads) : die_(spec, n_threads) {}

  const NpuSpec& Spec() const override { return die_.spec; }

  Status Prepare(const Graph& graph, std::string_view key) override {
    NM_TRY(ValidateGraph(graph));
    return CheckLimits(graph, die_.spec, key);
  }

  Result<std::unique_ptr<NpuProgram>> Compile(Graph graph, std::string_view key) override {
    NM_TRY(ValidateGraph(graph));
    NM_TRY(CheckLimits(graph, die_.spec, key));
    if (die_.n_programs >= die_.spec.max_programs) {
      return MakeError(Code::kOutOfMemory, "npu {}: {}: limit max_programs is {}, all are loaded", die_.spec.name, key,
                       die_.spec.max_programs);
    }
    if (graph.WeightBytes() > die_.spec.max_resident_bytes - die_.resident_bytes) {
      return MakeError(Code::kOutOfMemory, "npu {}: {}: limit max_resident_bytes is {}, {} loaded and {} wanted",
                       die_.spec.name, key, die_.spec.max_resident_bytes, die_.resident_bytes, graph.WeightBytes());
    }
    const double load_seconds = die_.spec.load_seconds.value +
                                static_cast<double>(graph.WeightBytes()) / die_.spec.weight_bytes_per_second.value;
    Nanos loaded_at = 0;
    if (die_.has_run) {
      loaded_at = die_.loader_at = std::max(die_.loader_at, die_.free_at) + ToNanos(load_seconds);
    }
    auto owned = std::make_unique<const Graph>(std::move(graph));
    NM_TRY_VAR(auto executor, FastExecutor::Make(*owned, die_.shared));
    return std::unique_ptr<NpuProgram>(
        new SimulatedProgram(die_, std::move(owned), std::move(executor), std::string(key), loaded_at));
  }

  size_t HostBytes() const override { return die_.shared.HostBytes(); }

 private:
  DieState die_;
};

}  // namespace

std::unique_ptr<NpuDevice> MakeSimulatedDevice(const NpuSpec& spec, size_t n_threads) {
  return std::make_unique<SimulatedDevice>(spec, n_threads);
}

}  // namespace npumoe
