// SPDX-License-Identifier: Apache-2.0
// The part of Core ML that coreml_device.mm uses, for systems without it: selectors, types and enum values are those
// of Apple's documentation. Only instance variables, which callers never see, are our own. standin.h says what the
// classes do.
#pragma once

#import <Foundation/Foundation.h>

#ifdef NPUMOE_STANDIN_FOR_MACOS
// Compiled for macOS, but not run: shows what is used without asking for the system that has it.
#define NPUMOE_macos(version) macos, introduced = version
#define API_AVAILABLE(platform) __attribute__((availability(NPUMOE_##platform)))
#else
#define API_AVAILABLE(platform)
// Without a macOS, clang takes every @available for true. With this it reads @encode(int)[0] == ..., and the test says
// which macOS this is: both sides of every @available run.
extern "C" char npumoe_standin_available(const char* platform);
#define available(platform, ...) encode(int)[0] == npumoe_standin_available(#platform)
#endif

typedef NS_ENUM(NSInteger, MLComputeUnits) {
  MLComputeUnitsCPUOnly = 0,
  MLComputeUnitsCPUAndGPU = 1,
  MLComputeUnitsAll = 2,
  MLComputeUnitsCPUAndNeuralEngine API_AVAILABLE(macos(13.0)) = 3,
};

typedef NS_ENUM(NSInteger, MLMultiArrayDataType) {
  MLMultiArrayDataTypeDouble = 0x10000 | 64,
  MLMultiArrayDataTypeFloat64 = 0x10000 | 64,
  MLMultiArrayDataTypeFloat32 = 0x10000 | 32,
  MLMultiArrayDataTypeFloat16 API_AVAILABLE(macos(12.0)) = 0x10000 | 16,
  MLMultiArrayDataTypeFloat = 0x10000 | 32,
  MLMultiArrayDataTypeInt32 = 0x20000 | 32,
};

typedef NS_ENUM(NSInteger, MLFeatureType) {
  MLFeatureTypeInvalid = 0,
  MLFeatureTypeInt64 = 1,
  MLFeatureTypeDouble = 2,
  MLFeatureTypeString = 3,
  MLFeatureTypeImage = 4,
  MLFeatureTypeMultiArray = 5,
  MLFeatureTypeDictionary = 6,
  MLFeatureTypeSequence = 7,
  MLFeatureTypeState = 8,
};

@interface MLMultiArray : NSObject {
 @private
  void* _data;
  NSArray *_shape, *_strides;
  MLMultiArrayDataType _dataType;
  void (^_deallocator)(void* bytes);
}
@property(readonly, nonatomic) MLMultiArrayDataType dataType;
@property(readonly, nonatomic) NSArray<NSNumber*>* shape;
@property(readonly, nonatomic) NSArray<NSNumber*>* strides;
@property(readonly, nonatomic) NSInteger count;
- (instancetype)initWithDataPointer:(void*)dataPointer
                              shape:(NSArray<NSNumber*>*)shape
                           dataType:(MLMultiArrayDataType)dataType
                            strides:(NSArray<NSNumber*>*)strides
                        deallocator:(void (^)(void* bytes))deallocator
                              error:(NSError**)error;
- (void)getBytesWithHandler:(void (^)(const void* bytes, NSInteger size))handler API_AVAILABLE(macos(12.3));
@end

@interface MLFeatureValue : NSObject {
 @private
  MLMultiArray* _array;
}
@property(readonly, nonatomic) MLFeatureType type;
@property(readonly, nonatomic) MLMultiArray* multiArrayValue;
+ (instancetype)featureValueWithMultiArray:(MLMultiArray*)value;
@end

@protocol MLFeatureProvider
@property(readonly, nonatomic) NSSet<NSString*>* featureNames;
- (MLFeatureValue*)featureValueForName:(NSString*)featureName;
@end

@interface MLDictionaryFeatureProvider : NSObject <MLFeatureProvider> {
 @private
  NSDictionary* _dictionary;
}
@property(readonly, nonatomic) NSDictionary<NSString*, MLFeatureValue*>* dictionary;
- (instancetype)initWithDictionary:(NSDictionary<NSString*, id>*)dictionary error:(NSError**)error;
@end

@interface MLMultiArrayConstraint : NSObject {
 @private
  NSArray* _shape;
  MLMultiArrayDataType _dataType;
}
@property(readonly, nonatomic) NSArray<NSNumber*>* shape;
@property(readonly, nonatomic) MLMultiArrayDataType dataType;
@end

@interface MLFeatureDescription : NSObject {
 @private
  NSString* _name;
  MLMultiArrayConstraint* _constraint;
}
@property(readonly, nonatomic, copy) NSString* name;
@property(readonly, nonatomic) MLFeatureType type;
@property(readonly, nonatomic) MLMultiArrayConstraint* multiArrayConstraint;
@end

@interface MLModelDescription : NSObject {
 @private
  NSDictionary *_inputs, *_outputs;
}
@property(readonly, nonatomic) NSDictionary<NSString*, MLFeatureDescription*>* inputDescriptionsByName;
@property(readonly, nonatomic) NSDictionary<NSString*, MLFeatureDescription*>* outputDescriptionsByName;
@end

@interface MLModelConfiguration : NSObject <NSCopying> {
 @private
  MLComputeUnits _computeUnits;
  NSString* _functionName;
}
@property(readwrite, nonatomic) MLComputeUnits computeUnits;
@property(readwrite, copy, nonatomic) NSString* functionName API_AVAILABLE(macos(15.0));
@end

@interface MLPredictionOptions : NSObject {
 @private
  NSDictionary* _outputBackings;
}
@property(readwrite, copy, nonatomic) NSDictionary<NSString*, id>* outputBackings API_AVAILABLE(macos(11.0));
@end

@interface MLModel : NSObject {
 @private
  void* _program;
  MLModelDescription* _modelDescription;
}
@property(readonly, nonatomic) MLModelDescription* modelDescription;
+ (NSURL*)compileModelAtURL:(NSURL*)modelURL error:(NSError**)error;
+ (instancetype)modelWithContentsOfURL:(NSURL*)url
                         configuration:(MLModelConfiguration*)configuration
                                 error:(NSError**)error;
- (id<MLFeatureProvider>)predictionFromFeatures:(id<MLFeatureProvider>)input
                                        options:(MLPredictionOptions*)options
                                          error:(NSError**)error;
- (void)predictionFromFeatures:(id<MLFeatureProvider>)input
                       options:(MLPredictionOptions*)options
             completionHandler:(void (^)(id<MLFeatureProvider> output, NSError* error))completionHandler
    API_AVAILABLE(macos(14.0));
@end

API_AVAILABLE(macos(14.0))
@protocol MLComputeDeviceProtocol <NSObject>
@end
API_AVAILABLE(macos(14.0))
@interface MLCPUComputeDevice : NSObject <MLComputeDeviceProtocol>
@end
API_AVAILABLE(macos(14.0))
@interface MLGPUComputeDevice : NSObject <MLComputeDeviceProtocol>
@end
API_AVAILABLE(macos(14.0))
@interface MLNeuralEngineComputeDevice : NSObject <MLComputeDeviceProtocol>
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramNamedValueType : NSObject {
 @private
  NSString* _name;
}
@property(readonly, copy, nonatomic) NSString* name;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramOperation : NSObject {
 @private
  NSString* _operatorName;
  NSArray* _outputs;
  BOOL _isConstant;
}
@property(readonly, copy, nonatomic) NSString* operatorName;
@property(readonly, copy, nonatomic) NSArray<MLModelStructureProgramNamedValueType*>* outputs;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramBlock : NSObject {
 @private
  NSArray* _operations;
}
@property(readonly, copy, nonatomic) NSArray<MLModelStructureProgramOperation*>* operations;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgramFunction : NSObject {
 @private
  MLModelStructureProgramBlock* _block;
}
@property(readonly, strong, nonatomic) MLModelStructureProgramBlock* block;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructureProgram : NSObject {
 @private
  NSDictionary* _functions;
}
@property(readonly, copy, nonatomic) NSDictionary<NSString*, MLModelStructureProgramFunction*>* functions;
@end

API_AVAILABLE(macos(14.4))
@interface MLModelStructure : NSObject {
 @private
  MLModelStructureProgram* _program;
}
@property(readonly, strong, nonatomic) MLModelStructureProgram* program;
@end

API_AVAILABLE(macos(14.4))
@interface MLComputePlanDeviceUsage : NSObject {
 @private
  NSArray* _supported;
  id _preferred;
}
@property(readonly, copy, nonatomic) NSArray<id<MLComputeDeviceProtocol>>* supportedComputeDevices;
@property(readonly, strong, nonatomic) id<MLComputeDeviceProtocol> preferredComputeDevice;
@end

API_AVAILABLE(macos(14.4))
@interface MLComputePlanCost : NSObject {
 @private
  double _weight;
}
@property(readonly, assign, nonatomic) double weight;
@end

API_AVAILABLE(macos(14.4))
@interface MLComputePlan : NSObject {
 @private
  MLModelStructure* _modelStructure;
  MLComputeUnits _units;
  NSArray* _planned;
}
@property(readonly, strong, nonatomic) MLModelStructure* modelStructure;
+ (void)loadContentsOfURL:(NSURL*)url
            configuration:(MLModelConfiguration*)configuration
        completionHandler:(void (^)(MLComputePlan* computePlan, NSError* error))handler;
- (MLComputePlanCost*)estimatedCostOfMLProgramOperation:(MLModelStructureProgramOperation*)operation;
- (MLComputePlanDeviceUsage*)computeDeviceUsageForMLProgramOperation:(MLModelStructureProgramOperation*)operation;
@end
