// SPDX-License-Identifier: Apache-2.0
// Core ML through Apple's framework. References are counted by hand (-fno-objc-arc), so that the stand-in of the tests,
// whose runtime has nothing else, runs these very lines.
#include "npu/coreml.h"

#include <algorithm>
#include <future>
#include <memory>
#include <utility>

#include "base/check.h"
#include "npu/coreml_tensors.h"
#include "npu/strided.h"

// After the C++ headers: GNUstep's Foundation defines macros with one-letter names.
#import <CoreML/CoreML.h>
#import <Foundation/Foundation.h>

namespace npumoe {
namespace {

// Keeps an object beyond the autorelease pool. Everything else lives and dies with the pool of one call.
class Kept {
 public:
  explicit Kept(id object = nil) : object_([object retain]) {}
  Kept(Kept&& other) noexcept : object_(std::exchange(other.object_, nil)) {}
  Kept& operator=(Kept&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Kept() { [object_ release]; }
  id get() const { return object_; }

 private:
  id object_;
};

NSString* Text(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }
NSURL* Folder(const std::string& path) { return [NSURL fileURLWithPath:Text(path) isDirectory:YES]; }

// In one line, as all messages are.
std::string Plain(NSString* text) {
  const char* const utf8 = [text UTF8String];
  std::string plain = utf8 == nullptr ? "" : utf8;
  std::replace_if(
      plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return plain;
}

// An error's own words and those of what caused it.
std::string Words(NSError* error) {
  if (error == nil) return "no reason given";
  std::string words = fmt::format("{} ({} {})", Plain([error localizedDescription]), Plain([error domain]),
                                  static_cast<long>([error code]));
  NSError* const cause = [[error userInfo] objectForKey:NSUnderlyingErrorKey];
  return cause == nil ? words : words + ": " + Words(cause);
}

Error DeviceError(const std::string& subject, NSError* error) {
  return MakeError(Code::kDevice, "{}: {}", subject, Words(error));
}

// Runs `work`, which returns a Status or Result, in an autorelease pool; what Core ML raises becomes an error.
template <typename Work>
auto Guarded(const std::string& subject, const Work& work) -> decltype(work()) {
  @autoreleasepool {
    @try {
      return work();
    } @catch (NSException* exception) {
      return MakeError(Code::kDevice, "{}: raised {}: {}", subject, Plain([exception name]), Plain([exception reason]));
    }
  }
}

// Calls start(handler), which lets Core ML work elsewhere, and waits for the object that it hands to the handler.
template <typename Start>
Result<Kept> Await(const std::string& subject, const Start& start) {
  // Shared with the handler, which outlives this call when `start` raises. It captures C++ values only.
  const auto promise = std::make_shared<std::promise<Result<Kept>>>();
  auto future = promise->get_future();
  const std::string about = subject;
  start(^(id object, NSError* error) {
    promise->set_value(object == nil ? Result<Kept>(DeviceError(about, error)) : Kept(object));
  });
  return future.get();
}

NSArray<NSNumber*>* Numbers(std::span<const size_t> values) {
  NSMutableArray<NSNumber*>* const numbers = [NSMutableArray arrayWithCapacity:values.size()];
  for (const size_t value : values) [numbers addObject:[NSNumber numberWithUnsignedLong:value]];
  return numbers;
}

std::vector<ptrdiff_t> Integers(NSArray<NSNumber*>* numbers) {
  std::vector<ptrdiff_t> integers;
  for (NSNumber* number in numbers) integers.push_back([number integerValue]);
  return integers;
}

MLMultiArrayDataType DataTypeOf(const ValueType& type) {
  if (type.elem == ElemType::kI32) return MLMultiArrayDataTypeInt32;
  return type.elem == ElemType::kF32 ? MLMultiArrayDataTypeFloat32 : MLMultiArrayDataTypeFloat16;
}

// Whether what Core ML declares or gives is of a tensor's type.
Status CheckArray(const std::string& subject, const CoreMlFunction::Tensor& tensor, MLMultiArrayDataType type,
                  NSArray<NSNumber*>* shape) {
  if (type == DataTypeOf(tensor.type) && [shape isEqualToArray:Numbers(tensor.type.dims)]) return Ok{};
  // Bits and kind are parts of Core ML's number of a type.
  return MakeError(Code::kDevice, "{} '{}' is {}{}[{}], wanted {}", subject, tensor.name,
                   (type & MLMultiArrayDataTypeInt32 & ~0xff) != 0 ? "int" : "fp", type & 0xff,
                   fmt::join(Integers(shape), ", "), tensor.type.ToString());
}

// The loaded model says itself what it takes and gives; a stale folder must not be mistaken for what was compiled.
Status CheckDescriptions(const std::string& subject, const std::vector<CoreMlFunction::Tensor>& tensors,
                         NSDictionary<NSString*, MLFeatureDescription*>* descriptions) {
  if ([descriptions count] != tensors.size()) {
    return MakeError(Code::kDevice, "{}: {} of them, wanted {}", subject, [descriptions count], tensors.size());
  }
  for (const auto& tensor : tensors) {
    MLMultiArrayConstraint* const array = [[descriptions objectForKey:Text(tensor.name)] multiArrayConstraint];
    if (array == nil) return MakeError(Code::kDevice, "{}: no array '{}'", subject, tensor.name);
    // A package need not say the shapes of outputs; what a run gives is looked at anyway.
    NSArray<NSNumber*>* const shape = [[array shape] count] > 0 ? [array shape] : Numbers(tensor.type.dims);
    NM_TRY(CheckArray(subject + ":", tensor, [array dataType], shape));
  }
  return Ok{};
}

Result<MLModelConfiguration*> Configure(const std::string& subject, const std::string& function, ComputeUnits units) {
  MLModelConfiguration* const configuration = [[[MLModelConfiguration alloc] init] autorelease];
  [configuration setComputeUnits:units == ComputeUnits::kCpuOnly     ? MLComputeUnitsCPUOnly
                                 : units == ComputeUnits::kCpuAndGpu ? MLComputeUnitsCPUAndGPU
                                                                     : MLComputeUnitsCPUAndNeuralEngine];
  if (function.empty()) return configuration;
  if (@available(macOS 15.0, *)) {
    [configuration setFunctionName:Text(function)];
    return configuration;
  }
  return MakeError(Code::kUnsupported, "{}: functions are loaded by name from macOS 15 on", subject);
}

// Core ML's view of memory that stays the caller's.
Result<MLMultiArray*> Wrap(const std::string& subject, const CoreMlFunction::Tensor& tensor, const void* data) {
  NSError* error = nil;
  MLMultiArray* const array = [[[MLMultiArray alloc] initWithDataPointer:const_cast<void*>(data)
                                                                   shape:Numbers(tensor.type.dims)
                                                                dataType:DataTypeOf(tensor.type)
                                                                 strides:Numbers(DenseStrides(tensor.type.dims))
                                                             deallocator:nil
                                                                   error:&error] autorelease];
  if (array == nil) return DeviceError(fmt::format("{}: '{}'", subject, tensor.name), error);
  return array;
}

class DeviceModel final : public CoreMlModel {
 public:
  DeviceModel(std::string subject, MLModel* model, const CoreMlFunction& function)
      : subject_(std::move(subject)), model_(model), function_(function) {}

  // Core ML tidies up in autoreleased objects of its own.
  ~DeviceModel() override {
    @autoreleasepool {
      model_ = Kept();
    }
  }

  Status Run(std::span<const CoreMlInput> inputs, std::span<const CoreMlOutput> outputs) override {
    NM_TRY(CheckSizes(subject_, function_, inputs, outputs));
    return Guarded(subject_, [&]() -> Status {
      NSMutableDictionary* const arrays = [NSMutableDictionary dictionary];
      for (size_t i = 0; i < inputs.size(); ++i) {
        NM_TRY_VAR(MLMultiArray* const array, Wrap(subject_, function_.inputs[i], inputs[i].data));
        [arrays setObject:[MLFeatureValue featureValueWithMultiArray:array] forKey:Text(function_.inputs[i].name)];
      }
      NSMutableDictionary* const backings = [NSMutableDictionary dictionary];
      for (size_t i = 0; i < outputs.size(); ++i) {
        NM_TRY_VAR(MLMultiArray* const array, Wrap(subject_, function_.outputs[i], outputs[i].data));
        [backings setObject:array forKey:Text(function_.outputs[i].name)];
      }
      NSError* error = nil;
      MLDictionaryFeatureProvider* const features =
          [[[MLDictionaryFeatureProvider alloc] initWithDictionary:arrays error:&error] autorelease];
      if (features == nil) return DeviceError(subject_, error);
      MLPredictionOptions* const options = [[[MLPredictionOptions alloc] init] autorelease];
      [options setOutputBackings:backings];
      NM_TRY_VAR(const auto result, Predict(features, options));
      for (size_t i = 0; i < outputs.size(); ++i) NM_TRY(Fetch(result.get(), function_.outputs[i], outputs[i].data));
      return Ok{};
    });
  }

  OutputCounts output_counts() const override { return counts_; }

 private:
  Result<Kept> Predict(id<MLFeatureProvider> features, MLPredictionOptions* options) const {
    MLModel* const model = model_.get();
    if (@available(macOS 14.0, *)) {
      return Await(subject_, [&](void (^handler)(id, NSError*)) {
        [model predictionFromFeatures:features options:options completionHandler:handler];
      });
    }
    NSError* error = nil;
    const id result = [model predictionFromFeatures:features options:options error:&error];
    if (result == nil) return DeviceError(subject_, error);
    return Kept(result);
  }

  // Sees to it that an output lies where the caller wants it.
  Status Fetch(id<MLFeatureProvider> result, const CoreMlFunction::Tensor& output, void* to) {
    MLMultiArray* const array = [[result featureValueForName:Text(output.name)] multiArrayValue];
    if (array == nil) return MakeError(Code::kDevice, "{}: gave no output '{}'", subject_, output.name);
    NM_TRY(CheckArray(subject_ + ": output", output, [array dataType], [array shape]));
    const std::vector<ptrdiff_t> strides = Integers([array strides]);
    // The bytes are there for the block only, which copies what it captures: addresses, of what outlives it.
    const std::vector<ptrdiff_t>* const steps = &strides;
    const std::vector<size_t>* const dims = &output.type.dims;
    OutputCounts* const counts = &counts_;
    const size_t elem_bytes = BitsOf(output.type.elem) / 8;
    [array getBytesWithHandler:^(const void* bytes, NSInteger) {
      const bool in_place = bytes == to;
      ++(in_place ? counts->in_place : counts->copied);
      if (!in_place)
        CopyDense(static_cast<const std::byte*>(bytes), *dims, *steps, elem_bytes, static_cast<std::byte*>(to));
    }];
    return Ok{};
  }

  std::string subject_;
  Kept model_;
  CoreMlFunction function_;
  OutputCounts counts_;
};

API_AVAILABLE(macos(14.0)) std::string DeviceName(id device) {
  if ([device isKindOfClass:[MLNeuralEngineComputeDevice class]]) return "NPU";
  if ([device isKindOfClass:[MLGPUComputeDevice class]]) return "GPU";
  return [device isKindOfClass:[MLCPUComputeDevice class]] ? "CPU" : "";
}

API_AVAILABLE(macos(14.4)) OpPlacement PlaceOp(MLComputePlan* plan, MLModelStructureProgramOperation* op) {
  OpPlacement placement;
  const std::string name = Plain([op operatorName]);  // "ios18.conv" in a compiled package
  placement.op = name.substr(name.rfind('.') + 1);
  placement.output = Plain([[[op outputs] firstObject] name]);
  MLComputePlanDeviceUsage* const usage = [plan computeDeviceUsageForMLProgramOperation:op];
  placement.preferred = DeviceName([usage preferredComputeDevice]);
  for (id device in [usage supportedComputeDevices]) placement.npu_supported |= DeviceName(device) == "NPU";
  placement.cost = [[plan estimatedCostOfMLProgramOperation:op] weight];
  return placement;
}

API_AVAILABLE(macos(14.4))
Result<std::vector<OpPlacement>> PlaceOps(const std::string& subject, const std::string& compiled_path,
                                          const std::string& function, MLModelConfiguration* configuration) {
  NM_TRY_VAR(const auto loaded, Await(subject, [&](void (^handler)(id, NSError*)) {
               [MLComputePlan loadContentsOfURL:Folder(compiled_path)
                                  configuration:configuration
                              completionHandler:handler];
             }));
  MLComputePlan* const plan = loaded.get();
  // The only function of a package without named ones is "main".
  MLModelStructureProgramFunction* const found =
      [[[[plan modelStructure] program] functions] objectForKey:Text(function.empty() ? "main" : function)];
  if (found == nil) return MakeError(Code::kDevice, "{}: the plan has no such function", subject);
  std::vector<OpPlacement> placements;
  for (MLModelStructureProgramOperation* op in [[found block] operations]) placements.push_back(PlaceOp(plan, op));
  return placements;
}

}  // namespace

CoreMlSystem DescribeCoreMl() {
  @autoreleasepool {
    CoreMlSystem system{true, false, false, Plain([[NSProcessInfo processInfo] operatingSystemVersionString])};
    if (@available(macOS 15.0, *)) system.has_functions = true;
    if (@available(macOS 14.4, *)) system.has_placement = true;
    return system;
  }
}

Status CompileCoreMl(const std::string& package_path, const std::string& compiled_path) {
  const std::string subject = fmt::format("Core ML: compiling '{}'", package_path);
  return Guarded(subject, [&]() -> Status {
    NSFileManager* const files = [NSFileManager defaultManager];
    if ([files fileExistsAtPath:Text(compiled_path)]) {
      return MakeError(Code::kIo, "{}: '{}' exists, wanted a free path", subject, compiled_path);
    }
    NSError* error = nil;
    NSURL* const made = [MLModel compileModelAtURL:Folder(package_path) error:&error];
    if (made == nil) return DeviceError(subject, error);
    if ([files moveItemAtURL:made toURL:Folder(compiled_path) error:&error]) return Ok{};
    [files removeItemAtURL:made error:nullptr];
    return MakeError(Code::kIo, "{}: cannot be moved to '{}': {}", subject, compiled_path, Words(error));
  });
}

Result<std::unique_ptr<CoreMlModel>> LoadCoreMl(const std::string& compiled_path, const CoreMlFunction& function,
                                                ComputeUnits units) {
  const std::string subject = CoreMlSubject(compiled_path, function.name);
  return Guarded(subject, [&]() -> Result<std::unique_ptr<CoreMlModel>> {
    NM_TRY(CheckTypes(subject, function));
    NM_TRY_VAR(MLModelConfiguration* const configuration, Configure(subject, function.name, units));
    NSError* error = nil;
    MLModel* const model = [MLModel modelWithContentsOfURL:Folder(compiled_path)
                                             configuration:configuration
                                                     error:&error];
    if (model == nil) return DeviceError(subject, error);
    MLModelDescription* const description = [model modelDescription];
    NM_TRY(CheckDescriptions(subject + ", inputs", function.inputs, [description inputDescriptionsByName]));
    NM_TRY(CheckDescriptions(subject + ", outputs", function.outputs, [description outputDescriptionsByName]));
    return std::unique_ptr<CoreMlModel>(new DeviceModel(subject, model, function));
  });
}

Result<std::vector<OpPlacement>> PlaceCoreMl(const std::string& compiled_path, std::string_view function,
                                             ComputeUnits units) {
  const std::string subject = CoreMlSubject(compiled_path, function);
  if (@available(macOS 14.4, *)) {
    return Guarded(subject, [&]() -> Result<std::vector<OpPlacement>> {
      NM_TRY_VAR(MLModelConfiguration* const configuration, Configure(subject, std::string(function), units));
      return PlaceOps(subject, compiled_path, std::string(function), configuration);
    });
  }
  return MakeError(Code::kUnsupported, "{}: ops are placed beforehand from macOS 14.4 on", subject);
}

}  // namespace npumoe
