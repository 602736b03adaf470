// SPDX-License-Identifier: Apache-2.0
#include "eval/task_scores.h"

#include <algorithm>

#include "eval/choice_score.h"
#include "eval/margins.h"
#include "eval/share.h"

namespace npumoe {
namespace {

// What a sum of log-probabilities is divided by.
enum class Per { kEnding, kCharacter, kToken };

std::span<const uint32_t> Divisors(const ItemRecord& record, Per per) {
  if (per == Per::kEnding) return {};
  return per == Per::kCharacter ? record.n_characters : record.n_tokens;
}

template <typename IsRight>
Share CountShare(std::span<const ItemRecord> records, const IsRight& is_right) {
  return WilsonShare(static_cast<uint64_t>(std::ranges::count_if(records, is_right)), records.size());
}

// Whether the exact run answers the same.
bool IsSame(const ItemRecord& r) {
  if (!r.is_choice()) return r.answers == r.exact_answers;
  return BestEnding(r.log_probs, r.n_characters) == BestEnding(r.exact_log_probs, r.n_characters);
}

}  // namespace

bool HasExact(const ItemRecord& record) {
  return record.is_choice() ? !record.exact_log_probs.empty() : !record.exact_answers.empty();
}

std::vector<TaskScore> ChoiceScores(std::span<const ItemRecord> records) {
  std::vector<TaskScore> scores;
  const bool has_exact = HasExact(records.front());
  for (const auto& [name, per] : {std::pair{"accuracy", Per::kEnding},
                                  {"accuracy per character", Per::kCharacter},
                                  {"accuracy per token", Per::kToken}}) {
    TaskScore score;
    score.name = name;
    score.share =
        CountShare(records, [per](const ItemRecord& r) { return BestEnding(r.log_probs, Divisors(r, per)) == r.gold; });
    if (has_exact) {
      score.exact = CountShare(
          records, [per](const ItemRecord& r) { return BestEnding(r.exact_log_probs, Divisors(r, per)) == r.gold; });
    }
    scores.push_back(std::move(score));
  }
  return scores;
}

std::vector<TaskScore> RetrievalScores(std::span<const ItemRecord> records) {
  TaskScore found{"found", {}, {}}, all{"all found", {}, {}};
  const auto mean = [&](uint32_t ItemRecord::*n_found) {
    std::vector<double> shares;
    for (const ItemRecord& r : records) {
      shares.push_back(static_cast<double>(r.*n_found) / static_cast<double>(r.references.size()));
    }
    return MeanShare(shares);
  };
  const auto complete = [&](uint32_t ItemRecord::*n_found) {
    return CountShare(records, [n_found](const ItemRecord& r) { return r.*n_found == r.references.size(); });
  };
  found.share = mean(&ItemRecord::n_found);
  all.share = complete(&ItemRecord::n_found);
  if (HasExact(records.front())) {
    found.exact = mean(&ItemRecord::n_exact_found);
    all.exact = complete(&ItemRecord::n_exact_found);
  }
  return {std::move(found), std::move(all)};
}

std::optional<Share> SameAnswers(std::span<const ItemRecord> records) {
  if (!HasExact(records.front())) return std::nullopt;
  return CountShare(records, IsSame);
}

std::optional<Margins> AnswerMargins(std::span<const ItemRecord> records) {
  if (!HasExact(records.front())) return std::nullopt;
  std::vector<double> lost, next;
  for (const ItemRecord& r : records) {
    const bool is_same = IsSame(r);
    if (!r.is_choice()) {
      if (!r.exact_margin || (!is_same && !r.lost_margin)) return std::nullopt;
      next.push_back(*r.exact_margin);
      if (!is_same) lost.push_back(*r.lost_margin);
      continue;
    }
    const std::vector<double> scores = EndingScores(r.exact_log_probs, r.n_characters);
    const TopChoice top = FindTop(scores);
    next.push_back(top.margin);
    if (!is_same) lost.push_back(scores[top.best] - scores[BestEnding(r.log_probs, r.n_characters)]);
  }
  return SummarizeMargins(std::move(lost), next);
}

}  // namespace npumoe
