// SPDX-License-Identifier: Apache-2.0
// MLComputePlan: which op would run where.
#include "classes.h"

#include <algorithm>
#include <set>

#include "npu/limits.h"

using namespace npumoe::coreml_standin;
using npumoe::Function;
using npumoe::OpKind;

@interface MLModelStructureProgramNamedValueType (NpumoeStandin)
- (instancetype)initWithName:(const std::string&)name;
@end
@interface MLModelStructureProgramOperation (NpumoeStandin)
- (instancetype)initWithName:(const std::string&)name outputs:(NSArray*)outputs constant:(BOOL)constant;
- (BOOL)standinConstant;
@end
@interface MLModelStructureProgramBlock (NpumoeStandin)
- (instancetype)initWithOperations:(NSArray*)operations;
@end
@interface MLModelStructureProgramFunction (NpumoeStandin)
- (instancetype)initWithBlock:(MLModelStructureProgramBlock*)block;
@end
@interface MLModelStructureProgram (NpumoeStandin)
- (instancetype)initWithFunctions:(NSDictionary*)functions;
@end
@interface MLModelStructure (NpumoeStandin)
- (instancetype)initWithProgram:(MLModelStructureProgram*)program;
@end
@interface MLComputePlanDeviceUsage (NpumoeStandin)
- (instancetype)initWithPreferred:(id)preferred supported:(NSArray*)supported;
@end
@interface MLComputePlanCost (NpumoeStandin)
- (instancetype)initWithWeight:(double)weight;
@end

namespace {

NSString* Text(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }

NSArray* NamedValues(const Function& function, const std::vector<npumoe::ValueId>& ids) {
  NSMutableArray* const values = [NSMutableArray array];
  for (const npumoe::ValueId id : ids) {
    const std::string& name = function.values[id].name;
    [values addObject:[[[MLModelStructureProgramNamedValueType alloc] initWithName:name] autorelease]];
  }
  return values;
}

// Constants come before the op that uses them, as in Apple's programs.
NSArray* Operations(const Function& function, const std::string& opset) {
  NSMutableArray* const operations = [NSMutableArray array];
  const auto add = [&](const std::string& name, const std::vector<npumoe::ValueId>& outputs, bool constant) {
    [operations addObject:[[[MLModelStructureProgramOperation alloc] initWithName:opset + "." + name
                                                                          outputs:NamedValues(function, outputs)
                                                                         constant:constant] autorelease]];
  };
  std::set<npumoe::ValueId> seen;
  for (const npumoe::Op& op : function.ops) {
    for (const npumoe::Operand& operand : op.operands) {
      for (const npumoe::ValueId id : operand.values) {
        if (function.values[id].is_constant() && seen.insert(id).second) add("const", {id}, true);
      }
    }
    add(std::string(npumoe::MilName(op.kind)), op.outputs, npumoe::IsConstexpr(op.kind));
  }
  return operations;
}

id DeviceNamed(const std::string& name) {
  if (name == "NPU") return [[[MLNeuralEngineComputeDevice alloc] init] autorelease];
  if (name == "GPU") return [[[MLGPUComputeDevice alloc] init] autorelease];
  return name == "CPU" ? [[[MLCPUComputeDevice alloc] init] autorelease] : nil;
}

}  // namespace

@implementation MLCPUComputeDevice
NM_COUNTED
@end
@implementation MLGPUComputeDevice
NM_COUNTED
@end
@implementation MLNeuralEngineComputeDevice
NM_COUNTED
@end

@implementation MLModelStructureProgramNamedValueType
NM_COUNTED
- (void)tearDown {
  [_name release];
}
- (instancetype)initWithName:(const std::string&)name {
  _name = [Text(name) retain];
  return self;
}
- (NSString*)name {
  return _name;
}
@end

@implementation MLModelStructureProgramOperation
NM_COUNTED
- (void)tearDown {
  [_operatorName release];
  [_outputs release];
}
- (instancetype)initWithName:(const std::string&)name outputs:(NSArray*)outputs constant:(BOOL)constant {
  _operatorName = [Text(name) retain];
  _outputs = [outputs copy];
  _isConstant = constant;
  return self;
}
- (NSString*)operatorName {
  return _operatorName;
}
- (NSArray*)outputs {
  return _outputs;
}
- (BOOL)standinConstant {
  return _isConstant;
}
@end

@implementation MLModelStructureProgramBlock
NM_COUNTED
- (void)tearDown {
  [_operations release];
}
- (instancetype)initWithOperations:(NSArray*)operations {
  _operations = [operations copy];
  return self;
}
- (NSArray*)operations {
  return _operations;
}
@end

@implementation MLModelStructureProgramFunction
NM_COUNTED
- (void)tearDown {
  [_block release];
}
- (instancetype)initWithBlock:(MLModelStructureProgramBlock*)block {
  _block = [block retain];
  return self;
}
- (MLModelStructureProgramBlock*)block {
  return _block;
}
@end

@implementation MLModelStructureProgram
NM_COUNTED
- (void)tearDown {
  [_functions release];
}
- (instancetype)initWithFunctions:(NSDictionary*)functions {
  _functions = [functions copy];
  return self;
}
- (NSDictionary*)functions {
  return _functions;
}
@end

@implementation MLModelStructure
NM_COUNTED
- (void)tearDown {
  [_program release];
}
- (instancetype)initWithProgram:(MLModelStructureProgram*)program {
  _program = [program retain];
  return self;
}
- (MLModelStructureProgram*)program {
  return _program;
}
@end

@implementation MLComputePlanDeviceUsage
NM_COUNTED
- (void)tearDown {
  [_supported release];
  [_preferred release];
}
- (instancetype)initWithPreferred:(id)preferred supported:(NSArray*)supported {
  _preferred = [preferred retain];
  _supported = [supported copy];
  return self;
}
- (NSArray*)supportedComputeDevices {
  return _supported;
}
- (id<MLComputeDeviceProtocol>)preferredComputeDevice {
  return _preferred;
}
@end

@implementation MLComputePlanCost
NM_COUNTED
- (instancetype)initWithWeight:(double)weight {
  _weight = weight;
  return self;
}
- (double)weight {
  return _weight;
}
@end

@implementation MLComputePlan
NM_COUNTED
- (void)tearDown {
  [_modelStructure release];
  [_planned release];
}

+ (MLComputePlan*)standinPlan:(NSURL*)url
                configuration:(MLModelConfiguration*)configuration
                      failure:(Failure)failure
                        error:(NSError**)error {
  const auto loaded = LoadFunction(url, configuration);
  if (failure != Failure::kNone || !loaded.ok()) {
    *error = ErrorOf(failure, loaded.ok() ? "told to" : loaded.error().message);
    return nil;
  }
  MLComputePlan* const plan = [[[self alloc] init] autorelease];
  plan->_units = [configuration computeUnits];
  NSMutableDictionary* const functions = [NSMutableDictionary dictionary];
  for (const Function& function : loaded->package->graph().functions) {
    // "CoreML8" -> "ios18"
    const std::string opset = "ios" + std::to_string(loaded->package->metadata().opset.back() - '0' + 10);
    NSArray* const operations = Operations(function, opset);
    auto* const block = [[[MLModelStructureProgramBlock alloc] initWithOperations:operations] autorelease];
    auto* const entry = [[[MLModelStructureProgramFunction alloc] initWithBlock:block] autorelease];
    [functions setObject:entry forKey:Text(function.name)];
    if (&function == loaded->function) plan->_planned = [operations retain];
  }
  MLModelStructureProgram* program = nil;
  if (!CurrentKnobs().plan_without_program) {
    program = [[[MLModelStructureProgram alloc] initWithFunctions:functions] autorelease];
  }
  plan->_modelStructure = [[MLModelStructure alloc] initWithProgram:program];
  return plan;
}

+ (void)loadContentsOfURL:(NSURL*)url
            configuration:(MLModelConfiguration*)configuration
        completionHandler:(void (^)(MLComputePlan* computePlan, NSError* error))handler {
  const Failure failure = NextFailure(Step::kPlan);
  MLModelConfiguration* const copy = [configuration copy];
  [url retain];
  auto const done = Block_copy(handler);
  RunElsewhere([url, copy, failure, done] {
    NSError* error = nil;
    MLComputePlan* const plan = [MLComputePlan standinPlan:url configuration:copy failure:failure error:&error];
    done(plan, error);
    Block_release(done);
    [copy release];
    [url release];
  });
}

- (MLModelStructure*)modelStructure {
  return _modelStructure;
}

// Only of ops of the function that was planned, and not of constants.
- (bool)standinKnows:(MLModelStructureProgramOperation*)operation {
  return [_planned indexOfObjectIdenticalTo:operation] != NSNotFound && ![operation standinConstant];
}

// All ops that run cost the same.
- (MLComputePlanCost*)estimatedCostOfMLProgramOperation:(MLModelStructureProgramOperation*)operation {
  if (![self standinKnows:operation]) return nil;
  size_t n = 0;
  for (MLModelStructureProgramOperation* other in _planned) n += [other standinConstant] ? 0 : 1;
  return [[[MLComputePlanCost alloc] initWithWeight:1.0 / static_cast<double>(n)] autorelease];
}

- (MLComputePlanDeviceUsage*)computeDeviceUsageForMLProgramOperation:(MLModelStructureProgramOperation*)operation {
  if (![self standinKnows:operation]) return nil;
  const std::string full = [[operation operatorName] UTF8String];
  const std::string name = full.substr(full.find('.') + 1);
  const auto kind = npumoe::OpKindFromMilName(name);
  NSMutableArray* const supported = [NSMutableArray arrayWithObject:DeviceNamed("CPU")];
  std::string preferred = "CPU";
  const bool npu = _units == MLComputeUnitsAll || _units == MLComputeUnitsCPUAndNeuralEngine;
  if (_units == MLComputeUnitsAll || _units == MLComputeUnitsCPUAndGPU) {
    [supported addObject:DeviceNamed(preferred = "GPU")];
  }
  if (npu && kind.ok() && npumoe::RunsOnNpu(*kind)) [supported addObject:DeviceNamed(preferred = "NPU")];
  const auto devices = CurrentKnobs().device_of;
  if (const auto wanted = devices.find(name); wanted != devices.end()) preferred = wanted->second;
  return [[[MLComputePlanDeviceUsage alloc] initWithPreferred:DeviceNamed(preferred) supported:supported] autorelease];
}
@end
