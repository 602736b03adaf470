// SPDX-License-Identifier: Apache-2.0
#include "npumoe/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/calibration_report.h"
#include "engine/engine_impl.h"
#include "engine/options.h"
#include "engine/routing_observer.h"
#include "format/printable.h"
#include "model/model_hash.h"
#include "moe/routing_stats_builder.h"

namespace npumoe {

// Has a name that is seen outside, as Calibrator, a friend of Engine, which holds them.
struct CalibrationSource {
  std::string name;
  std::vector<int32_t> tokens;
};

namespace {

constexpr uint32_t kLeastWindow = 4096;

// Ascending, each length once.
Result<std::vector<uint32_t>> ChunkLengths(const CalibrateOptions& options) {
  std::vector<uint32_t> lengths = options.chunk_tokens;
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  if (lengths.empty() || lengths.size() > kMaxChunkLengths) {
    return MakeError(Code::kInvalidArgument, "calibration: {} chunk lengths, wanted 1 to {}", lengths.size(),
                     kMaxChunkLengths);
  }
  if (lengths.front() == 0 || lengths.back() > kMaxContext) {
    return MakeError(Code::kInvalidArgument, "calibration: chunk length {}, wanted 1 to {}",
                     lengths.front() == 0 ? 0 : lengths.back(), kMaxContext);
  }
  return lengths;
}

// Shares `max_tokens` evenly: what a short text leaves of its share goes to the others.
void CutToShares(uint64_t max_tokens, std::vector<CalibrationSource>& sources) {
  std::vector<CalibrationSource*> by_length;
  for (CalibrationSource& source : sources) by_length.push_back(&source);
  std::stable_sort(by_length.begin(), by_length.end(), [](const CalibrationSource* a, const CalibrationSource* b) {
    return a->tokens.size() < b->tokens.size();
  });
  for (size_t i = 0; i < by_length.size(); ++i) {
    // The longest texts come last and take what division leaves over.
    const uint64_t share = max_tokens / (by_length.size() - i);
    std::vector<int32_t>& tokens = by_length[i]->tokens;
    tokens.resize(static_cast<size_t>(std::min<uint64_t>(tokens.size(), share)));
    max_tokens -= tokens.size();
  }
}

RoutingShape ShapeOf(const ModelConfig& config) {
  RoutingShape shape{{}, config.n_experts, config.top_k};
  for (uint32_t layer = 0; layer < config.n_layers; ++layer) shape.moe_layer.push_back(config.IsMoeLayer(layer));
  return shape;
}

// Shows a forward pass to an observer as long as it lives.
class Watch {
 public:
  Watch(Forward& forward, RoutingObserver& observer) : forward_(forward) { forward_.Observe(&observer); }
  ~Watch() { forward_.Observe(nullptr); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  Forward& forward_;
};

}  // namespace

// One calibration.
class Calibrator {
 public:
  Calibrator(Engine& engine, const CalibrateOptions& options)
      : engine_(*engine.impl_), config_(engine_.model.config()), options_(options) {}

  Result<CalibrationReport> Run(std::span<const CalibrationText> texts, const CalibrateProgressFn& progress) {
    NM_TRY_VAR(const std::vector<uint32_t> lengths, ChunkLengths(options_));
    NM_TRY(ReadTexts(texts));
    const uint32_t wanted =
        options_.window_tokens > 0 ? options_.window_tokens : std::max(kLeastWindow, lengths.back());
    window_ = std::min(wanted, engine_.options.context_tokens);
    NM_TRY_VAR(KvCache kv,
               KvCache::Make(config_, KvDType(engine_.options.kv_type), std::min<size_t>(window_, LongestText())));
    RoutingStatsBuilder builder(ShapeOf(config_), lengths);
    NM_TRY_VAR(const bool complete, ReadAll(kv, progress, builder));
    const bool has_pairs = builder.has_co_activation();
    RoutingCounts counts = std::move(builder).Finish();
    if (counts.stats.n_tokens == 0) {
      return MakeError(Code::kCancelled, "calibration: stopped before anything was gathered");
    }
    counts.stats.model_name = config_.name;
    counts.stats.model_hash = ModelHash(engine_.model);
    counts.stats.complete = complete;
    CalibrationReport report = DescribeStats(counts.stats);
    report.json = ToJson(counts.stats);
    if (!has_pairs) warnings_.push_back("too many experts to count which are chosen together: left out");
    WarnOfUnfilled(counts);
    report.warnings.insert(report.warnings.begin(), warnings_.begin(), warnings_.end());
    return report;
  }

 private:
  Status ReadTexts(std::span<const CalibrationText> texts);
  Result<bool> ReadAll(const KvCache& kv, const CalibrateProgressFn& progress, RoutingStatsBuilder& builder);
  // False: stopped by the caller.
  Result<bool> ReadWindow(std::span<const int32_t> tokens, const KvCache& kv, const ProgressFn& progress,
                          RoutingObserver& observer, RoutingStatsBuilder& builder);
  void WarnOfUnfilled(const RoutingCounts& counts);
  size_t LongestText() const;

  Engine::Impl& engine_;
  const ModelConfig& config_;
  const CalibrateOptions& options_;
  uint32_t window_ = 0;
  std::vector<CalibrationSource> sources_;
  uint64_t n_done_ = 0, n_total_ = 0;
  std::vector<std::string> warnings_;
};

size_t Calibrator::LongestText() const {
  size_t longest = 0;
  for (const CalibrationSource& source : sources_) longest = std::max(longest, source.tokens.size());
  return longest;
}

Status Calibrator::ReadTexts(std::span<const CalibrationText> texts) {
  const RoutingShape shape = ShapeOf(config_);
  if (std::find(shape.moe_layer.begin(), shape.moe_layer.end(), true) == shape.moe_layer.end()) {
    return MakeError(Code::kInvalidArgument, "{}: has no experts: nothing to calibrate",
                     Printable(engine_.model.path(), 1000));
  }
  if (texts.size() > kMaxCalibrationTexts) {
    return MakeError(Code::kInvalidArgument, "calibration: {} texts, limit {}", texts.size(), kMaxCalibrationTexts);
  }
  for (const CalibrationText& text : texts) {
    // An empty text is no prompt, although the model's start token would make it one of a single token.
    std::vector<int32_t> tokens;
    if (!text.text.empty()) tokens = engine_.tokenizer.Encode(text.text, {.add_special = true});
    if (tokens.empty()) {
      warnings_.push_back(fmt::format("text '{}' is empty: left out", Printable(text.name)));
    } else {
      sources_.push_back({text.name, std::move(tokens)});
    }
  }
  if (options_.max_tokens > 0) CutToShares(options_.max_tokens, sources_);
  std::erase_if(sources_, [](const CalibrationSource& source) { return source.tokens.empty(); });
  for (const CalibrationSource& source : sources_) n_total_ += source.tokens.size();
  if (n_total_ == 0) return MakeError(Code::kInvalidArgument, "calibration: the text is empty");
  // Pairs of experts are counted in 32 bits.
  if (n_total_ > UINT32_MAX) {
    return MakeError(Code::kInvalidArgument, "calibration: {} tokens, limit {}", n_total_, UINT32_MAX);
  }
  return Ok{};
}

Result<bool> Calibrator::ReadAll(const KvCache& kv, const CalibrateProgressFn& progress, RoutingStatsBuilder& builder) {
  RoutingObserver observer(config_, engine_.forward.compute());
  const Watch watch(engine_.forward, observer);
  ProgressFn report;
  if (progress) report = [&](size_t done, size_t total) { return progress(done, total); };
  for (const CalibrationSource& source : sources_) {
    builder.BeginSource(source.name, source.tokens.size());
    const std::span<const int32_t> tokens(source.tokens);
    for (size_t begin = 0; begin < tokens.size(); begin += window_) {
      builder.BeginSequence();
      NM_TRY_VAR(const bool going, ReadWindow(tokens.subspan(begin, std::min<size_t>(window_, tokens.size() - begin)),
                                              kv, report, observer, builder));
      if (!going) return false;
    }
  }
  return true;
}

Result<bool> Calibrator::ReadWindow(std::span<const int32_t> tokens, const KvCache& kv, const ProgressFn& progress,
                                    RoutingObserver& observer, RoutingStatsBuilder& builder) {
  const size_t reached = config_.rope_long_by_context ? engine_.options.context_tokens : tokens.size();
  const bool long_rope = config_.rope_original_context > 0 && reached > config_.rope_original_context;
  std::vector<LayerObservation> seen(config_.n_layers);
  for (size_t begin = 0; begin < tokens.size();) {
    const size_t n = std::min(engine_.forward.max_chunk_tokens(), tokens.size() - begin);
    observer.Clear();
    const Status ran =
        engine_.forward.Run(tokens.subspan(begin, n), begin, kv, long_rope, LogitRows::kNone,
                            {&progress, static_cast<size_t>(n_done_), static_cast<size_t>(n_total_)}, {});
    // A chunk that was not finished is not counted: its last layers have not seen it.
    if (!ran.ok() && ran.error().code == Code::kCancelled) return false;
    if (!ran.ok()) return ran.error();
    for (size_t layer = 0; layer < seen.size(); ++layer) {
      const RoutingObserver::Layer& from = observer.layers()[layer];
      seen[layer] = {from.choices, from.output_norms, from.range};
    }
    builder.Add(static_cast<uint32_t>(n), seen);
    begin += n;
    n_done_ += n;
  }
  return true;
}

void Calibrator::WarnOfUnfilled(const RoutingCounts& counts) {
  if (counts.unfilled.empty()) return;
  std::string lengths;
  for (const uint32_t length : counts.unfilled) lengths += fmt::format("{}{}", lengths.empty() ? "" : ", ", length);
  const std::string instead =
      counts.made_up_length ? fmt::format("; loads were counted for {} instead", counts.stats.chunk_tokens[0]) : "";
  warnings_.push_back(
      fmt::format("chunk lengths that no text filled are left out: {} (longest text {} tokens, window {}){}", lengths,
                  LongestText(), window_, instead));
}

Result<CalibrationReport> Calibrate(Engine& engine, std::span<const CalibrationText> texts,
                                    const CalibrateOptions& options, const CalibrateProgressFn& progress) {
  return Calibrator(engine, options).Run(texts, progress);
}

}  // namespace npumoe
