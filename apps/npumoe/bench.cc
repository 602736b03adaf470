// SPDX-License-Identifier: Apache-2.0
// `npumoe bench`: prompt and generation speed. The last token's logits only, known tokens, no sampling.
#include "apps/npumoe/bench.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <thread>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

constexpr uint32_t kMaxTokens = kMaxContextTokens;
constexpr size_t kCheckTokens = 32;  // several pieces of seven, and quick on the largest model
constexpr size_t kCheckPiece = 7;    // no multiple or divisor of a kernel's tile
// Rounding between chunk lengths moves the output by 1e-9 to 1e-5 nats; a wrong kernel moves it by 0.1 and more.
// assumed
constexpr double kMaxCheckKl = 1e-3;

struct BenchFlags {
  std::vector<std::string> models, prompts, gens, pairs, depths, threads, ubatches;
  std::string type_k = "f16", type_v = "f16", format = "md";
  uint32_t batch = 2048, repetitions = 5, activation_bits = 0;
  double delay_seconds = 0;
  bool json = false, no_warmup = false, phimoe_llama_cpp = false;
  const CLI::Option* output_option = nullptr;

  void AddTo(CLI::App& app) {
    app.add_option("-m,--model,model", models, "GGUF files or Hugging Face folders")->required();
    const auto list = [&](const char* names, std::vector<std::string>& values, const char* text) {
      app.add_option(names, values, text)->allow_extra_args(false);
    };
    list("-p,--n-prompt", prompts, "prompt lengths: 512, 128,512 or 128-2048*2; 0 = none [512]");
    list("-n,--n-gen", gens, "generation lengths; 0 = none [128]");
    app.add_option("--prompt-gen", pairs, "-pg P,N: read P tokens, then generate N, timed together")
        ->allow_extra_args(false);
    list("-d,--n-depth", depths, "tokens in the context before the timed ones [0]");
    list("-t,--threads", threads, "thread counts [all cores]");
    list("--ubatch-size", ubatches, "-ub: chunk lengths, prompt tokens computed together [512]");
    app.add_option("-b,--batch-size", batch, "upper limit of -ub [2048]")->check(WholeIn(1, kMaxChunkTokens));
    app.add_option("--cache-type-k", type_k, kCacheTypeText)->check(SilentMemberOf(kCacheTypes));
    app.add_option("--cache-type-v", type_v, "-ctv: see -ctk")->check(SilentMemberOf(kCacheTypes));
    app.add_option("--activation-bits", activation_bits, kActivationBitsText)->check(MemberOf({"8", "16"}));
    app.add_option("-r,--repetitions", repetitions, "timed runs of each test [5]")->check(WholeIn(1, 10000));
    app.add_option("--delay", delay_seconds, "seconds to rest before each test")->check(NumberIn(0.0, 3600.0));
    app.add_flag("--no-warmup", no_warmup, "no untimed run before the timed ones");
    auto* output = app.add_option("-o,--output", format, "md, json, jsonl or csv [md]");
    output_option = output;
    output->check(MemberOf({"md", "json", "jsonl", "csv"}));
    app.add_flag("--json", json, "the same as -o json");
    app.add_flag("--phimoe-llama-cpp", phimoe_llama_cpp, "PhiMoE as llama.cpp computes it");
  }
};

// The flags, expanded and checked.
struct BenchPlan {
  std::vector<BenchTest> tests;
  std::vector<uint32_t> threads, ubatches;
  KvType kv_type = KvType::kF16;
  BenchFormat format = BenchFormat::kMarkdown;
  BenchColumns columns;
  uint32_t context_tokens = 0;
};

Result<std::vector<uint32_t>> Expand(const std::vector<std::string>& texts, std::vector<uint32_t> otherwise,
                                     uint32_t max, std::string_view what) {
  if (texts.empty()) return otherwise;
  std::vector<uint32_t> all;
  for (const std::string& text : texts) {
    const auto values = ParseList(text, max, what);
    if (!values) return values.error();
    all.insert(all.end(), values->begin(), values->end());
  }
  return all;
}

Result<std::vector<BenchTest>> PlanTests(const BenchFlags& flags) {
  // -pg alone measures the pairs only, as does asking for one kind alone with 0 for the other.
  const bool defaults = flags.pairs.empty() || !flags.prompts.empty() || !flags.gens.empty();
  const auto prompts =
      Expand(flags.prompts, defaults ? std::vector<uint32_t>{512} : std::vector<uint32_t>{}, kMaxTokens, "-p");
  if (!prompts) return prompts.error();
  const auto gens =
      Expand(flags.gens, defaults ? std::vector<uint32_t>{128} : std::vector<uint32_t>{}, kMaxTokens, "-n");
  if (!gens) return gens.error();
  const auto depths = Expand(flags.depths, {0}, kMaxTokens, "-d");
  if (!depths) return depths.error();
  std::vector<BenchTest> tests;
  for (const uint32_t depth : *depths) {
    for (const uint32_t n : *prompts) tests.push_back({n, 0, depth});
    for (const uint32_t n : *gens) tests.push_back({0, n, depth});
    for (const std::string& text : flags.pairs) {
      const auto pair = ParseList(text, kMaxTokens, "-pg");
      if (!pair) return pair.error();
      if (pair->size() != 2)
        return Error{Code::kInvalidArgument, "-pg: wants two numbers P,N, got '" + OneLine(text) + "'"};
      tests.push_back({(*pair)[0], (*pair)[1], depth});
    }
  }
  std::erase_if(tests, [](const BenchTest& test) { return test.n_prompt == 0 && test.n_gen == 0; });
  if (tests.empty()) return Error{Code::kInvalidArgument, "-p 0 and -n 0: nothing to measure"};
  return tests;
}

Result<BenchPlan> MakePlan(const BenchFlags& flags) {
  BenchPlan plan;
  auto tests = PlanTests(flags);
  if (!tests) return tests.error();
  plan.tests = std::move(*tests);
  uint64_t context = 2 * kCheckTokens;
  for (const BenchTest& test : plan.tests) {
    context = std::max(context, uint64_t{test.n_prompt} + test.n_gen + test.n_depth);
  }
  if (context > kMaxTokens) {
    return Error{Code::kInvalidArgument, fmt::format("a test needs {} tokens, limit {}", context, kMaxTokens)};
  }
  plan.context_tokens = static_cast<uint32_t>(context);
  auto threads = Expand(flags.threads, {0}, kMaxThreads, "-t");
  if (!threads) return threads.error();
  plan.threads = std::move(*threads);
  auto ubatches = Expand(flags.ubatches, {512}, kMaxChunkTokens, "-ub");
  if (!ubatches) return ubatches.error();
  if (std::ranges::find(*ubatches, 0u) != ubatches->end())
    return Error{Code::kInvalidArgument, "-ub: wants at least 1"};
  for (uint32_t& ubatch : *ubatches) {
    if (ubatch > flags.batch && !flags.ubatches.empty()) {
      Note(fmt::format("note: -ub {}: chunks have {} tokens, as -b says", ubatch, flags.batch));
    }
    ubatch = std::min(ubatch, flags.batch);
  }
  plan.ubatches = std::move(*ubatches);
  plan.columns.ubatch = plan.ubatches != std::vector<uint32_t>{512};
  const auto kv_type = ParseKvType(flags.type_k, flags.type_v);
  if (!kv_type) return kv_type.error();
  plan.kv_type = *kv_type;
  plan.columns.kv_type = plan.kv_type != KvType::kF16;
  if (flags.json && flags.output_option->count() > 0 && flags.format != "json") {
    return Error{Code::kInvalidArgument, fmt::format("--json: not with -o {}", flags.format)};
  }
  const std::string format = flags.json ? "json" : flags.format;
  plan.format = format == "json"    ? BenchFormat::kJson
                : format == "jsonl" ? BenchFormat::kJsonLines
                : format == "csv"   ? BenchFormat::kCsv
                                    : BenchFormat::kMarkdown;
  return plan;
}

// Tokens spread over the vocabulary, the same ones in every run.
std::vector<int32_t> KnownTokens(size_t n, uint32_t vocab_size) {
  std::vector<int32_t> tokens(n);
  uint64_t state = 1;
  for (int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    token = static_cast<int32_t>((state >> 33) % vocab_size);
  }
  return tokens;
}

bool KeepGoing(size_t, size_t) { return !Interrupted(); }

Status AppendOneByOne(Session& session, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    const Status appended = session.Append(std::span(&token, 1), KeepGoing);
    if (!appended) return appended;
  }
  return Ok{};
}

// KL divergence in nats of the softmax of `b` from that of `a`.
double Divergence(std::span<const float> a, std::span<const float> b) {
  const auto log_sum = [](std::span<const float> x) {
    const double max = *std::ranges::max_element(x);
    double sum = 0;
    for (const float value : x) sum += std::exp(value - max);
    return max + std::log(sum);
  };
  const double log_a = log_sum(a), log_b = log_sum(b);
  double kl = 0;
  for (size_t i = 0; i < a.size(); ++i) kl += std::exp(a[i] - log_a) * ((a[i] - log_a) - (b[i] - log_b));
  return kl;
}

// Verifies what is about to be timed: finite logits, the same bits twice, and the same answer when the prompt comes in
// pieces. Returns the divergence between whole and pieces.
Result<double> CheckResults(Session& session, uint32_t vocab_size) {
  const auto tokens = KnownTokens(kCheckTokens, vocab_size);
  std::vector<std::vector<float>> runs;
  for (const size_t piece : {kCheckTokens, kCheckTokens, kCheckPiece}) {
    session.Truncate(0);
    for (size_t begin = 0; begin < tokens.size(); begin += piece) {
      const size_t n = std::min(piece, tokens.size() - begin);
      const Status appended = session.Append(std::span(tokens).subspan(begin, n), KeepGoing);
      if (!appended) return appended.error();
    }
    runs.emplace_back(session.logits().begin(), session.logits().end());
  }
  session.Truncate(0);
  for (const auto& run : runs) {
    if (!std::ranges::all_of(run, [](float value) { return std::isfinite(value); })) {
      return Error{Code::kUnsupported, "check: a logit is not finite"};
    }
  }
  if (runs[0] != runs[1]) return Error{Code::kUnsupported, "check: the same prompt gave other logits the second time"};
  const double kl = Divergence(runs[0], runs[2]);
  if (!(kl <= kMaxCheckKl)) {
    return Error{Code::kUnsupported,
                 fmt::format("check: a prompt in pieces of {} differs from the whole by KL {:.3g}, limit {}",
                             kCheckPiece, kl, kMaxCheckKl)};
  }
  return kl;
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// One timed pass from the test's depth; leaves the session there.
Result<uint64_t> Measure(Session& session, const BenchTest& test, std::span<const int32_t> tokens) {
  session.Truncate(test.n_depth);
  const auto prompt = tokens.subspan(test.n_depth, test.n_prompt);
  const auto gen = tokens.subspan(size_t{test.n_depth} + test.n_prompt, test.n_gen);
  const auto start = std::chrono::steady_clock::now();
  Status status = prompt.empty() ? Status(Ok{}) : session.Append(prompt, KeepGoing);
  if (status.ok()) status = AppendOneByOne(session, gen);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  if (!status) return status.error();
  session.Truncate(test.n_depth);
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
}

Status RunTest(Session& session, const BenchFlags& flags, uint32_t vocab_size, BenchResult& result) {
  const BenchTest& test = result.test;
  const auto tokens = KnownTokens(size_t{test.n_depth} + test.n_prompt + test.n_gen, vocab_size);
  std::this_thread::sleep_for(std::chrono::duration<double>(flags.delay_seconds));
  session.Truncate(0);
  if (test.n_depth > 0) {
    const Status filled = session.Append(std::span(tokens).first(test.n_depth), KeepGoing);
    if (!filled) return filled;
  }
  if (!flags.no_warmup) {
    // As llama-bench: the whole prompt, but one token of the generation.
    const auto warm = Measure(session, {test.n_prompt, std::min(test.n_gen, 1u), test.n_depth}, tokens);
    if (!warm) return warm.error();
  }
  result.test_time = UtcNow();
  for (uint32_t i = 0; i < flags.repetitions; ++i) {
    const auto ns = Measure(session, test, tokens);
    if (!ns) return ns.error();
    result.samples_ns.push_back(std::max<uint64_t>(*ns, 1));
  }
  result.peak_resident_bytes = session.memory().peak_resident;
  return Ok{};
}

// All tests of one model with one number of threads and one chunk length.
Status RunConfiguration(const std::string& path, const BenchFlags& flags, const BenchPlan& plan,
                        const EngineOptions& options, bool& is_first, double& worst_kl) {
  auto engine = OpenEngine(path, options);
  if (!engine) return engine.error();
  auto session = engine->NewSession();
  if (!session) return session.error();
  const ModelInfo& info = engine->info();
  const auto kl = CheckResults(*session, info.vocab_size);
  if (!kl) return kl.error();
  worst_kl = std::max(worst_kl, *kl);
  for (const BenchTest& test : plan.tests) {
    BenchResult result;
    result.test = test;
    result.model_path = path;
    result.model_type = ModelType(info);
    result.model_size_bytes = info.size_bytes;
    result.n_params = info.n_params;
    result.n_threads = engine->options().n_threads;
    result.n_batch = flags.batch;
    result.n_ubatch = options.chunk_tokens;
    result.kv_type = options.kv_type;
    result.check_kl = *kl;
    const Status measured = RunTest(*session, flags, info.vocab_size, result);
    if (!measured) return measured;
    const Status written = WriteOut(BenchRow(plan.format, plan.columns, is_first, result));
    if (!written) return written;
    is_first = false;
  }
  return Ok{};
}

Status RunAll(const BenchFlags& flags, const BenchPlan& plan) {
  Status status = WriteOut(BenchHead(plan.format, plan.columns));
  bool is_first = true;
  double worst_kl = 0;
  for (const std::string& path : flags.models) {
    for (const uint32_t n_threads : plan.threads) {
      for (const uint32_t ubatch : plan.ubatches) {
        if (!status) continue;
        EngineOptions options;
        options.n_threads = n_threads;
        options.context_tokens = plan.context_tokens;
        options.chunk_tokens = ubatch;
        options.kv_type = plan.kv_type;
        options.activation_bits = flags.activation_bits;
        options.phimoe_llama_cpp = flags.phimoe_llama_cpp;
        status = RunConfiguration(path, flags, plan, options, is_first, worst_kl);
      }
    }
  }
  if (!status) {
    // What was measured stays readable for a machine: the list is closed.
    if (plan.format == BenchFormat::kJson) (void)WriteOut(BenchFoot(plan.format, ""));
    return status;
  }
  return WriteOut(
      BenchFoot(plan.format, fmt::format("logits finite, the same bits twice; {} tokens at once and by {}: KL {:.2g}",
                                         kCheckTokens, kCheckPiece, worst_kl)));
}

}  // namespace

int RunBench(const std::vector<std::string>& args) {
  CLI::App app("Measures prompt (pp) and generation (tg) speed: tokens per second, average and deviation.", "bench");
  BenchFlags flags;
  flags.AddTo(app);
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  const auto plan = MakePlan(flags);
  if (!plan) return UsageError("bench: " + plan.error().message);
  if (GetBuildInfo().is_debug) {
    return FailWith(
        {Code::kUnsupported, "bench: this build has debug checks, its speed means nothing: use the release preset"});
  }
  CatchInterrupts(Keeps::kOutput);
  const Status done = RunAll(flags, *plan);
  return done.ok() ? kExitDone : FailWith(done.error());
}

}  // namespace npumoe
