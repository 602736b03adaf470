// SPDX-License-Identifier: Apache-2.0
// What WritePackage writes: versions, values, blobs, defaults, and what it leaves behind.
#include <fmt/format.h>
#include <sys/resource.h>

#include <csignal>
#include <map>

#include "graph/mlpackage/package_test.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

TEST(WritePackage, SmallestPackageByteByByte) {
  const Scratch scratch;
  const std::string path = scratch.File("scale.mlpackage");
  const auto written = WritePackage(ScaleGraph(), path);
  ASSERT_TRUE(written.ok()) << written.error().message;
  // fp16 inputs need version 7; nothing needs more.
  EXPECT_EQ(written->specification_version, 7);
  EXPECT_EQ(written->opset, "CoreML6");
  EXPECT_EQ(written->weight_bytes, 128u + 32);

  const std::string weights = *ReadFile(path + kWeightsFile);
  ASSERT_EQ(weights.size(), 160u);
  const auto at = [&](size_t i) { return static_cast<unsigned>(static_cast<uint8_t>(weights[i])); };
  const std::map<size_t, unsigned> bytes{{0, 1},   {4, 2},     {64, 0xef}, {65, 0xbe}, {66, 0xad},  {67, 0xde},
                                         {68, 1},  {72, 32},   {80, 128},  {128, 0},   {129, 0xc8},  // -8
                                         {158, 0}, {159, 0x47}};                                     // 7
  for (const auto& [offset, value] : bytes) EXPECT_EQ(at(offset), value) << offset;
  size_t zeros = 0;
  for (size_t i = 0; i < 128; ++i) zeros += at(i) == 0 ? 1 : 0;
  EXPECT_EQ(zeros, 128u - 9);

  const mil::Model model = LoadModel(path);
  EXPECT_EQ(model.description().inputs_size(), 1);
  EXPECT_EQ(model.description().functions_size(), 0);
  EXPECT_EQ(model.description().default_function(), "");
  EXPECT_EQ(model.description().inputs(0).type().array().data_type(), 65552);
  EXPECT_EQ(model.program().version(), 1);
  const mil::Block& block = BlockOf(model);
  ASSERT_EQ(block.operations_size(), 2);
  const mil::Operation& constant = block.operations(0);
  EXPECT_EQ(constant.type(), "const");
  EXPECT_EQ(constant.outputs(0).name(), "w");
  EXPECT_EQ(AttributeOf(constant, "val")->blob().offset(), 64u);  // of the metadata
  EXPECT_EQ(AttributeOf(constant, "val")->blob().file(), "@model_path/weights/weight.bin");
  EXPECT_EQ(AttributeOf(constant, "name")->immediate().tensor().strings().values(0), "w");
  EXPECT_EQ(InputOf(block.operations(1), "y")->arguments(0).name(), "w");
  EXPECT_EQ(block.outputs(0), "y");
}

TEST(WritePackage, SameGraphSameBytesAndNothingBesideThem) {
  const Scratch scratch;
  const std::string a = scratch.File("a.mlpackage"), b = scratch.File("b.mlpackage");
  ASSERT_TRUE(WritePackage(ScaleGraph(), a).ok());
  ASSERT_TRUE(WritePackage(ScaleGraph(), b).ok());
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(a)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), a).string();
    files.push_back(name);
    EXPECT_EQ(*ReadFile(a + "/" + name), *ReadFile(b + "/" + name)) << name;
  }
  EXPECT_EQ(files.size(), 3u);
  size_t left = 0;
  for (const auto& entry : fs::directory_iterator(scratch.path())) left += entry.exists() ? 1 : 0;
  EXPECT_EQ(left, 2u);
  // Other weights, other identifiers.
  Graph graph = ScaleGraph();
  graph.constants[0].data[0] ^= std::byte{1};
  ASSERT_TRUE(WritePackage(graph, b).ok());
  EXPECT_NE(*ReadFile(a + "/Manifest.json"), *ReadFile(b + "/Manifest.json"));
}

TEST(WritePackage, ManifestHasTheFormsOfApplesTools) {
  const Scratch scratch;
  const std::string path = scratch.File("m.mlpackage");
  ASSERT_TRUE(WritePackage(ScaleGraph(), path).ok());
  const std::string text = *ReadFile(path + "/Manifest.json");
  for (const char* part :
       {"\"fileFormatVersion\": \"1.0.0\"", "\"author\": \"com.apple.CoreML\"", "\"name\": \"weights\"",
        "\"path\": \"com.apple.CoreML/weights\"", "\"description\": \"CoreML Model Specification\"",
        "\"path\": \"com.apple.CoreML/model.mlmodel\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  const size_t at = text.find("\"rootModelIdentifier\": \"") + 24;
  const std::string id = text.substr(at, 36);
  EXPECT_TRUE(id[8] == '-' && id[13] == '-' && id[14] == '4' && id[18] == '-' && id[23] == '-' && text[at + 36] == '"');
  EXPECT_NE(std::string("89ab").find(id[19]), std::string::npos) << id;
}

// One blob per tensor, whoever uses it; sub-byte types with their padding.
TEST(WritePackage, StoresEqualDataOnce) {
  GraphBuilder b;
  const std::vector<float> w(16, 0.5f);
  const uint32_t first = b.AddConstant({ElemType::kF16, {1, 16, 1, 1}}, HalfBytes(w));
  const uint32_t copy = b.AddConstant({ElemType::kF16, {1, 16, 1, 1}}, HalfBytes(w));
  for (const char* name : {"rows_1", "rows_2"}) {
    b.BeginFunction(name);
    const ValueId x = b.Input("x", {ElemType::kF16, {1, 16, 1, 4}});
    const ValueId y = b.Binary(OpKind::kMul, x, b.UseConstant(first, "w"));
    b.Output("y", b.Binary(OpKind::kAdd, y, b.UseConstant(copy, "w_again")));
  }
  const Graph graph = std::move(b).Finish().value();
  const Scratch scratch;
  const Package package = RoundTrip(graph, scratch.File("x.mlpackage"), {"rows_2", {{"key", "value"}}, {}});
  EXPECT_EQ(fs::file_size(scratch.File("x.mlpackage") + kWeightsFile), 160u);
  EXPECT_EQ(HashGraph(package.graph), HashGraph(graph));
  EXPECT_EQ(package.graph.constants.size(), 1u);
  EXPECT_EQ(package.metadata.specification_version, 9);
  EXPECT_EQ(package.metadata.default_function, "rows_2");
  EXPECT_TRUE(package.metadata.multi_function);
  EXPECT_EQ(package.metadata.user_defined.at("key"), "value");
  const mil::Model model = LoadModel(scratch.File("x.mlpackage"));
  EXPECT_EQ(model.description().inputs_size(), 0);
  EXPECT_EQ(model.description().functions_size(), 2);
}

TEST(WritePackage, ParametersThatWereLeftOutAreWritten) {
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {1, 4, 1, 3}});
  const ValueId indices = b.Input("i", {ElemType::kI32, {2}});
  const ValueId narrow = b.Add(OpKind::kSqueeze, {{"x", {x}}})[0];
  b.Output("y", b.Add(OpKind::kGather, {{"x", {narrow}}, {"indices", {indices}}, {"axis", {b.Int(0)}}})[0]);
  const Graph graph = std::move(b).Finish().value();
  const Scratch scratch;
  const Package package = RoundTrip(graph, scratch.File("x.mlpackage"));
  // CoreML6 knows batch_dims; validate_indices came with CoreML7 and must not be there.
  EXPECT_EQ(package.metadata.opset, "CoreML6");
  const Function& f = package.graph.functions[0];
  EXPECT_NE(f.ops[0].Find("axes"), nullptr);
  EXPECT_NE(f.ops[1].Find("batch_dims"), nullptr);
  EXPECT_EQ(f.ops[1].Find("validate_indices"), nullptr);
  const mil::Model model = LoadModel(scratch.File("x.mlpackage"));
  const auto gather = OpsOf(BlockOf(model), "gather");
  EXPECT_EQ(InputOf(*gather[0], "batch_dims")->arguments(0).name(), "y_batch_dims_0");
}

// The form that the bytes take in a package depends on the element type.
TEST(WritePackage, ImmediatesStandInTheMemberOfTheirType) {
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF32, {1, 3}});
  const auto constant = [&](ElemType elem, std::vector<size_t> dims, std::vector<std::byte> data) {
    return b.UseConstant(b.AddConstant({elem, std::move(dims)}, std::move(data)), "c");
  };
  const ValueId three = constant(ElemType::kF32, {3}, RawBytes(std::vector<float>{1, -2, 0.5f}));
  const ValueId y = b.Binary(OpKind::kMul, x, three);
  const ValueId half = b.Add(OpKind::kCast, {{"x", {y}}, {"dtype", {b.String("fp16")}}})[0];
  const ValueId pair = constant(ElemType::kF16, {3}, HalfBytes({1, 2, 3}));
  b.Output("y", b.Binary(OpKind::kAdd, b.Binary(OpKind::kMul, half, b.Scalar(0.25f)), pair));
  const Graph graph = std::move(b).Finish().value();
  const Scratch scratch;
  EXPECT_EQ(HashGraph(RoundTrip(graph, scratch.File("x.mlpackage")).graph), HashGraph(graph));
  const mil::Model model = LoadModel(scratch.File("x.mlpackage"));
  const auto consts = OpsOf(BlockOf(model), "const");
  ASSERT_EQ(consts.size(), 4u);
  const auto& floats = AttributeOf(*consts[0], "val")->immediate().tensor().floats();
  EXPECT_EQ((std::vector<float>{floats.values().begin(), floats.values().end()}), (std::vector<float>{1, -2, 0.5f}));
  EXPECT_EQ(AttributeOf(*consts[1], "val")->immediate().tensor().strings().values(0), "fp16");
  EXPECT_EQ(AttributeOf(*consts[2], "val")->immediate().tensor().bytes().values(), std::string("\x00\x34", 2));
  EXPECT_TRUE(AttributeOf(*consts[3], "val")->has_blob());  // fp16 tensors never stand in the model file
}

struct VersionCase {
  const char* what;
  int version;
  std::function<ValueId(GraphBuilder&, ValueId)> build;  // from x fp32 [1, 4, 1, 3]
};

TEST(WritePackage, TakesTheLowestVersionThatHoldsTheGraph) {
  const auto same_lower = [](const char* pad_type) {
    return [pad_type](GraphBuilder& b, ValueId x) {
      const std::vector<int32_t> ones{1, 1}, zeros{0, 0, 0, 0};
      const ValueId w =
          b.UseConstant(b.AddConstant({ElemType::kF32, {2, 4, 1, 1}}, RawBytes(std::vector<float>(8, 1))), "w");
      return b.Add(OpKind::kConv, {{"x", {x}},
                                   {"weight", {w}},
                                   {"strides", {b.Ints(ones)}},
                                   {"pad_type", {b.String(pad_type)}},
                                   {"pad", {b.Ints(zeros)}},
                                   {"dilations", {b.Ints(ones)}},
                                   {"groups", {b.Int(1)}}})[0];
    };
  };
  const auto cast_twice = [](const char* dtype) {
    return [dtype](GraphBuilder& b, ValueId x) {
      const ValueId y = b.Add(OpKind::kCast, {{"x", {x}}, {"dtype", {b.String(dtype)}}})[0];
      return b.Add(OpKind::kCast, {{"x", {y}}, {"dtype", {b.String("fp32")}}})[0];
    };
  };
  const VersionCase cases[] = {
      {"plain", 6, [](GraphBuilder& b, ValueId x) { return b.Unary(OpKind::kRelu, x); }},
      {"fp16 inside", 6, cast_twice("fp16")},
      {"int8 inside", 8, cast_twice("int8")},
      {"fp16 output", 7,
       [](GraphBuilder& b, ValueId x) {
         return b.Add(OpKind::kCast, {{"x", {x}}, {"dtype", {b.String("fp16")}}})[0];
       }},
      {"int8 output", 10,
       [](GraphBuilder& b, ValueId x) {
         return b.Add(OpKind::kCast, {{"x", {x}}, {"dtype", {b.String("int8")}}})[0];
       }},
      {"pad same", 6, same_lower("same")},
      {"pad same_lower", 7, same_lower("same_lower")},
      {"attention", 9,
       [](GraphBuilder& b, ValueId x) {
         return b.Add(OpKind::kScaledDotProductAttention, {{"query", {x}}, {"key", {x}}, {"value", {x}}})[0];
       }},
      {"two float types", 8,
       [](GraphBuilder& b, ValueId x) {
         const ValueId w =
             b.UseConstant(b.AddConstant({ElemType::kF16, {3, 3}}, HalfBytes(std::vector<float>(9))), "w");
         return b.MatMul(x, w, false, false);
       }},
  };
  for (const VersionCase& c : cases) {
    SCOPED_TRACE(c.what);
    GraphBuilder b;
    b.BeginFunction("main");
    b.Output("y", c.build(b, b.Input("x", {ElemType::kF32, {1, 4, 1, 3}})));
    const auto graph = std::move(b).Finish();
    ASSERT_TRUE(graph.ok()) << graph.error().message;
    const Scratch scratch;
    const Package package = RoundTrip(*graph, scratch.File("x.mlpackage"));
    EXPECT_EQ(package.metadata.specification_version, c.version);
    EXPECT_EQ(HashGraph(package.graph), HashGraph(*graph));
  }
}

// y = x times a decoded weight [2, 4], in one function "main" or in two.
Graph DecodedGraph(int n_functions, const std::function<ValueId(GraphBuilder&)>& weight) {
  GraphBuilder b;
  for (int i = 0; i < n_functions; ++i) {
    b.BeginFunction(n_functions == 1 ? std::string("main") : fmt::format("f{}", i));
    const ValueId x = b.Input("x", {ElemType::kF16, {1, 2}});
    b.Output("y", b.MatMul(x, weight(b), false, false));
  }
  auto graph = std::move(b).Finish();
  EXPECT_TRUE(graph.ok()) << graph.error().message;
  return graph.ok() ? *std::move(graph) : Graph{};
}

ValueId Affine(GraphBuilder& b) {
  const auto add = [&](ElemType elem, std::vector<size_t> dims, std::vector<std::byte> data) {
    return b.UseConstant(b.AddConstant({elem, std::move(dims)}, std::move(data)), "c");
  };
  return b.Add(
      OpKind::kConstexprAffineDequantize,
      {{"quantized_data", {add(ElemType::kI8, {2, 4}, RawBytes(std::vector<int8_t>{1, 2, 3, 4, -5, 6, 7, 8}))}},
       {"zero_point", {add(ElemType::kI8, {}, {std::byte{1}})}},
       {"scale", {add(ElemType::kF16, {2}, HalfBytes({0.5f, 2}))}},
       {"axis", {b.Int(0)}}})[0];
}

ValueId PackedLut(GraphBuilder& b) {
  const auto add = [&](ElemType elem, std::vector<size_t> dims, std::vector<std::byte> data) {
    return b.UseConstant(b.AddConstant({elem, std::move(dims)}, std::move(data)), "c");
  };
  return b.Add(OpKind::kConstexprLutToDense,
               {{"indices", {add(ElemType::kU8, {2}, {std::byte{0x1b}, std::byte{0xe4}})}},  // 3 2 1 0 0 1 2 3
                {"lut", {add(ElemType::kF16, {4}, HalfBytes({-1, 0.5f, 2, 8}))}},
                {"shape", {add(ElemType::kU32, {2}, RawBytes(std::vector<uint32_t>{2, 4}))}}})[0];
}

ValueId PackedSparse(GraphBuilder& b) {
  const auto add = [&](ElemType elem, std::vector<size_t> dims, std::vector<std::byte> data) {
    return b.UseConstant(b.AddConstant({elem, std::move(dims)}, std::move(data)), "c");
  };
  return b.Add(OpKind::kConstexprSparseToDense,
               {{"nonzero_data", {add(ElemType::kF16, {3}, HalfBytes({3, 4, 5}))}},
                {"mask", {add(ElemType::kU8, {1}, {std::byte{0x92}})}},  // 0 1 0 0 1 0 0 1
                {"shape", {add(ElemType::kU32, {2}, RawBytes(std::vector<uint32_t>{2, 4}))}}})[0];
}

std::vector<float> RunOnTwo(const Graph& graph) {
  const auto y = RunReference(graph, graph.functions[0], {HalfArray({1, 2}, {1, 10})}, Rounding::kF16);
  EXPECT_TRUE(y.ok()) << y.error().message;
  return y.ok() ? (*y)[0].floats : std::vector<float>();
}

TEST(WritePackage, DecodingOpsTakeTheFormOfTheirOpset) {
  const struct {
    const char* type;
    std::function<ValueId(GraphBuilder&)> build;
    bool attributes_in_8;
    std::vector<float> wanted;
  } cases[] = {
      {"constexpr_affine_dequantize", Affine, true, {-120, 100.5f, 121, 141.5f}},
      {"constexpr_lut_to_dense", PackedLut, false, {-2, 7, 20.5f, 79}},
      {"constexpr_sparse_to_dense", PackedSparse, false, {40, 3, 0, 50}},
  };
  for (const auto& c : cases) {
    for (const int n_functions : {1, 2}) {
      SCOPED_TRACE(fmt::format("{} in {}", c.type, n_functions));
      const Graph graph = DecodedGraph(n_functions, c.build);
      const Scratch scratch;
      const std::string path = scratch.File("x.mlpackage");
      const Package package = RoundTrip(graph, path);
      EXPECT_EQ(package.metadata.opset, n_functions == 1 ? "CoreML6" : "CoreML8");
      EXPECT_EQ(RunOnTwo(graph), c.wanted);
      EXPECT_EQ(RunOnTwo(package.graph), c.wanted);
      const mil::Model model = LoadModel(path);
      const auto ops = OpsOf(BlockOf(model), c.type);
      ASSERT_EQ(ops.size(), 1u);
      const bool attributes = n_functions == 1 || c.attributes_in_8;
      EXPECT_EQ(ops[0]->inputs_size() == 0, attributes);
      EXPECT_EQ(ops[0]->attributes_size() > 1, attributes);
      for (const mil::ArgumentEntry& input : ops[0]->inputs()) EXPECT_TRUE(input.value().arguments(0).has_value());
      // No const ops for what decoding ops hold themselves.
      for (const mil::Operation* op : OpsOf(BlockOf(model), "const")) {
        EXPECT_EQ(op->outputs(0).type().tensor().data_type(), 1) << op->outputs(0).name();  // matmul's two bools
      }
      if (attributes) {
        EXPECT_EQ(HashGraph(package.graph), HashGraph(graph));
      }
    }
  }
}

TEST(WritePackage, RefusesWhatNoPackageHolds) {
  const Scratch scratch;
  const auto refused = [&](const Graph& graph, const std::string& name, Code code, const std::string& wanted,
                           const WritePackageOptions& options = {}) {
    const auto written = WritePackage(graph, scratch.File(name), options);
    ASSERT_FALSE(written.ok()) << wanted;
    EXPECT_EQ(written.error().code, code);
    EXPECT_NE(written.error().message.find(wanted), std::string::npos) << written.error().message;
  };
  refused(ScaleGraph(), "x.mlmodel", Code::kInvalidArgument, "wanted a name that ends in .mlpackage");
  refused({}, "x.mlpackage", Code::kInvalidArgument, "has no functions");
  refused(ScaleGraph(), "x.mlpackage", Code::kInvalidArgument, "default function 'other', there is only 'main'",
          {"other", {}, {}});
  refused(ScaleGraph(), "absent/x.mlpackage", Code::kIo, "cannot write: No such file or directory");
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {2}});
  b.Output("y", b.Binary(OpKind::kLess, x, x));
  refused(std::move(b).Finish().value(), "x.mlpackage", Code::kUnsupported, "'y' is bool[2]; Core ML's inputs and");
  GraphBuilder s;
  s.BeginFunction("main");
  s.Output("y", s.Unary(OpKind::kRelu, s.Input("x", {ElemType::kF16, {}})));
  refused(std::move(s).Finish().value(), "x.mlpackage", Code::kUnsupported, "'x' is fp16; Core ML's");
  ASSERT_TRUE(WriteFileAtomic(scratch.File("file.mlpackage"), "mine").ok());
  refused(ScaleGraph(), "file.mlpackage", Code::kIo, "exists and is no package");
  EXPECT_EQ(*ReadFile(scratch.File("file.mlpackage")), "mine");
  fs::create_directories(scratch.File("folder.mlpackage/mine"));
  refused(ScaleGraph(), "folder.mlpackage", Code::kIo, "exists and is no package");
  EXPECT_TRUE(fs::exists(scratch.File("folder.mlpackage/mine")));
}

TEST(WritePackage, ReplacesAPackageAndKeepsTheOldOneWhenItFails) {
  const Scratch scratch;
  const std::string path = scratch.File("x.mlpackage");
  ASSERT_TRUE(WritePackage(ScaleGraph(), path).ok());
  ASSERT_TRUE(WriteFileAtomic(path + "/Data/extra", "left over").ok());
  Graph graph = ScaleGraph();
  graph.constants[0].data[0] ^= std::byte{1};
  ASSERT_TRUE(WritePackage(graph, path + "/").ok());
  EXPECT_FALSE(fs::exists(path + "/Data/extra"));
  EXPECT_EQ(HashGraph(ReadPackage(path).value().graph), HashGraph(graph));

  // A full disk, as a limit on the size of files: the weights do not fit.
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {1, 4096}});
  b.Output("y", b.Binary(OpKind::kMul, x,
                         b.UseConstant(b.AddConstant({ElemType::kF16, {1, 4096}}, std::vector<std::byte>(8192)), "w")));
  const Graph large = std::move(b).Finish().value();
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const struct rlimit small { 4096, old.rlim_max };
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written = WritePackage(large, path);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, Code::kIo);
  EXPECT_NE(written.error().message.find("cannot write: File too large"), std::string::npos) << written.error().message;
  EXPECT_EQ(HashGraph(ReadPackage(path).value().graph), HashGraph(graph));
  size_t left = 0;
  for (const auto& entry : fs::directory_iterator(scratch.path())) left += entry.exists() ? 1 : 0;
  EXPECT_EQ(left, 1u);
}

}  // namespace
}  // namespace npumoe
