// SPDX-License-Identifier: Apache-2.0
// What checkpoints call each tensor, and the extents it must have: the one table behind weights.cc and the writer of
// random checkpoints.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "model/families.h"
#include "model/weights.h"

namespace npumoe {

enum class Naming : uint8_t { kGguf, kHuggingFace };

// Extents that a tensor may have, resolved against a config.
enum class Extent : uint8_t {
  kNone,  // no such dimension: the tensor is a vector
  kOne,
  kVocab,
  kDim,
  kQ,
  kKv,
  kQkv,  // n_heads * head_dim, n_kv_heads * head_dim, all three together
  kQNorm,
  kKNorm,  // head_dim, or the full width
  kFfn,
  kExperts,
  kExpert,
  kTwoExperts,
  kShared,
};
size_t ExtentOf(const ModelConfig& config, Extent extent);

// What decides whether a checkpoint must have the tensor. One that it need not have is taken when all layers of a kind
// have it, except where noted.
enum class Need : uint8_t {
  kAlways,
  kNormBias,  // as the family says, else not taken
  kQkNorm,    // as the family says, else not taken
  kQkvBias,   // as the config says
  kAttnOutBias,
  kOutputBias,
  kOutput,  // unless tied to the embedding
  kDense,   // as the layer's kind says, else not taken
  kMoe,
  kShared,
  kOptional,
};
// `moe_layer` says what the layer is; model-wide tensors ignore it.
bool IsNeeded(Need need, const ModelConfig& config, const Family& family, bool moe_layer);

// The first of these names that the file has is taken. GGUF names follow "blk.N.", Hugging Face names
// "model.layers.N.".
using NameList = std::array<std::string_view, 4>;

struct LayerTensor {
  NameList gguf, hf;
  TensorView LayerWeights::*view;
  Extent rows, cols;  // rows kNone: a vector of `cols`
  bool small;         // kept as kF32
  Need need;

  const NameList& Names(Naming naming) const { return naming == Naming::kGguf ? gguf : hf; }
};
std::span<const LayerTensor> LayerTensors();

struct ModelTensor {
  std::string_view gguf, hf;  // full names
  TensorView ModelWeights::*view;
  Extent rows, cols;
  bool small;
  Need need;

  std::string_view Name(Naming naming) const { return naming == Naming::kGguf ? gguf : hf; }
};
std::span<const ModelTensor> ModelTensors();

// The three projections of an expert. `merged` holds all experts in one tensor [n_experts, rows, cols], `single` one
// ("{}" is the expert's number).
struct ExpertTensor {
  NameList gguf_merged, hf_merged, gguf_single, hf_single;
  std::vector<TensorView> LayerWeights::*views;
  Extent rows, cols;

  const NameList& Merged(Naming naming) const { return naming == Naming::kGguf ? gguf_merged : hf_merged; }
  const NameList& Single(Naming naming) const { return naming == Naming::kGguf ? gguf_single : hf_single; }
};
std::span<const ExpertTensor> ExpertTensors();

// Gate and up stacked row-wise: [n_experts, 2 * expert_dim, dim], gate first.
const NameList& FusedGateUpNames(Naming naming);
// Queries, keys and values stacked row-wise, weight and bias.
const NameList& FusedQkvNames(Naming naming, bool bias);

std::string LayerPrefix(Naming naming, uint32_t layer);  // "blk.3." or "model.layers.3."

// A Hugging Face tensor name without the prefixes that multimodal wrappers put before it: "language_model.model.x",
// "model.language_model.x" and "x" of a bare base model all become "model.x".
std::string CanonicalName(std::string_view name);

}  // namespace npumoe
