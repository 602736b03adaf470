// SPDX-License-Identifier: Apache-2.0
// What the model families differ in, as one table. A new family is a new row.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "model/config.h"

namespace npumoe {

struct Family {
  std::string_view gguf;                       // general.architecture
  bool moe;                                    // rows of one architecture: with and without experts
  std::string_view hf_model_type;              // config.json "model_type"
  std::array<std::string_view, 2> hf_classes;  // config.json "architectures"
  NormKind norm = NormKind::kRms;
  bool norm_bias = false;  // block norms and the final norm have a bias
  bool qkv_bias = false;   // q, k, v biases unless the file says otherwise
  // GGUF files of this architecture always have biases on attention and logits (config.json says it in its own words).
  bool gguf_all_biases = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool gguf_rope_interleaved = false;             // the GGUF converter permutes q and k rows
  double gguf_rope_theta = 0, hf_rope_theta = 0;  // when the file is silent; 0: it must say
  RouterRule router = RouterRule::kSoftmaxTopK;
  bool gguf_renormalize = false;            // what the architecture name alone implies in a GGUF file
  bool hf_renormalize = false;              // norm_topk_prob when config.json lacks it
  float router_jitter = 0;                  // router_jitter_noise when the file lacks it
  bool shared_expert = false;               // with a sigmoid gate
  std::string_view hf_n_experts_key = {};   // expert count in config.json
  std::string_view hf_expert_dim_key = {};  // expert width in config.json
};

std::span<const Family> Families();

// nullptr when there is none. A GGUF architecture may have a dense and a MoE row.
const Family* FindGgufFamily(std::string_view architecture, bool moe);
const Family* FindHuggingFaceFamily(std::string_view model_type, std::string_view class_name);

// "llama, olmoe, ...": for the message about an unknown architecture.
std::string KnownGgufFamilies();
std::string KnownHuggingFaceFamilies();

}  // namespace npumoe
