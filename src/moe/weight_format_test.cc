// SPDX-License-Identifier: Apache-2.0
#include "moe/weight_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "graph/reference.h"
#include "model/random_model.h"
#include "model/test_files.h"
#include "moe/stage_graph.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

constexpr WeightFormat kAll[] = {WeightFormat::kFp16, WeightFormat::kInt8, WeightFormat::kLut8, WeightFormat::kLut6,
                                 WeightFormat::kLut4};
constexpr WeightFormat kPalettes[] = {WeightFormat::kLut8, WeightFormat::kLut6, WeightFormat::kLut4};

TensorView ViewOf(const std::vector<float>& values, size_t out, size_t in) {
  EXPECT_EQ(values.size(), out * in);
  return {DType::kF32, Shape::Of(out, in), reinterpret_cast<const std::byte*>(values.data())};
}

std::vector<float> RandomValues(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(n);
  for (float& v : values) v = 0.03f * static_cast<float>(random.Gaussian());
  return values;
}

struct Stored {
  Graph graph;
  std::vector<float> decoded;  // [out * in] as the reference decodes it
};

// A graph whose output is x + weight with x = 0, all in f32.
Stored Store(const std::vector<TensorView>& parts, const WeightOptions& options) {
  GraphBuilder b;
  const auto weight = AddWeight(b, parts, options);
  EXPECT_TRUE(weight.ok()) << weight.error().message;
  b.BeginFunction("main");
  const ValueId used = UseWeight(b, *weight);
  const ValueType type = b.TypeOf(used);
  const ValueId x = b.Input("x", type);
  b.Output("y", b.Binary(OpKind::kAdd, x, used));
  Stored stored{std::move(b).Finish().value(), {}};
  const Array zero{type, std::vector<float>(type.elems()), {}};
  stored.decoded = RunReference(stored.graph, stored.graph.functions[0], {zero}, Rounding::kF16).value()[0].floats;
  return stored;
}

double RelativeRms(const std::vector<float>& got, const std::vector<float>& wanted) {
  double off = 0, all = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    off += std::pow(static_cast<double>(got[i]) - static_cast<double>(wanted[i]), 2);
    all += std::pow(static_cast<double>(wanted[i]), 2);
  }
  return std::sqrt(off / all);
}

TEST(PaletteRows, AreTheDivisorNearestTo64) {
  const std::pair<size_t, size_t> cases[] = {{1, 1},    {2, 2},       {63, 63},   {64, 64},   {65, 65},  {128, 64},
                                             {768, 64}, {2048, 64},   {6400, 64}, {1408, 64}, {96, 48},  {200, 50},
                                             {97, 97},  {1009, 1009}, {5003, 1},  {192, 64},  {122, 61}, {512, 64}};
  for (const auto& [out, rows] : cases) EXPECT_EQ(PaletteRows(out), rows) << out;
  EXPECT_EQ(PaletteRows(96, 1), 1u);
  EXPECT_EQ(PaletteRows(96, 96), 96u);
  EXPECT_EQ(PaletteRows(8, 4), 4u);
}

TEST(AddWeight, StoresTheBytesThatWeightBytesSays) {
  for (const auto& [out, in] : {std::pair<size_t, size_t>{2, 3}, {64, 8}, {130, 5}, {1, 1}, {192, 64}}) {
    const std::vector<float> values = RandomValues(out * in, out);
    const TensorView view = ViewOf(values, out, in);
    for (const WeightFormat format : kAll) {
      const size_t got = Store({view}, {.format = format}).graph.WeightBytes();
      // UseWeight adds int8's zero point and axis.
      const size_t extra = format == WeightFormat::kInt8 ? 1 + sizeof(int32_t) : 0;
      EXPECT_EQ(got, WeightBytes(format, out, in) + extra) << ToString(format) << " " << out << " x " << in;
    }
  }
}

TEST(AddWeight, PalettesHoldTheNearestOfTheirGroupsValues) {
  // 3 parts of 128 rows, so 6 groups of 64; every group has its own scale.
  std::vector<std::vector<float>> values;
  std::vector<TensorView> parts;
  for (size_t part = 0; part < 3; ++part) {
    values.push_back(RandomValues(128 * 20, part + 1));
    for (size_t i = 0; i < values.back().size(); ++i)
      values.back()[i] *= static_cast<float>(1 + 7 * (i / (64 * 20)) + part);
  }
  for (const auto& part : values) parts.push_back(ViewOf(part, 128, 20));
  std::vector<float> wanted;
  for (const auto& part : values) {
    for (const float v : part) wanted.push_back(v / 4);
  }
  for (const WeightFormat format : kPalettes) {
    const Stored stored = Store(parts, {.format = format, .divisor = 4});
    const std::vector<float>& got = stored.decoded;
    const size_t entries = size_t{1} << PaletteBits(format);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t group = 0; group < 6; ++group) {
      std::vector<float> table(got.begin() + static_cast<ptrdiff_t>(group * 1280),
                               got.begin() + static_cast<ptrdiff_t>((group + 1) * 1280));
      std::sort(table.begin(), table.end());
      table.erase(std::unique(table.begin(), table.end()), table.end());
      ASSERT_LE(table.size(), entries);
      ASSERT_GE(table.size(), entries - 4);  // means may round to one value
      for (size_t i = group * 1280; i < (group + 1) * 1280; ++i) {
        const float v = F16ToF32(F32ToF16(wanted[i]));
        for (const float entry : table) ASSERT_LE(std::fabs(got[i] - v), std::fabs(entry - v)) << i;
      }
    }
  }
}

TEST(AddWeight, OneTablePerChannelFoldsItsScale) {
  // Channels that are multiples of one another: a table for all wastes entries, one per channel keeps every value.
  std::vector<float> values(8 * 16);
  for (size_t row = 0; row < 8; ++row) {
    for (size_t i = 0; i < 16; ++i) values[row * 16 + i] = static_cast<float>((row + 1) * (i + 1));
  }
  const TensorView view = ViewOf(values, 8, 16);
  EXPECT_EQ(Store({view}, {.format = WeightFormat::kLut4, .palette_rows = 1}).decoded, values);
  EXPECT_GT(RelativeRms(Store({view}, {.format = WeightFormat::kLut4, .palette_rows = 8}).decoded, values), 0.01);
}

TEST(AddWeight, FewValuesAreExactInEveryPalette) {
  // Levels of one Q4_0-like scale, all used by each group; odd sizes, so that groups end within bytes.
  for (const auto& [out, in] : {std::pair<size_t, size_t>{6, 7}, {97, 3}, {128, 33}}) {
    std::vector<float> values(out * in);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = 0.125f * static_cast<float>(static_cast<int>(i * 7 % 16) - 8);
    const TensorView view = ViewOf(values, out, in);
    for (const WeightFormat format : kPalettes) EXPECT_EQ(Store({view}, {.format = format}).decoded, values);
    const std::vector<float> constant(out * in, -1.5f);
    for (const WeightFormat format : kPalettes) {
      EXPECT_EQ(Store({ViewOf(constant, out, in)}, {.format = format}).decoded, constant);
    }
  }
}

TEST(AddWeight, ErrorFallsWithBitsAndWithTables) {
  std::vector<float> values = RandomValues(256 * 64, 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] *= static_cast<float>(1 + i / (64 * 64));  // groups differ
  const TensorView view = ViewOf(values, 256, 64);
  for (const size_t rows : {size_t{256}, size_t{64}, size_t{16}}) {
    double last = 1;
    for (const WeightFormat format : {WeightFormat::kLut4, WeightFormat::kLut6, WeightFormat::kLut8}) {
      const double error = RelativeRms(Store({view}, {.format = format, .palette_rows = rows}).decoded, values);
      EXPECT_LT(error, last / 2) << rows << " " << ToString(format);
      last = error;
    }
  }
  double last = 1;
  for (const size_t rows : {size_t{256}, size_t{64}, size_t{16}, size_t{1}}) {
    const double error =
        RelativeRms(Store({view}, {.format = WeightFormat::kLut4, .palette_rows = rows}).decoded, values);
    EXPECT_LT(error, last) << rows;
    last = error;
  }
}

TEST(AddWeight, RowsOfHeadsMove) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<uint32_t> order{0, 2, 1, 3};
  const std::vector<float> wanted{1, 3, 2, 4, 5, 7, 6, 8};
  for (const WeightFormat format : {WeightFormat::kFp16, WeightFormat::kLut4, WeightFormat::kLut8}) {
    EXPECT_EQ(Store({ViewOf(values, 8, 1)}, {.format = format, .head_order = order}).decoded, wanted);
  }
}

TEST(AddWeight, ManyThreadsStoreTheSameBytes) {
  const std::vector<float> values = RandomValues(320 * 24, 8), odd = RandomValues(97 * 5, 9);
  ThreadPool pool(3);
  for (const WeightFormat format : kAll) {
    for (const TensorView& view : {ViewOf(values, 320, 24), ViewOf(odd, 97, 5)}) {
      const Graph one = Store({view, view}, {.format = format}).graph;
      const Graph many = Store({view, view}, {.format = format, .pool = &pool}).graph;
      EXPECT_EQ(HashGraph(many), HashGraph(one)) << ToString(format);
    }
  }
}

TEST(AddWeight, RefusesWhatFp16CannotHold) {
  const float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  ThreadPool pool(2);
  for (const WeightFormat format : kAll) {
    for (const auto& [bad, text] :
         {std::pair<float, std::string>{kNan, "nan"}, {kInfinity, "inf"}, {-70000.f, "-70000"}}) {
      std::vector<float> values(200 * 4, 1.0f);
      values[150 * 4 + 2] = bad;
      values[170 * 4] = kNan;  // the first bad row is named
      for (ThreadPool* const threads : {&pool, static_cast<ThreadPool*>(nullptr)}) {
        GraphBuilder b;
        const TensorView view = ViewOf(values, 200, 4);
        const auto added = AddWeight(b, {&view, 1}, {.format = format, .pool = threads});
        ASSERT_FALSE(added.ok()) << ToString(format);
        EXPECT_EQ(added.error().code, Code::kUnsupported);
        EXPECT_EQ(added.error().message,
                  "weights: row 150 of part 0 holds " + text + ", wanted numbers that fp16 holds (65504)");
      }
    }
    // Small enough after the division.
    const std::vector<float> large(16, 100000.0f);
    EXPECT_EQ(Store({ViewOf(large, 4, 4)}, {.format = format, .divisor = 2}).decoded.size(), 16u);
  }
  const std::vector<float> tiny(16, 40000.0f);
  GraphBuilder b;
  const TensorView view = ViewOf(tiny, 4, 4);
  EXPECT_FALSE(AddWeight(b, {&view, 1}, {.format = WeightFormat::kLut4, .divisor = 0.5f}).ok());
}

Model TinyModelOf(const ScratchFolder& folder, std::string_view shape, DType dtype) {
  RandomModelSpec spec;
  spec.config = ShapeByName(shape).value();
  spec.matrix_dtype = dtype;
  spec.seed = 7;
  const std::string path = folder.File("model.gguf");
  const auto bytes = WriteRandomModel(spec, path);
  EXPECT_TRUE(bytes.ok()) << bytes.error().message;
  return Model::Open(path, {}).value();
}

Array RandomInput(Random& random, const ValueType& type) {
  Array array{type, {}, {}};
  for (size_t i = 0; i < type.elems(); ++i) {
    array.floats.push_back(F16ToF32(F32ToF16(static_cast<float>(random.Gaussian()))));
  }
  return array;
}

// Every block format of a file, through every format of a graph: outputs near those of fp16 weights, nearer with every
// bit, and as far as the weights are. Gate, up and down each add their own relative error e: to first order the output
// is off by sqrt(3) e; silu's slope against its value, and the products of errors, are given a factor of two.
TEST(StageGraphs, OfEveryFormatAreNearTheirFp16) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_K}) {
    const ScratchFolder folder;
    const Model model = TinyModelOf(folder, "tiny-qwen3moe", dtype);
    const LayerWeights& weights = model.weights().layers[1];
    const ExpertGroup group{{1, 4}, {3}};
    Random random(3);
    const Graph fp16 = BuildExpertGroup(model.config(), weights, group, WeightFormat::kFp16, 1).value();
    const Array x = RandomInput(random, {ElemType::kF16, {1, 2 * model.config().dim, 1, 3}});
    const auto wanted = RunReference(fp16, fp16.functions[0], {x}, Rounding::kF32).value()[0].floats;
    double last = 1;
    for (const WeightFormat format : {WeightFormat::kLut4, WeightFormat::kLut6, WeightFormat::kLut8}) {
      double weight_error = 0;
      for (const auto* part : {&weights.expert_gate[1], &weights.expert_up[4], &weights.expert_down[1]}) {
        std::vector<float> values(part->shape.elems());
        for (size_t row = 0; row < part->shape[0]; ++row) {
          DequantizeRow(part->dtype, part->Slice(row).data,
                        std::span(values).subspan(row * part->shape[1], part->shape[1]));
        }
        weight_error = std::max(weight_error, RelativeRms(Store({*part}, {.format = format}).decoded, values));
      }
      const Graph graph = BuildExpertGroup(model.config(), weights, group, format, 1).value();
      const auto got = RunReference(graph, graph.functions[0], {x}, Rounding::kF32).value()[0].floats;
      const double error = RelativeRms(got, wanted);
      EXPECT_LE(error, 2 * std::sqrt(3.0) * weight_error + 1e-6) << ToString(format);
      EXPECT_LT(error, last);
      last = error;
    }
    // Half of the classes, less of the error.
    const auto error_of = [&](ExpertFormats formats) {
      const Graph graph = BuildExpertGroup(model.config(), weights, group, formats, 1).value();
      return RelativeRms(RunReference(graph, graph.functions[0], {x}, Rounding::kF32).value()[0].floats, wanted);
    };
    const double both = error_of(WeightFormat::kLut4);
    EXPECT_LT(error_of({WeightFormat::kFp16, WeightFormat::kLut4}), both);
    EXPECT_LT(error_of({WeightFormat::kLut4, WeightFormat::kFp16}), both);
  }
}

// Printed for docs/weights.md: what more palettes are worth for trained weights, of an expert of the first and the last
// layer.
TEST(AddWeight, TablesOfTheDemoModel) {
  const auto model = Model::Open(std::string(NM_SOURCE_DIR) + "/models/demo-moe.gguf", {});
  ASSERT_TRUE(model.ok()) << model.error().message;
  for (const WeightFormat format : {WeightFormat::kLut4, WeightFormat::kLut6}) {
    std::vector<double> errors;
    for (const size_t rows : {size_t{1} << 20, kPaletteRows, size_t{8}, size_t{1}}) {
      double squares = 0;
      size_t n = 0, bytes = 0;
      for (const uint32_t layer : {0u, model->config().n_layers - 1}) {
        const LayerWeights& weights = model->weights().layers[layer];
        for (const auto* matrices : {&weights.expert_gate, &weights.expert_up, &weights.expert_down}) {
          for (const TensorView& matrix : std::span(*matrices).first(1)) {
            const size_t out = matrix.shape[0], in = matrix.shape[1];
            std::vector<float> values(out * in);
            for (size_t row = 0; row < out; ++row) {
              DequantizeRow(matrix.dtype, matrix.Slice(row).data, std::span(values).subspan(row * in, in));
            }
            const Stored stored = Store({matrix}, {.format = format, .palette_rows = rows});
            squares += std::pow(RelativeRms(stored.decoded, values), 2);
            bytes += stored.graph.WeightBytes();
            ++n;
          }
        }
      }
      errors.push_back(std::sqrt(squares / static_cast<double>(n)));
      std::printf("%s, a palette per %zu rows: relative error %.4f, %zu bytes\n", std::string(ToString(format)).c_str(),
                  std::min(rows, size_t{model->config().dim}), errors.back(), bytes / n);
    }
    for (size_t i = 1; i < errors.size(); ++i) EXPECT_LT(errors[i], errors[i - 1]);
    EXPECT_LT(errors[0], format == WeightFormat::kLut4 ? 0.2 : 0.06);
  }
}

TEST(StageGraphs, SayWhichWeightIsNoNumber) {
  const ScratchFolder folder;
  const Model model = TinyModelOf(folder, "tiny-mixtral", DType::kF32);
  LayerWeights weights = model.weights().layers[0];
  const Shape shape = weights.expert_down[1].shape;
  std::vector<float> values(shape.elems(), 0.5f);
  values[5 * shape[1] + 1] = std::numeric_limits<float>::quiet_NaN();
  weights.expert_down[1] = {DType::kF32, shape, reinterpret_cast<const std::byte*>(values.data())};
  for (const WeightFormat format : kAll) {
    const auto graph = BuildExpertGroup(model.config(), weights, {{0, 1}, {4}}, format, 1);
    ASSERT_FALSE(graph.ok());
    EXPECT_EQ(graph.error().message, "weights: row 5 of part 1 holds nan, wanted numbers that fp16 holds (65504)");
  }
  weights.wq = weights.expert_down[1];
  EXPECT_FALSE(
      BuildAttentionStage(model.config(), weights, true, 4, std::vector<uint32_t>{0}, WeightFormat::kLut6).ok());
}

}  // namespace
}  // namespace npumoe
