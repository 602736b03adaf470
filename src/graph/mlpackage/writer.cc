// SPDX-License-Identifier: Apache-2.0
// WritePackage: const ops for every parameter, as Apple's tools write them; only decoding ops hold their constants
// inline.
#include <algorithm>
#include <deque>
#include <set>

#include "base/check.h"
#include "base/files.h"
#include "graph/hash.h"
#include "graph/mlpackage/blob_file.h"
#include "graph/mlpackage/defaults.h"
#include "graph/mlpackage/folder.h"
#include "graph/mlpackage/manifest.h"
#include "graph/mlpackage/mil_types.h"
#include "graph/mlpackage/mlpackage.h"
#include "graph/mlpackage/opset.h"
#include "graph/names.h"
#include "graph/op_reader.h"

namespace npumoe {
namespace {

constexpr std::string_view kBlobPath = "@model_path/weights/weight.bin";
constexpr std::string_view kSuffix = ".mlpackage";
constexpr int kProgramVersion = 1;

// A constant of the graph, possibly seen as another type, or one that the writer adds.
struct ConstantRef {
  ValueType type;
  std::span<const std::byte> data;  // borrowed from the graph or from `owned_`
};

class ModelWriter {
 public:
  ModelWriter(const Graph& graph, int opset) : graph_(graph), opset_(opset) {
    for (const Constant& constant : graph.constants) constants_.push_back({constant.type, constant.data});
  }

  Status Write(const WritePackageOptions& options);
  const mil::Model& model() const { return model_; }
  const BlobWriter& blobs() const { return blobs_; }

 private:
  friend class FunctionWriter;
  uint32_t AddConstant(ValueType type, std::vector<std::byte> data) {
    owned_.push_back(std::move(data));
    constants_.push_back({std::move(type), owned_.back()});
    return static_cast<uint32_t>(constants_.size() - 1);
  }
  uint32_t AddView(uint32_t constant, ValueType type) {
    constants_.push_back({std::move(type), constants_[constant].data});
    return static_cast<uint32_t>(constants_.size() - 1);
  }
  void SetValue(uint32_t constant, mil::Value& out);
  Status Describe(const WritePackageOptions& options);
  void AddMetadata(const WritePackageOptions& options);

  const Graph& graph_;
  const int opset_;
  std::vector<ConstantRef> constants_;        // the graph's, then added ones
  std::deque<std::vector<std::byte>> owned_;  // stable addresses
  mil::Model model_;
  BlobWriter blobs_;
};

// One function of the program. Works on a copy of it (its constants stay where they are).
class FunctionWriter {
 public:
  FunctionWriter(ModelWriter& model, const Function& function) : model_(model), function_(function) {
    for (const Value& value : function_.values) names_.insert(value.name);
  }

  void Write(mil::Function& out) {
    for (const ValueId id : function_.inputs) SetNamed(id, *out.add_inputs());
    out.set_opset(OpsetName(model_.opset_));
    mil::BlockEntry& entry = *out.add_blocks();
    entry.set_key(OpsetName(model_.opset_));
    block_ = entry.mutable_value();
    // FillDefaults adds values, never ops.
    for (Op& op : function_.ops) WriteOp(op);
    for (const ValueId id : function_.outputs) block_->add_outputs(function_.values[id].name);
  }

 private:
  const Value& At(ValueId id) const { return function_.values[id]; }

  void SetNamed(ValueId id, mil::NamedType& out) const {
    out.set_name(At(id).name);
    SetType(At(id).type, *out.mutable_type());
  }

  std::string FreeName(std::string_view op, std::string_view param) {
    const std::string base = LegalName(fmt::format("{}_{}", op, param));
    for (size_t n = 0;; ++n) {
      std::string name = fmt::format("{}_{}", base, n);
      if (names_.insert(name).second) return name;
    }
  }

  ValueId AddValue(const Op& op, std::string_view param, uint32_t constant) {
    Value value{FreeName(At(op.outputs[0]).name, param), model_.constants_[constant].type, constant};
    function_.values.push_back(std::move(value));
    return static_cast<ValueId>(function_.values.size() - 1);
  }

  void WriteOp(Op& op) {
    if (model_.opset_ >= 8 && IsPackedForm(op)) Unpack(op);
    FillDefaults(function_, op, model_.opset_,
                 [&](std::string_view param, ValueType type, std::vector<std::byte> data) {
                   return AddValue(op, param, model_.AddConstant(std::move(type), std::move(data)));
                 });
    if (!IsConstexpr(op.kind)) {
      for (const Operand& operand : op.operands) {
        for (const ValueId id : operand.values) {
          if (At(id).is_constant() && written_.insert(id).second) WriteConst(id);
        }
      }
    }
    mil::Operation& out = *block_->add_operations();
    out.set_type(std::string(MilName(op.kind)));
    const bool attributes = IsConstexpr(op.kind) && HasAttributeForm(op.kind, model_.opset_);
    for (const ValueId id : op.outputs) SetNamed(id, *out.add_outputs());
    SetNameAttribute(At(op.outputs[0]).name, out);
    for (const Operand& operand : op.operands) {
      if (attributes) {
        mil::ValueEntry& entry = *out.add_attributes();
        entry.set_key(operand.param);
        model_.SetValue(At(operand.values[0]).constant, *entry.mutable_value());
      } else {
        WriteArgument(operand, IsConstexpr(op.kind), out);
      }
    }
  }

  void WriteArgument(const Operand& operand, bool inline_constants, mil::Operation& out) {
    mil::ArgumentEntry& entry = *out.add_inputs();
    entry.set_key(operand.param);
    for (const ValueId id : operand.values) {
      mil::Binding& binding = *entry.mutable_value()->add_arguments();
      if (inline_constants && At(id).is_constant()) {
        model_.SetValue(At(id).constant, *binding.mutable_value());
      } else {
        binding.set_name(At(id).name);
      }
    }
  }

  void WriteConst(ValueId id) {
    mil::Operation& out = *block_->add_operations();
    out.set_type("const");
    SetNamed(id, *out.add_outputs());
    SetNameAttribute(At(id).name, out);
    mil::ValueEntry& entry = *out.add_attributes();
    entry.set_key("val");
    model_.SetValue(At(id).constant, *entry.mutable_value());
  }

  static void SetNameAttribute(const std::string& name, mil::Operation& out) {
    mil::ValueEntry& entry = *out.add_attributes();
    entry.set_key("name");
    SetType({ElemType::kString, {}}, *entry.mutable_value()->mutable_type());
    entry.mutable_value()->mutable_immediate()->mutable_tensor()->mutable_strings()->add_values(name);
  }

  // Packed bytes and a shape become a tensor of sub-byte elements: the same bits, another type.
  void Unpack(Op& op) {
    const std::vector<size_t> dims = At(op.outputs[0]).type.dims;
    std::vector<Operand> operands;
    for (const Operand& operand : op.operands) {
      const ValueId id = operand.values[0];
      const uint32_t constant = At(id).constant;
      if (operand.param == "shape") continue;
      ValueType type = At(id).type;
      if (operand.param == "mask") type = {ElemType::kU1, dims};
      if (operand.param == "indices") type = {IndexElem(op), dims};
      if (operand.param == "lut") {
        const size_t entries = type.dims[0];
        type.dims.assign(dims.size(), 1);
        type.dims.insert(type.dims.end(), {entries, 1});
      }
      operands.push_back({operand.param, {AddValue(op, operand.param, model_.AddView(constant, std::move(type)))}});
    }
    op.operands = std::move(operands);
  }

  ElemType IndexElem(const Op& op) const {
    switch (At(op.Find("lut")->values[0]).type.dims[0]) {
      case 2:
        return ElemType::kU1;
      case 4:
        return ElemType::kU2;
      case 16:
        return ElemType::kU4;
      case 64:
        return ElemType::kU6;
      default:
        return ElemType::kU8;
    }
  }

  ModelWriter& model_;
  Function function_;
  mil::Block* block_ = nullptr;  // of the message that Write fills
  std::set<std::string, std::less<>> names_;
  std::set<ValueId> written_;  // constants that have their op
};

bool GoesToBlob(const ValueType& type, int opset) {
  constexpr size_t kFewElems = 10;  // coremltools' rule
  if (type.dims.empty() || !HasBlobCode(type.elem)) return false;
  // Core ML was reported to crash on immediate fp16 tensors, whatever their size.
  if (type.elem == ElemType::kF16 || BitsOf(type.elem) < 8) return true;
  if (type.elems() < kFewElems) return false;
  return type.elem == ElemType::kF32 || BitsOf(type.elem) == 8 || opset >= 8;
}

void ModelWriter::SetValue(uint32_t constant, mil::Value& out) {
  const ConstantRef& ref = constants_[constant];
  SetType(ref.type, *out.mutable_type());
  if (GoesToBlob(ref.type, opset_)) {
    out.mutable_blob()->set_file(std::string(kBlobPath));
    out.mutable_blob()->set_offset(blobs_.Add(ref.type.elem, ref.type.elems(), ref.data));
  } else {
    SetImmediate(ref.type.elem, ref.data, *out.mutable_immediate()->mutable_tensor());
  }
}

void DescribeFeatures(const Function& function, const std::vector<ValueId>& ids,
                      google::protobuf::RepeatedPtrField<mil::Feature>& out) {
  for (const ValueId id : ids) {
    mil::Feature& feature = *out.Add();
    feature.set_name(function.values[id].name);
    mil::ArrayFeature& array = *feature.mutable_type()->mutable_array();
    for (const size_t dim : function.values[id].type.dims) array.add_shape(static_cast<int64_t>(dim));
    array.set_data_type(FeatureElemOf(function.values[id].type.elem).code);
  }
}

Status ModelWriter::Describe(const WritePackageOptions& options) {
  mil::ModelDescription& out = *model_.mutable_description();
  if (!NeedsFunctions(graph_)) {
    DescribeFeatures(graph_.functions[0], graph_.functions[0].inputs, *out.mutable_inputs());
    DescribeFeatures(graph_.functions[0], graph_.functions[0].outputs, *out.mutable_outputs());
    if (!options.default_function.empty() && options.default_function != "main") {
      return MakeError(Code::kInvalidArgument, "package: default function '{}', there is only 'main'",
                       options.default_function);
    }
    return Ok{};
  }
  for (const Function& function : graph_.functions) {
    mil::FunctionDescription& description = *out.add_functions();
    description.set_name(function.name);
    DescribeFeatures(function, function.inputs, *description.mutable_inputs());
    DescribeFeatures(function, function.outputs, *description.mutable_outputs());
  }
  const std::string& name = options.default_function.empty() ? graph_.functions[0].name : options.default_function;
  if (graph_.Find(name) == nullptr) {
    return MakeError(Code::kInvalidArgument, "package: default function '{}' is none of the {} functions", name,
                     graph_.functions.size());
  }
  out.set_default_function(name);
  return Ok{};
}

Status ModelWriter::Write(const WritePackageOptions& options) {
  model_.set_specification_version(SpecificationVersionOf(opset_));
  NM_TRY(Describe(options));
  mil::Program& program = *model_.mutable_program();
  program.set_version(kProgramVersion);
  for (const Function& function : graph_.functions) {
    mil::FunctionEntry& entry = *program.add_functions();
    entry.set_key(function.name);
    FunctionWriter(*this, function).Write(*entry.mutable_value());
  }
  if (blobs_.file_bytes() >= kMaxWeightFileBytes) {
    return MakeError(Code::kUnsupported, "package: {} bytes of weights, a package's weight file has less than {}",
                     blobs_.file_bytes(), kMaxWeightFileBytes);
  }
  AddMetadata(options);
  return Ok{};
}

// After everything else: the weight file's length is known then.
void ModelWriter::AddMetadata(const WritePackageOptions& options) {
  auto user_defined = options.user_defined;
  if (!options.weight_bytes_key.empty()) {
    user_defined[options.weight_bytes_key] = fmt::format("{}", blobs_.empty() ? 0 : blobs_.file_bytes());
  }
  for (const auto& [key, value] : user_defined) {
    mil::TextEntry& entry = *model_.mutable_description()->mutable_metadata()->add_user_defined();
    entry.set_key(key);
    entry.set_value(value);
  }
}

Status WriteFiles(const ModelWriter& writer, const std::string& model, const std::string& path) {
  NM_TRY_VAR(AtomicFolder folder, AtomicFolder::Create(path, std::string(kManifestName)));
  const std::string data = folder.temporary() + "/Data/";
  const bool with_weights = !writer.blobs().empty();
  NM_TRY(folder.MakeFolder(with_weights ? fmt::format("Data/{}", kWeightsItem) : "Data/com.apple.CoreML"));
  if (with_weights) {
    NM_TRY_VAR(AtomicFile weights, AtomicFile::Create(fmt::format("{}{}/{}", data, kWeightsItem, kWeightFile)));
    NM_TRY(writer.blobs().Write(weights));
    NM_TRY(weights.Commit());
  }
  NM_TRY(WriteFileAtomic(data + std::string(kModelItem), model));
  ContentHash hash;
  hash.Add(model);
  hash.Add(writer.blobs().ContentHex());
  NM_TRY(
      WriteFileAtomic(folder.temporary() + "/" + std::string(kManifestName), ManifestText(hash.Hex(), with_weights)));
  return folder.Commit();
}

}  // namespace

Result<WrittenPackage> WritePackage(const Graph& graph, const std::string& path, const WritePackageOptions& options) {
  std::string target = path;
  while (target.size() > 1 && target.ends_with('/')) target.pop_back();
  if (!target.ends_with(kSuffix)) {
    return MakeError(Code::kInvalidArgument, "{}: wanted a name that ends in {}", path, kSuffix);
  }
  NM_TRY(ValidateGraph(graph));
  NM_TRY_VAR(const int opset, LowestOpset(graph));
  ModelWriter writer(graph, opset);
  NM_TRY(writer.Write(options));
  std::string model;
  if (!writer.model().SerializeToString(&model)) {
    return MakeError(Code::kUnsupported, "{}: the model file would be larger than protobuf allows", path);
  }
  NM_TRY(WriteFiles(writer, model, target));
  return WrittenPackage{SpecificationVersionOf(opset), OpsetName(opset), model.size(),
                        writer.blobs().empty() ? 0 : writer.blobs().file_bytes()};
}

}  // namespace npumoe
