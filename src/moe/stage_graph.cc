// SPDX-License-Identifier: Apache-2.0
#include "moe/stage_graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "graph/builder.h"
#include "moe/weight_format.h"
#include "tensor/float16.h"

namespace npumoe {
namespace {

int32_t I32(size_t n) { return static_cast<int32_t>(n); }

std::vector<std::byte> ToF16(std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = F32ToF16(values[i]);
    std::memcpy(bytes.data() + i * sizeof(half), &half, sizeof(half));
  }
  return bytes;
}

// Weights of one stage, added once and used by all functions of the graph.
struct AttentionConstants {
  WeightConstant wq, wk, wv, wo, router;
  uint32_t attn_gamma = kNoConstant, attn_beta = kNoConstant, ffn_gamma = kNoConstant, ffn_beta = kNoConstant;
  uint32_t q_gamma = kNoConstant, k_gamma = kNoConstant;
  uint32_t bq = kNoConstant, bk = kNoConstant, bv = kNoConstant, bo = kNoConstant;
};

class AttentionBuilder {
 public:
  AttentionBuilder(const ModelConfig& config, const LayerWeights& weights, bool moe_layer, size_t chunk_tokens)
      : config_(config),
        weights_(weights),
        moe_layer_(moe_layer),
        c_(chunk_tokens),
        permutation_(HeadPermutation(config)) {}

  // Before any function.
  Status AddConstants(WeightFormat format, ThreadPool* pool);
  void AddFunction(uint32_t kv_length);
  Result<Graph> Finish() && { return std::move(b_).Finish(); }

 private:
  std::vector<float> Reordered(const TensorView& view, std::span<const uint32_t> order) const;
  uint32_t AddVector(const TensorView& view, std::vector<size_t> dims, std::span<const uint32_t> order = {});
  uint32_t AddGamma(const TensorView& view, size_t n, NormKind kind, std::span<const uint32_t> order);
  uint32_t AddHeadBias(const TensorView& bias, size_t n_heads, bool rotated);
  ValueId Norm(ValueId x, uint32_t gamma, uint32_t beta);
  ValueId RmsNorm(ValueId x, uint32_t gamma, size_t axis);
  ValueId AddBias(ValueId x, uint32_t bias);
  ValueId Heads(ValueId x, const WeightConstant& weight, uint32_t bias, uint32_t gamma, size_t n_heads);
  ValueId Rope(ValueId heads, ValueId cos, ValueId sin);
  ValueId Attend(ValueId q, ValueId keys, ValueId values, ValueId mask, size_t kv_total);

  const ModelConfig& config_;
  const LayerWeights& weights_;
  const bool moe_layer_;
  const size_t c_;
  const std::vector<uint32_t> permutation_;
  GraphBuilder b_;
  AttentionConstants k_;
};

// The vector with element i of every head moved to order[i]; an empty order keeps it.
std::vector<float> AttentionBuilder::Reordered(const TensorView& view, std::span<const uint32_t> order) const {
  const std::vector<float> file(view.f32(), view.f32() + view.shape.elems());
  if (order.empty()) return file;
  NM_CHECK(file.size() % order.size() == 0);
  std::vector<float> values(file.size());
  for (size_t i = 0; i < file.size(); ++i) values[i / order.size() * order.size() + order[i % order.size()]] = file[i];
  return values;
}

uint32_t AttentionBuilder::AddVector(const TensorView& view, std::vector<size_t> dims,
                                     std::span<const uint32_t> order) {
  if (view.empty()) return kNoConstant;
  return b_.AddConstant({ElemType::kF16, std::move(dims)}, ToF16(Reordered(view, order)));
}

// Gain of a norm over n channels. An RMS norm is done as a layer norm of [x, -x] and needs the gain twice.
uint32_t AttentionBuilder::AddGamma(const TensorView& view, size_t n, NormKind kind, std::span<const uint32_t> order) {
  if (view.empty()) return kNoConstant;
  std::vector<float> gamma = Reordered(view, order);
  NM_CHECK(gamma.size() == n);
  if (kind == NormKind::kRms) {
    gamma.resize(2 * n);
    std::copy_n(gamma.begin(), n, gamma.begin() + static_cast<ptrdiff_t>(n));
  }
  return b_.AddConstant({ElemType::kF16, {gamma.size()}}, ToF16(gamma));
}

uint32_t AttentionBuilder::AddHeadBias(const TensorView& bias, size_t n_heads, bool rotated) {
  return AddVector(bias, {1, n_heads * config_.head_dim, 1, 1},
                   rotated ? std::span<const uint32_t>(permutation_) : std::span<const uint32_t>());
}

Status AttentionBuilder::AddConstants(WeightFormat format, ThreadPool* pool) {
  const size_t dim = config_.dim, head_dim = config_.head_dim;
  const WeightOptions plain{.format = format, .pool = pool};
  const WeightOptions rotated{.format = format, .head_order = permutation_, .pool = pool};
  NM_TRY_VAR(k_.wq, AddWeight(b_, {&weights_.wq, 1}, rotated));
  NM_TRY_VAR(k_.wk, AddWeight(b_, {&weights_.wk, 1}, rotated));
  NM_TRY_VAR(k_.wv, AddWeight(b_, {&weights_.wv, 1}, plain));
  NM_TRY_VAR(k_.wo, AddWeight(b_, {&weights_.wo, 1}, plain));
  // The router decides who computes: it keeps fp16 whatever the format of the rest.
  if (moe_layer_) {
    NM_TRY_VAR(k_.router, AddWeight(b_, {&weights_.router, 1}, {}));
  }
  k_.attn_gamma = AddGamma(weights_.attn_norm, dim, config_.norm, {});
  k_.attn_beta = AddVector(weights_.attn_norm_bias, {1, dim, 1, 1});
  k_.ffn_gamma = AddGamma(weights_.ffn_norm, dim, config_.norm, {});
  k_.ffn_beta = AddVector(weights_.ffn_norm_bias, {1, dim, 1, 1});
  const bool full = config_.qk_norm == QkNorm::kFullWidth;
  k_.q_gamma = AddGamma(weights_.q_norm, full ? config_.n_heads * head_dim : head_dim, NormKind::kRms, permutation_);
  k_.k_gamma = AddGamma(weights_.k_norm, full ? config_.n_kv_heads * head_dim : head_dim, NormKind::kRms, permutation_);
  k_.bq = AddHeadBias(weights_.bq, config_.n_heads, true);
  k_.bk = AddHeadBias(weights_.bk, config_.n_kv_heads, true);
  k_.bv = AddHeadBias(weights_.bv, config_.n_kv_heads, false);
  k_.bo = AddVector(weights_.bo, {1, dim, 1, 1});
  return Ok{};
}

ValueId AttentionBuilder::AddBias(ValueId x, uint32_t bias) {
  return bias == kNoConstant ? x : b_.Binary(OpKind::kAdd, x, b_.UseConstant(bias, "bias"));
}

// RMS norm over `axis` without squaring in fp16: [x, -x] has mean 0, so its layer norm is x / rms(x) in the first half.
ValueId AttentionBuilder::RmsNorm(ValueId x, uint32_t gamma, size_t axis) {
  const ValueId mirrored = b_.Binary(OpKind::kMul, x, b_.Scalar(-1.0f));
  const ValueId both = b_.Concat(std::array{x, mirrored}, I32(axis));
  const ValueId normed = b_.LayerNorm(both, std::array{I32(axis)}, b_.UseConstant(gamma, "gamma"), config_.norm_eps);
  return b_.Split(normed, 2, I32(axis))[0];
}

ValueId AttentionBuilder::Norm(ValueId x, uint32_t gamma, uint32_t beta) {
  constexpr size_t kChannelAxis = 1;
  if (config_.norm == NormKind::kRms) return AddBias(RmsNorm(x, gamma, kChannelAxis), beta);
  const ValueId gain = b_.UseConstant(gamma, "gamma");
  return AddBias(b_.LayerNorm(x, std::array{I32(kChannelAxis)}, gain, config_.norm_eps), beta);
}

// Projection, bias, q/k norm: [1, n_heads, head_dim, C].
ValueId AttentionBuilder::Heads(ValueId x, const WeightConstant& weight, uint32_t bias, uint32_t gamma,
                                size_t n_heads) {
  ValueId y = AddBias(b_.Conv1x1(x, UseWeight(b_, weight)), bias);
  const bool full = config_.qk_norm == QkNorm::kFullWidth;
  if (gamma != kNoConstant && full) y = RmsNorm(y, gamma, 1);
  y = b_.Reshape(y, std::array{1, I32(n_heads), I32(config_.head_dim), I32(c_)});
  if (gamma != kNoConstant && !full) y = RmsNorm(y, gamma, 2);
  return y;
}

// Half-split rotation of the first rope_dim values of [1, n, head_dim, C].
ValueId AttentionBuilder::Rope(ValueId heads, ValueId cos, ValueId sin) {
  const size_t half = config_.rope_dim / 2, rest = config_.head_dim - config_.rope_dim;
  std::vector<int32_t> sizes{I32(half), I32(half)};
  if (rest > 0) sizes.push_back(I32(rest));
  const auto parts = b_.SplitSizes(heads, sizes, 2);
  const auto mul = [&](ValueId a, ValueId b) { return b_.Binary(OpKind::kMul, a, b); };
  const ValueId first = b_.Binary(OpKind::kSub, mul(parts[0], cos), mul(parts[1], sin));
  const ValueId second = b_.Binary(OpKind::kAdd, mul(parts[0], sin), mul(parts[1], cos));
  std::vector<ValueId> rotated{first, second};
  if (rest > 0) rotated.push_back(parts[2]);
  return b_.Concat(rotated, 2);
}

// q [1, n_heads, head_dim, C]; keys, values [1, n_kv_heads, kv_total, head_dim] -> [1, n_heads * head_dim, 1, C].
// Query heads that share a kv head stand together, so that one matrix product serves the group without repeating keys.
ValueId AttentionBuilder::Attend(ValueId q, ValueId keys, ValueId values, ValueId mask, size_t kv_total) {
  const int32_t heads = I32(config_.n_heads), kv_heads = I32(config_.n_kv_heads), head_dim = I32(config_.head_dim);
  const int32_t group_rows = heads / kv_heads * I32(c_);
  // The scale goes to q, where values are small, and not to the scores, which could overflow first.
  const ValueId scale = b_.Scalar(1.0f / std::sqrt(static_cast<float>(config_.head_dim)));
  const ValueId rows = b_.Transpose(b_.Binary(OpKind::kMul, q, scale), std::array{0, 1, 3, 2});
  const ValueId grouped = b_.Reshape(rows, std::array{1, kv_heads, group_rows, head_dim});
  const ValueId scores = b_.MatMul(grouped, keys, false, true);
  const ValueId per_head = b_.Reshape(scores, std::array{1, heads, I32(c_), I32(kv_total)});
  const ValueId weights = b_.Softmax(b_.Binary(OpKind::kAdd, per_head, mask), -1);
  const ValueId regrouped = b_.Reshape(weights, std::array{1, kv_heads, group_rows, I32(kv_total)});
  const ValueId mixed = b_.MatMul(regrouped, values, false, false);
  const ValueId heads_out = b_.Reshape(mixed, std::array{1, heads, I32(c_), head_dim});
  const ValueId channels = b_.Transpose(heads_out, std::array{0, 1, 3, 2});
  return b_.Reshape(channels, std::array{1, heads * head_dim, 1, I32(c_)});
}

void AttentionBuilder::AddFunction(uint32_t kv_length) {
  const size_t kv_total = kv_length + c_;
  b_.BeginFunction(KvFunction(kv_length));
  const auto input = [&](const char* name, std::vector<size_t> dims) {
    return b_.Input(name, {ElemType::kF16, std::move(dims)});
  };
  const ValueId x = input("x", {1, config_.dim, 1, c_});
  const ValueId cos = input("cos", {1, 1, config_.rope_dim / 2, c_});
  const ValueId sin = input("sin", {1, 1, config_.rope_dim / 2, c_});
  const ValueId mask = input("mask", {1, 1, c_, kv_total});
  const ValueId normed = Norm(x, k_.attn_gamma, k_.attn_beta);
  const ValueId q = Rope(Heads(normed, k_.wq, k_.bq, k_.q_gamma, config_.n_heads), cos, sin);
  const ValueId k = Rope(Heads(normed, k_.wk, k_.bk, k_.k_gamma, config_.n_kv_heads), cos, sin);
  const ValueId v = Heads(normed, k_.wv, k_.bv, kNoConstant, config_.n_kv_heads);
  const ValueId k_new = b_.Transpose(k, std::array{0, 1, 3, 2});
  const ValueId v_new = b_.Transpose(v, std::array{0, 1, 3, 2});
  ValueId keys = k_new, values = v_new;
  if (kv_length > 0) {
    const std::vector<size_t> cache{1, config_.n_kv_heads, kv_length, config_.head_dim};
    keys = b_.Concat(std::array{input("k_cache", cache), k_new}, 2);
    values = b_.Concat(std::array{input("v_cache", cache), v_new}, 2);
  }
  const ValueId attended = Attend(q, keys, values, mask, kv_total);
  const ValueId delta = AddBias(b_.Conv1x1(attended, UseWeight(b_, k_.wo)), k_.bo);
  b_.Output("delta", delta);
  b_.Output("k_new", k_new);
  b_.Output("v_new", v_new);
  if (!moe_layer_) return;
  const ValueId after = Norm(b_.Binary(OpKind::kAdd, x, delta), k_.ffn_gamma, k_.ffn_beta);
  b_.Output("router", b_.Conv1x1(after, UseWeight(b_, k_.router)));
}

}  // namespace

std::string CapacityFunction(uint32_t capacity) { return fmt::format("rows_{}", capacity); }
std::string KvFunction(uint32_t kv_length) { return fmt::format("kv_{}", kv_length); }

std::vector<uint32_t> HeadPermutation(const ModelConfig& config) {
  std::vector<uint32_t> order(config.head_dim);
  for (uint32_t i = 0; i < config.head_dim; ++i) {
    const bool pair = config.rope_interleaved && i < config.rope_dim;
    order[i] = pair ? i / 2 + (i % 2) * (config.rope_dim / 2) : i;
  }
  return order;
}

Result<Graph> BuildExpertGroup(const ModelConfig& config, const LayerWeights& weights, const ExpertGroup& group,
                               ExpertFormats formats, float expert_scale, ThreadPool* pool) {
  std::vector<TensorView> gate, up, down;
  for (const uint32_t expert : group.experts) {
    if (expert >= weights.expert_gate.size()) {
      return MakeError(Code::kInvalidArgument, "plan: expert {}, the layer has {}", expert, weights.expert_gate.size());
    }
    gate.push_back(weights.expert_gate[expert]);
    up.push_back(weights.expert_up[expert]);
    down.push_back(weights.expert_down[expert]);
  }
  if (group.experts.empty()) return MakeError(Code::kInvalidArgument, "plan: a group without experts");
  GraphBuilder b;
  NM_TRY_VAR(const WeightConstant w_gate, AddWeight(b, gate, {.format = formats.gate_up, .pool = pool}));
  NM_TRY_VAR(const WeightConstant w_up,
             AddWeight(b, up, {.format = formats.gate_up, .divisor = expert_scale, .pool = pool}));
  NM_TRY_VAR(const WeightConstant w_down, AddWeight(b, down, {.format = formats.down, .pool = pool}));
  const int32_t n = I32(group.experts.size());
  for (const uint32_t capacity : group.capacities) {
    b.BeginFunction(CapacityFunction(capacity));
    const ValueId x = b.Input("x", {ElemType::kF16, {1, group.experts.size() * config.dim, 1, capacity}});
    const ValueId hidden = b.Binary(OpKind::kMul, b.Unary(OpKind::kSilu, b.Conv1x1(x, UseWeight(b, w_gate), n)),
                                    b.Conv1x1(x, UseWeight(b, w_up), n));
    b.Output("y", b.Conv1x1(hidden, UseWeight(b, w_down), n));
  }
  return std::move(b).Finish();
}

Result<Graph> BuildAttentionStage(const ModelConfig& config, const LayerWeights& weights, bool moe_layer,
                                  uint32_t chunk_tokens, std::span<const uint32_t> kv_lengths, WeightFormat format,
                                  ThreadPool* pool) {
  AttentionBuilder builder(config, weights, moe_layer, chunk_tokens);
  NM_TRY(builder.AddConstants(format, pool));
  for (const uint32_t kv_length : kv_lengths) builder.AddFunction(kv_length);
  return std::move(builder).Finish();
}

}  // namespace npumoe
