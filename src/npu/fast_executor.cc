// SPDX-License-Identifier: Apache-2.0
#include "npu/fast_executor.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "base/check.h"
#include "graph/op_run.h"
#include "kernels/half.h"
#include "npu/fast_palette.h"
#include "npu/fast_plan.h"

namespace npumoe {
namespace {

// What a constexpr op decodes: functions over the same constants share it.
using WeightKey = std::pair<OpKind, std::vector<uint32_t>>;

WeightKey KeyOf(const Function& function, const Op& op) {
  WeightKey key{op.kind, {}};
  for (const Operand& operand : op.operands) {
    for (const ValueId id : operand.values) key.second.push_back(function.values[id].constant);
  }
  return key;
}

}  // namespace

struct FastExecutor::Impl {
  const Graph& graph;
  FastShared& shared;
  std::vector<FastPlan> plans;                         // [functions]
  std::map<WeightKey, std::vector<uint16_t>> decoded;  // fp16
  std::vector<uint16_t*> values;                       // of the running function, by ValueId

  Status Decode(const Function& function, const FastPlan& plan);
  void Point(const Function& function, const FastPlan& plan, std::span<const TensorRef> inputs,
             std::span<const MutableTensorRef> outputs);
  Status RunByReference(const Function& function, const Op& op, std::map<ValueId, Array>& arrays);
};

Status FastExecutor::Impl::Decode(const Function& function, const FastPlan& plan) {
  for (const Op* const op : plan.decoded_weights) {
    std::vector<uint16_t>& halves = decoded[KeyOf(function, *op)];
    if (!halves.empty()) continue;
    if (auto looked_up = DecodePalette({graph, function, *op}, shared.pool)) {
      halves = std::move(*looked_up);
      continue;
    }
    NM_TRY_VAR(const std::vector<Array> results,
               RunOp(graph, function, *op, std::vector<const Array*>(function.values.size()), true));
    halves.resize(results[0].floats.size());
    FloatsToHalves(results[0].floats, halves.data());
  }
  return Ok{};
}

// Steps write to the outputs and to memory only: everything else is const for them though its pointer is not.
void FastExecutor::Impl::Point(const Function& function, const FastPlan& plan, std::span<const TensorRef> inputs,
                               std::span<const MutableTensorRef> outputs) {
  uint16_t* const memory = shared.Reserve(plan.memory_halves);
  std::map<ValueId, uint16_t*> weights;
  for (const Op* const op : plan.decoded_weights) {
    weights[op->outputs[0]] = decoded.find(KeyOf(function, *op))->second.data();
  }
  values.assign(function.values.size(), nullptr);
  for (ValueId id = 0; id < values.size(); ++id) {
    const FastPlace& place = plan.places[id];
    switch (place.kind) {
      case FastPlace::Kind::kNowhere:
        continue;
      case FastPlace::Kind::kInput:
        values[id] = const_cast<uint16_t*>(inputs[place.index].data);
        break;
      case FastPlace::Kind::kOutput:
        values[id] = outputs[place.index].data;
        break;
      case FastPlace::Kind::kConstant:
        values[id] = const_cast<uint16_t*>(reinterpret_cast<const uint16_t*>(graph.constants[place.index].data.data()));
        break;
      case FastPlace::Kind::kDecoded:
        values[id] = weights[static_cast<ValueId>(place.index)];
        break;
      case FastPlace::Kind::kMemory:
        values[id] = memory;
        break;
    }
    values[id] += place.first;
  }
}

// `arrays` holds the values that are not fp16.
Status FastExecutor::Impl::RunByReference(const Function& function, const Op& op, std::map<ValueId, Array>& arrays) {
  std::vector<const Array*> operands(function.values.size(), nullptr);
  std::deque<Array> widened;  // stable addresses
  for (const Operand& operand : op.operands) {
    for (const ValueId id : operand.values) {
      const auto found = arrays.find(id);
      if (found != arrays.end()) operands[id] = &found->second;
      if (operands[id] != nullptr || values[id] == nullptr || function.values[id].is_constant()) continue;
      const ValueType& type = function.values[id].type;
      widened.push_back({type, std::vector<float>(type.elems()), {}});
      HalvesToFloats({values[id], type.elems()}, widened.back().floats.data());
      operands[id] = &widened.back();
    }
  }
  NM_TRY_VAR(std::vector<Array> results, RunOp(graph, function, op, operands, true));
  for (size_t i = 0; i < results.size(); ++i) {
    const ValueId id = op.outputs[i];
    if (results[i].type.elem == ElemType::kF16) {
      FloatsToHalves(results[i].floats, values[id]);
    } else {
      arrays[id] = std::move(results[i]);
    }
  }
  return Ok{};
}

Result<std::unique_ptr<FastExecutor>> FastExecutor::Make(const Graph& graph, FastShared& shared) {
  auto impl = std::make_unique<Impl>(Impl{graph, shared, {}, {}, {}});
  for (const Function& function : graph.functions) {
    impl->plans.push_back(PlanFunction(graph, function, shared));
    NM_TRY(impl->Decode(function, impl->plans.back()));
  }
  return std::unique_ptr<FastExecutor>(new FastExecutor(std::move(impl)));
}

Status FastExecutor::Run(const Function& function, std::span<const TensorRef> inputs,
                         std::span<const MutableTensorRef> outputs) {
  const auto index = static_cast<size_t>(&function - impl_->graph.functions.data());
  NM_CHECK(index < impl_->plans.size());
  const FastPlan& plan = impl_->plans[index];
  impl_->Point(function, plan, inputs, outputs);
  std::map<ValueId, Array> arrays;
  for (const FastPlannedStep& step : plan.steps) {
    if (step.fast) {
      step.fast->run({impl_->shared, impl_->values, impl_->shared.memory() + step.scratch});
    } else {
      NM_TRY(impl_->RunByReference(function, *step.op, arrays));
    }
  }
  for (const size_t i : plan.copied_outputs) {
    std::copy_n(impl_->values[function.outputs[i]], outputs[i].elems, outputs[i].data);
  }
  return Ok{};
}

size_t FastExecutor::HostBytes() const {
  size_t bytes = 0;
  for (const auto& [key, halves] : impl_->decoded) bytes += halves.size() * sizeof(uint16_t);
  return bytes;
}

FastExecutor::FastExecutor(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FastExecutor::~FastExecutor() = default;

}  // namespace npumoe
