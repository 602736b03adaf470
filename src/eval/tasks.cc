// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "eval/choice_items.h"
#include "eval/choice_score.h"
#include "eval/item_log.h"
#include "eval/retrieval_items.h"
#include "eval/retrieval_score.h"
#include "eval/task_scores.h"
#include "graph/hash.h"
#include "npumoe/eval.h"

namespace npumoe {
namespace {

constexpr uint64_t kRetrievalItems = 100;    // an interval of about +- 10 % at worst
constexpr uint32_t kRetrievalLength = 4096;  // where the context allows
constexpr uint32_t kMaxShots = 1000;

struct FileTask {
  std::string_view name, purpose;
  Result<std::vector<ChoiceItem>> (*parse)(std::string_view text, std::string_view name);
};
constexpr FileTask kFileTasks[] = {
    {"hellaswag", "which of four endings goes on; text, six lines an item", ParseHellaSwag},
    {"boolq", "yes or no after a passage; JSONL", ParseBoolQ},
    {"piqa", "which of two ways works; JSONL", ParsePiqa},
};

struct RowCounts {
  uint64_t all = 0, dropped = 0, rerouted = 0;
};

RowCounts CountRows(const RunReport& report) {
  const StageReport e = report.Experts();
  return {e.rows_used + e.rows_cpu + e.rows_spilled + e.rows_pruned, e.rows_pruned, e.rows_rerouted};
}

// One run over a task's items. Borrows everything.
class TaskRun {
 public:
  TaskRun(Engine& engine, Engine* exact, const TaskOptions& options, const TaskProgressFn& progress)
      : engine_(engine), exact_(exact), options_(options), progress_(progress), identity_(engine.identity()) {}

  Result<TaskReport> Run() {
    NM_TRY(ReadOptions());
    std::optional<ItemLog> log;
    if (!options_.log_path.empty()) {
      NM_TRY_VAR(ItemLog opened, ItemLog::Open(options_.log_path, Header()));
      log.emplace(std::move(opened));
    }
    if (log) NM_TRY(CheckKind(*log));
    NM_TRY(OpenSessions());
    std::vector<ItemRecord> records;
    for (uint64_t item = 0; item < n_wanted_; ++item) {
      if (log) {
        const auto known = log->records().find(item);
        if (known != log->records().end()) records.push_back(known->second);
        if (known != log->records().end()) continue;
      }
      todo_.push_back(item);
    }
    n_resumed_ = records.size();
    for (const uint64_t item : todo_) {
      if (!GoOn(0)) break;
      auto record = RunItem(item);
      if (!record.ok() && record.error().code == Code::kCancelled) break;
      if (!record.ok()) return record.error();
      if (log) NM_TRY(log->Append(*record));
      records.push_back(std::move(*record));
      ++n_done_;
    }
    if (records.empty()) return MakeError(Code::kCancelled, "eval: stopped");
    GoOn(0);
    return Report(records);
  }

 private:
  Status ReadOptions();
  Status OpenSessions();
  Status CheckKind(const ItemLog& log) const;
  LogHeader Header() const;
  Result<ItemRecord> RunItem(uint64_t item);
  Status RunChoice(ItemRecord& record);
  Status RunRetrieval(ItemRecord& record);
  Result<TaskReport> Report(const std::vector<ItemRecord>& records) const;
  // `part` of the item at hand is done. False: the caller wants to stop.
  bool GoOn(double part) const {
    return !progress_ || progress_(static_cast<double>(n_resumed_ + n_done_) + part, n_wanted_);
  }
  bool is_lossy() const { return !identity_.overflow.empty() && identity_.overflow != "exact"; }

  Engine& engine_;
  Engine* const exact_;
  const TaskOptions& options_;
  const TaskProgressFn& progress_;
  const RunIdentity identity_;

  std::vector<ChoiceItem> choices_;  // empty for retrieval
  std::string data_hash_;
  uint32_t length_tokens_ = 0, context_tokens_ = 0;
  uint64_t n_wanted_ = 0;
  std::optional<Session> session_, exact_session_;
  std::optional<ChoiceScorer> scorer_, exact_scorer_;
  std::vector<uint64_t> todo_;
  uint64_t n_resumed_ = 0, n_done_ = 0;
};

Status TaskRun::ReadOptions() {
  context_tokens_ = engine_.options().context_tokens;
  if (exact_ != nullptr) {
    context_tokens_ = std::min(context_tokens_, exact_->options().context_tokens);
    if (exact_->info().vocab_size != engine_.info().vocab_size) {
      return MakeError(Code::kInvalidArgument, "eval: vocabularies of {} and {} tokens, wanted the same model",
                       engine_.info().vocab_size, exact_->info().vocab_size);
    }
  }
  const auto file_task = std::ranges::find(kFileTasks, options_.task, &FileTask::name);
  if (file_task != std::end(kFileTasks)) {
    NM_TRY_VAR(choices_, file_task->parse(options_.data, options_.data_name));
    if (options_.n_shots >= choices_.size() || options_.n_shots > kMaxShots) {
      return MakeError(Code::kInvalidArgument, "eval: {} shots, wanted at most {}", options_.n_shots,
                       std::min<size_t>(kMaxShots, choices_.size() - 1));
    }
    ContentHash hash;
    hash.Add(options_.data);
    data_hash_ = hash.Hex();
    n_wanted_ = options_.max_items > 0 ? std::min<uint64_t>(options_.max_items, choices_.size()) : choices_.size();
    return Ok{};
  }
  const auto made_here = RetrievalTasks();
  if (std::ranges::find(made_here, options_.task, &RetrievalTask::name) == made_here.end()) {
    return MakeError(Code::kInvalidArgument, "eval: unknown task '{}'", options_.task);
  }
  length_tokens_ = options_.length_tokens > 0 ? options_.length_tokens : std::min(context_tokens_, kRetrievalLength);
  if (length_tokens_ > context_tokens_) {
    return MakeError(Code::kInvalidArgument, "eval: length of {} tokens, the context holds {}: raise -c",
                     length_tokens_, context_tokens_);
  }
  n_wanted_ = options_.max_items > 0 ? options_.max_items : kRetrievalItems;
  return Ok{};
}

Status TaskRun::OpenSessions() {
  NM_TRY_VAR(session_, engine_.NewSession());
  scorer_.emplace(*session_, engine_.info().vocab_size, !is_lossy());
  if (exact_ == nullptr) return Ok{};
  NM_TRY_VAR(exact_session_, exact_->NewSession());
  exact_scorer_.emplace(*exact_session_, exact_->info().vocab_size, /*shares_prefix=*/true);
  return Ok{};
}

// Before anything is computed: what is in the log will be scored together with it.
Status TaskRun::CheckKind(const ItemLog& log) const {
  for (const auto& [item, record] : log.records()) {
    if (record.is_choice() != !choices_.empty() || HasExact(record) != (exact_ != nullptr)) {
      return MakeError(Code::kCorruptFile, "{}: item {} is of another kind of task", options_.log_path, item);
    }
    if (choices_.empty()) continue;
    if (item >= choices_.size() || record.gold != choices_[item].gold ||
        record.log_probs.size() != choices_[item].endings.size()) {
      return MakeError(Code::kCorruptFile, "{}: item {} has other endings than that of {}", options_.log_path, item,
                       options_.data_name);
    }
  }
  return Ok{};
}

LogHeader TaskRun::Header() const {
  LogHeader header{{"task", options_.task}};
  if (choices_.empty()) {
    header.emplace_back("length", std::to_string(length_tokens_));
    header.emplace_back("seed", std::to_string(options_.seed));
  } else {
    header.emplace_back("data_hash", data_hash_);
    header.emplace_back("shots", std::to_string(options_.n_shots));
    header.emplace_back("context", std::to_string(context_tokens_));
  }
  header.emplace_back("model_hash", identity_.model_hash);
  header.emplace_back("numerics", identity_.numerics);
  header.emplace_back("npu", identity_.npu);
  header.emplace_back("plan_hash", identity_.plan_hash);
  header.emplace_back("overflow", identity_.overflow);
  header.emplace_back("exact", exact_ == nullptr ? "" : exact_->identity().numerics);
  return header;
}

Result<ItemRecord> TaskRun::RunItem(uint64_t item) {
  ItemRecord record;
  record.item = item;
  const RowCounts before = CountRows(session_->report());
  NM_TRY(choices_.empty() ? RunRetrieval(record) : RunChoice(record));
  const RowCounts after = CountRows(session_->report());
  record.expert_rows = after.all - before.all;
  record.rows_dropped = after.dropped - before.dropped;
  record.rows_rerouted = after.rerouted - before.rerouted;
  return record;
}

Status TaskRun::RunChoice(ItemRecord& record) {
  const ChoiceItem& item = choices_[record.item];
  auto tokens =
      TokenizeChoice(engine_, PromptOf(choices_, record.item, options_.n_shots), item.endings, context_tokens_);
  if (!tokens.ok()) {
    return MakeError(tokens.error().code, "{}: item {}: {}", options_.data_name, record.item, tokens.error().message);
  }
  record.gold = item.gold;
  record.is_cut = tokens->is_cut;
  record.n_characters = tokens->n_characters;
  for (size_t i = 0; i < tokens->sequences.size(); ++i) {
    record.n_tokens.push_back(static_cast<uint32_t>(tokens->sequences[i].size() - tokens->n_context[i]));
  }
  NM_TRY_VAR(record.log_probs, scorer_->Score(*tokens, [&] { return GoOn(0); }));
  if (exact_scorer_) {
    NM_TRY_VAR(record.exact_log_probs, exact_scorer_->Score(*tokens, [&] { return GoOn(0.5); }));
  }
  return Ok{};
}

Status TaskRun::RunRetrieval(ItemRecord& record) {
  const auto count = [&](std::string_view text) { return engine_.Tokenize(text, true, false).size(); };
  NM_TRY_VAR(const RetrievalItem item,
             MakeRetrievalItem(options_.task, options_.seed, record.item, length_tokens_, count));
  record.references = item.references;
  // The runs of an item take about equally long; of the prompt most of it.
  const double share = exact_ != nullptr ? 0.5 : 1;
  const auto from = [&](double begin) {
    return [this, begin, share](size_t done, size_t total) {
      return GoOn(begin + share * static_cast<double>(done) / static_cast<double>(std::max<size_t>(total, 1)));
    };
  };
  const auto found = [&](const std::vector<std::string>& answers) {
    uint32_t n_found = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      n_found += CountFound(answers[i], item.is_conversation() ? std::vector{item.references[i]} : item.references);
    }
    return n_found;
  };
  NM_TRY_VAR(ItemAnswers own, AnswerItem(engine_, *session_, item, {}, from(0)));
  record.answers = std::move(own.texts);
  record.n_found = found(record.answers);
  if (exact_ != nullptr) {
    NM_TRY_VAR(ItemAnswers exact, AnswerItem(*exact_, *exact_session_, item, own.tokens, from(0.5)));
    record.exact_answers = std::move(exact.texts);
    if (std::isfinite(exact.margin)) record.exact_margin = exact.margin;
    record.lost_margin = exact.lost_margin;
    record.n_exact_found = found(record.exact_answers);
  }
  return Ok{};
}

Result<TaskReport> TaskRun::Report(const std::vector<ItemRecord>& records) const {
  TaskReport report;
  report.task = options_.task;
  report.n_items = records.size();
  report.n_resumed = n_resumed_;
  report.n_wanted = n_wanted_;
  for (const ItemRecord& record : records) {
    report.n_cut += record.is_cut ? 1 : 0;
    report.expert_rows += record.expert_rows;
    report.rows_dropped += record.rows_dropped;
    report.rows_rerouted += record.rows_rerouted;
  }
  report.scores = choices_.empty() ? RetrievalScores(records) : ChoiceScores(records);
  report.same_answers = SameAnswers(records);
  report.margins = AnswerMargins(records);
  report.npu = session_->report();
  return report;
}

}  // namespace

std::vector<EvalTask> EvalTasks() {
  std::vector<EvalTask> tasks;
  for (const FileTask& task : kFileTasks) tasks.push_back({task.name, task.purpose, true});
  for (const RetrievalTask& task : RetrievalTasks()) tasks.push_back({task.name, task.purpose, false});
  return tasks;
}

Result<TaskReport> RunTask(Engine& engine, Engine* exact, const TaskOptions& options, const TaskProgressFn& progress) {
  return TaskRun(engine, exact, options, progress).Run();
}

}  // namespace npumoe
