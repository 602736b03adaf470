// SPDX-License-Identifier: Apache-2.0
// For tests: scratch folders, small graphs, models as messages.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "graph/builder.h"
#include "graph/mlpackage/mil_types.h"
#include "graph/mlpackage/mlpackage.h"
#include "graph/op_test.h"

namespace npumoe {

class Scratch {
 public:
  Scratch() {
    std::string pattern = testing::TempDir() + "npumoe_package_XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline const char kModelFile[] = "/Data/com.apple.CoreML/model.mlmodel";
inline const char kWeightsFile[] = "/Data/com.apple.CoreML/weights/weight.bin";

inline mil::Model LoadModel(const std::string& package) {
  mil::Model model;
  const auto bytes = ReadFile(package + kModelFile);
  EXPECT_TRUE(bytes.ok() && model.ParseFromString(*bytes)) << package;
  return model;
}

inline const mil::Block& BlockOf(const mil::Model& model, int function = 0) {
  return model.program().functions(function).value().blocks(0).value();
}

// Positions of all ops of a type.
inline std::vector<const mil::Operation*> OpsOf(const mil::Block& block, const std::string& type) {
  std::vector<const mil::Operation*> ops;
  for (const mil::Operation& op : block.operations()) {
    if (op.type() == type) ops.push_back(&op);
  }
  return ops;
}

inline const mil::Value* AttributeOf(const mil::Operation& op, const std::string& key) {
  for (const mil::ValueEntry& entry : op.attributes()) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

inline const mil::Argument* InputOf(const mil::Operation& op, const std::string& key) {
  for (const mil::ArgumentEntry& entry : op.inputs()) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

// y = x * w, one function "main", w fp16 [1, 16, 1, 1].
inline Graph ScaleGraph() {
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {1, 16, 1, 4}});
  std::vector<float> w(16);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i) - 8;
  const ValueId weight = b.UseConstant(b.AddConstant({ElemType::kF16, {1, 16, 1, 1}}, HalfBytes(w)), "w");
  b.Output("y", b.Binary(OpKind::kMul, x, weight));
  return std::move(b).Finish().value();
}

// The graph written and read; an error of either fails the test.
inline Package RoundTrip(const Graph& graph, const std::string& path, const WritePackageOptions& options = {}) {
  const auto written = WritePackage(graph, path, options);
  EXPECT_TRUE(written.ok()) << written.error().message;
  auto package = ReadPackage(path);
  EXPECT_TRUE(package.ok()) << package.error().message;
  return package.ok() ? *std::move(package) : Package{};
}

}  // namespace npumoe
