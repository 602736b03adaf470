// SPDX-License-Identifier: Apache-2.0
// Graphs as Core ML packages (`.mlpackage` folders), written for and read from Apple's tools.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace npumoe {

struct PackageMetadata {
  int specification_version = 0;  // 6 = macOS 12 ... 10 = macOS 26
  std::string opset;              // "CoreML8"
  bool multi_function = false;    // functions are chosen by name; false: one, "main"
  std::string default_function;
  std::string author, license, version, short_description;
  std::map<std::string, std::string> user_defined;
};

struct WritePackageOptions {
  std::string default_function;                     // empty = the first; only where there are functions to choose from
  std::map<std::string, std::string> user_defined;  // shown by Apple's tools
  // A key of `user_defined` that gets the weight file's length, so that a cut file can be told without the graph; empty:
  // none.
  std::string weight_bytes_key;
};

struct WrittenPackage {
  int specification_version = 0;
  std::string opset;
  uint64_t model_bytes = 0, weight_bytes = 0;
};

// Writes the folder `path`, which must end in .mlpackage. The same graph and options give the same bytes. A package
// that is already there is replaced; on failure it stays, and nothing else is left. Opset and version are the lowest
// that hold the graph. Fails with kInvalidArgument for an invalid graph or path, kUnsupported for what no package
// holds, kIo.
Result<WrittenPackage> WritePackage(const Graph& graph, const std::string& path,
                                    const WritePackageOptions& options = {});

struct Package {
  PackageMetadata metadata;
  Graph graph;
};

// A valid graph of what WritePackage or Apple's tools wrote. Parameters that the program leaves out are bound to their
// defaults. kCorruptFile for broken packages; kUnsupported, with the name of the thing, for what graphs do not have:
// states, flexible shapes, other ops.
Result<Package> ReadPackage(const std::string& path);

// The same from a model file's bytes and one weight file's bytes in memory, whatever its name. `subject` begins
// messages.
Result<Package> ParsePackage(std::span<const std::byte> model, std::span<const std::byte> weights,
                             std::string_view subject);

// What a package holds, also one that ReadPackage refuses.
struct PackageFunction {
  struct Feature {
    std::string name, type;  // "fp16[1, 64, 1, 32]"; "?" for a flexible dimension
  };
  std::string name;
  std::vector<Feature> inputs, outputs, states;
  std::map<std::string, uint64_t> ops;  // by MIL name, constants aside
};
struct PackageSummary {
  PackageMetadata metadata;
  std::vector<PackageFunction> functions;
  uint64_t model_bytes = 0, weight_file_bytes = 0;
};
Result<PackageSummary> SummarizePackage(const std::string& path);

// Whether the path looks like a package: a folder named *.mlpackage or one with a Manifest.json of one.
bool IsPackagePath(const std::string& path);

}  // namespace npumoe
