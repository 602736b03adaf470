// SPDX-License-Identifier: Apache-2.0
#include "eval/retrieval_score.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "eval/margins.h"

namespace npumoe {
namespace {

// Brings the session to the tokens of `text`, keeping what it shares with them; the last is read anew, for its logits.
Status ReadText(const Engine& engine, Session& session, const std::string& text, const ProgressFn& progress) {
  const std::vector<int32_t> tokens = engine.Tokenize(text, /*add_special=*/true, /*parse_special=*/false);
  if (tokens.empty()) return MakeError(Code::kUnsupported, "eval: the tokenizer makes no tokens of text");
  const auto known = session.tokens();
  const size_t most = std::min(known.size(), tokens.size() - 1);
  const auto differs = std::mismatch(known.begin(), known.begin() + static_cast<ptrdiff_t>(most), tokens.begin());
  const auto shared = static_cast<size_t>(differs.first - known.begin());
  session.Truncate(shared);
  return session.Append(std::span(tokens).subspan(shared), progress);
}

// The likeliest token, noted in `answers` with its margins.
int32_t DrawToken(std::span<const float> logits, std::span<const int32_t> other, ItemAnswers& answers) {
  const TopChoice top = FindTop(logits);
  const size_t step = answers.tokens.size();
  const auto token = static_cast<int32_t>(top.best);
  if (!answers.lost_margin && step < other.size() && other[step] != token) {
    answers.lost_margin = double{logits[top.best]} - logits[static_cast<size_t>(other[step])];
  }
  answers.margin = std::min(answers.margin, top.margin);
  answers.tokens.push_back(token);
  return token;
}

Result<std::string> DrawAnswer(const Engine& engine, Session& session, uint32_t max_tokens,
                               std::span<const int32_t> other, ItemAnswers& answers) {
  std::string answer;
  for (uint32_t i = 0; i < max_tokens; ++i) {
    const int32_t token = DrawToken(session.logits(), other, answers);
    if (engine.IsEndOfGeneration(token)) break;
    answer += engine.TokenBytes(token, /*special=*/false);
    const size_t said = answer.find_first_not_of(" \t\r\n");
    const size_t end = said == std::string::npos ? said : answer.find('\n', said);
    if (end != std::string::npos) {
      answer.resize(end);
      break;
    }
    if (i + 1 == max_tokens || session.tokens().size() >= engine.options().context_tokens) break;
    NM_TRY(session.Append({&token, 1}));
  }
  return answer;
}

}  // namespace

Result<ItemAnswers> AnswerItem(const Engine& engine, Session& session, const RetrievalItem& item,
                               std::span<const int32_t> other, const ProgressFn& progress) {
  session.Truncate(0);
  std::string text = item.text;
  ItemAnswers answers;
  answers.margin = std::numeric_limits<double>::infinity();
  for (const std::string& question : item.questions) {
    text += question;
    NM_TRY(ReadText(engine, session, text, progress));
    NM_TRY_VAR(answers.texts.emplace_back(), DrawAnswer(engine, session, item.answer_tokens, other, answers));
    text += answers.texts.back() + "\n";
  }
  return answers;
}

}  // namespace npumoe
