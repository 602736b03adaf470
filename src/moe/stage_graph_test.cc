// SPDX-License-Identifier: Apache-2.0
// Stage graphs of random models, run by the reference executor, against the same layer in plain double loops.
#include "moe/stage_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "graph/reference.h"
#include "model/random_model.h"
#include "model/test_files.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {
namespace {

using Vec = std::vector<double>;

Model TinyModel(const ScratchFolder& folder, std::string_view shape, DType dtype) {
  RandomModelSpec spec;
  spec.config = ShapeByName(shape).value();
  spec.matrix_dtype = dtype;
  spec.seed = 7;
  const std::string path = folder.File("model.gguf");
  const auto bytes = WriteRandomModel(spec, path);
  EXPECT_TRUE(bytes.ok()) << bytes.error().message;
  return Model::Open(path, {}).value();
}

double Half(double v) { return static_cast<double>(F16ToF32(F32ToF16(static_cast<float>(v)))); }

// A matrix or vector of the file in doubles; `half`: each value / divisor rounded to fp16, as graphs store it.
Vec Values(const TensorView& view, bool half = true, float divisor = 1) {
  if (view.empty()) return {};
  const size_t rows = view.shape.rank == 1 ? 1 : view.shape[0], cols = view.shape.inner();
  std::vector<float> row(cols);
  Vec values;
  for (size_t r = 0; r < rows; ++r) {
    DequantizeRow(view.dtype, view.shape.rank == 1 ? view.data : view.Slice(r).data, row);
    for (const float v : row) values.push_back(half ? Half(static_cast<double>(v / divisor)) : static_cast<double>(v));
  }
  return values;
}

Vec MatVec(const Vec& matrix, const Vec& x) {  // [out, in] times [in]
  Vec y(matrix.size() / x.size(), 0.0);
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += matrix[o * x.size() + i] * x[i];
  }
  return y;
}

void AddTo(Vec& x, const Vec& bias) {
  for (size_t i = 0; i < bias.size(); ++i) x[i] += bias[i];
}

Array RandomArray(Random& random, std::vector<size_t> dims, double scale) {
  Array array{{ElemType::kF16, std::move(dims)}, {}, {}};
  for (size_t i = 0; i < array.type.elems(); ++i) {
    array.floats.push_back(static_cast<float>(Half(scale * random.Gaussian())));
  }
  return array;
}

// |got - wanted| <= tolerance * the largest |wanted|.
void ExpectClose(const std::vector<float>& got, const Vec& wanted, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double top = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    top = std::max(top, std::fabs(wanted[i]));
    const double error = std::fabs(static_cast<double>(got[i]) - wanted[i]);
    if (!(error <= worst)) worst = error, at = i;
  }
  ASSERT_GT(top, 0) << what;
  EXPECT_LE(worst, tolerance * top) << what << " at " << at << ": got " << got[at] << ", wanted " << wanted[at];
}

std::vector<Array> RunFunction(const Graph& graph, const std::string& name, const std::vector<Array>& inputs,
                               Rounding rounding = Rounding::kF32) {
  const Function* function = graph.Find(name);
  EXPECT_NE(function, nullptr) << name;
  if (function == nullptr) return {};
  auto run = RunReference(graph, *function, inputs, rounding);
  EXPECT_TRUE(run.ok()) << run.error().message;
  return run.ok() ? std::move(run).value() : std::vector<Array>();
}

// y [G * dim, C] of the group, expert by expert and column by column.
Vec ExpertsByHand(const LayerWeights& weights, const std::vector<uint32_t>& experts, const Array& x, bool half,
                  float divisor) {
  const size_t columns = x.type.dims[3], dim = x.type.dims[1] / experts.size();
  Vec y(x.floats.size());
  for (size_t g = 0; g < experts.size(); ++g) {
    const Vec gate = Values(weights.expert_gate[experts[g]], half),
              down = Values(weights.expert_down[experts[g]], half);
    const Vec up = Values(weights.expert_up[experts[g]], half, divisor);
    for (size_t c = 0; c < columns; ++c) {
      Vec in(dim);
      for (size_t i = 0; i < dim; ++i) in[i] = static_cast<double>(x.floats[(g * dim + i) * columns + c]);
      Vec hidden = MatVec(gate, in);
      const Vec linear = MatVec(up, in);
      for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = hidden[i] / (1 + std::exp(-hidden[i])) * linear[i];
      const Vec out = MatVec(down, hidden);
      for (size_t i = 0; i < dim; ++i) y[(g * dim + i) * columns + c] = out[i];
    }
  }
  return y;
}

TEST(ExpertGroup, EqualsItsExpertsOneByOneAtEveryCapacity) {
  for (const DType dtype : {DType::kF32, DType::kQ4_0}) {
    const ScratchFolder folder;
    const Model model = TinyModel(folder, "tiny-qwen3moe", dtype);
    const LayerWeights& weights = model.weights().layers[1];
    const ExpertGroup group{{1, 4, 6}, {2, 5}};
    const Graph graph = BuildExpertGroup(model.config(), weights, group, WeightFormat::kFp16, 1.0f).value();
    Random random(3);
    for (const uint32_t capacity : group.capacities) {
      const Array x = RandomArray(random, {1, 3 * model.config().dim, 1, capacity}, 1);
      const auto y = RunFunction(graph, CapacityFunction(capacity), {x});
      ASSERT_EQ(y.size(), 1u);
      EXPECT_EQ(y[0].type, x.type);
      ExpectClose(y[0].floats, ExpertsByHand(weights, group.experts, x, true, 1), 1e-5, "fp16 weights");
      // Against the file's own weights: fp16 keeps 11 bits.
      ExpectClose(y[0].floats, ExpertsByHand(weights, group.experts, x, false, 1), 1e-3, "weights of the file");
    }
  }
}

TEST(ExpertGroup, Int8WeightsStayNear) {
  const ScratchFolder folder;
  const Model model = TinyModel(folder, "tiny-qwen3moe", DType::kF32);
  const LayerWeights& weights = model.weights().layers[0];
  const ExpertGroup group{{0, 7}, {3}};
  const Graph graph = BuildExpertGroup(model.config(), weights, group, WeightFormat::kInt8, 2.0f).value();
  Random random(5);
  const Array x = RandomArray(random, {1, 2 * model.config().dim, 1, 3}, 1);
  auto y = RunFunction(graph, CapacityFunction(3), {x});
  ASSERT_EQ(y.size(), 1u);
  for (float& v : y[0].floats) v *= 2;
  // Per weight at most half a step of max / 127; three matrices of 256 inputs average far below 2 %.
  ExpectClose(y[0].floats, ExpertsByHand(weights, group.experts, x, false, 1), 2e-2, "int8");
  const Graph full = BuildExpertGroup(model.config(), weights, group, WeightFormat::kFp16, 1).value();
  EXPECT_LT(100 * graph.WeightBytes(), 52 * full.WeightBytes());
}

TEST(ExpertGroup, ScaleIsFoldedIntoTheUpProjection) {
  const ScratchFolder folder;
  const Model model = TinyModel(folder, "tiny-mixtral", DType::kF32);
  const LayerWeights& weights = model.weights().layers[0];
  const ExpertGroup group{{2, 3}, {4}};
  Random random(9);
  const Array x = RandomArray(random, {1, 2 * model.config().dim, 1, 4}, 1);
  for (const float scale : {1.0f, 4.0f, 3.0f}) {
    const Graph graph = BuildExpertGroup(model.config(), weights, group, WeightFormat::kFp16, scale).value();
    auto y = RunFunction(graph, CapacityFunction(4), {x});
    ASSERT_EQ(y.size(), 1u);
    ExpectClose(y[0].floats, ExpertsByHand(weights, group.experts, x, true, scale), 1e-5, "scaled");
    for (float& v : y[0].floats) v *= scale;
    ExpectClose(y[0].floats, ExpertsByHand(weights, group.experts, x, false, 1), 1e-3, "multiplied back");
  }
}

TEST(ExpertGroup, ScaleKeepsHalfFinite) {
  const ScratchFolder folder;
  const Model model = TinyModel(folder, "tiny-mixtral", DType::kF32);
  const LayerWeights& weights = model.weights().layers[0];
  const ExpertGroup group{{5}, {2}};
  Random random(11);
  Array x = RandomArray(random, {1, model.config().dim, 1, 2}, 1);
  // The output grows with the square of the input: to four times the largest fp16 number.
  const Vec small = ExpertsByHand(weights, group.experts, x, false, 1);
  double top = 0;
  for (const double v : small) top = std::max(top, std::fabs(v));
  const double grow = std::sqrt(4 * 65504 / top);
  for (float& v : x.floats) v = static_cast<float>(Half(static_cast<double>(v) * grow));
  const auto overflows = [&](float scale, std::vector<float>& y) {
    const Graph graph = BuildExpertGroup(model.config(), weights, group, WeightFormat::kFp16, scale).value();
    y = RunFunction(graph, CapacityFunction(2), {x}, Rounding::kF16)[0].floats;
    for (float& v : y) v *= scale;
    return std::any_of(y.begin(), y.end(), [](float v) { return !std::isfinite(v); });
  };
  std::vector<float> y;
  EXPECT_TRUE(overflows(1, y));
  EXPECT_FALSE(overflows(64, y));
  ExpectClose(y, ExpertsByHand(weights, group.experts, x, false, 1), 5e-3, "fp16 with a scale of 64");
}

TEST(ExpertGroup, RefusesAMissingExpertAndAnEmptyGroup) {
  const ScratchFolder folder;
  const Model model = TinyModel(folder, "tiny-mixtral", DType::kF32);
  const LayerWeights& weights = model.weights().layers[0];
  EXPECT_EQ(BuildExpertGroup(model.config(), weights, {{8}, {4}}, WeightFormat::kFp16, 1).error().message,
            "plan: expert 8, the layer has 8");
  EXPECT_EQ(BuildExpertGroup(model.config(), weights, {{}, {4}}, WeightFormat::kFp16, 1).error().message,
            "plan: a group without experts");
}

// One attention stage in plain loops. Constants are fp16, as in the graph; everything else is double.
class StageByHand {
 public:
  StageByHand(const ModelConfig& config, const LayerWeights& weights, const std::vector<Array>& inputs,
              size_t kv_length)
      : config_(config), w_(weights), in_(inputs), kv_length_(kv_length), columns_(inputs[0].type.dims[3]) {}

  Vec delta, k_new, v_new, router;  // as the graph lays them out

  void Run() {
    const size_t dim = config_.dim, kv_heads = config_.n_kv_heads, head_dim = config_.head_dim;
    k_new.resize(kv_heads * columns_ * head_dim);
    v_new.resize(k_new.size());
    delta.resize(dim * columns_);
    std::vector<Vec> queries;
    for (size_t c = 0; c < columns_; ++c) {
      const Vec normed = Norm(Column(in_[0], c), w_.attn_norm, w_.attn_norm_bias);
      queries.push_back(Rotated(Project(normed, w_.wq, w_.bq, w_.q_norm), c));
      const Vec k = Rotated(Project(normed, w_.wk, w_.bk, w_.k_norm), c), v = Project(normed, w_.wv, w_.bv, {});
      for (size_t h = 0; h < kv_heads; ++h) {
        for (size_t i = 0; i < head_dim; ++i) {
          k_new[(h * columns_ + c) * head_dim + i] = k[h * head_dim + i];
          v_new[(h * columns_ + c) * head_dim + i] = v[h * head_dim + i];
        }
      }
    }
    for (size_t c = 0; c < columns_; ++c) {
      Vec out = MatVec(Values(w_.wo), Attend(queries[c], c));
      AddTo(out, Values(w_.bo));
      Vec residual = Column(in_[0], c);
      for (size_t i = 0; i < dim; ++i) {
        delta[i * columns_ + c] = out[i];
        residual[i] += out[i];
      }
      if (w_.router.empty()) continue;
      const Vec logits = MatVec(Values(w_.router), Norm(residual, w_.ffn_norm, w_.ffn_norm_bias));
      router.resize(logits.size() * columns_);
      for (size_t e = 0; e < logits.size(); ++e) router[e * columns_ + c] = logits[e];
    }
  }

 private:
  Vec Column(const Array& array, size_t c) const {
    Vec out;
    for (size_t i = c; i < array.floats.size(); i += columns_) out.push_back(static_cast<double>(array.floats[i]));
    return out;
  }

  Vec Rms(Vec x, size_t begin, size_t n, const Vec& gamma) const {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[begin + i] * x[begin + i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + Half(static_cast<double>(config_.norm_eps)));
    for (size_t i = 0; i < n; ++i) x[begin + i] *= scale * gamma[i];
    return x;
  }

  Vec Norm(Vec x, const TensorView& weight, const TensorView& bias) const {
    const auto n = static_cast<double>(x.size());
    double mean = 0;
    for (const double v : x) mean += v / n;
    if (config_.norm == NormKind::kLayerNorm) {
      for (double& v : x) v -= mean;  // the variance is the mean square of what is left
    }
    x = Rms(std::move(x), 0, x.size(), Values(weight));
    AddTo(x, Values(bias));
    return x;
  }

  Vec Project(const Vec& x, const TensorView& weight, const TensorView& bias, const TensorView& norm) const {
    Vec y = MatVec(Values(weight), x);
    AddTo(y, Values(bias));
    if (norm.empty()) return y;
    if (config_.qk_norm == QkNorm::kFullWidth) return Rms(std::move(y), 0, y.size(), Values(norm));
    for (size_t h = 0; h < y.size(); h += config_.head_dim) y = Rms(std::move(y), h, config_.head_dim, Values(norm));
    return y;
  }

  // Rotates pairs of the file's order and moves them to half-split order.
  Vec Rotated(const Vec& heads, size_t c) const {
    const size_t half = config_.rope_dim / 2;
    Vec out = heads;
    for (size_t h = 0; h < heads.size(); h += config_.head_dim) {
      for (size_t i = 0; i < half; ++i) {
        const double cos = static_cast<double>(in_[1].floats[i * columns_ + c]);
        const double sin = static_cast<double>(in_[2].floats[i * columns_ + c]);
        const double a = heads[h + (config_.rope_interleaved ? 2 * i : i)];
        const double b = heads[h + (config_.rope_interleaved ? 2 * i + 1 : i + half)];
        out[h + i] = a * cos - b * sin;
        out[h + i + half] = a * sin + b * cos;
      }
    }
    return out;
  }

  Vec Attend(const Vec& query, size_t c) const {
    const size_t head_dim = config_.head_dim, total = kv_length_ + columns_;
    const double scale = Half(1 / std::sqrt(static_cast<double>(head_dim)));
    Vec out(query.size());
    for (size_t h = 0; h < config_.n_heads; ++h) {
      const size_t kv = h / (config_.n_heads / config_.n_kv_heads);
      const auto at = [&](size_t s, size_t i, size_t cache, const Vec& fresh) {
        return s < kv_length_ ? static_cast<double>(in_[cache].floats[(kv * kv_length_ + s) * head_dim + i])
                              : fresh[(kv * columns_ + s - kv_length_) * head_dim + i];
      };
      double sum = 0;
      for (size_t s = 0; s < total; ++s) {
        // Visible or not, instead of the graph's large negative number.
        if (in_[3].floats[c * total + s] < 0) continue;
        double score = 0;
        for (size_t i = 0; i < head_dim; ++i) score += query[h * head_dim + i] * scale * at(s, i, 4, k_new);
        const double weight = std::exp(score);
        sum += weight;
        for (size_t i = 0; i < head_dim; ++i) out[h * head_dim + i] += weight * at(s, i, 5, v_new);
      }
      for (size_t i = 0; i < head_dim; ++i) out[h * head_dim + i] /= sum;
    }
    return out;
  }

  const ModelConfig& config_;
  const LayerWeights& w_;
  const std::vector<Array>& in_;
  const size_t kv_length_, columns_;
};

// x, cos, sin, mask, and the caches with `seen` positions of the bucket in use; the others hold large garbage.
std::vector<Array> StageInputs(const ModelConfig& config, size_t columns, size_t kv_length, size_t seen,
                               uint64_t seed) {
  Random random(seed);
  std::vector<Array> inputs{RandomArray(random, {1, config.dim, 1, columns}, 1)};
  const std::vector<size_t> rope{1, 1, config.rope_dim / 2, columns};
  Array cos = RandomArray(random, rope, 3), sin = cos;
  for (float& v : cos.floats) v = std::cos(v);
  for (float& v : sin.floats) v = std::sin(v);
  inputs.insert(inputs.end(), {cos, sin});
  Array mask{{ElemType::kF16, {1, 1, columns, kv_length + columns}}, {}, {}};
  for (size_t c = 0; c < columns; ++c) {
    for (size_t s = 0; s < kv_length + columns; ++s) {
      const bool visible = s < kv_length ? s < seen : s - kv_length <= c;
      mask.floats.push_back(visible ? 0 : kMaskedScore);
    }
  }
  inputs.push_back(mask);
  if (kv_length == 0) return inputs;
  for (int i = 0; i < 2; ++i) {
    Array cache = RandomArray(random, {1, config.n_kv_heads, kv_length, config.head_dim}, 1);
    for (size_t j = 0; j < cache.floats.size(); ++j) {
      if (j / config.head_dim % kv_length >= seen) cache.floats[j] = 40;
    }
    inputs.push_back(cache);
  }
  return inputs;
}

class AttentionStage : public testing::TestWithParam<std::string> {};

TEST_P(AttentionStage, EqualsPlainLoopsWithAndWithoutACache) {
  const ScratchFolder folder;
  const Model model = TinyModel(folder, GetParam(), DType::kF32);
  const ModelConfig& config = model.config();
  const LayerWeights& weights = model.weights().layers[1];
  constexpr uint32_t kColumns = 5;
  const std::vector<uint32_t> kv_lengths{0, 6};
  const auto graph =
      BuildAttentionStage(config, weights, config.IsMoeLayer(1), kColumns, kv_lengths, WeightFormat::kFp16);
  ASSERT_TRUE(graph.ok()) << graph.error().message;
  for (const uint32_t kv_length : kv_lengths) {
    const auto inputs = StageInputs(config, kColumns, kv_length, 4, 17);
    const auto got = RunFunction(*graph, KvFunction(kv_length), inputs);
    ASSERT_EQ(got.size(), config.IsMoeLayer(1) ? 4u : 3u);
    StageByHand wanted(config, weights, inputs, kv_length);
    wanted.Run();
    // f32 against double: sums of at most 1,024 products, a few dozen roundings in a row.
    ExpectClose(got[0].floats, wanted.delta, 1e-5, "delta");
    ExpectClose(got[1].floats, wanted.k_new, 1e-5, "k_new");
    ExpectClose(got[2].floats, wanted.v_new, 1e-5, "v_new");
    if (config.IsMoeLayer(1)) ExpectClose(got[3].floats, wanted.router, 1e-5, "router");
    // fp16 rounding after every op: 2^-11 each, more where q and k nearly cancel.
    const auto half = RunFunction(*graph, KvFunction(kv_length), inputs, Rounding::kF16);
    ASSERT_EQ(half.size(), got.size());
    ExpectClose(half[0].floats, wanted.delta, 1e-2, "delta in fp16");
  }
}

INSTANTIATE_TEST_SUITE_P(Families, AttentionStage,
                         testing::Values("tiny-qwen3moe", "tiny-phimoe", "tiny-mixtral", "tiny-qwen2moe", "tiny-olmoe",
                                         "tiny-llama", "tiny-qwen3"),
                         [](const auto& param) { return param.param.substr(5); });

TEST(AttentionStageFamilies, CoverBothRopeOrdersAllQkNormsBothNormsAndBiases) {
  const auto config = [](std::string_view shape) {
    const ScratchFolder folder;
    return TinyModel(folder, shape, DType::kF32).config();
  };
  EXPECT_TRUE(config("tiny-mixtral").rope_interleaved);
  EXPECT_FALSE(config("tiny-qwen3moe").rope_interleaved);
  EXPECT_EQ(config("tiny-qwen3moe").qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(config("tiny-olmoe").qk_norm, QkNorm::kFullWidth);
  EXPECT_EQ(config("tiny-phimoe").norm, NormKind::kLayerNorm);
  EXPECT_TRUE(config("tiny-phimoe").attn_out_bias);
  EXPECT_TRUE(config("tiny-qwen2moe").qkv_bias);
}

TEST(HeadPermutation, SendsInterleavedPairsToHalves) {
  ModelConfig config;
  config.head_dim = 6;
  config.rope_dim = 4;
  config.rope_interleaved = true;
  EXPECT_EQ(HeadPermutation(config), (std::vector<uint32_t>{0, 2, 1, 3, 4, 5}));
  config.rope_interleaved = false;
  EXPECT_EQ(HeadPermutation(config), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace npumoe
