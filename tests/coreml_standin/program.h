// SPDX-License-Identifier: Apache-2.0
// What the stand-in knows in plain C++: "compiled" packages, their functions, running one.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/mlpackage/mlpackage.h"

namespace npumoe::coreml_standin {

// Copies a package that can be read to a new `.mlmodelc` folder among the temporary files; its path.
Result<std::string> CompilePackage(const std::string& package_path);

// A compiled package, shared by all who hold it. Thread-safe.
class CompiledPackage {
 public:
  static Result<std::shared_ptr<CompiledPackage>> Open(const std::string& compiled_path);
  ~CompiledPackage();

  const PackageMetadata& metadata() const;
  const Graph& graph() const;

  // The function of that name, which wants a package of several; an empty name means the default.
  Result<const Function*> Find(const std::string& name) const;

  // Dense tensors in declared order. By the fast executor where all are fp16, else by the reference in fp16.
  Status Run(const Function& function, std::span<const void* const> inputs, std::span<void* const> outputs);

 private:
  struct Impl;
  explicit CompiledPackage(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace npumoe::coreml_standin
