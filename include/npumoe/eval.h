// SPDX-License-Identifier: Apache-2.0
// How right a run is: perplexity of a text, tasks with known answers, and agreement with the exact run on the CPU.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npumoe/engine.h"
#include "npumoe/result.h"

namespace npumoe {

struct EvalOptions {
  uint64_t max_tokens = 0;     // of the text; 0 = all
  uint32_t window_tokens = 0;  // the text is read in windows of so many tokens; 0 = the context, at most 2,048
};

// How narrow the exact run's choices were that this run makes otherwise: the margin of one is what the exact run's
// score of its own choice exceeds its score of this run's by. Small ones are near ties that rounding decides.
struct Margins {
  uint64_t n_changed = 0;         // choices that are others than the exact run's
  double median = 0, widest = 0;  // of their margins; 0 without any
  uint64_t n_as_close = 0;        // exact choices, changed or not, with a next candidate no farther off than `widest`
};

// Next-token distributions against those of another run, over all positions.
struct Agreement {
  double top1 = 0;                                // share of positions with the same likeliest token
  double mean_kl = 0, median_kl = 0, p99_kl = 0;  // KL(other || this), nats
  double other_perplexity = 0;
  Margins margins;  // of likeliest tokens, nats
  // Of those after tokens that every layer gave to the same experts in both runs: what arithmetic alone turned, no
  // router's choice. Absent for a model without experts.
  std::optional<Margins> alike_margins;
  // Share of the (token, layer, choice) triples whose expert is among those that computed for the token in the other
  // run too; a dropped row is nobody's. Absent for a model without experts.
  std::optional<double> same_experts;
};

struct EvalReport {
  uint64_t n_tokens = 0;  // predicted: every token of a window but its first
  double mean_nll = 0;    // nats
  double perplexity = 0;
  double nll_standard_error = 0;  // of mean_nll, tokens taken as independent
  std::optional<Agreement> agreement;
  RunReport npu;  // empty layers without an NPU
};

// Reads `text` with `engine`; with `exact`, another engine of the same model, also compares. Fails with
// kInvalidArgument when the text has fewer than two tokens or the vocabularies differ, and with kCancelled when
// `progress` says false.
Result<EvalReport> Evaluate(Engine& engine, Engine* exact, std::string_view text, const EvalOptions& options,
                            const ProgressFn& progress);

// A share with its 95 % interval.
struct Share {
  double value = 0, low = 0, high = 1;
  uint64_t n = 0;  // of how many; 0: nothing is known
};

// Wilson's score interval (E. B. Wilson, 1927) at z = 1.959964.
Share WilsonShare(uint64_t n_right, uint64_t n);

// Multiple choice from a file of items, or a retrieval task that is made here.
struct EvalTask {
  std::string_view name, purpose;
  bool from_file = false;
};
std::vector<EvalTask> EvalTasks();

struct TaskOptions {
  std::string task;  // a name of EvalTasks()
  // Multiple choice: the file's bytes, and its name as the subject of messages.
  std::string data, data_name;
  uint32_t n_shots = 0;  // solved items before each; the file's first, the item itself left out
  // Retrieval: prompt and room for the answer, in tokens; 0 = the context, at most 4,096. Items depend on `seed`, their
  // number in the order, the length and the tokenizer.
  uint32_t length_tokens = 0;
  uint64_t seed = 1;
  uint64_t max_items = 0;  // 0 = the whole file, or 100 of a retrieval task
  // JSONL of finished items, one line each, made when missing: a run that finds some there goes on after them. Empty =
  // none.
  std::string log_path;
};

struct TaskScore {
  std::string name;  // "accuracy"
  Share share;
  std::optional<Share> exact;  // of the exact run, over the same items
};

struct TaskReport {
  std::string task;
  uint64_t n_items = 0, n_resumed = 0, n_wanted = 0;  // finished, of them by an earlier run, asked for
  uint64_t n_cut = 0;  // items whose beginning was left out because the context is too short
  // Multiple choice: "accuracy" by the sum of an ending's log-probabilities, and by that over its characters and over
  // its tokens. Retrieval: "found", the mean share of an item's references, and "all found".
  std::vector<TaskScore> scores;
  std::optional<Share> same_answers;  // as the exact run: the choice by characters, or every word of the answers
  // With the exact run. Multiple choice: nats per character. Retrieval: nats, of the first token that the runs draw
  // differently, and of the narrowest token of an answer; absent when a log of an older program lacks those of an item.
  std::optional<Margins> margins;
  uint64_t expert_rows = 0, rows_dropped = 0, rows_rerouted = 0;  // of prompts on an NPU, resumed items included
  RunReport npu;                                                  // of this run alone; empty layers without an NPU
};

// Called as items are done; return false to stop.
using TaskProgressFn = std::function<bool(double done_items, uint64_t n_items)>;

// Runs `engine` over a task's items; with `exact`, another engine of the same model, that one too. Stopped by
// `progress` after at least one item it reports those (n_items < n_wanted), before with kCancelled. Fails with
// kInvalidArgument for bad options, kCorruptFile with the line for bad items or a log that is none, and
// kInvalidArgument for a log of another model, task or plan.
Result<TaskReport> RunTask(Engine& engine, Engine* exact, const TaskOptions& options, const TaskProgressFn& progress);

}  // namespace npumoe
