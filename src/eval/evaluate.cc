// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "eval/log_softmax.h"
#include "eval/margins.h"
#include "npumoe/eval.h"

namespace npumoe {
namespace {

constexpr uint32_t kDefaultWindow = 2048;
constexpr size_t kMaxPieceBytes = size_t{256} << 20;  // of one piece of a window

void LogSoftmax(std::span<const float> logits, std::vector<double>& out) {
  const double shift = LogSumExp(logits);
  out.resize(logits.size());
  std::transform(logits.begin(), logits.end(), out.begin(), [&](float logit) { return logit - shift; });
}

// Of likeliest tokens: what the exact run's is ahead of its next by, and of those that changed ahead of this run's.
struct TokenMargins {
  std::vector<double> next, lost;

  void Add(double margin, double lost_margin, bool is_changed) {
    next.push_back(margin);
    if (is_changed) lost.push_back(lost_margin);
  }
};

class Evaluator {
 public:
  Evaluator(Session& session, Session* exact, const ModelInfo& info)
      : session_(session), exact_(exact), vocab_size_(info.vocab_size), n_moe_layers_(info.n_moe_layers) {
    if (exact_ == nullptr) return;
    session_.KeepExperts(true);
    exact_->KeepExperts(true);
  }

  // Tokens of one window, from an empty session.
  Status ReadWindow(std::span<const int32_t> tokens) {
    session_.Truncate(0);
    if (exact_ != nullptr) exact_->Truncate(0);
    const size_t piece = std::clamp<size_t>(kMaxPieceBytes / (vocab_size_ * sizeof(float)), 2, tokens.size());
    for (size_t begin = 0; begin < tokens.size(); begin += piece) {
      const size_t n = std::min(piece, tokens.size() - begin);
      logits_.resize(n * vocab_size_);
      NM_TRY(session_.AppendWithLogits(tokens.subspan(begin, n), logits_));
      if (exact_ != nullptr) {
        exact_logits_.resize(n * vocab_size_);
        NM_TRY(exact_->AppendWithLogits(tokens.subspan(begin, n), exact_logits_));
        SeeExperts(n);
      }
      // The last token of a window predicts nothing that is known.
      for (size_t i = 0; i < n && begin + i + 1 < tokens.size(); ++i) {
        See(i, static_cast<size_t>(tokens[begin + i + 1]));
      }
    }
    return Ok{};
  }

  EvalReport Report() const {
    EvalReport report;
    report.n_tokens = nll_.size();
    const auto n = static_cast<double>(nll_.size());
    double sum = 0, squares = 0;
    for (const double nll : nll_) sum += nll;
    report.mean_nll = sum / n;
    for (const double nll : nll_) squares += (nll - report.mean_nll) * (nll - report.mean_nll);
    report.perplexity = std::exp(report.mean_nll);
    report.nll_standard_error = n > 1 ? std::sqrt(squares / (n - 1) / n) : 0;
    report.npu = session_.report();
    if (exact_ == nullptr) return report;
    Agreement agreement;
    agreement.top1 = (n - static_cast<double>(all_.lost.size())) / n;
    agreement.margins = SummarizeMargins(all_.lost, all_.next);
    agreement.other_perplexity = std::exp(exact_nll_ / n);
    std::vector<double> sorted = kl_;
    std::sort(sorted.begin(), sorted.end());
    for (const double kl : kl_) agreement.mean_kl += kl / n;
    agreement.median_kl = sorted[sorted.size() / 2];
    agreement.p99_kl = sorted[sorted.size() * 99 / 100];
    if (n_experts_ > 0) {
      agreement.same_experts = static_cast<double>(n_same_experts_) / static_cast<double>(n_experts_);
      agreement.alike_margins = SummarizeMargins(alike_.lost, alike_.next);
    }
    report.agreement = agreement;
    return report;
  }

 private:
  // Of the last append of `n_tokens`.
  void SeeExperts(size_t n_tokens) {
    const std::span<const uint32_t> got = session_.experts(), exact = exact_->experts();
    const size_t n_rows = n_tokens * n_moe_layers_;
    routed_alike_.assign(n_tokens, true);
    if (n_rows == 0) return;
    const size_t top_k = exact.size() / n_rows;
    for (size_t row = 0; row < n_rows; ++row) {  // [MoE layers, tokens]
      const auto there = exact.subspan(row * top_k, top_k);
      for (const uint32_t expert : got.subspan(row * top_k, top_k)) {
        const bool same = expert != kNoExpert && std::ranges::find(there, expert) != there.end();
        n_same_experts_ += same ? 1 : 0;
        if (!same) routed_alike_[row % n_tokens] = false;
      }
    }
    n_experts_ += exact.size();
  }

  void See(size_t row, size_t next) {
    const auto row_of = [&](const std::vector<float>& logits) {
      return std::span(logits).subspan(row * vocab_size_, vocab_size_);
    };
    LogSoftmax(row_of(logits_), log_probs_);
    nll_.push_back(-log_probs_[next]);
    if (exact_ == nullptr) return;
    LogSoftmax(row_of(exact_logits_), exact_log_probs_);
    exact_nll_ -= exact_log_probs_[next];
    double kl = 0;
    for (size_t i = 0; i < vocab_size_; ++i) {
      kl += std::exp(exact_log_probs_[i]) * (exact_log_probs_[i] - log_probs_[i]);
    }
    kl_.push_back(kl);
    const TopChoice exact_top = FindTop(exact_log_probs_);
    const size_t top = FindTop(log_probs_).best;
    const double lost = exact_log_probs_[exact_top.best] - exact_log_probs_[top];
    all_.Add(exact_top.margin, lost, top != exact_top.best);
    if (routed_alike_[row]) alike_.Add(exact_top.margin, lost, top != exact_top.best);
  }

  Session& session_;
  Session* exact_;
  size_t vocab_size_, n_moe_layers_;
  std::vector<float> logits_, exact_logits_;         // [piece, vocab_size]
  std::vector<double> log_probs_, exact_log_probs_;  // [vocab_size]
  std::vector<double> nll_, kl_;                     // [tokens predicted]
  TokenMargins all_, alike_;                         // alike_: of tokens that all layers gave to the same experts
  std::vector<bool> routed_alike_;                   // [piece]
  double exact_nll_ = 0;
  uint64_t n_experts_ = 0, n_same_experts_ = 0;
};

}  // namespace

Result<EvalReport> Evaluate(Engine& engine, Engine* exact, std::string_view text, const EvalOptions& options,
                            const ProgressFn& progress) {
  const size_t vocab_size = engine.info().vocab_size;
  if (exact != nullptr && exact->info().vocab_size != vocab_size) {
    return MakeError(Code::kInvalidArgument, "eval: vocabularies of {} and {} tokens, wanted the same model",
                     vocab_size, exact->info().vocab_size);
  }
  uint32_t context = engine.options().context_tokens;
  if (exact != nullptr) context = std::min(context, exact->options().context_tokens);
  const uint32_t window = options.window_tokens > 0 ? options.window_tokens : std::min(context, kDefaultWindow);
  if (window < 2 || window > context) {
    return MakeError(Code::kInvalidArgument, "eval: window of {} tokens, wanted 2 to {} (the context)", window,
                     context);
  }
  std::vector<int32_t> tokens = engine.Tokenize(text, /*add_special=*/true, /*parse_special=*/false);
  if (options.max_tokens > 0 && tokens.size() > options.max_tokens) tokens.resize(options.max_tokens);
  if (tokens.size() < 2) {
    return MakeError(Code::kInvalidArgument, "eval: the text has {} tokens, wanted at least 2", tokens.size());
  }
  NM_TRY_VAR(Session session, engine.NewSession());
  std::optional<Session> exact_session;
  if (exact != nullptr) {
    NM_TRY_VAR(exact_session, exact->NewSession());
  }
  Evaluator evaluator(session, exact_session ? &*exact_session : nullptr, engine.info());
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += window) {
    const size_t n = std::min<size_t>(window, tokens.size() - begin);
    NM_TRY(evaluator.ReadWindow(std::span(tokens).subspan(begin, n)));
    if (progress && !progress(begin + n, tokens.size())) return MakeError(Code::kCancelled, "eval: stopped");
  }
  return evaluator.Report();
}

}  // namespace npumoe
