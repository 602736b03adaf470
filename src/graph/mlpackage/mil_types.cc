// SPDX-License-Identifier: Apache-2.0
#include "graph/mlpackage/mil_types.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "base/check.h"
#include "graph/infer.h"

namespace npumoe {
namespace {

// Which member of TensorValue holds a type.
enum class ValueMember { kFloats, kInts, kBools, kStrings, kBytes };

struct ElemInfo {
  ElemType elem;
  int mil;
  ValueMember member;
  FeatureElem feature;
};

constexpr ElemInfo kElems[] = {
    {ElemType::kBool, 1, ValueMember::kBools, {}},
    {ElemType::kString, 2, ValueMember::kStrings, {}},
    {ElemType::kF16, 10, ValueMember::kBytes, {0x10010, 7}},
    {ElemType::kF32, 11, ValueMember::kFloats, {0x10020, 6}},
    {ElemType::kI8, 21, ValueMember::kBytes, {0x20008, 10}},
    {ElemType::kI16, 22, ValueMember::kInts, {}},
    {ElemType::kI32, 23, ValueMember::kInts, {0x20020, 6}},
    {ElemType::kI4, 25, ValueMember::kBytes, {}},
    {ElemType::kU8, 31, ValueMember::kBytes, {}},
    {ElemType::kU16, 32, ValueMember::kInts, {}},
    {ElemType::kU32, 33, ValueMember::kBytes, {}},
    {ElemType::kU4, 35, ValueMember::kBytes, {}},
    {ElemType::kU2, 36, ValueMember::kBytes, {}},
    {ElemType::kU1, 37, ValueMember::kBytes, {}},
    {ElemType::kU6, 38, ValueMember::kBytes, {}},
    {ElemType::kU3, 39, ValueMember::kBytes, {}},
};

const ElemInfo& InfoOf(ElemType elem) {
  for (const ElemInfo& info : kElems) {
    if (info.elem == elem) return info;
  }
  NM_CHECK(false);
  return kElems[0];
}

// Types of the format that no graph of ours has.
std::string_view ForeignName(int data_type) {
  switch (data_type) {
    case 12:
      return "fp64";
    case 13:
      return "bf16";
    case 24:
      return "int64";
    case 34:
      return "uint64";
    case 40:
      return "fp8e4m3fn";
    case 41:
      return "fp8e5m2";
    default:
      return "unknown";
  }
}

template <typename T>
T LoadAt(std::span<const std::byte> data, size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void StoreAt(std::vector<std::byte>& data, size_t index, T value) {
  std::memcpy(data.data() + index * sizeof(T), &value, sizeof(T));
}

Status CheckCount(int64_t count, const ValueType& type) {
  if (count == static_cast<int64_t>(type.elems())) return Ok{};
  return MakeError(Code::kCorruptFile, "{} values, {} has {}", count, type.ToString(), type.elems());
}

Result<std::vector<std::byte>> DataFromInts(const mil::Ints& ints, const ValueType& type) {
  NM_TRY(CheckCount(ints.values_size(), type));
  std::vector<std::byte> data(type.bytes());
  for (int i = 0; i < ints.values_size(); ++i) {
    const int32_t v = ints.values(i);
    const auto at = static_cast<size_t>(i);
    const bool fits = type.elem == ElemType::kI32 ||
                      (type.elem == ElemType::kI16 && v >= std::numeric_limits<int16_t>::min() &&
                       v <= std::numeric_limits<int16_t>::max()) ||
                      (type.elem == ElemType::kU16 && v >= 0 && v <= std::numeric_limits<uint16_t>::max());
    if (!fits) return MakeError(Code::kCorruptFile, "value {} in {}", v, type.ToString());
    if (type.elem == ElemType::kI32) {
      StoreAt(data, at, v);
    } else {
      StoreAt(data, at, static_cast<uint16_t>(v));  // the low 16 bits of either sign
    }
  }
  return data;
}

}  // namespace

FeatureElem FeatureElemOf(ElemType elem) { return InfoOf(elem).feature; }
int MilElemOf(ElemType elem) { return InfoOf(elem).mil; }

Result<ElemType> ElemFromMil(int data_type) {
  for (const ElemInfo& info : kElems) {
    if (info.mil == data_type) return info.elem;
  }
  return MakeError(Code::kUnsupported, "element type {} ({}) is not supported", data_type, ForeignName(data_type));
}

std::string_view MilElemName(int data_type) {
  const auto elem = ElemFromMil(data_type);
  return elem.ok() ? ToString(*elem) : ForeignName(data_type);
}

void SetType(const ValueType& type, mil::ValueType& out) {
  out.Clear();
  mil::TensorType& tensor = *out.mutable_tensor();
  tensor.set_data_type(MilElemOf(type.elem));
  tensor.set_rank(static_cast<int64_t>(type.dims.size()));
  for (const size_t dim : type.dims) tensor.add_dimensions()->mutable_constant()->set_size(dim);
}

Result<ValueType> TypeFromMil(const mil::ValueType& type, size_t max_rank) {
  if (type.kind_case() == mil::ValueType::kState) {
    return MakeError(Code::kUnsupported, "is a state, and states are not supported");
  }
  if (type.kind_case() == mil::ValueType::KIND_NOT_SET) return MakeError(Code::kCorruptFile, "has no type");
  if (type.kind_case() != mil::ValueType::kTensor) {
    return MakeError(Code::kUnsupported, "is a {}, wanted a tensor", TypeText(type));
  }
  const mil::TensorType& tensor = type.tensor();
  if (tensor.rank() != tensor.dimensions_size()) {
    return MakeError(Code::kCorruptFile, "rank {} with {} dimensions", tensor.rank(), tensor.dimensions_size());
  }
  NM_TRY_VAR(const ElemType elem, ElemFromMil(tensor.data_type()));
  // Before anything is stored per dimension.
  if (static_cast<size_t>(tensor.rank()) > max_rank) {
    return MakeError(Code::kUnsupported, "rank {}, at most {}", tensor.rank(), max_rank);
  }
  ValueType out{elem, {}};
  for (const mil::Dimension& dimension : tensor.dimensions()) {
    if (dimension.kind_case() != mil::Dimension::kConstant) {
      return MakeError(Code::kUnsupported, "has a flexible shape, {}, and only fixed shapes are supported",
                       TypeText(type));
    }
    out.dims.push_back(dimension.constant().size());
  }
  const Status status = CheckType(out, max_rank, "tensor");
  if (!status.ok()) return Error{Code::kCorruptFile, status.error().message};
  return out;
}

std::string TypeText(const mil::ValueType& type) {
  switch (type.kind_case()) {
    case mil::ValueType::kList:
      return "list";
    case mil::ValueType::kTuple:
      return "tuple";
    case mil::ValueType::kDictionary:
      return "dictionary";
    case mil::ValueType::kState:
      // One level: a state of a state is no type, and nesting is the file's choice.
      return type.state().wrapped().has_tensor() ? "state " + TypeText(type.state().wrapped()) : "state";
    case mil::ValueType::kTensor:
      break;
    default:
      return "nothing";
  }
  constexpr int kMostShown = 8;
  std::string dims;
  for (int i = 0; i < type.tensor().dimensions_size(); ++i) {
    if (i == kMostShown) {
      dims += ", ...";
      break;
    }
    const mil::Dimension& dimension = type.tensor().dimensions(i);
    dims += i == 0 ? "" : ", ";
    dims += dimension.has_constant() ? fmt::format("{}", dimension.constant().size()) : "?";
  }
  const std::string_view elem = MilElemName(type.tensor().data_type());
  return dims.empty() ? std::string(elem) : fmt::format("{}[{}]", elem, dims);
}

void SetImmediate(ElemType elem, std::span<const std::byte> data, mil::TensorValue& out) {
  switch (InfoOf(elem).member) {
    case ValueMember::kFloats:
      for (size_t i = 0; i < data.size() / 4; ++i) out.mutable_floats()->add_values(LoadAt<float>(data, i));
      return;
    case ValueMember::kInts:
      for (size_t i = 0; i < data.size() * 8 / BitsOf(elem); ++i) {
        out.mutable_ints()->add_values(elem == ElemType::kI32   ? LoadAt<int32_t>(data, i)
                                       : elem == ElemType::kI16 ? int32_t{LoadAt<int16_t>(data, i)}
                                                                : int32_t{LoadAt<uint16_t>(data, i)});
      }
      return;
    case ValueMember::kBools:
      for (const std::byte b : data) out.mutable_bools()->add_values(b != std::byte{0});
      return;
    case ValueMember::kStrings:
      out.mutable_strings()->add_values(reinterpret_cast<const char*>(data.data()), data.size());
      return;
    case ValueMember::kBytes:
      out.mutable_bytes()->set_values(reinterpret_cast<const char*>(data.data()), data.size());
  }
}

Result<std::vector<std::byte>> DataFromImmediate(const mil::TensorValue& tensor, const ValueType& type) {
  const auto wrong = [&](mil::TensorValue::KindCase wanted) { return tensor.kind_case() != wanted; };
  const Error member = MakeError(Code::kCorruptFile, "data stand in member {} of the value, which {} does not use",
                                 static_cast<int>(tensor.kind_case()), ToString(type.elem));
  std::vector<std::byte> data;
  switch (InfoOf(type.elem).member) {
    case ValueMember::kFloats: {
      if (wrong(mil::TensorValue::kFloats)) return member;
      NM_TRY(CheckCount(tensor.floats().values_size(), type));
      data.resize(type.bytes());
      std::memcpy(data.data(), tensor.floats().values().data(), data.size());
      return data;
    }
    case ValueMember::kInts:
      if (wrong(mil::TensorValue::kInts)) return member;
      return DataFromInts(tensor.ints(), type);
    case ValueMember::kBools: {
      if (wrong(mil::TensorValue::kBools)) return member;
      NM_TRY(CheckCount(tensor.bools().values_size(), type));
      for (const bool v : tensor.bools().values()) data.push_back(std::byte{v});
      return data;
    }
    case ValueMember::kStrings: {
      if (wrong(mil::TensorValue::kStrings)) return member;
      if (!type.dims.empty()) return MakeError(Code::kUnsupported, "is {}, wanted a scalar string", type.ToString());
      NM_TRY(CheckCount(tensor.strings().values_size(), type));
      const std::string& text = tensor.strings().values(0);
      data.resize(text.size());
      if (!data.empty()) std::memcpy(data.data(), text.data(), data.size());
      return data;
    }
    case ValueMember::kBytes: {
      if (wrong(mil::TensorValue::kBytes)) return member;
      const std::string& bytes = tensor.bytes().values();
      if (bytes.size() != type.bytes()) {
        return MakeError(Code::kCorruptFile, "{} bytes, {} needs {}", bytes.size(), type.ToString(), type.bytes());
      }
      data.resize(bytes.size());
      std::memcpy(data.data(), bytes.data(), data.size());
      return data;
    }
  }
  return member;
}

}  // namespace npumoe
