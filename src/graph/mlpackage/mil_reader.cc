// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/mil_reader.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "graph/builder.h"
#include "graph/mlpackage/defaults.h"
#include "graph/mlpackage/opset.h"
#include "graph/names.h"
#include "graph/op_reader.h"
#include "graph/validate.h"

namespace npumoe {
namespace {

constexpr size_t kMaxTableRank = kMaxGraphRank + 2;  // of lookup tables

// Constants of the graph under construction: one per tensor of a weight file, and one per immediate value.
class ConstantPool {
 public:
  ConstantPool(Graph& graph, size_t model_bytes, WeightFiles& weights)
      : graph_(graph), model_bytes_(model_bytes), weights_(weights) {}

  Result<uint32_t> Add(const mil::Value& value) {
    NM_TRY_VAR(ValueType type, TypeFromMil(value.type(), kMaxTableRank));
    if (value.kind_case() == mil::Value::kBlob) return AddBlob(value.blob(), std::move(type));
    if (value.kind_case() != mil::Value::kImmediate) return MakeError(Code::kCorruptFile, "has no value");
    if (!value.immediate().has_tensor()) {
      return MakeError(Code::kUnsupported, "is a list, tuple or dictionary, wanted a tensor");
    }
    NM_TRY_VAR(auto data, DataFromImmediate(value.immediate().tensor(), type));
    return Store(std::move(type), std::move(data));
  }

  Result<uint32_t> Store(ValueType type, std::vector<std::byte> data) {
    // One tensor of a file may be named with several shapes, so that a small model file could ask for many copies.
    // Honest packages stay far below this.
    constexpr uint64_t kCopies = 4, kFree = 1 << 20;
    held_bytes_ += data.size();
    const uint64_t limit = kFree + model_bytes_ + kCopies * weights_.total_bytes();
    if (held_bytes_ > limit) {
      return MakeError(Code::kOutOfMemory, "constants take more than {} bytes, {} times what the weight files hold",
                       limit, kCopies);
    }
    graph_.constants.push_back({std::move(type), std::move(data)});
    return static_cast<uint32_t>(graph_.constants.size() - 1);
  }

 private:
  Result<uint32_t> AddBlob(const mil::BlobValue& blob, ValueType type) {
    Key key{blob.file(), blob.offset(), type.elem, type.dims};
    const auto known = blobs_.find(key);
    if (known != blobs_.end()) return known->second;
    NM_TRY_VAR(const auto bytes, weights_.Read(blob.file(), blob.offset(), type));
    NM_TRY_VAR(const uint32_t constant, Store(std::move(type), {bytes.begin(), bytes.end()}));
    blobs_.emplace(std::move(key), constant);
    return constant;
  }

  using Key = std::tuple<std::string, uint64_t, ElemType, std::vector<size_t>>;
  Graph& graph_;
  const size_t model_bytes_;
  WeightFiles& weights_;
  std::map<Key, uint32_t> blobs_;
  uint64_t held_bytes_ = 0;
};

class FunctionReader {
 public:
  FunctionReader(Graph& graph, ConstantPool& pool, const mil::Function& source, int opset)
      : graph_(graph), pool_(pool), source_(source), opset_(opset), function_(graph.functions.back()) {}

  Status Read(const mil::Block& block) {
    for (const mil::NamedType& input : source_.inputs()) NM_TRY(ReadInput(input));
    for (int i = 0; i < block.operations_size(); ++i) {
      const Status status = ReadOp(block.operations(i));
      if (!status.ok())
        return Fail(status.error(), fmt::format("op {} ({})", i, ShownName(block.operations(i).type())));
    }
    for (const std::string& name : block.outputs()) {
      const auto found = ids_.find(name);
      if (found == ids_.end()) {
        return Fail({Code::kCorruptFile, "is defined by nothing"}, fmt::format("output '{}'", ShownName(name)));
      }
      function_.outputs.push_back(found->second);
    }
    return Ok{};
  }

 private:
  // Inference names function and op itself, but counts without the const ops of the file.
  Error Fail(const Error& error, std::string_view where) const {
    if (error.message.starts_with("graph: ")) return error;
    return MakeError(error.code, "function '{}': {}: {}", function_.name, where, error.message);
  }

  Status ReadInput(const mil::NamedType& input) {
    const std::string where = fmt::format("input '{}'", ShownName(input.name()));
    auto type = TypeFromMil(input.type(), kMaxGraphRank);
    if (!type.ok()) return Fail(type.error(), where);
    const auto id = Define(input.name(), *std::move(type), kNoConstant, false);
    if (!id.ok()) return Fail(id.error(), where);
    function_.inputs.push_back(*id);
    return Ok{};
  }

  // A new value that the file calls `name`; ours is the same wherever it is legal and free.
  Result<ValueId> Define(const std::string& name, ValueType type, uint32_t constant, bool decoded) {
    if (ids_.count(name) != 0) return MakeError(Code::kCorruptFile, "'{}' is defined twice", ShownName(name));
    const ValueId id = AddValue(name, std::move(type), constant, decoded);
    ids_.emplace(name, id);
    return id;
  }

  ValueId AddValue(const std::string& hint, ValueType type, uint32_t constant, bool decoded) {
    std::string name = LegalName(hint);
    while (!names_.insert(name).second) name = fmt::format("{}_{}", LegalName(hint), n_renamed_++);
    function_.values.push_back({std::move(name), std::move(type), constant, decoded});
    return static_cast<ValueId>(function_.values.size() - 1);
  }

  Result<ValueId> AddConstant(const std::string& hint, const mil::Value& value) {
    NM_TRY_VAR(const uint32_t constant, pool_.Add(value));
    return AddValue(hint, graph_.constants[constant].type, constant, false);
  }

  Status ReadOp(const mil::Operation& source) {
    if (source.type() == "const") return ReadConst(source);
    if (source.type() == "read_state" || source.type() == "write_state") {
      return MakeError(Code::kUnsupported, "states are not supported");
    }
    if (source.blocks_size() != 0) {
      return MakeError(Code::kUnsupported, "has nested blocks, and control flow is not supported");
    }
    const auto kind = OpKindFromMilName(source.type());
    if (!kind.ok()) return MakeError(Code::kUnsupported, "this op is not supported");
    if (source.outputs_size() == 0) return MakeError(Code::kCorruptFile, "has no outputs");
    Op op{*kind, {}, {}};
    NM_TRY(ReadOperands(source, op));
    NM_TRY(FillIn(source.outputs(0).name(), op));
    return ReadResults(source, std::move(op));
  }

  Status ReadConst(const mil::Operation& source) {
    if (source.outputs_size() != 1) {
      return MakeError(Code::kCorruptFile, "has {} outputs, wanted 1", source.outputs_size());
    }
    for (const mil::ValueEntry& attribute : source.attributes()) {
      if (attribute.key() != "val") continue;
      NM_TRY_VAR(const uint32_t constant, pool_.Add(attribute.value()));
      NM_TRY(Define(source.outputs(0).name(), graph_.constants[constant].type, constant, false));
      return Ok{};
    }
    return MakeError(Code::kCorruptFile, "has no attribute 'val'");
  }

  Status ReadOperands(const mil::Operation& source, Op& op) {
    const std::string& result = source.outputs(0).name();
    for (const mil::ArgumentEntry& input : source.inputs()) {
      Operand operand{input.key(), {}};
      for (const mil::Binding& binding : input.value().arguments()) {
        auto id = ReadBinding(result, input.key(), binding);
        if (!id.ok()) return InParam(input.key(), id.error());
        operand.values.push_back(*id);
      }
      op.operands.push_back(std::move(operand));
    }
    for (const mil::ValueEntry& attribute : source.attributes()) {
      if (attribute.key() == "name") continue;
      if (!IsConstexpr(op.kind)) {
        return MakeError(Code::kUnsupported, "attribute '{}' is not supported", ShownName(attribute.key()));
      }
      const auto id = AddConstant(fmt::format("{}_{}", result, attribute.key()), attribute.value());
      if (!id.ok()) return InParam(attribute.key(), id.error());
      op.operands.push_back({attribute.key(), {*id}});
    }
    return Ok{};
  }

  static Error InParam(std::string_view param, const Error& error) {
    return MakeError(error.code, "parameter '{}': {}", ShownName(param), error.message);
  }

  Result<ValueId> ReadBinding(const std::string& result, const std::string& param, const mil::Binding& binding) {
    if (binding.has_value()) return AddConstant(fmt::format("{}_{}", result, param), binding.value());
    if (binding.kind_case() != mil::Binding::kName) return MakeError(Code::kCorruptFile, "has no value");
    const auto found = ids_.find(binding.name());
    if (found == ids_.end()) {
      return MakeError(Code::kCorruptFile, "'{}' is used before it is defined", ShownName(binding.name()));
    }
    return found->second;
  }

  Status FillIn(const std::string& result, Op& op) {
    Status status = Ok{};
    FillDefaults(function_, op, opset_, [&](std::string_view param, ValueType type, std::vector<std::byte> data) {
      const auto constant = pool_.Store(type, std::move(data));
      if (!constant.ok()) {
        status = constant.error();
        return ValueId{0};
      }
      return AddValue(fmt::format("{}_{}", result, param), std::move(type), *constant, false);
    });
    return status;
  }

  Status ReadResults(const mil::Operation& source, Op op) {
    NM_TRY_VAR(const auto types, InferTypes(graph_, function_, op));
    if (types.size() != static_cast<size_t>(source.outputs_size())) {
      return MakeError(Code::kCorruptFile, "has {} outputs, wanted {}", source.outputs_size(), types.size());
    }
    const bool decoded = IsConstexpr(op.kind);
    for (size_t i = 0; i < types.size(); ++i) {
      const mil::NamedType& output = source.outputs(static_cast<int>(i));
      // Apple's own loader does not look at what decoding ops declare either.
      if (!decoded) NM_TRY(CheckDeclared(output, types[i]));
      NM_TRY_VAR(const ValueId id, Define(output.name(), types[i], kNoConstant, decoded));
      op.outputs.push_back(id);
    }
    function_.ops.push_back(std::move(op));
    return Ok{};
  }

  static Status CheckDeclared(const mil::NamedType& output, const ValueType& inferred) {
    const auto declared = TypeFromMil(output.type(), kMaxGraphRank);
    if (!declared.ok()) {
      return MakeError(declared.error().code, "output '{}': {}", ShownName(output.name()), declared.error().message);
    }
    if (*declared == inferred) return Ok{};
    return MakeError(Code::kCorruptFile, "output '{}': declared {}, its operands make it {}", ShownName(output.name()),
                     declared->ToString(), inferred.ToString());
  }

  Graph& graph_;
  ConstantPool& pool_;
  const mil::Function& source_;
  const int opset_;
  Function& function_;                            // the graph's latest
  std::unordered_map<std::string, ValueId> ids_;  // by the file's name
  std::unordered_set<std::string> names_;         // ours
  size_t n_renamed_ = 0;
};

Result<const mil::Block*> FindBlock(const mil::Function& function) {
  for (const mil::BlockEntry& entry : function.blocks()) {
    if (entry.key() == function.opset()) return &entry.value();
  }
  return MakeError(Code::kCorruptFile, "has no block for its opset '{}'", ShownName(function.opset()));
}

Status ReadFunction(const mil::FunctionEntry& entry, int specification_version, ConstantPool& pool, Graph& graph) {
  const std::string& name = entry.key();
  const auto in_function = [&](const Error& error) {
    return MakeError(error.code, "function '{}': {}", ShownName(name), error.message);
  };
  if (!IsLegalName(name)) return in_function({Code::kUnsupported, "a name that is not supported"});
  if (graph.Find(name) != nullptr) return in_function({Code::kCorruptFile, "is there twice"});
  const auto opset = OpsetFromName(entry.value().opset());
  if (!opset.ok()) return in_function(opset.error());
  if (SpecificationVersionOf(*opset) > specification_version) {
    return in_function(MakeError(Code::kCorruptFile, "opset {} in a model of specification version {}",
                                 OpsetName(*opset), specification_version));
  }
  const auto block = FindBlock(entry.value());
  if (!block.ok()) return in_function(block.error());
  graph.functions.push_back({name, {}, {}, {}, {}});
  return FunctionReader(graph, pool, entry.value(), *opset).Read(**block);
}

}  // namespace

Result<int> OpsetFromName(std::string_view name) {
  for (int opset = kMinOpset; opset <= kMaxOpset; ++opset) {
    if (name == OpsetName(opset)) return opset;
  }
  return MakeError(Code::kUnsupported, "opset '{}', wanted {} to {}", ShownName(name), OpsetName(kMinOpset),
                   OpsetName(kMaxOpset));
}

Result<Graph> ReadProgram(const mil::Program& program, int specification_version, size_t model_bytes,
                          WeightFiles& weights) {
  constexpr int64_t kProgramVersion = 1;
  if (program.version() != kProgramVersion) {
    return MakeError(Code::kUnsupported, "program version {}, wanted {}", program.version(), kProgramVersion);
  }
  if (program.functions_size() == 0) return MakeError(Code::kCorruptFile, "the program has no functions");
  Graph graph;
  ConstantPool pool(graph, model_bytes, weights);
  for (const mil::FunctionEntry& entry : program.functions()) {
    NM_TRY(ReadFunction(entry, specification_version, pool, graph));
  }
  const Status valid = ValidateGraph(graph);
  if (!valid.ok()) return Error{Code::kCorruptFile, valid.error().message};
  return graph;
}

}  // namespace npumoe
