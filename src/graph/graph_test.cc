// SPDX-License-Identifier: Apache-2.0
// The graph itself: names, builder, validation of planted faults, text form and hash.
#include "graph/graph.h"

#include <gtest/gtest.h>

#include <functional>

#include "graph/names.h"
#include "graph/op_test.h"

namespace npumoe {
namespace {

// Two functions over one weight: y = silu(conv(x)), for one and for two rows.
Graph TwoRows() {
  GraphBuilder b;
  const uint32_t weight = b.AddConstant({ElemType::kF16, {2, 2, 1, 1}}, HalfBytes({1, 2, 3, 4}));
  for (const size_t rows : {1, 2}) {
    b.BeginFunction("rows_" + std::to_string(rows));
    const ValueId x = b.Input("x", {ElemType::kF16, {1, 2, 1, rows}});
    b.Output("y", b.Unary(OpKind::kSilu, b.Conv1x1(x, b.UseConstant(weight, "weight"))));
  }
  auto graph = std::move(b).Finish();
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  return std::move(graph).value();
}

TEST(ElemType, NamesAndWidths) {
  EXPECT_EQ(ToString(ElemType::kF16), "fp16");
  EXPECT_EQ(ToString(ElemType::kI32), "int32");
  EXPECT_EQ(ToString(ElemType::kU6), "uint6");
  EXPECT_EQ(BitsOf(ElemType::kU3), 3u);
  EXPECT_EQ(BitsOf(ElemType::kBool), 8u);
  EXPECT_EQ((ValueType{ElemType::kU3, {3, 3}}.bytes()), 4u);  // 27 bits
  EXPECT_EQ((ValueType{ElemType::kF16, {}}.bytes()), 2u);
  EXPECT_EQ((ValueType{ElemType::kF16, {1, 64}}.ToString()), "fp16[1, 64]");
  EXPECT_EQ((ValueType{ElemType::kBool, {}}.ToString()), "bool");
}

TEST(OpKind, NamesGoBothWays) {
  EXPECT_EQ(MilName(OpKind::kConv), "conv");
  EXPECT_EQ(MilName(OpKind::kConstexprBlockwiseShiftScale), "constexpr_blockwise_shift_scale");
#define NM_OP(kind, mil_name, opset)          \
  EXPECT_EQ(MilName(OpKind::kind), mil_name); \
  EXPECT_EQ(OpKindFromMilName(mil_name).value(), OpKind::kind);
#include "graph/ops.def"
#undef NM_OP
  EXPECT_EQ(OpKindFromMilName("lstm").error().code, Code::kUnsupported);
}

TEST(Names, AreLegalInMil) {
  EXPECT_TRUE(IsLegalName("_a9"));
  for (const char* bad : {"", "9a", "a-b", "tensor", "fp16", "a b", "x@1"}) EXPECT_FALSE(IsLegalName(bad)) << bad;
  EXPECT_EQ(LegalName("layers.0/w"), "layers_0_w");
  EXPECT_EQ(LegalName("state"), "_state");
  EXPECT_EQ(LegalName("9"), "_9");
  EXPECT_EQ(LegalName(""), "_");
}

TEST(GraphBuilder, KeepsTheFirstErrorAndIgnoresTheRest) {
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {2}}), y = b.Input("y", {ElemType::kF32, {2}});
  const ValueId bad = b.Binary(OpKind::kAdd, x, y);
  const auto parts = b.Split(b.Softmax(bad, 17), 3, 0);
  EXPECT_EQ(parts.size(), 3u);
  EXPECT_EQ(b.SplitSizes(bad, std::vector<int32_t>{1, 1}, 0).size(), 2u);
  EXPECT_GE(b.TypeOf(bad).dims.size(), 1u);
  b.Output("z", parts[2]);
  const auto graph = std::move(b).Finish();
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.error().code, Code::kInvalidArgument);
  EXPECT_EQ(graph.error().message,
            "graph: function 'main', op 0 (add), parameter 'y': wanted fp16 as 'x' has, got fp32[2]");
}

TEST(GraphBuilder, NamesTheFunctionAndOpThatFailed) {
  GraphBuilder b;
  b.BeginFunction("kv_256");
  const ValueId x = b.Input("x", {ElemType::kF16, {2}});
  b.Softmax(b.Unary(OpKind::kExp, x), 1);
  EXPECT_EQ(std::move(b).Finish().error().message,
            "graph: function 'kv_256', op 1 (softmax), parameter 'axis': axis 1 of a value of rank 1");
}

TEST(GraphBuilder, AnInputOrOutputTakesItsNameFromWhoeverHasIt) {
  GraphBuilder b;
  b.BeginFunction("main");
  const uint32_t weight = b.AddConstant({ElemType::kF16, {2}}, HalfBytes({1, 2}));
  const ValueId w = b.UseConstant(weight, "x");
  EXPECT_EQ(b.UseConstant(weight, "again"), w);
  const ValueId x = b.Input("x", {ElemType::kF16, {2}});
  const ValueId sum = b.Binary(OpKind::kAdd, x, w);
  const ValueId product = b.Binary(OpKind::kMul, sum, w);
  b.Output("add_1", product);
  b.Output("state_of_sum", sum);
  const Graph graph = std::move(b).Finish().value();
  const Function& f = graph.functions[0];
  EXPECT_EQ(f.values[x].name, "x");
  EXPECT_NE(f.values[w].name, "x");
  EXPECT_EQ(f.values[product].name, "add_1");
  EXPECT_EQ(f.values[sum].name, "state_of_sum");
}

TEST(GraphBuilder, RefusesBadNamesOutputsAndConstants) {
  const auto error = [](const std::function<void(GraphBuilder&)>& body) {
    GraphBuilder b;
    b.BeginFunction("main");
    body(b);
    const auto graph = std::move(b).Finish();
    return graph.ok() ? "no error" : graph.error().message;
  };
  const ValueType type{ElemType::kF16, {2}};
  EXPECT_EQ(error([&](GraphBuilder& b) { b.Input("int8", type); }),
            "graph: function 'main': 'int8' is not a legal name");
  EXPECT_EQ(error([&](GraphBuilder& b) {
              b.Input("x", type);
              b.Input("x", type);
            }),
            "graph: function 'main': the name 'x' is taken");
  EXPECT_EQ(
      error([&](GraphBuilder& b) { b.Output("y", b.Input("x", type)); }),
      "graph: function 'main': output 'y': 'x' is a constant, an input or already an output, wanted the result of "
      "an op");
  EXPECT_EQ(error([&](GraphBuilder& b) { b.Input("x", type); }), "graph: function 'main': has no outputs");
  EXPECT_EQ(error([&](GraphBuilder& b) { b.AddConstant(type, {}); }),
            "graph: constant 0: 0 bytes of data, fp16[2] needs 4");
  EXPECT_EQ(error([&](GraphBuilder& b) { b.UseConstant(3, "w"); }),
            "graph: constant 3 ('w') does not exist or no function was begun");
  EXPECT_EQ(error([&](GraphBuilder& b) { b.Unary(OpKind::kExp, 9); }),
            "graph: function 'main': exp, parameter 'x': value 9 does not exist");
  EXPECT_EQ(error([&](GraphBuilder& b) {
              b.AddConstant({ElemType::kF16, {size_t{1} << 40, size_t{1} << 40}}, {});
            }),
            "graph: constant 0: fp16[1099511627776, 1099511627776] is larger than 2147483648 bytes");
  GraphBuilder none;
  none.Input("x", type);
  EXPECT_EQ(std::move(none).Finish().error().message, "graph: input 'x' before any function was begun");
  EXPECT_EQ(GraphBuilder().Finish().error().message, "graph: has no functions");
}

TEST(Graph, FindsFunctionsAndCountsBytes) {
  const Graph graph = TwoRows();
  ASSERT_NE(graph.Find("rows_2"), nullptr);
  EXPECT_EQ(graph.Find("rows_2")->name, "rows_2");
  EXPECT_EQ(graph.Find("rows_3"), nullptr);
  // The weight, and per function two vectors of 2 and one of 4 int32, "valid" and the number of groups.
  EXPECT_EQ(graph.WeightBytes(), 8u + 2 * (8 + 5 + 16 + 8 + 4));
}

struct Fault {
  const char* wanted;
  std::function<void(Graph&)> plant;
};

TEST(ValidateGraph, FindsEveryPlantedFault) {
  ASSERT_TRUE(ValidateGraph(TwoRows()).ok());
  const auto silu = [](Graph& g) -> Op& { return g.functions[0].ops[1]; };
  const auto y = [&](Graph& g) -> Value& { return g.functions[0].values[silu(g).outputs[0]]; };
  const Fault faults[] = {
      {"parameter 'x': value 99 does not exist", [&](Graph& g) { silu(g).operands[0].values[0] = 99; }},
      {"result value 99 does not exist", [&](Graph& g) { silu(g).outputs[0] = 99; }},
      {"op 1 (silu): result 'y': declared fp16[1, 2, 1, 7], inferred fp16[1, 2, 1, 1]",
       [&](Graph& g) { y(g).type.dims[3] = 7; }},
      {"declared fp32[1, 2, 1, 1], inferred fp16[1, 2, 1, 1]", [&](Graph& g) { y(g).type.elem = ElemType::kF32; }},
      {"two values are named 'x'", [&](Graph& g) { y(g).name = g.functions[0].values[g.functions[0].inputs[0]].name; }},
      {"'no-name' is not a legal name", [&](Graph& g) { y(g).name = "no-name"; }},
      {"op 0 (silu): parameter 'x': value 'conv_5' is used before it is defined",
       [&](Graph& g) { std::swap(g.functions[0].ops[0], g.functions[0].ops[1]); }},
      {"defines 'y' a second time", [&](Graph& g) { g.functions[0].ops.push_back(silu(g)); }},
      {"value 'y' is defined by nothing", [&](Graph& g) { g.functions[0].ops.pop_back(); }},
      {"has 2 results, wanted 1", [&](Graph& g) { silu(g).outputs.push_back(0); }},
      {"output 'x' is not the result of an op",
       [&](Graph& g) { g.functions[0].outputs[0] = g.functions[0].inputs[0]; }},
      {"output 'y' is listed twice", [&](Graph& g) { g.functions[0].outputs.push_back(g.functions[0].outputs[0]); }},
      {"has no outputs", [&](Graph& g) { g.functions[0].outputs.clear(); }},
      {"input value 77 does not exist", [&](Graph& g) { g.functions[0].inputs[0] = 77; }},
      {"input 'x' is listed twice", [&](Graph& g) { g.functions[0].inputs.push_back(g.functions[0].inputs[0]); }},
      {"two functions are named 'rows_2'", [&](Graph& g) { g.functions[0].name = "rows_2"; }},
      {"'func' is not a legal name", [&](Graph& g) { g.functions[0].name = "func"; }},
      {"graph: constant 0: 7 bytes of data", [&](Graph& g) { g.constants[0].data.pop_back(); }},
      {"its constant is fp16[2, 1, 2, 1]",
       [&](Graph& g) {
         g.constants[0].type.dims = {2, 1, 2, 1};
       }},
      {"constant 88 does not exist, the graph has 11",
       [&](Graph& g) {
         for (Value& v : g.functions[0].values) {
           if (v.constant == 0) v.constant = 88;
         }
       }},
      {"parameter 'y': is not a parameter of this op",
       [&](Graph& g) {
         silu(g).operands.push_back({"y", {0}});
       }},
      {"parameter 'x': is bound twice", [&](Graph& g) { silu(g).operands.push_back(silu(g).operands[0]); }},
      {"parameter 'x': is missing", [&](Graph& g) { silu(g).operands.clear(); }},
      {"parameter 'x': has 0 values, wanted 1", [&](Graph& g) { silu(g).operands[0].values.clear(); }},
      {"is of no known kind", [&](Graph& g) { silu(g).kind = static_cast<OpKind>(250); }},
      {"empty, shape fp16[1, 0, 1, 1]", [&](Graph& g) { y(g).type.dims[1] = 0; }},
      {"graph: has no functions", [&](Graph& g) { g.functions.clear(); }},
  };
  for (const Fault& fault : faults) {
    Graph graph = TwoRows();
    fault.plant(graph);
    const Status status = ValidateGraph(graph);
    ASSERT_FALSE(status.ok()) << fault.wanted;
    EXPECT_EQ(status.error().code, Code::kInvalidArgument);
    EXPECT_NE(status.error().message.find(fault.wanted), std::string::npos) << status.error().message;
  }
}

TEST(DumpGraph, IsStable) {
  EXPECT_EQ(
      DumpGraph(TwoRows()),
      "function rows_1\n"
      "  input x fp16[1, 2, 1, 1]\n"
      "  const weight fp16[2, 2, 1, 1] #0 792477f6ce97861f750504e36a9bb403\n"
      "  conv_5 fp16[1, 2, 1, 1] = conv(x=x, weight=weight, strides=[1, 1], pad_type=\"valid\", pad=[0, 0, 0, 0], "
      "dilations=[1, 1], groups=1)\n"
      "  y fp16[1, 2, 1, 1] = silu(x=conv_5)\n"
      "  output y\n"
      "function rows_2\n"
      "  input x fp16[1, 2, 1, 2]\n"
      "  const weight fp16[2, 2, 1, 1] #0 792477f6ce97861f750504e36a9bb403\n"
      "  conv_5 fp16[1, 2, 1, 2] = conv(x=x, weight=weight, strides=[1, 1], pad_type=\"valid\", pad=[0, 0, 0, 0], "
      "dilations=[1, 1], groups=1)\n"
      "  y fp16[1, 2, 1, 2] = silu(x=conv_5)\n"
      "  output y\n");
}

TEST(HashGraph, IsStableAndSeesEveryPart) {
  const std::string hash = HashGraph(TwoRows());
  EXPECT_EQ(hash, "f49b2cbad3a1cc6cc71806259c65ada9");
  EXPECT_EQ(HashGraph(TwoRows()), hash);
  const std::function<void(Graph&)> changes[] = {
      [](Graph& g) { g.constants[0].data[0] ^= std::byte{1}; },
      [](Graph& g) { g.constants[0].data[7] ^= std::byte{128}; },
      [](Graph& g) {
        g.constants[0].type.dims = {4, 1, 1, 1};
      },
      [](Graph& g) { g.functions[1].name = "other"; },
      [](Graph& g) { g.functions[0].values[0].name = "other"; },
      [](Graph& g) { g.functions[0].values[0].type.elem = ElemType::kF32; },
      [](Graph& g) { g.functions[0].ops[1].kind = OpKind::kRelu; },
      [](Graph& g) { g.functions[0].ops[1].operands[0].param = "input"; },
      [](Graph& g) { std::swap(g.functions[0], g.functions[1]); },
      [](Graph& g) { g.functions.pop_back(); },
  };
  std::set<std::string> seen{hash};
  for (const auto& change : changes) {
    Graph graph = TwoRows();
    change(graph);
    EXPECT_TRUE(seen.insert(HashGraph(graph)).second);
  }
}

// Numbers of values and constants, names of constants and what nobody uses are bookkeeping.
TEST(HashGraph, SeesWhatAGraphSaysAndNotHowItIsNumbered) {
  const std::string hash = HashGraph(TwoRows());
  Graph graph = TwoRows();
  graph.constants.push_back(graph.constants[0]);  // a second copy of the weight, used by the second function
  for (Value& value : graph.functions[1].values) {
    if (value.constant == 0) value.constant = static_cast<uint32_t>(graph.constants.size() - 1);
    if (value.is_constant()) value.name += "_renamed";
  }
  Function& f = graph.functions[0];
  f.values.push_back({"unused", graph.constants[0].type, 0});
  // Value 0 and the last one change places.
  const auto last = static_cast<ValueId>(f.values.size() - 1);
  std::swap(f.values[0], f.values[last]);
  const auto renumber = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = id == 0 ? last : id == last ? 0 : id;
  };
  renumber(f.inputs);
  renumber(f.outputs);
  for (Op& op : f.ops) {
    renumber(op.outputs);
    for (Operand& operand : op.operands) renumber(operand.values);
  }
  ASSERT_TRUE(ValidateGraph(graph).ok());
  EXPECT_EQ(HashGraph(graph), hash);
}

TEST(RunReference, RunsAChainTheSameEveryTime) {
  const Graph graph = TwoRows();
  const Function& f = *graph.Find("rows_2");
  const Array x = HalfArray({1, 2, 1, 2}, {1, 0, 0, -1});
  // conv: (1 -2 / 3 -4); silu by hand.
  const auto first = RunReference(graph, f, {x}, Rounding::kF16).value();
  ASSERT_EQ(first.size(), 1u);
  const std::vector<float> wanted{0.73105858f, -0.23840584f, 2.85772238f, -0.07194484f};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(first[0].floats[i], F16ToF32(F32ToF16(wanted[i]))) << i;
  EXPECT_EQ(RunReference(graph, f, {x}, Rounding::kF16).value()[0].floats, first[0].floats);
  const auto exact = RunReference(graph, f, {x}, Rounding::kF32).value();
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(exact[0].floats[i], wanted[i]) << i;
}

TEST(RunReference, RefusesInputsThatDoNotFit) {
  const Graph graph = TwoRows();
  const Function& f = *graph.Find("rows_1");
  EXPECT_EQ(RunReference(graph, f, {}, Rounding::kF32).error().message,
            "graph: function 'rows_1': 0 inputs given, wanted 1");
  const Array wrong = HalfArray({1, 2, 1, 2}, {1, 2, 3, 4});
  EXPECT_EQ(RunReference(graph, f, {wrong}, Rounding::kF32).error().message,
            "graph: function 'rows_1': input 'x': wanted fp16[1, 2, 1, 1], got fp16[1, 2, 1, 2] with 4 elements");
  const Array few = HalfArray({1, 2, 1, 1}, {1});
  EXPECT_EQ(RunReference(graph, f, {few}, Rounding::kF32).error().message,
            "graph: function 'rows_1': input 'x': wanted fp16[1, 2, 1, 1], got fp16[1, 2, 1, 1] with 1 elements");
}

}  // namespace
}  // namespace npumoe
