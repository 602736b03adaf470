// SPDX-License-Identifier: Apache-2.0
// Core ML through Apple's framework. References are counted by hand (-fno-objc-arc), so that the stand-in of the tests,
// whose runtime has nothing else, runs these very lines.
#include "npu/coreml.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <utility>

#include "base/check.h"
#include "npu/strided.h"

// After the C++ headers: GNUstep's Foundation defines macros with one-letter names.
#import <CoreML/CoreML.h>
#import <Foundation/Foundation.h>

namespace npumoe {
namespace {

// Owns one reference to an Objective-C object, or to none.
template <typename T>
class Ref {
 public:
  Ref() = default;
  // Takes over the reference that alloc, new or copy gave.
  static Ref Adopt(T object) {
    Ref ref;
    ref.object_ = object;
    return ref;
  }
  static Ref Share(T object) { return Adopt([object retain]); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nil)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { [object_ release]; }
  T get() const { return object_; }

 private:
  T object_ = nil;
};

NSString* Text(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }
NSURL* Folder(const std::string& path) { return [NSURL fileURLWithPath:Text(path) isDirectory:YES]; }

// In one line, as all messages are.
std::string Plain(NSString* text) {
  const char* const utf8 = [text UTF8String];
  std::string plain = utf8 == nullptr ? "" : utf8;
  std::replace_if(plain.begin(), plain.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
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
Result<Ref<id>> Await(const std::string& subject, const Start& start) {
  // Shared with the handler, which outlives this call when `start` raises. It captures C++ values only.
  const auto promise = std::make_shared<std::promise<Result<Ref<id>>>>();
  auto future = promise->get_future();
  const std::string about = subject;
  start(^(id object, NSError* error) {
    if (object == nil) {
      promise->set_value(DeviceError(about, error));
    } else {
      promise->set_value(Ref<id>::Share(object));
    }
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

// "65552[1, 16]": for messages, with the number that Core ML gives the type.
std::string Shown(MLMultiArrayDataType type, NSArray<NSNumber*>* shape) {
  return fmt::format("type {}[{}]", static_cast<long>(type), fmt::join(Integers(shape), ", "));
}

// An input or output with what Core ML wants to know of it, made once.
struct Port {
  std::string name;
  size_t bytes = 0, elem_bytes = 0;
  std::vector<size_t> dims;
  MLMultiArrayDataType type{};
  Ref<NSString*> key;
  Ref<NSArray<NSNumber*>*> shape, strides;  // strides in elements, dense

  bool Fits(MLMultiArrayDataType other_type, NSArray<NSNumber*>* other_shape) const {
    return other_type == type && [other_shape isEqualToArray:shape.get()];
  }
};

Result<std::vector<Port>> MakePorts(const std::string& subject, const std::vector<CoreMlFunction::Tensor>& tensors) {
  std::vector<Port> ports;
  for (const auto& [name, type] : tensors) {
    Port port{name, type.bytes(), BitsOf(type.elem) / 8, type.dims, {}, {}, {}, {}};
    switch (type.elem) {
      case ElemType::kF16: port.type = MLMultiArrayDataTypeFloat16; break;
      case ElemType::kF32: port.type = MLMultiArrayDataTypeFloat32; break;
      case ElemType::kI32: port.type = MLMultiArrayDataTypeInt32; break;
      default:
        return MakeError(Code::kInvalidArgument, "{}: '{}' is {}, wanted fp16, fp32 or int32", subject, name,
                         type.ToString());
    }
    port.key = Ref<NSString*>::Share(Text(name));
    port.shape = Ref<NSArray<NSNumber*>*>::Share(Numbers(type.dims));
    port.strides = Ref<NSArray<NSNumber*>*>::Share(Numbers(DenseStrides(type.dims)));
    ports.push_back(std::move(port));
  }
  return ports;
}

// The loaded model says itself what it takes and gives; a stale folder must not be mistaken for what was compiled.
Status CheckPorts(const std::string& subject, const char* what, const std::vector<Port>& ports,
                  NSDictionary<NSString*, MLFeatureDescription*>* descriptions) {
  if ([descriptions count] != ports.size()) {
    return MakeError(Code::kDevice, "{}: has {} {}s, wanted {}", subject, [descriptions count], what, ports.size());
  }
  for (const Port& port : ports) {
    MLMultiArrayConstraint* const array = [[descriptions objectForKey:port.key.get()] multiArrayConstraint];
    if (array == nil) return MakeError(Code::kDevice, "{}: has no {} array '{}'", subject, what, port.name);
    if (port.Fits([array dataType], [array shape])) continue;
    return MakeError(Code::kDevice, "{}: {} '{}' is {}, wanted {}", subject, what, port.name,
                     Shown([array dataType], [array shape]), Shown(port.type, port.shape.get()));
  }
  return Ok{};
}

Result<Ref<MLModelConfiguration*>> Configure(const std::string& subject, const std::string& function,
                                             ComputeUnits units) {
  auto configuration = Ref<MLModelConfiguration*>::Adopt([[MLModelConfiguration alloc] init]);
  switch (units) {
    case ComputeUnits::kCpuAndNeuralEngine:
      [configuration.get() setComputeUnits:MLComputeUnitsCPUAndNeuralEngine];
      break;
    case ComputeUnits::kCpuAndGpu: [configuration.get() setComputeUnits:MLComputeUnitsCPUAndGPU]; break;
    case ComputeUnits::kCpuOnly: [configuration.get() setComputeUnits:MLComputeUnitsCPUOnly]; break;
  }
  if (function.empty()) return configuration;
  if (@available(macOS 15.0, *)) {
    [configuration.get() setFunctionName:Text(function)];
    return configuration;
  }
  return MakeError(Code::kUnsupported, "{}: functions are loaded by name from macOS 15 on", subject);
}

// Core ML's view of memory that stays the caller's.
Result<Ref<MLMultiArray*>> Wrap(const std::string& subject, const Port& port, const void* data) {
  NSError* error = nil;
  auto array = Ref<MLMultiArray*>::Adopt([[MLMultiArray alloc] initWithDataPointer:const_cast<void*>(data)
                                                                             shape:port.shape.get()
                                                                          dataType:port.type
                                                                           strides:port.strides.get()
                                                                       deallocator:nil
                                                                             error:&error]);
  if (array.get() == nil) return DeviceError(fmt::format("{}: '{}'", subject, port.name), error);
  return array;
}

class DeviceModel final : public CoreMlModel {
 public:
  DeviceModel(std::string subject, MLModel* model, std::vector<Port> inputs, std::vector<Port> outputs)
      : subject_(std::move(subject)),
        model_(Ref<MLModel*>::Share(model)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)) {}

  // Core ML tidies up in autoreleased objects of its own.
  ~DeviceModel() override {
    @autoreleasepool {
      model_ = {};
    }
  }

  Status Run(std::span<const CoreMlInput> inputs, std::span<const CoreMlOutput> outputs) override {
    NM_TRY(CheckSizes("input", inputs_, inputs));
    NM_TRY(CheckSizes("output", outputs_, outputs));
    return Guarded(subject_, [&]() -> Status {
      NSMutableDictionary* const arrays = [NSMutableDictionary dictionaryWithCapacity:inputs.size()];
      for (size_t i = 0; i < inputs.size(); ++i) {
        NM_TRY_VAR(const auto array, Wrap(subject_, inputs_[i], inputs[i].data));
        [arrays setObject:[MLFeatureValue featureValueWithMultiArray:array.get()] forKey:inputs_[i].key.get()];
      }
      NSMutableDictionary* const backings = [NSMutableDictionary dictionaryWithCapacity:outputs.size()];
      for (size_t i = 0; i < outputs.size(); ++i) {
        NM_TRY_VAR(const auto array, Wrap(subject_, outputs_[i], outputs[i].data));
        [backings setObject:array.get() forKey:outputs_[i].key.get()];
      }
      NSError* error = nil;
      const auto features = Ref<MLDictionaryFeatureProvider*>::Adopt(
          [[MLDictionaryFeatureProvider alloc] initWithDictionary:arrays error:&error]);
      if (features.get() == nil) return DeviceError(subject_, error);
      const auto options = Ref<MLPredictionOptions*>::Adopt([[MLPredictionOptions alloc] init]);
      [options.get() setOutputBackings:backings];
      NM_TRY_VAR(const auto result, Predict(features.get(), options.get()));
      for (size_t i = 0; i < outputs.size(); ++i) NM_TRY(Fetch(result.get(), outputs_[i], outputs[i].data));
      return Ok{};
    });
  }

  OutputCounts output_counts() const override { return counts_; }

 private:
  template <typename Tensor>
  Status CheckSizes(const char* what, const std::vector<Port>& ports, std::span<const Tensor> tensors) const {
    if (tensors.size() != ports.size()) {
      return MakeError(Code::kInvalidArgument, "{}: {} {}s given, wanted {}", subject_, tensors.size(), what,
                       ports.size());
    }
    for (size_t i = 0; i < ports.size(); ++i) {
      if (tensors[i].size_bytes == ports[i].bytes) continue;
      return MakeError(Code::kInvalidArgument, "{}: {} '{}' has {} bytes, wanted {}", subject_, what, ports[i].name,
                       tensors[i].size_bytes, ports[i].bytes);
    }
    return Ok{};
  }

  Result<Ref<id>> Predict(id<MLFeatureProvider> features, MLPredictionOptions* options) const {
    MLModel* const model = model_.get();
    if (@available(macOS 14.0, *)) {
      return Await(subject_, [&](void (^handler)(id, NSError*)) {
        [model predictionFromFeatures:features options:options completionHandler:handler];
      });
    }
    NSError* error = nil;
    const id result = [model predictionFromFeatures:features options:options error:&error];
    if (result == nil) return DeviceError(subject_, error);
    return Ref<id>::Share(result);
  }

  // Sees to it that an output lies where the caller wants it.
  Status Fetch(id<MLFeatureProvider> result, const Port& port, void* to) {
    MLMultiArray* const array = [[result featureValueForName:port.key.get()] multiArrayValue];
    if (array == nil) return MakeError(Code::kDevice, "{}: gave no output '{}'", subject_, port.name);
    if (!port.Fits([array dataType], [array shape])) {
      return MakeError(Code::kDevice, "{}: gave output '{}' as {}, wanted {}", subject_, port.name,
                       Shown([array dataType], [array shape]), Shown(port.type, port.shape.get()));
    }
    const std::vector<ptrdiff_t> strides = Integers([array strides]);
    const std::vector<ptrdiff_t>* const steps = &strides;
    const Port* const wanted = &port;
    OutputCounts* const counts = &counts_;
    [array getBytesWithHandler:^(const void* bytes, NSInteger) {
      if (bytes == to && IsDense(wanted->dims, *steps)) {
        ++counts->in_place;
        return;
      }
      CopyDense(static_cast<const std::byte*>(bytes), wanted->dims, *steps, wanted->elem_bytes,
                static_cast<std::byte*>(to));
      ++counts->copied;
    }];
    return Ok{};
  }

  std::string subject_;
  Ref<MLModel*> model_;
  std::vector<Port> inputs_, outputs_;
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
  NSDictionary<NSString*, MLModelStructureProgramFunction*>* const functions =
      [[[plan modelStructure] program] functions];
  NSString* const key = function.empty() ? [[functions allKeys] firstObject] : Text(function);
  MLModelStructureProgramFunction* const found = key == nil ? nil : [functions objectForKey:key];
  if (found == nil) return MakeError(Code::kDevice, "{}: the plan has no such function", subject);
  std::vector<OpPlacement> placements;
  for (MLModelStructureProgramOperation* op in [[found block] operations]) placements.push_back(PlaceOp(plan, op));
  return placements;
}

std::string Subject(const char* what, const std::string& path, std::string_view function) {
  return function.empty() ? fmt::format("Core ML: {} '{}'", what, path)
                          : fmt::format("Core ML: {} '{}', function '{}'", what, path, function);
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
  const std::string subject = Subject("compiling", package_path, "");
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
  const std::string subject = Subject("program", compiled_path, function.name);
  return Guarded(subject, [&]() -> Result<std::unique_ptr<CoreMlModel>> {
    NM_TRY_VAR(auto inputs, MakePorts(subject, function.inputs));
    NM_TRY_VAR(auto outputs, MakePorts(subject, function.outputs));
    NM_TRY_VAR(const auto configuration, Configure(subject, function.name, units));
    NSError* error = nil;
    MLModel* const model = [MLModel modelWithContentsOfURL:Folder(compiled_path)
                                             configuration:configuration.get()
                                                     error:&error];
    if (model == nil) return DeviceError(subject, error);
    NM_TRY(CheckPorts(subject, "input", inputs, [[model modelDescription] inputDescriptionsByName]));
    NM_TRY(CheckPorts(subject, "output", outputs, [[model modelDescription] outputDescriptionsByName]));
    return std::unique_ptr<CoreMlModel>(new DeviceModel(subject, model, std::move(inputs), std::move(outputs)));
  });
}

Result<std::vector<OpPlacement>> PlaceCoreMl(const std::string& compiled_path, std::string_view function,
                                             ComputeUnits units) {
  const std::string subject = Subject("placement of", compiled_path, function);
  if (@available(macOS 14.4, *)) {
    return Guarded(subject, [&]() -> Result<std::vector<OpPlacement>> {
      NM_TRY_VAR(const auto configuration, Configure(subject, std::string(function), units));
      return PlaceOps(subject, compiled_path, std::string(function), configuration.get());
    });
  }
  return MakeError(Code::kUnsupported, "{}: Core ML tells it from macOS 14.4 on", subject);
}

}  // namespace npumoe
