// SPDX-License-Identifier: Apache-2.0
#include "npu/limits.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace npumoe {
namespace {

// Source: the ANE operator tables of ane-guide (appendix A), Anemll-PhiMoe's experiments on M2 Max and RF-DETR's
// compute plan on M3 Pro. slice_update and whole-number results leave the engine as well.
constexpr std::array kElsewhere{
    OpKind::kGather,
    OpKind::kGatherAlongAxis,
    OpKind::kGatherNd,
    OpKind::kScatter,
    OpKind::kScatterAlongAxis,
    OpKind::kScatterNd,
    OpKind::kTopK,
    OpKind::kArgsort,
    OpKind::kCumsum,
    OpKind::kBandPart,
    OpKind::kFill,
    OpKind::kReduceArgmax,
    OpKind::kReduceArgmin,
    OpKind::kLogicalAnd,
    OpKind::kLogicalOr,
    OpKind::kLogicalXor,
    OpKind::kLogicalNot,
    OpKind::kSliceUpdate,
    OpKind::kEinsum,
    OpKind::kConstexprCast,
    OpKind::kConstexprBlockwiseShiftScale,  // blockwise scales send the convolution to the GPU
    OpKind::kConstexprSparseBlockwiseShiftScale,
};

class Checker {
 public:
  Checker(const Graph& graph, const NpuSpec& spec, std::string_view key) : graph_(graph), spec_(spec), key_(key) {}

  Status Run() const {
    if (graph_.WeightBytes() > spec_.max_program_weight_bytes) {
      return Broken("max_program_weight_bytes", graph_.WeightBytes(), spec_.max_program_weight_bytes);
    }
    for (const Function& function : graph_.functions) {
      for (const Op& op : function.ops) NM_TRY(CheckOp(function, op));
      for (const ValueId id : function.inputs) NM_TRY(CheckInterface(function.values[id]));
      for (const ValueId id : function.outputs) NM_TRY(CheckInterface(function.values[id]));
    }
    return Ok{};
  }

 private:
  Error Broken(std::string_view limit, size_t got, size_t wanted) const {
    return MakeError(Code::kUnsupported, "npu {}: {}: limit {} is {}, the graph has {}", spec_.name, key_, limit,
                     wanted, got);
  }

  Status CheckInterface(const Value& value) const {
    if (value.type.elem == ElemType::kF16) return Ok{};
    return MakeError(Code::kUnsupported, "npu {}: {}: '{}' is {}, wanted fp16 inputs and outputs", spec_.name, key_,
                     value.name, ToString(value.type.elem));
  }

  Status CheckOp(const Function& function, const Op& op) const {
    if (!RunsOnNpu(op.kind)) {
      return MakeError(Code::kUnsupported, "npu {}: {}: op {} does not run on the NPU", spec_.name, key_,
                       MilName(op.kind));
    }
    const bool decodes = MilName(op.kind).starts_with("constexpr_");
    for (const ValueId id : op.outputs) {
      NM_TRY(CheckType(function.values[id], op.kind));
    }
    for (const Operand& operand : op.operands) {
      for (const ValueId id : operand.values) {
        const Value& value = function.values[id];
        // Parameters (axes, flags) and the stored form of decoded weights may be whole numbers.
        if (value.is_constant() && (decodes || value.type.elem != ElemType::kF16)) continue;
        NM_TRY(CheckType(value, op.kind));
      }
    }
    return Ok{};
  }

  Status CheckType(const Value& value, OpKind kind) const {
    const auto& dims = value.type.dims;
    if (value.type.elem != ElemType::kF16 && value.type.elem != ElemType::kBool) {
      return MakeError(Code::kUnsupported, "npu {}: {}: '{}' is {}, the NPU computes in fp16", spec_.name, key_,
                       value.name, ToString(value.type.elem));
    }
    if (dims.size() > kMaxGraphRank) return Broken("rank", dims.size(), kMaxGraphRank);
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      const bool channel = dims.size() >= 3 && axis == 1;
      const bool weight = (value.is_constant() || value.decoded) && axis == 0;  // output channels
      const size_t limit = channel || weight                                    ? spec_.max_channels
                           : kind == OpKind::kMatMul || kind == OpKind::kLinear ? spec_.max_matmul_axis
                                                                                : spec_.max_axis;
      // Norms over channels keep them in vectors of one axis.
      const size_t allowed = dims.size() == 1 ? std::max(spec_.max_channels * 2, limit) : limit;
      if (dims[axis] > allowed) {
        return Broken(channel || weight                ? "max_channels"
                      : limit == spec_.max_matmul_axis ? "max_matmul_axis"
                                                       : "max_axis",
                      dims[axis], allowed);
      }
    }
    return Ok{};
  }

  const Graph& graph_;
  const NpuSpec& spec_;
  std::string_view key_;
};

}  // namespace

bool RunsOnNpu(OpKind kind) { return std::find(kElsewhere.begin(), kElsewhere.end(), kind) == kElsewhere.end(); }

Status CheckLimits(const Graph& graph, const NpuSpec& spec, std::string_view key) {
  return Checker(graph, spec, key).Run();
}

}  // namespace npumoe
