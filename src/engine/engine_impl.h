// SPDX-License-Identifier: Apache-2.0
// What stands behind Engine and Session.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/choice_log.h"
#include "engine/forward.h"
#include "engine/kv_cache.h"
#include "engine/npu_setup.h"
#include "engine/options.h"
#include "engine/system.h"
#include "format/tokenizer.h"
#include "model/weights.h"
#include "npumoe/engine.h"

namespace npumoe {

struct Engine::Impl {
  Impl(Model m, Tokenizer t, ModelInfo i, const EngineOptions& o, std::optional<NpuSetup> setup)
      : options(o),
        model(std::move(m)),
        tokenizer(std::move(t)),
        info(std::move(i)),
        forward(model, options.n_threads, LongestChunk(options, setup), ActivationsOf(options)) {
    if (!setup) return;
    plan_source = std::move(setup->plan_source);
    plan_refused = std::move(setup->plan_refused);
    npu = std::make_unique<NpuLayers>(model, std::move(setup->plan), std::move(setup->device), forward.compute(),
                                      forward.attention(), forward.ffn());
  }

  static size_t LongestChunk(const EngineOptions& options, const std::optional<NpuSetup>& setup) {
    return std::max<size_t>(options.chunk_tokens, setup ? BatchTokens(setup->plan, options.context_tokens) : 0);
  }

  // Measured before the big allocations below; what the tokenizer and the file's header took is in it.
  const uint64_t program_bytes = PeakResidentBytes();
  EngineOptions options;
  Model model;
  Tokenizer tokenizer;
  ModelInfo info;
  Forward forward;                 // borrows model
  std::unique_ptr<NpuLayers> npu;  // borrows model and forward; null without an NPU
  std::string plan_source, plan_refused;  // for reports
};

struct Session::Impl {
  Impl(Engine::Impl& e, KvCache k) : engine(e), kv(std::move(k)), logits(e.model.config().vocab_size) {
    tokens.reserve(kv.capacity());
  }

  // Brings the cache up to `tokens` + `added` and fills `out` as `rows` says; tokens itself is not changed.
  Status Advance(std::span<const int32_t> added, LogitRows rows, std::span<float> out, const ProgressFn& progress);
  Status CheckTokens(std::span<const int32_t> added) const;
  Status Prefill(std::span<const int32_t> added, LogitRows rows, std::span<float> out, const ProgressFn& progress,
                 NpuLayers* npu);
  Status RunSpan(std::span<const int32_t> ids, size_t first_position, LogitRows rows, std::span<float> out,
                 const ProgressFn& progress, size_t n_total, NpuLayers* npu);

  Engine::Impl& engine;
  KvCache kv;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [vocab_size]
  size_t n_cached = 0;        // leading tokens whose keys and values are in the cache
  bool cached_long = false;   // the cache was made with the long rope factors
  RunReport report;
  Trace trace;
  std::optional<ChoiceLog> choices;  // when they are kept
};

}  // namespace npumoe
