// SPDX-License-Identifier: Apache-2.0
// Core ML's containers: arrays, features, descriptions, options.
#include "classes.h"

#include <cstdlib>
#include <vector>

using npumoe::coreml_standin::ErrorOf;
using npumoe::coreml_standin::Failure;
using npumoe::coreml_standin::NextFailure;
using npumoe::coreml_standin::Step;

namespace {

NSArray* Numbers(const std::vector<size_t>& values) {
  NSMutableArray* const numbers = [NSMutableArray array];
  for (const size_t value : values) [numbers addObject:[NSNumber numberWithUnsignedLong:value]];
  return numbers;
}

}  // namespace

@implementation MLMultiArray
NM_COUNTED
- (void)tearDown {
  if (_deallocator != nil) _deallocator(_data);
  Block_release(_deallocator);
  [_shape release];
  [_strides release];
}

- (instancetype)initWithDataPointer:(void*)dataPointer
                              shape:(NSArray*)shape
                           dataType:(MLMultiArrayDataType)dataType
                            strides:(NSArray*)strides
                        deallocator:(void (^)(void* bytes))deallocator
                              error:(NSError**)error {
  const Failure failure = NextFailure(Step::kArray, self);
  if (failure != Failure::kNone || dataPointer == nullptr || [shape count] != [strides count]) {
    if (error != nullptr) *error = ErrorOf(failure, "cannot wrap the memory");
    [self release];
    return nil;
  }
  _data = dataPointer;
  _shape = [shape copy];
  _strides = [strides copy];
  _dataType = dataType;
  _deallocator = Block_copy(deallocator);
  return self;
}

- (instancetype)initOwnedWithShape:(const std::vector<size_t>&)shape
                          dataType:(MLMultiArrayDataType)dataType
                           padding:(size_t)padding {
  std::vector<size_t> strides(shape.size(), 1);
  size_t elems = 1;
  for (size_t i = shape.size(); i > 0; --i) {
    const bool row = i == shape.size();
    if (row && shape.size() == 1) elems += padding;  // a vector has no rows: its elements lie apart
    strides[i - 1] = elems;
    elems *= shape[i - 1];
    if (row && shape.size() > 1) elems += padding;
  }
  const size_t bytes = elems * ElemBytes(dataType);
  _data = std::malloc(bytes);
  memset(_data, 0xff, bytes);
  _shape = [Numbers(shape) retain];
  _strides = [Numbers(strides) retain];
  _dataType = dataType;
  _deallocator = Block_copy(^(void* data) {
    std::free(data);
  });
  return self;
}

- (MLMultiArrayDataType)dataType {
  return _dataType;
}
- (NSArray*)shape {
  return _shape;
}
- (NSArray*)strides {
  return _strides;
}
- (NSInteger)count {
  NSInteger count = 1;
  for (NSNumber* extent in _shape) count *= [extent integerValue];
  return count;
}
- (void)getBytesWithHandler:(void (^)(const void* bytes, NSInteger size))handler {
  handler(_data, [self count] * static_cast<NSInteger>(ElemBytes(_dataType)));
}
- (void*)standinData {
  return _data;
}
@end

@implementation MLFeatureValue
NM_COUNTED
- (void)tearDown {
  [_array release];
}
+ (instancetype)featureValueWithMultiArray:(MLMultiArray*)value {
  MLFeatureValue* const feature = [[[self alloc] init] autorelease];
  feature->_array = [value retain];
  return feature;
}
- (MLFeatureType)type {
  return MLFeatureTypeMultiArray;
}
- (MLMultiArray*)multiArrayValue {
  return _array;
}
@end

@implementation MLDictionaryFeatureProvider
NM_COUNTED
- (void)tearDown {
  [_dictionary release];
}
- (instancetype)initWithDictionary:(NSDictionary*)dictionary error:(NSError**)error {
  const Failure failure = NextFailure(Step::kFeatures, self);
  NSMutableDictionary* const values = [NSMutableDictionary dictionary];
  bool good = failure == Failure::kNone;
  for (NSString* name in dictionary) {
    id value = [dictionary objectForKey:name];
    if ([value isKindOfClass:[MLMultiArray class]]) value = [MLFeatureValue featureValueWithMultiArray:value];
    good = good && [value isKindOfClass:[MLFeatureValue class]];
    [values setObject:value forKey:name];
  }
  if (!good) {
    if (error != nullptr) *error = ErrorOf(failure, "not features");
    [self release];
    return nil;
  }
  _dictionary = [values copy];
  return self;
}
- (NSDictionary*)dictionary {
  return _dictionary;
}
- (NSSet*)featureNames {
  return [NSSet setWithArray:[_dictionary allKeys]];
}
- (MLFeatureValue*)featureValueForName:(NSString*)featureName {
  return [_dictionary objectForKey:featureName];
}
@end

@implementation MLMultiArrayConstraint
NM_COUNTED
- (void)tearDown {
  [_shape release];
}
- (instancetype)initWithShape:(const std::vector<size_t>&)shape dataType:(MLMultiArrayDataType)dataType {
  _shape = [Numbers(shape) retain];
  _dataType = dataType;
  return self;
}
- (NSArray*)shape {
  return _shape;
}
- (MLMultiArrayDataType)dataType {
  return _dataType;
}
@end

@implementation MLFeatureDescription
NM_COUNTED
- (void)tearDown {
  [_name release];
  [_constraint release];
}
- (instancetype)initWithName:(NSString*)name constraint:(MLMultiArrayConstraint*)constraint {
  _name = [name copy];
  _constraint = [constraint retain];
  return self;
}
- (NSString*)name {
  return _name;
}
- (MLFeatureType)type {
  return MLFeatureTypeMultiArray;
}
- (MLMultiArrayConstraint*)multiArrayConstraint {
  return _constraint;
}
@end

@implementation MLModelDescription
NM_COUNTED
- (void)tearDown {
  [_inputs release];
  [_outputs release];
}
- (instancetype)initWithInputs:(NSDictionary*)inputs outputs:(NSDictionary*)outputs {
  _inputs = [inputs copy];
  _outputs = [outputs copy];
  return self;
}
- (NSDictionary*)inputDescriptionsByName {
  return _inputs;
}
- (NSDictionary*)outputDescriptionsByName {
  return _outputs;
}
@end

@implementation MLModelConfiguration
NM_COUNTED
- (void)tearDown {
  [_functionName release];
}
- (instancetype)init {
  _computeUnits = MLComputeUnitsAll;
  return self;
}
- (id)copyWithZone:(NSZone*)zone {
  MLModelConfiguration* const copy = [[MLModelConfiguration allocWithZone:zone] init];
  [copy setComputeUnits:_computeUnits];
  [copy setFunctionName:_functionName];
  return copy;
}
- (MLComputeUnits)computeUnits {
  return _computeUnits;
}
- (void)setComputeUnits:(MLComputeUnits)units {
  _computeUnits = units;
}
- (NSString*)functionName {
  return _functionName;
}
- (void)setFunctionName:(NSString*)name {
  [_functionName autorelease];
  _functionName = [name copy];
}
@end

@implementation MLPredictionOptions
NM_COUNTED
- (void)tearDown {
  [_outputBackings release];
}
- (NSDictionary*)outputBackings {
  return _outputBackings;
}
- (void)setOutputBackings:(NSDictionary*)backings {
  [_outputBackings autorelease];
  _outputBackings = [backings copy];
}
@end
