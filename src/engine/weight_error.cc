// SPDX-License-Identifier: Apache-2.0
#include "engine/weight_error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "engine/forward.h"
#include "kernels/columns.h"
#include "kernels/half.h"
#include "moe/stage_graph.h"
#include "npu/fast_executor.h"
#include "tensor/float16.h"
#include "tensor/quantize.h"

namespace npumoe {

const std::string_view kSampleText =
    "The old harbour lay quiet that evening, and the few boats still tied to the wall moved with the tide. \"We shall "
    "leave at first light,\" said the captain, \"if the wind holds.\" Nobody answered him.\n"
    "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n    return total / "
    "len(values)\n"
    "In 1911 the town had 4,250 people; by 1950 there were twice as many, most of whom worked in the two mills.\n";

namespace {

using Halves = std::vector<uint16_t>;

double RelativeRms(std::span<const float> got, std::span<const float> wanted) {
  double off = 0, all = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = double{got[i]} - double{wanted[i]};
    off += difference * difference;
    all += double{wanted[i]} * double{wanted[i]};
  }
  if (!std::isfinite(off)) return std::numeric_limits<double>::infinity();
  return all > 0 ? std::sqrt(off / all) : off > 0 ? std::numeric_limits<double>::infinity() : 0;
}

// Sums over samples, then the result.
struct Collected {
  double squares = 0, worst = 0;
  size_t n = 0;
  void Add(double error) {
    squares += error * error;
    worst = std::max(worst, error);
    ++n;
  }
  RelativeError Done() const { return {n > 0 ? std::sqrt(squares / static_cast<double>(n)) : 0, worst}; }
};

class Meter {
 public:
  Meter(const Model& model, std::span<const int32_t> tokens, size_t n_threads, const GoOnFn& go_on)
      : go_on_(go_on),
        config_(model.config()),
        weights_(model.weights()),
        tokens_(tokens),
        forward_(model, n_threads, tokens.size()),
        shared_(forward_.compute().pool) {
    x_.Allocate(tokens.size(), config_.dim);
    before_.Allocate(tokens.size(), config_.dim);
    normed_.Allocate(tokens.size(), config_.dim);
  }

  Result<WeightErrors> Run();

 private:
  Status GoOn() const {
    return !go_on_ || go_on_() ? Status(Ok{}) : MakeError(Code::kCancelled, "weight errors: stopped by the caller");
  }
  void Norm(const TensorView& weight, const TensorView& bias);
  Status Sample(uint32_t layer, WeightErrors& errors);
  Status SampleExpert(const LayerWeights& weights, uint32_t expert);
  Result<double> AttentionError(uint32_t layer, WeightFormat format);
  Result<double> ExpertError(const LayerWeights& weights, uint32_t expert, ExpertFormats formats);
  // The first output of the graph's only function.
  Status RunGraph(const Graph& graph, std::span<const Halves> inputs, Halves& first);

  const GoOnFn& go_on_;
  const ModelConfig& config_;
  const ModelWeights& weights_;
  const std::span<const int32_t> tokens_;
  Forward forward_;
  FastShared shared_;
  RowBuffer x_, before_, normed_;  // [tokens, dim]: residual now and before attention, and the last norm of it
  std::array<Collected, kWeightFormatCount> attention_, experts_, gate_up_, down_;
};

void Meter::Norm(const TensorView& weight, const TensorView& bias) {
  for (size_t row = 0; row < tokens_.size(); ++row) NormRow(config_, x_.Row(row), weight, bias, normed_.Row(row));
}

Status Meter::RunGraph(const Graph& graph, std::span<const Halves> inputs, Halves& first) {
  NM_TRY_VAR(const auto executor, FastExecutor::Make(graph, shared_));
  const Function& function = graph.functions[0];
  std::vector<TensorRef> in;
  for (const Halves& input : inputs) in.push_back({input.data(), input.size()});
  std::vector<Halves> outputs;
  for (const ValueId id : function.outputs) outputs.emplace_back(function.values[id].type.elems());
  std::vector<MutableTensorRef> out;
  for (Halves& output : outputs) out.push_back({output.data(), output.size()});
  NM_TRY(executor->Run(function, in, out));
  first = std::move(outputs[0]);
  return Ok{};
}

// Columns of `width` that begin with the rows.
template <typename RowOf>
Halves Columns(size_t n_rows, size_t channels, const RowOf& row_of) {
  std::vector<const float*> rows;
  for (size_t row = 0; row < n_rows; ++row) rows.push_back(row_of(row));
  Halves columns(channels * n_rows);
  PackColumns(rows, channels, n_rows, columns.data());
  return columns;
}

std::vector<float> Rows(const Halves& columns, size_t n_rows, size_t channels, float scale) {
  std::vector<float> values(n_rows * channels);
  std::vector<float*> rows;
  for (size_t row = 0; row < n_rows; ++row) rows.push_back(values.data() + row * channels);
  static_cast<void>(UnpackColumns(columns.data(), channels, n_rows, scale, rows));  // RelativeRms sees infinities
  return values;
}

Result<double> Meter::AttentionError(uint32_t layer, WeightFormat format) {
  const size_t n = tokens_.size(), half = config_.rope_dim / 2;
  const uint32_t no_cache[] = {0};
  NM_TRY_VAR(const Graph graph,
             BuildAttentionStage(config_, weights_.layers[layer], config_.IsMoeLayer(layer), static_cast<uint32_t>(n),
                                 no_cache, format, &forward_.compute().pool));
  AttentionBlock& attention = forward_.attention();
  Halves mask(n * n, F32ToF16(kMaskedScore));
  for (size_t row = 0; row < n; ++row) {
    const size_t window = config_.sliding_window;
    const size_t first = window > 0 && row >= window ? row - window + 1 : 0;
    std::fill_n(mask.begin() + static_cast<ptrdiff_t>(row * n + first), row + 1 - first, uint16_t{0});
  }
  const Halves inputs[] = {Columns(n, config_.dim, [&](size_t row) { return before_.Row(row).data(); }),
                           Columns(n, half, [&](size_t row) { return attention.Cos(row).data(); }),
                           Columns(n, half, [&](size_t row) { return attention.Sin(row).data(); }), mask};
  Halves delta;
  NM_TRY(RunGraph(graph, inputs, delta));
  const MatView wanted = attention.Output(n);
  return RelativeRms(Rows(delta, n, config_.dim, 1), {wanted.data, n * config_.dim});
}

Result<double> Meter::ExpertError(const LayerWeights& weights, uint32_t expert, ExpertFormats formats) {
  const Dispatch& dispatch = forward_.ffn().dispatch();
  const uint32_t begin = dispatch.expert_begin[expert], n = dispatch.Load(expert);
  const Halves x[] = {Columns(n, config_.dim, [&](size_t row) {
    return static_cast<const float*>(normed_.Row(dispatch.slots[begin + row].token).data());
  })};
  double error = 0;
  // As the planner does, hidden values beyond fp16 are made smaller.
  for (float scale = 1; scale <= kMaxExpertScale; scale *= 16) {
    NM_TRY_VAR(const Graph graph,
               BuildExpertGroup(config_, weights, {{expert}, {n}}, formats, scale, &forward_.compute().pool));
    Halves y;
    NM_TRY(RunGraph(graph, x, y));
    error = RelativeRms(Rows(y, n, config_.dim, scale), {forward_.ffn().SlotOutput(begin).data(), n * config_.dim});
    if (std::isfinite(error)) break;
  }
  return error;
}

Status Meter::SampleExpert(const LayerWeights& weights, uint32_t expert) {
  for (size_t i = 0; i < kWeightFormatCount; ++i) {
    NM_TRY(GoOn());
    const WeightFormat format = kWeightFormats[i];
    NM_TRY_VAR(const double all, ExpertError(weights, expert, format));
    NM_TRY_VAR(const double gate_up, ExpertError(weights, expert, {format, WeightFormat::kFp16}));
    NM_TRY_VAR(const double down, ExpertError(weights, expert, {WeightFormat::kFp16, format}));
    experts_[i].Add(all), gate_up_[i].Add(gate_up), down_[i].Add(down);
  }
  return Ok{};
}

// After the layer ran on the CPU.
Status Meter::Sample(uint32_t layer, WeightErrors& errors) {
  errors.layers.push_back(layer);
  if (!config_.IsMoeLayer(layer)) return Ok{};
  const Dispatch& dispatch = forward_.ffn().dispatch();
  std::vector<uint32_t> order(config_.n_experts);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return dispatch.Load(a) > dispatch.Load(b); });
  for (size_t i = 0; i < std::min(kSampleExperts, order.size()) && dispatch.Load(order[i]) > 0; ++i) {
    NM_TRY(SampleExpert(weights_.layers[layer], order[i]));
    ++errors.n_experts;
  }
  return Ok{};
}

Result<WeightErrors> Meter::Run() {
  const size_t n = tokens_.size();
  NM_TRY_VAR(const KvCache kv, KvCache::Make(config_, DType::kF32, n));
  const TensorView& embedding = weights_.embedding;
  for (size_t i = 0; i < n; ++i) {
    DequantizeRow(embedding.dtype, embedding.Slice(static_cast<size_t>(tokens_[i])).data, x_.Row(i));
  }
  forward_.attention().SetPositions(forward_.short_rope(), 0, n);
  WeightErrors errors;
  errors.n_tokens = static_cast<uint32_t>(n);
  const size_t samples = std::min<size_t>(kSampleLayers, config_.n_layers);
  for (uint32_t layer = 0, next = 0; layer < config_.n_layers; ++layer) {
    NM_TRY(GoOn());
    const LayerWeights& weights = weights_.layers[layer];
    const bool sampled = layer == (samples > 1 ? next * (config_.n_layers - 1) / (samples - 1) : 0) && next < samples;
    next += sampled ? 1 : 0;
    std::copy_n(x_.Row(0).data(), n * config_.dim, before_.Row(0).data());
    Norm(weights.attn_norm, weights.attn_norm_bias);
    forward_.attention().Run(weights, kv.Layer(layer), 0, normed_.Rows(n), x_.Rows(n));
    for (size_t i = 0; sampled && i < kWeightFormatCount; ++i) {
      NM_TRY_VAR(const double error, AttentionError(layer, kWeightFormats[i]));
      attention_[i].Add(error);
    }
    Norm(weights.ffn_norm, weights.ffn_norm_bias);
    NM_TRY(forward_.ffn().Run(layer, weights, normed_.Rows(n), x_.Rows(n)));
    if (sampled) NM_TRY(Sample(layer, errors));
  }
  for (size_t i = 0; i < kWeightFormatCount; ++i) {
    errors.attention[i] = attention_[i].Done();
    errors.experts[i] = experts_[i].Done();
    errors.gate_up[i] = gate_up_[i].Done();
    errors.down[i] = down_[i].Done();
  }
  return errors;
}

}  // namespace

Result<WeightErrors> MeasureWeightErrors(const Model& model, std::span<const int32_t> tokens, size_t n_threads,
                                         const GoOnFn& go_on) {
  if (tokens.empty()) return MakeError(Code::kInvalidArgument, "weight errors: no tokens: the text is empty");
  return Meter(model, tokens.first(std::min(tokens.size(), kSampleTokens)), n_threads, go_on).Run();
}

}  // namespace npumoe
