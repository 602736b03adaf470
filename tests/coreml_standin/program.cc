// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/check.h"
#include "base/thread_pool.h"
#include "graph/reference.h"
#include "npu/fast_executor.h"
#include "tensor/float16.h"

namespace npumoe::coreml_standin {
namespace {

namespace fs = std::filesystem;

Array Unpack(const ValueType& type, const void* data) {
  Array array{type, {}, {}};
  const size_t n = type.elems();
  if (type.elem == ElemType::kI32) {
    const auto* const values = static_cast<const int32_t*>(data);
    array.ints.assign(values, values + n);
  } else if (type.elem == ElemType::kF32) {
    const auto* const values = static_cast<const float*>(data);
    array.floats.assign(values, values + n);
  } else {
    const auto* const values = static_cast<const uint16_t*>(data);
    for (size_t i = 0; i < n; ++i) array.floats.push_back(F16ToF32(values[i]));
  }
  return array;
}

void Pack(const Array& array, void* data) {
  if (array.type.elem == ElemType::kI32) {
    std::ranges::transform(array.ints, static_cast<int32_t*>(data), [](int64_t v) { return static_cast<int32_t>(v); });
  } else if (array.type.elem == ElemType::kF32) {
    std::ranges::copy(array.floats, static_cast<float*>(data));
  } else {
    std::ranges::transform(array.floats, static_cast<uint16_t*>(data), F32ToF16);
  }
}

bool AllHalf(const Function& function) {
  const auto half = [&](ValueId id) { return function.values[id].type.elem == ElemType::kF16; };
  return std::ranges::all_of(function.inputs, half) && std::ranges::all_of(function.outputs, half);
}

}  // namespace

struct CompiledPackage::Impl {
  Package package;
  ThreadPool pool{1};
  FastShared shared{pool};
  std::unique_ptr<FastExecutor> executor;  // null when the graph is none for it
  std::mutex mutex;                        // one run at a time
};

CompiledPackage::CompiledPackage(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CompiledPackage::~CompiledPackage() = default;
const PackageMetadata& CompiledPackage::metadata() const { return impl_->package.metadata; }
const Graph& CompiledPackage::graph() const { return impl_->package.graph; }

Result<std::string> CompilePackage(const std::string& package_path) {
  NM_TRY(ReadPackage(package_path));
  std::string folder = (fs::temp_directory_path() / "npumoe_standin_XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) return MakeError(Code::kIo, "{}: cannot be made", folder);
  const fs::path to = folder + ".mlmodelc";
  std::error_code error;
  fs::rename(folder, to, error);
  if (!error) fs::copy(package_path, to, fs::copy_options::recursive, error);
  if (error) return MakeError(Code::kIo, "{}: {}", to.string(), error.message());
  return to.string();
}

Result<std::shared_ptr<CompiledPackage>> CompiledPackage::Open(const std::string& compiled_path) {
  if (fs::path(compiled_path).extension() != ".mlmodelc") {
    return MakeError(Code::kInvalidArgument, "{}: not a compiled package", compiled_path);
  }
  // Functions of one package are loaded one by one; the weights are there once. A folder that was made anew is another.
  struct stat status {};
  ::stat((compiled_path + "/Manifest.json").c_str(), &status);
  const auto key =
      fmt::format("{} {} {}.{}", compiled_path, status.st_ino, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<CompiledPackage>> opened;
  const std::lock_guard lock(mutex);
  if (auto held = opened[key].lock()) return held;
  auto impl = std::make_unique<Impl>();
  NM_TRY_VAR(impl->package, ReadPackage(compiled_path));
  auto executor = FastExecutor::Make(impl->package.graph, impl->shared);
  if (executor.ok()) impl->executor = *std::move(executor);
  std::shared_ptr<CompiledPackage> made(new CompiledPackage(std::move(impl)));
  opened[key] = made;
  return made;
}

Result<const Function*> CompiledPackage::Find(const std::string& name) const {
  if (!name.empty() && !metadata().multi_function) {
    return MakeError(Code::kInvalidArgument, "function name '{}' given for a package without named functions", name);
  }
  const Function* const function = graph().Find(name.empty() ? metadata().default_function : name);
  if (function == nullptr) return MakeError(Code::kNotFound, "no function '{}'", name);
  return function;
}

Status CompiledPackage::Run(const Function& function, std::span<const void* const> inputs,
                            std::span<void* const> outputs) {
  if (impl_->executor != nullptr && AllHalf(function)) {
    std::vector<TensorRef> from;
    std::vector<MutableTensorRef> to;
    for (size_t i = 0; i < inputs.size(); ++i) {
      from.push_back({static_cast<const uint16_t*>(inputs[i]), function.values[function.inputs[i]].type.elems()});
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      to.push_back({static_cast<uint16_t*>(outputs[i]), function.values[function.outputs[i]].type.elems()});
    }
    const std::lock_guard lock(impl_->mutex);
    return impl_->executor->Run(function, from, to);
  }
  std::vector<Array> arrays;
  for (size_t i = 0; i < inputs.size(); ++i) {
    arrays.push_back(Unpack(function.values[function.inputs[i]].type, inputs[i]));
  }
  NM_TRY_VAR(const auto results, RunReference(graph(), function, arrays, Rounding::kF16));
  for (size_t i = 0; i < outputs.size(); ++i) Pack(results[i], outputs[i]);
  return Ok{};
}

}  // namespace npumoe::coreml_standin
