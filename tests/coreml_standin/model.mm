// SPDX-License-Identifier: Apache-2.0
// MLModel: compiling, loading and running packages.
#include "classes.h"

#include <cstring>

#include "base/check.h"
#include "npu/strided.h"

namespace npumoe::coreml_standin {
namespace {

NSString* Text(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }

MLMultiArrayDataType DataTypeOf(ElemType elem) {
  if (elem == ElemType::kI32) return MLMultiArrayDataTypeInt32;
  return elem == ElemType::kF32 ? MLMultiArrayDataTypeFloat32 : MLMultiArrayDataTypeFloat16;
}

std::vector<ptrdiff_t> Integers(NSArray* numbers) {
  std::vector<ptrdiff_t> integers;
  for (NSNumber* number in numbers) integers.push_back([number integerValue]);
  return integers;
}

bool HasType(MLMultiArray* array, const ValueType& type) {
  const std::vector<ptrdiff_t> shape = Integers([array shape]);
  return array != nil && [array dataType] == DataTypeOf(type.elem) &&
         std::equal(shape.begin(), shape.end(), type.dims.begin(), type.dims.end(),
                    [](ptrdiff_t a, size_t b) { return a == static_cast<ptrdiff_t>(b); });
}

NSDictionary* Describe(const Function& function, const std::vector<ValueId>& ids) {
  const Knobs knobs = CurrentKnobs();
  NSMutableDictionary* const descriptions = [NSMutableDictionary dictionary];
  for (const ValueId id : ids) {
    const auto& [name, declared, constant, decoded] = function.values[id];
    if (name == knobs.hidden_feature) continue;
    ValueType type = declared;
    if (name == knobs.reshaped_feature) ++type.dims.back();
    if (name == knobs.shapeless_feature) type.dims.clear();
    if (name == knobs.retyped_feature) type.elem = type.elem == ElemType::kF32 ? ElemType::kF16 : ElemType::kF32;
    MLMultiArrayConstraint* const constraint =
        [[[MLMultiArrayConstraint alloc] initWithShape:type.dims dataType:DataTypeOf(type.elem)] autorelease];
    MLFeatureDescription* const description =
        [[[MLFeatureDescription alloc] initWithName:Text(name) constraint:constraint] autorelease];
    [descriptions setObject:description forKey:Text(name)];
  }
  return descriptions;
}

// From dense memory to an array with strides; the reverse of CopyDense.
const std::byte* Scatter(const std::byte* from, std::span<const size_t> dims, std::span<const ptrdiff_t> strides,
                         size_t elem_bytes, std::byte* to) {
  if (dims.empty()) {
    std::memcpy(to, from, elem_bytes);
    return from + elem_bytes;
  }
  for (size_t i = 0; i < dims[0]; ++i) {
    from = Scatter(from, dims.subspan(1), strides.subspan(1), elem_bytes,
                   to + static_cast<ptrdiff_t>(i * elem_bytes) * strides[0]);
  }
  return from;
}

Result<std::vector<std::byte>> Gather(const Value& input, id<MLFeatureProvider> features) {
  MLMultiArray* const array = [[features featureValueForName:Text(input.name)] multiArrayValue];
  if (!HasType(array, input.type)) {
    return MakeError(Code::kInvalidArgument, "input '{}' is not {}", input.name, input.type.ToString());
  }
  std::vector<std::byte> dense(input.type.bytes());
  CopyDense(static_cast<const std::byte*>([array standinData]), input.type.dims, Integers([array strides]),
            ElemBytes([array dataType]), dense.data());
  return dense;
}

// The array that goes out as `output`: the one offered, or one of our own.
Result<MLMultiArray*> Emit(const Value& output, const std::vector<std::byte>& dense, NSDictionary* backings) {
  const Knobs knobs = CurrentKnobs();
  MLMultiArray* array = [backings objectForKey:Text(output.name)];
  if (array != nil && !HasType(array, output.type)) {
    return MakeError(Code::kInvalidArgument, "backing of '{}' is not {}", output.name, output.type.ToString());
  }
  ValueType type = output.type;
  if (output.name == knobs.reshaped_output) type.dims.insert(type.dims.begin(), 1);
  if (array == nil || knobs.ignore_backings || knobs.ignored_backing == output.name || type != output.type) {
    array = [[[MLMultiArray alloc] initOwnedWithShape:type.dims dataType:DataTypeOf(type.elem) padding:knobs.padding]
        autorelease];
  }
  Scatter(dense.data(), type.dims, Integers([array strides]), ElemBytes([array dataType]),
          static_cast<std::byte*>([array standinData]));
  return array;
}

// An autoreleased feature provider.
Result<id> Predict(const Loaded& program, id<MLFeatureProvider> features, MLPredictionOptions* options) {
  const Function& function = *program.function;
  if ([[features featureNames] count] != function.inputs.size()) {
    return MakeError(Code::kInvalidArgument, "{} inputs, wanted {}", [[features featureNames] count],
                     function.inputs.size());
  }
  std::vector<std::vector<std::byte>> inputs, outputs;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const ValueId id : function.inputs) {
    NM_TRY_VAR(auto dense, Gather(function.values[id], features));
    inputs.push_back(std::move(dense));
    from.push_back(inputs.back().data());
  }
  for (const ValueId id : function.outputs) {
    outputs.emplace_back(function.values[id].type.bytes());
    to.push_back(outputs.back().data());
  }
  NM_TRY(program.package->Run(function, from, to));
  NSDictionary* const backings = [options outputBackings];
  WriteLog([&](Log& log) { log.n_backings += [backings count]; });
  NSMutableDictionary* const results = [NSMutableDictionary dictionary];
  for (size_t i = 0; i < outputs.size(); ++i) {
    const Value& output = function.values[function.outputs[i]];
    NM_TRY_VAR(MLMultiArray* const array, Emit(output, outputs[i], backings));
    if (output.name != CurrentKnobs().hidden_output) [results setObject:array forKey:Text(output.name)];
  }
  return id([[[MLDictionaryFeatureProvider alloc] initWithDictionary:results error:nullptr] autorelease]);
}

}  // namespace

Result<Loaded> LoadFunction(NSURL* url, MLModelConfiguration* configuration) {
  const char* const name = [[configuration functionName] UTF8String];
  const std::string function = name == nullptr ? "" : name;
  WriteLog([&](Log& log) {
    log.units = [configuration computeUnits];
    log.function = function;
  });
  Loaded loaded;
  NM_TRY_VAR(loaded.package, CompiledPackage::Open([[url path] UTF8String]));
  NM_TRY_VAR(loaded.function, loaded.package->Find(function));
  return loaded;
}

}  // namespace npumoe::coreml_standin

using npumoe::coreml_standin::Loaded;
using namespace npumoe::coreml_standin;

@implementation MLModel
NM_COUNTED
- (void)tearDown {
  delete static_cast<Loaded*>(_program);
  [_modelDescription release];
}

+ (NSURL*)compileModelAtURL:(NSURL*)modelURL error:(NSError**)error {
  const Failure failure = NextFailure(Step::kCompile);
  if (failure != Failure::kNone) {
    *error = ErrorOf(failure, "told to");
    return nil;
  }
  const auto compiled = CompilePackage([[modelURL path] UTF8String]);
  if (!compiled.ok()) {
    *error = ErrorOf(failure, compiled.error().message);
    return nil;
  }
  WriteLog([&](Log& log) { log.compiled = *compiled; });
  return [NSURL fileURLWithPath:Text(*compiled)];
}

+ (instancetype)modelWithContentsOfURL:(NSURL*)url
                         configuration:(MLModelConfiguration*)configuration
                                 error:(NSError**)error {
  const Failure failure = NextFailure(Step::kLoad);
  const auto loaded = LoadFunction(url, configuration);
  if (failure != Failure::kNone || !loaded.ok()) {
    *error = ErrorOf(failure, loaded.ok() ? "told to" : loaded.error().message);
    return nil;
  }
  MLModel* const model = [[[self alloc] init] autorelease];
  model->_program = new Loaded(*loaded);
  const npumoe::Function& function = *loaded->function;
  model->_modelDescription = [[MLModelDescription alloc] initWithInputs:Describe(function, function.inputs)
                                                                outputs:Describe(function, function.outputs)];
  return model;
}

- (MLModelDescription*)modelDescription {
  return _modelDescription;
}

- (id<MLFeatureProvider>)standinPredict:(id<MLFeatureProvider>)input
                                options:(MLPredictionOptions*)options
                                failure:(Failure)failure
                                  error:(NSError**)error {
  const auto result = Predict(*static_cast<Loaded*>(_program), input, options);
  if (failure == Failure::kNone && result.ok()) return *result;
  *error = ErrorOf(failure, result.ok() ? "told to" : result.error().message);
  return nil;
}

- (id<MLFeatureProvider>)predictionFromFeatures:(id<MLFeatureProvider>)input
                                        options:(MLPredictionOptions*)options
                                          error:(NSError**)error {
  WriteLog([](Log& log) { ++log.n_synchronous; });
  return [self standinPredict:input options:options failure:NextFailure(Step::kPredict) error:error];
}

- (void)predictionFromFeatures:(id<MLFeatureProvider>)input
                       options:(MLPredictionOptions*)options
             completionHandler:(void (^)(id<MLFeatureProvider> output, NSError* error))completionHandler {
  WriteLog([](Log& log) { ++log.n_asynchronous; });
  const Failure failure = NextFailure(Step::kPredict);
  const id features = [static_cast<id>(input) retain];
  [self retain];
  [options retain];
  auto const handler = Block_copy(completionHandler);
  RunElsewhere([self, features, options, failure, handler] {
    NSError* error = nil;
    const id result = [self standinPredict:features options:options failure:failure error:&error];
    handler(result, error);
    Block_release(handler);
    [options release];
    [features release];
    [self release];
  });
}
@end
