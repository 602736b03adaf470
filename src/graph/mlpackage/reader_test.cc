// SPDX-License-Identifier: Apache-2.0
// What ReadPackage makes of packages that our writer does not write, and of broken ones.
#include <algorithm>
#include <cstring>
#include <map>

#include "graph/mlpackage/blob_file.h"
#include "graph/mlpackage/manifest.h"
#include "graph/mlpackage/package_test.h"

namespace npumoe {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); }

// A good package in memory: the files of a written one.
struct Files {
  std::string model, weights;
};
Files FilesOf(const Graph& graph) {
  const Scratch scratch;
  EXPECT_TRUE(WritePackage(graph, scratch.File("x.mlpackage")).ok());
  Files files{*ReadFile(scratch.File("x.mlpackage") + kModelFile), {}};
  const auto weights = ReadFile(scratch.File("x.mlpackage") + kWeightsFile);
  if (weights.ok()) files.weights = *weights;
  return files;
}

Result<Package> ParseChanged(const std::function<void(mil::Model&, mil::Function&, mil::Block&)>& change,
                             const std::function<void(std::string&)>& change_weights = {}) {
  static const Files good = FilesOf(ScaleGraph());
  mil::Model model;
  EXPECT_TRUE(model.ParseFromString(good.model));
  mil::Function& function = *model.mutable_program()->mutable_functions(0)->mutable_value();
  change(model, function, *function.mutable_blocks(0)->mutable_value());
  std::string weights = good.weights;
  if (change_weights) change_weights(weights);
  const std::string bytes = model.SerializeAsString();
  return ParsePackage(Bytes(bytes), Bytes(weights), "m");
}

struct Fault {
  const char* wanted;
  Code code;
  std::function<void(mil::Model&, mil::Function&, mil::Block&)> plant;
};

TEST(ReadPackage, NamesWhatIsWrong) {
  constexpr Code kBad = Code::kCorruptFile, kNo = Code::kUnsupported;
  const Fault faults[] = {
      {"specification version 11, at most 10", kNo, [](auto& m, auto&, auto&) { m.set_specification_version(11); }},
      {"no ML Program", kNo, [](auto& m, auto&, auto&) { m.clear_program(); }},
      {"has no specification version", kBad, [](auto& m, auto&, auto&) { m.clear_specification_version(); }},
      {"program version 2, wanted 1", kNo, [](auto& m, auto&, auto&) { m.mutable_program()->set_version(2); }},
      {"the program has no functions", kBad, [](auto& m, auto&, auto&) { m.mutable_program()->clear_functions(); }},
      {"is there twice", kBad,
       [](auto& m, auto&, auto&) { *m.mutable_program()->add_functions() = m.program().functions(0); }},
      {"the default function 'main' is not in the program", kBad,
       [](auto& m, auto&, auto&) { m.mutable_program()->mutable_functions(0)->set_key("other"); }},
      {"function 'a?b': a name that is not supported", kNo,
       [](auto& m, auto&, auto&) { m.mutable_program()->mutable_functions(0)->set_key("a\nb"); }},
      {"opset 'CoreML10', wanted CoreML5 to CoreML9", kNo, [](auto&, auto& f, auto&) { f.set_opset("CoreML10"); }},
      {"has no block for its opset 'CoreML5'", kBad, [](auto&, auto& f, auto&) { f.set_opset("CoreML5"); }},
      {"opset CoreML6 in a model of specification version 6", kBad,
       [](auto& m, auto&, auto&) { m.set_specification_version(6); }},
      {"input 'x': is a state, and states are not supported", kNo,
       [](auto&, auto& f, auto&) {
         mil::ValueType& type = *f.mutable_inputs(0)->mutable_type();
         const mil::ValueType tensor = type;
         *type.mutable_state()->mutable_wrapped() = tensor;
       }},
      {"op 0 (read_state): states are not supported", kNo,
       [](auto&, auto&, auto& b) { b.mutable_operations(0)->set_type("read_state"); }},
      {"input 'x': has a flexible shape, fp16[?, 16, 1, 4]", kNo,
       [](auto&, auto& f, auto&) {
         f.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_dimensions(0)->mutable_unknown();
       }},
      {"input 'x': rank 5 with 4 dimensions", kBad,
       [](auto&, auto& f, auto&) { f.mutable_inputs(0)->mutable_type()->mutable_tensor()->set_rank(5); }},
      {"input 'x': element type 24 (int64) is not supported", kNo,
       [](auto&, auto& f, auto&) { f.mutable_inputs(0)->mutable_type()->mutable_tensor()->set_data_type(24); }},
      {"is larger than 2147483648 bytes", kBad,
       [](auto&, auto& f, auto&) {
         f.mutable_inputs(0)->mutable_type()->mutable_tensor()->mutable_dimensions(0)->mutable_constant()->set_size(
             UINT64_MAX);
       }},
      {"input 'x': has no type", kBad, [](auto&, auto& f, auto&) { f.mutable_inputs(0)->clear_type(); }},
      {"op 1 (while_loop): this op is not supported", kNo,
       [](auto&, auto&, auto& b) { b.mutable_operations(1)->set_type("while_loop"); }},
      {"op 1 (mul): has nested blocks", kNo, [](auto&, auto&, auto& b) { b.mutable_operations(1)->add_blocks(); }},
      {"parameter 'y': 'later' is used before it is defined", kBad,
       [](auto&, auto&, auto& b) {
         for (auto& input : *b.mutable_operations(1)->mutable_inputs()) {
           if (input.key() == "y") input.mutable_value()->mutable_arguments(0)->set_name("later");
         }
       }},
      {"op 1 (mul): 'w' is defined twice", kBad,
       [](auto&, auto&, auto& b) { b.mutable_operations(1)->mutable_outputs(0)->set_name("w"); }},
      {"op 0 (const): has no attribute 'val'", kBad,
       [](auto&, auto&, auto& b) { b.mutable_operations(0)->clear_attributes(); }},
      {"op 1 (mul): attribute 'alpha' is not supported", kNo,
       [](auto&, auto&, auto& b) { b.mutable_operations(1)->add_attributes()->set_key("alpha"); }},
      {"output 'y': declared fp16[1, 16, 1, 5], its operands make it fp16[1, 16, 1, 4]", kBad,
       [](auto&, auto&, auto& b) {
         b.mutable_operations(1)
             ->mutable_outputs(0)
             ->mutable_type()
             ->mutable_tensor()
             ->mutable_dimensions(3)
             ->mutable_constant()
             ->set_size(5);
       }},
      {"op 1 (mul): has 2 outputs, wanted 1", kBad,
       [](auto&, auto&, auto& b) { b.mutable_operations(1)->add_outputs()->set_name("z"); }},
      {"op 1 (mul): has no outputs", kBad, [](auto&, auto&, auto& b) { b.mutable_operations(1)->clear_outputs(); }},
      {"output 'absent': is defined by nothing", kBad, [](auto&, auto&, auto& b) { b.set_outputs(0, "absent"); }},
      {"output 'x' is not the result of an op", kBad, [](auto&, auto&, auto& b) { b.set_outputs(0, "x"); }},
      {"function 'main': has no outputs", kBad, [](auto&, auto&, auto& b) { b.clear_outputs(); }},
      {"parameter 'x': is missing", Code::kInvalidArgument,
       [](auto&, auto&, auto& b) { b.mutable_operations(1)->clear_inputs(); }},
  };
  for (const Fault& fault : faults) {
    const auto package = ParseChanged(fault.plant);
    ASSERT_FALSE(package.ok()) << fault.wanted;
    EXPECT_EQ(package.error().code, fault.code) << package.error().message;
    EXPECT_NE(package.error().message.find(fault.wanted), std::string::npos) << package.error().message;
    EXPECT_TRUE(package.error().message.starts_with("m: ")) << package.error().message;
  }
}

mil::BlobValue& BlobOf(mil::Block& block) {
  for (mil::ValueEntry& entry : *block.mutable_operations(0)->mutable_attributes()) {
    if (entry.key() == "val") return *entry.mutable_value()->mutable_blob();
  }
  ADD_FAILURE() << "no value";
  return *block.mutable_operations(0)->mutable_attributes(0)->mutable_value()->mutable_blob();
}

void Set64(std::string& bytes, size_t offset, uint64_t value) { std::memcpy(bytes.data() + offset, &value, 8); }

TEST(ReadPackage, ChecksEveryNumberOfTheWeightFile) {
  const struct {
    const char* wanted;
    std::function<void(std::string&)> plant;
  } faults[] = {
      {"63 bytes, wanted 64 or more", [](std::string& w) { w.resize(63); }},
      {"no multiple of 64 inside the file of 100 bytes", [](std::string& w) { w.resize(100); }},
      {"format version 1, wanted 2", [](std::string& w) { w[4] = 1; }},
      {"begins with deadbeee, wanted deadbeef", [](std::string& w) { w[64] = '\xee'; }},
      {"element type 2, wanted 1 (fp16[1, 16, 1, 1])", [](std::string& w) { w[68] = 2; }},
      {"33 bytes of data, fp16[1, 16, 1, 1] needs 32", [](std::string& w) { w[72] = 33; }},
      {"1 bits of padding", [](std::string& w) { w[88] = 1; }},
      {"data at 129 of 32 bytes, the file has 160", [](std::string& w) { w[80] = '\x81'; }},
      {"data at 18446744073709551615 of 32 bytes", [](std::string& w) { Set64(w, 80, UINT64_MAX); }},
      {"data at 128 of 32 bytes, the file has 159", [](std::string& w) { w.resize(159); }},
  };
  for (const auto& fault : faults) {
    const auto package = ParseChanged([](auto&, auto&, auto&) {}, fault.plant);
    ASSERT_FALSE(package.ok()) << fault.wanted;
    EXPECT_NE(package.error().message.find(fault.wanted), std::string::npos) << package.error().message;
  }
  for (const uint64_t offset : {uint64_t{0}, uint64_t{63}, uint64_t{65}, uint64_t{128}, uint64_t{UINT64_MAX - 63}}) {
    const auto package = ParseChanged([&](auto&, auto&, mil::Block& b) { BlobOf(b).set_offset(offset); });
    ASSERT_FALSE(package.ok()) << offset;
    EXPECT_EQ(package.error().code, Code::kCorruptFile);
  }
}

TEST(ReadPackage, FilesOutsideOfThePackageAreOutOfReach) {
  for (const char* path : {"/etc/passwd", "@model_path/../secret", "@model_path//weights/weight.bin", "weight.bin",
                           "@model_path/weights/../../../secret", "@model_path/", "@model_path/a\\..\\b", "",
                           "@model_path/.", "@model_path/weights/\x01"}) {
    const auto package = ParseChanged([&](auto&, auto&, mil::Block& b) { BlobOf(b).set_file(path); });
    ASSERT_FALSE(package.ok()) << path;
    EXPECT_EQ(package.error().code, Code::kCorruptFile);
    EXPECT_NE(package.error().message.find("wanted a path below @model_path"), std::string::npos)
        << package.error().message;
  }
}

// Small model files cannot ask for memory that the weights do not justify.
TEST(ReadPackage, ManyShapesOfOneTensorAreRefused) {
  GraphBuilder b;
  b.BeginFunction("main");
  const ValueId x = b.Input("x", {ElemType::kF16, {1, 1}});
  const size_t n = size_t{1} << 20;
  b.Output("y", b.Binary(OpKind::kMul, x,
                         b.UseConstant(b.AddConstant({ElemType::kF16, {1, n}}, std::vector<std::byte>(2 * n)), "w")));
  const Files files = FilesOf(std::move(b).Finish().value());
  mil::Model model;
  ASSERT_TRUE(model.ParseFromString(files.model));
  mil::Block& block =
      *model.mutable_program()->mutable_functions(0)->mutable_value()->mutable_blocks(0)->mutable_value();
  const mil::Operation constant = block.operations(0);
  for (size_t rows = 2; rows <= 64; rows *= 2) {
    mil::Operation& copy = *block.add_operations();
    copy = constant;
    copy.mutable_outputs(0)->set_name("w" + std::to_string(rows));
    for (mil::ValueEntry& entry : *copy.mutable_attributes()) {
      if (entry.key() == "val") SetType({ElemType::kF16, {rows, n / rows}}, *entry.mutable_value()->mutable_type());
    }
  }
  const std::string bytes = model.SerializeAsString();
  const auto package = ParsePackage(Bytes(bytes), Bytes(files.weights), "m");
  ASSERT_FALSE(package.ok());
  EXPECT_EQ(package.error().code, Code::kOutOfMemory) << package.error().message;
}

TEST(ReadPackage, EveryTruncationIsAnErrorNotACrash) {
  const Files good = FilesOf(ScaleGraph());
  ASSERT_TRUE(ParsePackage(Bytes(good.model), Bytes(good.weights), "m").ok());
  for (size_t n = 0; n < good.model.size(); ++n) {
    const std::string cut = good.model.substr(0, n);
    ASSERT_FALSE(ParsePackage(Bytes(cut), Bytes(good.weights), "m").ok()) << n;
  }
  for (size_t n = 0; n < good.weights.size(); ++n) {
    const std::string cut = good.weights.substr(0, n);
    const auto package = ParsePackage(Bytes(good.model), Bytes(cut), "m");
    ASSERT_FALSE(package.ok()) << n;
    EXPECT_EQ(package.error().code, Code::kCorruptFile) << n;
  }
}

TEST(ReadPackage, DeepNestingEndsInAnError) {
  // Field 4 of an operation is a list of blocks, field 3 of a block a list of operations.
  std::string inner = "\x0a\x01x";
  for (int depth = 0; depth < 5000; ++depth) {
    std::string outer(1, depth % 2 == 0 ? '\x1a' : '\x22');
    for (size_t n = inner.size(); true; n >>= 7) {
      outer += static_cast<char>(n < 128 ? n : n % 128 + 128);
      if (n < 128) break;
    }
    inner = outer + inner;
  }
  mil::Operation op;
  EXPECT_FALSE(op.ParseFromString(inner));
  EXPECT_FALSE(ParsePackage(Bytes(inner), {}, "m").ok());
}

TEST(ReadPackage, NamesThatOursCannotBearGetOthers) {
  const auto package = ParseChanged([](auto&, mil::Function&, mil::Block& b) {
    b.mutable_operations(0)->mutable_outputs(0)->set_name("bool");
    for (auto& input : *b.mutable_operations(1)->mutable_inputs()) {
      if (input.key() == "y") input.mutable_value()->mutable_arguments(0)->set_name("bool");
    }
  });
  ASSERT_TRUE(package.ok()) << package.error().message;
  EXPECT_EQ(package->graph.functions[0].values[1].name, "_bool");
}

// Chromium binds everything in place; ONNX Runtime leaves out a linear's bias.
TEST(ReadPackage, TakesLiteralsAndFillsInWhatIsMissing) {
  const auto package = ParseChanged([](mil::Model&, mil::Function& f, mil::Block& b) {
    mil::Operation linear;
    linear.set_type("linear");
    SetType({ElemType::kF16, {1, 16, 1, 4}}, *f.mutable_inputs(0)->mutable_type());
    mil::ArgumentEntry& x = *linear.add_inputs();
    x.set_key("x");
    x.mutable_value()->add_arguments()->set_name("x");
    mil::ArgumentEntry& weight = *linear.add_inputs();
    weight.set_key("weight");
    mil::Value& value = *weight.mutable_value()->add_arguments()->mutable_value();
    SetType({ElemType::kF16, {2, 4}}, *value.mutable_type());
    SetImmediate(ElemType::kF16, HalfBytes({1, 2, 3, 4, 5, 6, 7, 8}), *value.mutable_immediate()->mutable_tensor());
    linear.add_outputs()->set_name("y");
    SetType({ElemType::kF16, {1, 16, 1, 2}}, *linear.mutable_outputs(0)->mutable_type());
    b.clear_operations();
    *b.add_operations() = linear;
  });
  ASSERT_TRUE(package.ok()) << package.error().message;
  const Function& f = package->graph.functions[0];
  const Operand* bias = f.ops[0].Find("bias");
  ASSERT_NE(bias, nullptr);
  EXPECT_EQ(f.values[bias->values[0]].type, (ValueType{ElemType::kF16, {2}}));
  EXPECT_EQ(f.values[f.ops[0].Find("weight")->values[0]].name, "y_weight");
  const auto y = RunReference(package->graph, f, {HalfArray({1, 16, 1, 4}, std::vector<float>(64, 1))}, Rounding::kF16);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].floats[0], 10);
  EXPECT_EQ((*y)[0].floats[1], 26);
}

TEST(ReadPackage, FoldersThatAreNoPackages) {
  const Scratch scratch;
  const auto error = [&](const std::string& name) {
    const auto package = ReadPackage(scratch.File(name));
    EXPECT_FALSE(package.ok());
    return package.ok() ? std::string() : package.error().message.substr(scratch.path().size() + 1);
  };
  EXPECT_EQ(error("absent.mlpackage"), "absent.mlpackage: no such package");
  ASSERT_TRUE(WriteFileAtomic(scratch.File("file.mlpackage"), "x").ok());
  EXPECT_EQ(error("file.mlpackage"), "file.mlpackage: not a folder, as packages are");
  fs::create_directories(scratch.File("x.mlpackage"));
  EXPECT_EQ(error("x.mlpackage"), "x.mlpackage/Manifest.json: cannot open: No such file or directory");
  const std::pair<const char*, const char*> manifests[] = {
      {"{", "not JSON"},
      {"[]", "'fileFormatVersion' is missing or no text"},
      {R"({"fileFormatVersion": "2.0.0"})", "fileFormatVersion '2.0.0', wanted 1.0.0"},
      {R"({"fileFormatVersion": "1.0.0", "rootModelIdentifier": 7})", "'rootModelIdentifier' is missing or no text"},
      {R"({"fileFormatVersion": "1.0.0", "rootModelIdentifier": "a", "itemInfoEntries": []})",
       "itemInfoEntries has no 'a', the root model"},
      {R"({"fileFormatVersion": "1.0.0", "rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "../../x"}}})",
       "path '../../x' leaves the package"},
      {R"({"fileFormatVersion": "1.0.0", "rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "/etc/x"}}})",
       "path '/etc/x' leaves the package"},
  };
  for (const auto& [text, wanted] : manifests) {
    ASSERT_TRUE(WriteFileAtomic(scratch.File("x.mlpackage/Manifest.json"), text).ok());
    EXPECT_EQ(error("x.mlpackage"), std::string("x.mlpackage: Manifest.json: ") + wanted);
  }
}

// The inputs that the fuzzer starts from are made by a Python encoder that shares nothing with ours.
TEST(ReadPackage, TakesWhatAnotherEncoderWrites) {
  const std::pair<const char*, const char*> seeds[] = {
      {"conv", ""},
      {"two_functions", ""},
      {"lut_inputs", ""},
      {"lut_attributes", ""},
      {"affine", ""},
      {"sparse", ""},
      {"defaults", ""},
      {"state", "m: function 'main': input 'x': is a state, and states are not supported"},
      {"flexible",
       "m: function 'main': input 'x': has a flexible shape, fp16[?, 4, 1, 3], and only fixed shapes are supported"},
      {"escape",
       "m: function 'main': op 0 (conv): parameter 'weight': weight file '@model_path/../../secret': wanted a path "
       "below "
       "@model_path"},
  };
  for (const auto& [name, wanted] : seeds) {
    const auto bytes = ReadFile(std::string(NM_SOURCE_DIR) + "/fuzz/corpus/mlpackage_fuzz/" + name);
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    uint32_t model_bytes = 0;
    std::memcpy(&model_bytes, bytes->data(), sizeof(model_bytes));
    const auto package =
        ParsePackage(Bytes(*bytes).subspan(4, model_bytes), Bytes(*bytes).subspan(4 + model_bytes), "m");
    EXPECT_EQ(package.ok() ? "" : package.error().message, wanted) << name;
    if (!package.ok() || package->graph.functions[0].ops.back().kind != OpKind::kConv) continue;
    // x is 1, 10, 100, 1000 by channel, so that the sums show every weight.
    std::vector<float> x;
    for (const float channel : {1.0f, 10.0f, 100.0f, 1000.0f}) x.insert(x.end(), 3, channel);
    const auto y =
        RunReference(package->graph, package->graph.functions[0], {HalfArray({1, 4, 1, 3}, x)}, Rounding::kF32);
    ASSERT_TRUE(y.ok()) << y.error().message;
    const std::map<std::string, std::pair<float, float>> sums{
        {"conv", {3210, 7654}},           {"two_functions", {3210, 7654}},     {"lut_inputs", {3210, 7654}},
        {"lut_attributes", {1234, 4321}}, {"affine", {0.5f * 2099, 2 * 6543}}, {"sparse", {10, 2 + 3000}}};
    EXPECT_EQ((*y)[0].floats[0], sums.at(name).first) << name;
    EXPECT_EQ((*y)[0].floats[3], sums.at(name).second) << name;
  }
}

// Sub-byte data of the format's own examples, through a written file.
TEST(BlobFile, SubByteTensorsHaveTheirPadding) {
  const struct {
    ElemType elem;
    size_t elems;
    std::vector<int> bytes;
    unsigned code, padding;
  } cases[] = {
      {ElemType::kI4, 5, {0xf8, 0x37, 0x01}, 8, 4},
      {ElemType::kU4, 3, {0x21, 0x0f}, 11, 4},
      {ElemType::kU3, 9, {0xd1, 0x58, 0x1f, 0x01}, 12, 5},
      {ElemType::kU6, 5, {0x81, 0x30, 0xfc, 0x21}, 13, 2},
      {ElemType::kU2, 5, {0x39, 0x01}, 10, 6},
      {ElemType::kU1, 9, {0x81, 0x01}, 9, 7},
      {ElemType::kI32, 1, {1, 2, 3, 4}, 14, 0},
      {ElemType::kU16, 2, {1, 2, 3, 4}, 7, 0},
  };
  const Scratch scratch;
  BlobWriter writer;
  std::vector<std::vector<std::byte>> data;
  for (const auto& c : cases) {
    data.emplace_back();
    for (const int b : c.bytes) data.back().push_back(static_cast<std::byte>(b));
  }
  std::vector<uint64_t> offsets;
  for (size_t i = 0; i < data.size(); ++i) offsets.push_back(writer.Add(cases[i].elem, cases[i].elems, data[i]));
  EXPECT_EQ(writer.Add(cases[0].elem, cases[0].elems, data[0]), offsets[0]);
  {
    auto file = AtomicFile::Create(scratch.File("w.bin")).value();
    ASSERT_TRUE(writer.Write(file).ok());
    ASSERT_TRUE(file.Commit().ok());
  }
  const std::string bytes = *ReadFile(scratch.File("w.bin"));
  EXPECT_EQ(bytes.size(), writer.file_bytes());
  EXPECT_EQ(static_cast<size_t>(bytes[0]), data.size());
  WeightFiles files(scratch.path());
  for (size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(offsets[i], 64 + 128 * i);
    EXPECT_EQ(static_cast<unsigned>(bytes[offsets[i] + 4]), cases[i].code);
    EXPECT_EQ(static_cast<unsigned>(bytes[offsets[i] + 24]), cases[i].padding);
    const auto read = files.Read("@model_path/w.bin", offsets[i], {cases[i].elem, {cases[i].elems}});
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_TRUE(std::ranges::equal(*read, data[i])) << i;
  }
}

}  // namespace
}  // namespace npumoe
