// SPDX-License-Identifier: Apache-2.0
// Packages of Apple's making: every one loads and gives the stored outputs; written again, they say the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/mlpackage/mlpackage.h"
#include "graph/npy.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

// Beside the source tree; absent in a fresh clone.
fs::path RefFolder() { return fs::path(NM_SOURCE_DIR) / ".." / "shared" / "coreml_ref"; }

std::vector<fs::path> Packages() {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(RefFolder(), error)) {
    if (entry.path().extension() == ".mlpackage") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Inputs and outputs of a function: NAME.io, or NAME.io/FUNCTION where there are several.
fs::path IoFolder(const fs::path& package, const Graph& graph, const Function& function) {
  const fs::path folder = fs::path(package).replace_extension(".io");
  return graph.functions.size() > 1 ? folder / function.name : folder;
}

// The stored outputs are of an interpreter that rounds to fp16 after every op, as ours does; the two may take sums in
// other orders, so that a value near the middle of two fp16 numbers may fall to either side, once per op on the way.
constexpr float kUnitsInTheLastPlace = 4;

void ExpectStoredOutputs(const Graph& graph, const Function& function, const fs::path& folder) {
  std::vector<Array> inputs;
  for (const ValueId id : function.inputs) {
    const Value& value = function.values[id];
    auto array = ReadNpy((folder / ("in_" + value.name + ".npy")).string());
    ASSERT_TRUE(array.ok()) << array.error().message;
    auto fitted = FitArray(*std::move(array), value.type, value.name);
    ASSERT_TRUE(fitted.ok()) << fitted.error().message;
    inputs.push_back(*std::move(fitted));
  }
  const auto outputs = RunReference(graph, function, inputs, Rounding::kF16);
  ASSERT_TRUE(outputs.ok()) << outputs.error().message;
  for (size_t i = 0; i < outputs->size(); ++i) {
    const std::string& name = function.values[function.outputs[i]].name;
    const auto stored = ReadNpy((folder / (name + ".npy")).string());
    ASSERT_TRUE(stored.ok()) << stored.error().message;
    ASSERT_EQ(stored->type, (*outputs)[i].type) << name;
    float top = 0, worst = 0;
    for (size_t k = 0; k < stored->floats.size(); ++k) {
      top = std::max(top, std::fabs(stored->floats[k]));
      worst = std::max(worst, std::fabs(stored->floats[k] - (*outputs)[i].floats[k]));
    }
    const float unit = std::exp2(std::floor(std::log2(top)) - 10);  // spacing of fp16 at the largest value
    EXPECT_LE(worst, kUnitsInTheLastPlace * unit) << name << ", largest value " << top;
    EXPECT_GT(top, 0) << name;
  }
}

TEST(ApplePackages, GiveTheirStoredOutputs) {
  const auto packages = Packages();
  if (packages.empty()) GTEST_SKIP() << "no packages in " << RefFolder();
  for (const fs::path& path : packages) {
    SCOPED_TRACE(path.filename().string());
    const auto package = ReadPackage(path.string());
    ASSERT_TRUE(package.ok()) << package.error().message;
    for (const Function& function : package->graph.functions) {
      SCOPED_TRACE(function.name);
      ExpectStoredOutputs(package->graph, function, IoFolder(path, package->graph, function));
    }
  }
}

TEST(ApplePackages, SurviveBeingWrittenAndReadAgain) {
  const auto packages = Packages();
  if (packages.empty()) GTEST_SKIP() << "no packages in " << RefFolder();
  for (const fs::path& path : packages) {
    SCOPED_TRACE(path.filename().string());
    const auto package = ReadPackage(path.string());
    ASSERT_TRUE(package.ok()) << package.error().message;
    const fs::path copy = fs::path(testing::TempDir()) / path.filename();
    const auto written = WritePackage(package->graph, copy.string(), {package->metadata.default_function, {}, {}});
    ASSERT_TRUE(written.ok()) << written.error().message;
    const auto again = ReadPackage(copy.string());
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(HashGraph(again->graph), HashGraph(package->graph));
    EXPECT_EQ(again->metadata.default_function, package->metadata.default_function);
    EXPECT_LE(again->metadata.specification_version, package->metadata.specification_version);
  }
}

}  // namespace
}  // namespace npumoe
