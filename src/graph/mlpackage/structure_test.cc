// SPDX-License-Identifier: Apache-2.0
// What is written, field by field: against packages of Apple's making, and against the format's rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "graph/hash.h"
#include "graph/mlpackage/blob_file.h"
#include "graph/mlpackage/mil_types.h"
#include "graph/mlpackage/mlpackage.h"
#include "graph/mlpackage/package_test.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

// Everything that carries no meaning made equal: order of map entries and of const ops, where a blob stands in its
// file, notes about who wrote the package, and the version, which is the lowest possible in ours.
class Normalizer {
 public:
  explicit Normalizer(const fs::path& package) : weights_((package / "Data/com.apple.CoreML").string()) {}

  std::string Run(mil::Model model) {
    model.set_specification_version(0);
    model.mutable_description()->clear_metadata();
    SortByKey(*model.mutable_program()->mutable_functions());
    auto& functions = *model.mutable_description()->mutable_functions();
    std::sort(functions.begin(), functions.end(), [](const auto& a, const auto& b) { return a.name() < b.name(); });
    model.mutable_program()->clear_attributes();
    for (mil::FunctionEntry& entry : *model.mutable_program()->mutable_functions()) {
      mil::Function& function = *entry.mutable_value();
      function.clear_opset();
      EXPECT_EQ(function.blocks_size(), 1);
      function.mutable_blocks(0)->clear_key();
      RunBlock(*function.mutable_blocks(0)->mutable_value());
    }
    return model.SerializeAsString();
  }

 private:
  template <typename Entries>
  static void SortByKey(Entries& entries) {
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.key() < b.key(); });
  }

  template <typename Entries>
  static void DropKeys(Entries& entries, std::string_view suffix) {
    for (int i = entries.size(); i-- > 0;) {
      if (entries.Get(i).key().ends_with(suffix)) entries.DeleteSubrange(i, 1);
    }
  }

  void RunValue(mil::Value& value) {
    if (!value.has_blob()) return;
    const auto type = TypeFromMil(value.type(), 7);
    ASSERT_TRUE(type.ok()) << type.error().message;
    const auto bytes = weights_.Read(value.blob().file(), value.blob().offset(), *type);
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    ContentHash hash;
    hash.Add(*bytes);
    value.mutable_blob()->set_offset(std::stoull(hash.Hex().substr(0, 15), nullptr, 16));
  }

  void RunBlock(mil::Block& block) {
    std::vector<mil::Operation> consts, others;
    for (mil::Operation& op : *block.mutable_operations()) {
      if (op.type() == "const" && op.outputs(0).name().ends_with("_mask")) continue;
      DropKeys(*op.mutable_inputs(), "_mask");
      DropKeys(*op.mutable_attributes(), "name");
      SortByKey(*op.mutable_inputs());
      SortByKey(*op.mutable_attributes());
      for (mil::ValueEntry& attribute : *op.mutable_attributes()) RunValue(*attribute.mutable_value());
      for (mil::ArgumentEntry& input : *op.mutable_inputs()) {
        for (mil::Binding& binding : *input.mutable_value()->mutable_arguments()) {
          if (binding.has_value()) RunValue(*binding.mutable_value());
        }
      }
      (op.type() == "const" ? consts : others).push_back(op);
    }
    std::sort(consts.begin(), consts.end(),
              [](const auto& a, const auto& b) { return a.outputs(0).name() < b.outputs(0).name(); });
    block.clear_operations();
    for (const auto* list : {&consts, &others}) {
      for (const mil::Operation& op : *list) *block.add_operations() = op;
    }
  }

  WeightFiles weights_;
};

TEST(WrittenPackages, SayFieldByFieldWhatApplesToolsSay) {
  const fs::path folder = fs::path(NM_SOURCE_DIR) / ".." / "shared" / "coreml_ref";
  std::error_code error;
  if (!fs::exists(folder, error)) GTEST_SKIP() << "no packages in " << folder;
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".mlpackage") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const auto package = ReadPackage(entry.path().string());
    ASSERT_TRUE(package.ok()) << package.error().message;
    const fs::path copy = fs::path(testing::TempDir()) / ("again_" + entry.path().filename().string());
    WritePackageOptions options;
    if (package->metadata.multi_function) options.default_function = package->metadata.default_function;
    const auto written = WritePackage(package->graph, copy.string(), options);
    ASSERT_TRUE(written.ok()) << written.error().message;
    const mil::Model theirs = LoadModel(entry.path().string()), ours = LoadModel(copy.string());
    EXPECT_TRUE(Normalizer(copy).Run(ours) == Normalizer(entry.path()).Run(theirs));
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

}  // namespace
}  // namespace npumoe
