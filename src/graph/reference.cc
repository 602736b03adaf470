// SPDX-License-Identifier: Apache-2.0
#include "graph/reference.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <set>

#include "graph/op_run.h"
#include "graph/validate.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

struct ReferenceRule {
  OpKind kind;
  Status (*run)(OpRun&);
};

// Everything else is elementwise or a reduction.
constexpr ReferenceRule kReferenceRules[] = {
    {OpKind::kConv, RunConv},
    {OpKind::kLinear, RunLinear},
    {OpKind::kMatMul, RunMatMul},
    {OpKind::kEinsum, RunEinsum},
    {OpKind::kSelect, RunSelect},
    {OpKind::kSoftmax, RunSoftmax},
    {OpKind::kReduceMean, RunReduce},
    {OpKind::kReduceSum, RunReduce},
    {OpKind::kReduceMax, RunReduce},
    {OpKind::kReduceMin, RunReduce},
    {OpKind::kReduceSumSquare, RunReduce},
    {OpKind::kReduceProd, RunReduce},
    {OpKind::kReduceL1Norm, RunReduce},
    {OpKind::kReduceL2Norm, RunReduce},
    {OpKind::kReduceLogSum, RunReduce},
    {OpKind::kReduceLogSumExp, RunReduce},
    {OpKind::kReduceArgmax, RunReduce},
    {OpKind::kReduceArgmin, RunReduce},
    {OpKind::kLayerNorm, RunLayerNorm},
    {OpKind::kL2Norm, RunL2Norm},
    {OpKind::kReshape, RunCopy},
    {OpKind::kTranspose, RunTranspose},
    {OpKind::kExpandDims, RunCopy},
    {OpKind::kSqueeze, RunCopy},
    {OpKind::kConcat, RunConcat},
    {OpKind::kStack, RunStack},
    {OpKind::kSplit, RunSplit},
    {OpKind::kSliceByIndex, RunSliceByIndex},
    {OpKind::kSliceBySize, RunSliceBySize},
    {OpKind::kSliceUpdate, RunSliceUpdate},
    {OpKind::kTile, RunTile},
    {OpKind::kPad, RunPad},
    {OpKind::kFill, RunFill},
    {OpKind::kBandPart, RunBandPart},
    {OpKind::kCumsum, RunCumsum},
    {OpKind::kGather, RunGather},
    {OpKind::kGatherAlongAxis, RunGatherAlongAxis},
    {OpKind::kGatherNd, RunGatherNd},
    {OpKind::kScatter, RunScatter},
    {OpKind::kScatterAlongAxis, RunScatterAlongAxis},
    {OpKind::kScatterNd, RunScatterNd},
    {OpKind::kTopK, RunSort},
    {OpKind::kArgsort, RunSort},
    {OpKind::kCast, RunCast},
    {OpKind::kIdentity, RunCopy},
    {OpKind::kScaledDotProductAttention, RunAttention},
    {OpKind::kQuantize, RunQuantize},
    {OpKind::kDequantize, RunDequantize},
    {OpKind::kConstexprAffineDequantize, RunAffineDequantize},
    {OpKind::kConstexprLutToDense, RunLutToDense},
    {OpKind::kConstexprSparseToDense, RunSparseToDense},
    {OpKind::kConstexprCast, RunConstexprCast},
    {OpKind::kConstexprBlockwiseShiftScale, RunBlockwiseShiftScale},
    {OpKind::kConstexprLutToSparse, RunLutToSparse},
    {OpKind::kConstexprSparseBlockwiseShiftScale, RunSparseBlockwiseShiftScale},
};

Status RunByFamily(OpRun& run) {
  for (const ReferenceRule& rule : kReferenceRules) {
    if (rule.kind == run.kind()) return rule.run(run);
  }
  return RunElementwise(run);
}

Array Zeros(const ValueType& type) {
  Array array{type, {}, {}};
  if (IsFloat(type.elem)) {
    array.floats.assign(type.elems(), 0.0f);
  } else if (type.elem != ElemType::kString) {
    array.ints.assign(type.elems(), 0);
  }
  return array;
}

void RoundToType(Array& array, bool half) {
  if (half && array.type.elem == ElemType::kF16) {
    for (float& v : array.floats) v = F16ToF32(F32ToF16(v));
  }
  for (int64_t& v : array.ints) v = WrapInt(array.type.elem, v);
}

// RunOp; the constants that it unpacks stand in `values` for as long as it runs.
Result<std::vector<Array>> RunInPlace(const Graph& graph, const Function& function, const Op& op,
                                      std::vector<const Array*>& values, bool fp16) {
  std::deque<Array> constants;  // stable addresses
  std::vector<ValueId> unpacked;
  for (const Operand& operand : op.operands) {
    for (const ValueId id : operand.values) {
      if (values[id] != nullptr) continue;
      NM_CHECK(function.values[id].is_constant());
      constants.push_back(ArrayOf(graph.constants[function.values[id].constant]));
      values[id] = &constants.back();
      unpacked.push_back(id);
    }
  }
  std::vector<Array> results;
  for (const ValueId id : op.outputs) results.push_back(Zeros(function.values[id].type));
  OpReader reader(graph, function, op);
  OpRun run(reader, op, values, fp16, results);
  const Status status = RunByFamily(run);
  for (const ValueId id : unpacked) values[id] = nullptr;
  if (!status.ok()) return status.error();
  for (Array& result : results) RoundToType(result, fp16);
  return results;
}

// For every value the index of the op that reads it last; outputs outlive all ops.
std::vector<size_t> LastUses(const Function& function) {
  std::vector<size_t> last(function.values.size(), 0);
  for (size_t index = 0; index < function.ops.size(); ++index) {
    for (const Operand& operand : function.ops[index].operands) {
      for (const ValueId id : operand.values) last[id] = index;
    }
    for (const ValueId id : function.ops[index].outputs) last[id] = index;
  }
  for (const ValueId id : function.outputs) last[id] = function.ops.size();
  return last;
}

uint64_t HostBytes(const ValueType& type) {
  return uint64_t{type.elems()} * (IsFloat(type.elem) ? sizeof(float) : sizeof(int64_t));
}

// Values of `op` that no later op reads.
template <typename Body>
void ForDying(const Op& op, size_t index, const std::vector<size_t>& last, const Body& body) {
  for (const Operand& operand : op.operands) {
    for (const ValueId id : operand.values) {
      if (last[id] == index) body(id);
    }
  }
  for (const ValueId id : op.outputs) {
    if (last[id] == index) body(id);
  }
}

class Executor {
 public:
  Executor(const Graph& graph, const Function& function, bool half)
      : graph_(graph),
        function_(function),
        half_(half),
        arrays_(function.values.size()),
        values_(function.values.size(), nullptr) {}

  Status Run(const std::vector<Array>& inputs) {
    for (size_t i = 0; i < inputs.size(); ++i) values_[function_.inputs[i]] = &inputs[i];
    const std::vector<size_t> last = LastUses(function_);
    for (size_t index = 0; index < function_.ops.size(); ++index) {
      const Op& op = function_.ops[index];
      NM_TRY(RunNext(op));
      ForDying(op, index, last, [&](ValueId id) {
        if (arrays_[id] == nullptr) return;  // an input, a constant, or gone already
        arrays_[id].reset();
        values_[id] = nullptr;
      });
    }
    return Ok{};
  }

  std::vector<Array> Outputs() const {
    std::vector<Array> outputs;
    for (const ValueId id : function_.outputs) outputs.push_back(*values_[id]);
    return outputs;
  }

 private:
  Status RunNext(const Op& op) {
    NM_TRY_VAR(std::vector<Array> results, RunInPlace(graph_, function_, op, values_, half_));
    for (size_t i = 0; i < results.size(); ++i) {
      const ValueId id = op.outputs[i];
      arrays_[id] = std::make_unique<Array>(std::move(results[i]));
      values_[id] = arrays_[id].get();
    }
    return Ok{};
  }

  const Graph& graph_;
  const Function& function_;
  const bool half_;
  std::vector<std::unique_ptr<Array>> arrays_;  // [values], results that are still needed
  std::vector<const Array*> values_;            // [values], inputs too
};

Status CheckInputs(const Function& function, const std::vector<Array>& inputs) {
  if (inputs.size() != function.inputs.size()) {
    return MakeError(Code::kInvalidArgument, "graph: function '{}': {} inputs given, wanted {}", function.name,
                     inputs.size(), function.inputs.size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = function.values[function.inputs[i]];
    const Array& array = inputs[i];
    const size_t held = IsFloat(array.type.elem) ? array.floats.size() : array.ints.size();
    if (array.type != value.type || held != value.type.elems()) {
      return MakeError(Code::kInvalidArgument, "graph: function '{}': input '{}': wanted {}, got {} with {} elements",
                       function.name, value.name, value.type.ToString(), array.type.ToString(), held);
    }
  }
  return Ok{};
}

}  // namespace

Result<std::vector<Array>> RunOp(const Graph& graph, const Function& function, const Op& op,
                                 std::vector<const Array*> values, bool fp16) {
  return RunInPlace(graph, function, op, values, fp16);
}

std::vector<const Array*> OpRun::List(std::string_view param) const {
  std::vector<const Array*> arrays;
  for (const ValueId id : op_.Find(param)->values) arrays.push_back(values_[id]);
  return arrays;
}

int64_t WrapInt(ElemType elem, int64_t value) {
  if (elem == ElemType::kBool) return value != 0 ? 1 : 0;
  const size_t bits = BitsOf(elem);
  const auto low = static_cast<int64_t>(static_cast<uint64_t>(value) & ((uint64_t{1} << bits) - 1));
  const bool is_signed =
      elem == ElemType::kI4 || elem == ElemType::kI8 || elem == ElemType::kI16 || elem == ElemType::kI32;
  return is_signed && low >> (bits - 1) != 0 ? low - (int64_t{1} << bits) : low;
}

int64_t Saturate(ElemType elem, double value) {
  if (value != value) return 0;
  if (elem == ElemType::kBool) return value != 0 ? 1 : 0;
  const bool is_signed =
      elem == ElemType::kI4 || elem == ElemType::kI8 || elem == ElemType::kI16 || elem == ElemType::kI32;
  const auto bits = static_cast<int64_t>(BitsOf(elem));
  const int64_t high = (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  const int64_t low = is_signed ? -high - 1 : 0;
  if (value >= static_cast<double>(high)) return high;
  if (value <= static_cast<double>(low)) return low;
  return static_cast<int64_t>(value);
}

uint64_t ReferencePeakBytes(const Function& function) {
  const std::vector<size_t> last = LastUses(function);
  uint64_t held = 0, peak = 0;
  std::vector<bool> is_input(function.values.size());
  for (const ValueId id : function.inputs) {
    is_input[id] = true;
    held += HostBytes(function.values[id].type);
  }
  for (size_t index = 0; index < function.ops.size(); ++index) {
    const Op& op = function.ops[index];
    uint64_t constants = 0;  // unpacked for the time of one op
    for (const Operand& operand : op.operands) {
      for (const ValueId id : operand.values) {
        if (function.values[id].is_constant()) constants += HostBytes(function.values[id].type);
      }
    }
    for (const ValueId id : op.outputs) held += HostBytes(function.values[id].type);
    peak = std::max(peak, held + constants);
    std::set<ValueId> dead;
    ForDying(op, index, last, [&](ValueId id) {
      const bool owned = !function.values[id].is_constant() && !is_input[id];
      if (owned && dead.insert(id).second) held -= HostBytes(function.values[id].type);
    });
  }
  for (const ValueId id : function.outputs) held += HostBytes(function.values[id].type);  // copied out
  return std::max(peak, held);
}

Result<std::vector<Array>> RunReference(const Graph& graph, const Function& function, const std::vector<Array>& inputs,
                                        Rounding rounding) {
  for (size_t i = 0; i < graph.constants.size(); ++i) {
    NM_TRY(CheckConstant(graph.constants[i], fmt::format("graph: constant {}", i)));
  }
  NM_TRY(ValidateFunction(graph, function));
  NM_TRY(CheckInputs(function, inputs));
  Executor executor(graph, function, rounding == Rounding::kF16);
  NM_TRY(executor.Run(inputs));
  return executor.Outputs();
}

}  // namespace npumoe
