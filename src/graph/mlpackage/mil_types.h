// SPDX-License-Identifier: Apache-2.0
// Element types, tensor types and values between our graphs and the protobuf messages. For this folder only: protobuf
// does not leave it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/mlpackage/mil.pb.h"

namespace npumoe {

// ArrayDataType of a feature, or 0 where a feature cannot have the type; the specification version that brought it.
struct FeatureElem {
  int code = 0, specification_version = 0;
};
FeatureElem FeatureElemOf(ElemType elem);

int MilElemOf(ElemType elem);  // DataType
// kUnsupported for types that graphs do not have (int64, bfloat16, ...), which are named.
Result<ElemType> ElemFromMil(int data_type);
std::string_view MilElemName(int data_type);  // "int64", or "type 99"-like text for numbers that are none

void SetType(const ValueType& type, mil::ValueType& out);
// `max_rank` and the size limit of tensors are checked; unknown dimensions and other types than tensors are
// kUnsupported. Messages say what is wrong and not where.
Result<ValueType> TypeFromMil(const mil::ValueType& type, size_t max_rank);

// Text of any type, also of those that TypeFromMil refuses: "fp16[1, ?, 64]", "state fp16[8]", "list".
std::string TypeText(const mil::ValueType& type);

// The data as the member of TensorValue that the type demands.
void SetImmediate(ElemType elem, std::span<const std::byte> data, mil::TensorValue& out);
// The data of an immediate value of `type`, as a Constant holds them. kCorruptFile when the member or the number of
// elements is wrong.
Result<std::vector<std::byte>> DataFromImmediate(const mil::TensorValue& tensor, const ValueType& type);

}  // namespace npumoe
