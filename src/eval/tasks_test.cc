// SPDX-License-Identifier: Apache-2.0
// Tasks with the demo model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/temporary_folder.h"
#include "eval/choice_score.h"
#include "eval/item_log.h"
#include "eval/retrieval_items.h"
#include "eval/retrieval_score.h"
#include "npumoe/eval.h"

namespace npumoe {
namespace {

const std::string kTaskModel = NM_SOURCE_DIR "/models/demo-moe.gguf";
const std::string kItems =
    "The captain looked at the sea and\n1\ndo be the of.\nsaid nothing.\nwas a very table.\nran up his ship in an.\n"
    "KING RICHARD: My lord, I\n0\nam not well.\nare it then.\nthe of and.\nboat boat boat.\n"
    "She took the letter and\n3\nit for he.\ngreen was to.\nfor of it an.\nread it.\n";

Engine OpenFor(const std::string& overflow = "", uint32_t context = 512) {
  EngineOptions options;
  options.n_threads = 2;
  options.context_tokens = context;
  options.activation_bits = 16;
  if (!overflow.empty()) {
    options.npu.device = "sim:m2-max";
    options.npu.make_plan = true;
    options.npu.plan.placement = "tiers+groups";
    options.npu.plan.chunk_tokens = 128;
    options.npu.mode = overflow;
  }
  return Engine::Open(kTaskModel, options).value();
}

TaskOptions Choice(std::string log = "") {
  TaskOptions options;
  options.task = "hellaswag";
  options.data = kItems;
  options.data_name = "items";
  options.log_path = std::move(log);
  return options;
}

TaskOptions Needle(std::string_view task, uint32_t length, uint64_t n) {
  TaskOptions options;
  options.task = task;
  options.length_tokens = length;
  options.max_items = n;
  return options;
}

// Sum over the ending's tokens, one token at a time.
double PlainScore(Engine& engine, const std::string& context, const std::string& ending) {
  const auto before = engine.Tokenize(context, true, false), all = engine.Tokenize(context + " " + ending, true, false);
  Session session = engine.NewSession().value();
  double sum = 0;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    EXPECT_TRUE(session.Append(std::span(&all[i], 1)).ok());
    double total = 0;
    for (const float logit : session.logits()) total += std::exp(double{logit});
    if (i + 1 >= before.size()) sum += session.logits()[static_cast<size_t>(all[i + 1])] - std::log(total);
  }
  return sum;
}

class TaskLog : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(folder_.Make("npumoe-tasks").ok());
    path_ = folder_.path() + "/log.jsonl";
  }
  std::vector<ItemRecord> Records() const {
    std::vector<ItemRecord> records;
    const std::string bytes = ReadFile(path_).value();
    for (size_t at = bytes.find('\n') + 1, end; (end = bytes.find('\n', at)) != std::string::npos; at = end + 1) {
      records.push_back(ParseItemRecord(std::string_view(bytes).substr(at, end - at), "log").value());
    }
    return records;
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(TaskLog, ChoiceSumsAreThoseOfTheLogits) {
  Engine engine = OpenFor();
  const auto report = RunTask(engine, nullptr, Choice(path_), {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->n_items, 3u);
  const auto records = Records();
  ASSERT_EQ(records.size(), 3u);
  const std::vector<std::string> endings{"do be the of.", "said nothing.", "was a very table.",
                                         "ran up his ship in an."};
  for (size_t i = 0; i < endings.size(); ++i) {
    EXPECT_NEAR(records[0].log_probs[i], PlainScore(engine, "The captain looked at the sea and", endings[i]), 1e-5);
    EXPECT_EQ(records[0].n_characters[i], endings[i].size());
  }
  ASSERT_EQ(report->scores.size(), 3u);
  EXPECT_EQ(report->scores[1].name, "accuracy per character");
  uint64_t n_right = 0;
  for (const ItemRecord& record : records) n_right += BestEnding(record.log_probs, record.n_characters) == record.gold;
  EXPECT_EQ(report->scores[1].share.value, static_cast<double>(n_right) / 3);
  EXPECT_GE(n_right, 2u) << "the model tells sentences from word salad";
  EXPECT_FALSE(report->scores[1].exact || report->same_answers);
}

TEST_F(TaskLog, AResumedRunReportsWhatOneRunDoes) {
  Engine engine = OpenFor("prune"), exact = OpenFor();
  const auto whole = RunTask(engine, &exact, Choice(), {});
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  int asked = 0;
  const auto stop = [&asked](double done, uint64_t) { return done < 1 || ++asked < 2; };
  const auto part = RunTask(engine, &exact, Choice(path_), stop);
  ASSERT_TRUE(part.ok()) << part.error().message;
  EXPECT_EQ(part->n_items, 1u);
  EXPECT_EQ(part->n_wanted, 3u);
  const auto rest = RunTask(engine, &exact, Choice(path_), {});
  ASSERT_TRUE(rest.ok()) << rest.error().message;
  EXPECT_EQ(rest->n_resumed, 1u);
  EXPECT_EQ(rest->n_items, 3u);
  EXPECT_EQ(rest->expert_rows, whole->expert_rows);
  EXPECT_EQ(rest->rows_dropped, whole->rows_dropped);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(rest->scores[i].share.value, whole->scores[i].share.value);
  EXPECT_EQ(rest->same_answers->value, whole->same_answers->value);
  EXPECT_EQ(rest->margins->n_changed, whole->margins->n_changed);
  EXPECT_EQ(rest->margins->widest, whole->margins->widest);
  // Another mode is another run.
  Engine other = OpenFor("reroute");
  const auto refused = RunTask(other, &exact, Choice(path_), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("log of another run"), std::string::npos);
}

TEST_F(TaskLog, ALossyModeReadsEveryEndingAsOnePrompt) {
  // Who is dropped depends on who is read together: all but the last token of every sequence, from its beginning.
  Engine engine = OpenFor("prune");
  ASSERT_TRUE(RunTask(engine, nullptr, Choice(path_), {}).ok());
  const ItemRecord first = Records()[0];
  const std::string context = "The captain looked at the sea and";
  const size_t n_context = engine.Tokenize(context, true, false).size();
  uint64_t n_tokens = 0;
  for (const uint32_t n : first.n_tokens) n_tokens += n_context + n - 1;
  EXPECT_EQ(first.expert_rows, n_tokens * engine.info().n_moe_layers * engine.info().top_k);
}

TEST_F(TaskLog, AShortContextLosesTheBeginning) {
  Engine engine = OpenFor("", 24);
  TaskOptions options = Choice(path_);
  options.n_shots = 2;
  const auto report = RunTask(engine, nullptr, options, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->n_cut, 3u);
  Engine tiny = OpenFor("", 4);
  const auto none = RunTask(tiny, nullptr, Choice(), {});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("the context holds 4"), std::string::npos) << none.error().message;
}

TEST(Tasks, TheDemoModelFindsNeedles) {
  Engine engine = OpenFor();
  const auto single = RunTask(engine, nullptr, Needle("needle-single", 256, 10), {});
  ASSERT_TRUE(single.ok()) << single.error().message;
  EXPECT_GE(single->scores[0].share.value, 0.9);
  const auto query = RunTask(engine, nullptr, Needle("needle-multiquery", 256, 10), {});
  ASSERT_TRUE(query.ok());
  EXPECT_EQ(query->scores[0].name, "found");
  EXPECT_GE(query->scores[0].share.value, 0.8);
  EXPECT_LE(query->scores[1].share.value, query->scores[0].share.value);
}

// Of an answer drawn again here, a token at a time.
TEST(Tasks, MarginsOfAnswersAreThoseOfTheLogits) {
  Engine engine = OpenFor();
  const auto count = [&](std::string_view text) { return engine.Tokenize(text, true, false).size(); };
  const RetrievalItem item = MakeRetrievalItem("needle-multikey", 1, 0, 256, count).value();
  Session session = engine.NewSession().value();
  const ItemAnswers alone = AnswerItem(engine, session, item, {}, {}).value();
  ASSERT_GE(alone.tokens.size(), 3u);
  EXPECT_FALSE(alone.lost_margin);
  // Another run's tokens: other ones from the third on.
  std::vector<int32_t> other = alone.tokens;
  for (size_t i = 2; i < other.size(); ++i) other[i] = other[i] == 300 ? 301 : 300;
  const ItemAnswers compared = AnswerItem(engine, session, item, other, {}).value();
  EXPECT_EQ(compared.tokens, alone.tokens);

  Session again = engine.NewSession().value();
  ASSERT_TRUE(again.Append(engine.Tokenize(item.text + item.questions[0], true, false)).ok());
  double narrowest = 1e9, lost = 0;
  for (size_t i = 0; i < alone.tokens.size(); ++i) {
    std::vector<float> sorted(again.logits().begin(), again.logits().end());
    if (i == 2) lost = sorted[static_cast<size_t>(alone.tokens[i])] - sorted[static_cast<size_t>(other[i])];
    std::ranges::sort(sorted, std::greater<float>());
    EXPECT_EQ(again.logits()[static_cast<size_t>(alone.tokens[i])], sorted[0]);
    narrowest = std::min<double>(narrowest, sorted[0] - sorted[1]);
    ASSERT_TRUE(again.Append(std::span(&alone.tokens[i], 1)).ok());
  }
  EXPECT_NEAR(alone.margin, narrowest, 1e-4);
  EXPECT_EQ(compared.margin, alone.margin);
  ASSERT_TRUE(compared.lost_margin);
  EXPECT_NEAR(*compared.lost_margin, lost, 1e-4);
  EXPECT_GT(lost, 0);
}

TEST(Tasks, ExactModeAnswersAsTheCpu) {
  Engine engine = OpenFor("exact"), exact = OpenFor();
  for (const TaskOptions& options : {Needle("needle-multikey", 256, 10), Choice()}) {
    const auto report = RunTask(engine, &exact, options, {});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->same_answers->value, 1);
    EXPECT_EQ(report->margins->n_changed, 0u);
    EXPECT_EQ(report->rows_dropped + report->rows_rerouted, 0u);
    EXPECT_GT(report->expert_rows, 0u);
    for (const TaskScore& score : report->scores) EXPECT_EQ(score.share.value, score.exact->value) << score.name;
  }
}

// Four digits: fp16 on the NPU is all that differs.
TEST(Tasks, ExactModeHasTheCpusPerplexity) {
  Engine engine = OpenFor("exact"), exact = OpenFor();
  const std::string text = ReadFile(NM_SOURCE_DIR "/models/heldout/prose.txt").value();
  const auto report = Evaluate(engine, &exact, text, {1536, 512}, {});
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_GT(report->npu.Experts().rows_used, report->npu.Experts().rows_cpu);
  EXPECT_NEAR(report->perplexity / report->agreement->other_perplexity, 1, 2.5e-4);
  EXPECT_GE(*report->agreement->same_experts, 0.998);  // near ties may fall the other way
  Engine pruned = OpenFor("prune");
  const auto lossy = Evaluate(pruned, &exact, text, {1536, 512}, {});
  ASSERT_TRUE(lossy.ok());
  // What fp16 turns was nearly even, but where a router's near tie fell the other way; dropping turns what was clear.
  EXPECT_LT(report->agreement->alike_margins->widest, 0.05);
  EXPECT_LE(report->agreement->alike_margins->n_changed, report->agreement->margins.n_changed);
  EXPECT_GT(lossy->agreement->margins.widest, 1);
  EXPECT_LT(lossy->agreement->alike_margins->n_changed, lossy->agreement->margins.n_changed);
  EXPECT_EQ(lossy->agreement->top1,
            1 - static_cast<double>(lossy->agreement->margins.n_changed) / static_cast<double>(lossy->n_tokens));
  EXPECT_GT(lossy->perplexity / lossy->agreement->other_perplexity, 1.02);
  const StageReport e = lossy->npu.Experts();
  const double dropped = static_cast<double>(e.rows_pruned) /
                         static_cast<double>(e.rows_used + e.rows_cpu + e.rows_spilled + e.rows_pruned);
  EXPECT_LE(*lossy->agreement->same_experts, 1 - dropped);
}

TEST(Tasks, SayWhatIsWrong) {
  Engine engine = OpenFor();
  const auto code = [&](const TaskOptions& options) { return RunTask(engine, nullptr, options, {}).error().code; };
  EXPECT_EQ(code(Needle("needle-none", 256, 1)), Code::kInvalidArgument);
  EXPECT_EQ(code(Needle("needle-single", 513, 1)), Code::kInvalidArgument);
  EXPECT_EQ(code(Needle("needle-single", 10, 1)), Code::kInvalidArgument);
  TaskOptions options = Choice();
  options.n_shots = 3;
  EXPECT_EQ(code(options), Code::kInvalidArgument);
  options.data = "x";
  EXPECT_EQ(code(options), Code::kCorruptFile);
  const auto stopped = RunTask(engine, nullptr, Choice(), [](double, uint64_t) { return false; });
  EXPECT_EQ(stopped.error().code, Code::kCancelled);
}

}  // namespace
}  // namespace npumoe
