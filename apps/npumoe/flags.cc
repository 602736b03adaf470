// SPDX-License-Identifier: Apache-2.0
#include "apps/npumoe/flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "apps/npumoe/console.h"
#include "apps/npumoe/progress.h"
#include "apps/npumoe/text.h"

namespace npumoe {
namespace {

// CLI11 knows one dash with one letter only; these go by their long name.
struct Alias {
  std::string_view spelled, meant;
};
constexpr Alias kAliases[] = {
    {"-ub", "--ubatch-size"}, {"-ctk", "--cache-type-k"},  {"-ctv", "--cache-type-v"}, {"-sys", "--system-prompt"},
    {"-pg", "--prompt-gen"},  {"-pre", "--tokenizer-pre"}, {"-st", "--single-turn"},
};

// The argument after one of these is text whatever it looks like.
constexpr std::string_view kTextFlags[] = {"-p", "--prompt", "-sys", "--system-prompt",
                                           "-f", "--file",   "-m",   "--model"};

enum class Verdict { kIgnored, kRefused };
enum class Takes { kNothing, kValue, kMaybeOnOff };

// Flags of llama.cpp that this build has no use for.
struct ForeignFlag {
  std::string_view names;  // separated by spaces
  Takes takes;
  Verdict verdict;
  std::string_view why;
};
constexpr ForeignFlag kForeignFlags[] = {
    {"-ngl --gpu-layers --n-gpu-layers", Takes::kValue, Verdict::kIgnored, "everything runs on the CPU"},
    {"-dev --device -sm --split-mode -mg --main-gpu -ts --tensor-split", Takes::kValue, Verdict::kIgnored,
     "everything runs on the CPU"},
    {"-cmoe --cpu-moe", Takes::kNothing, Verdict::kIgnored, "everything runs on the CPU"},
    {"-ncmoe --n-cpu-moe -ot --override-tensor", Takes::kValue, Verdict::kIgnored, "everything runs on the CPU"},
    {"-fa --flash-attn", Takes::kMaybeOnOff, Verdict::kIgnored, "attention never stores the score matrix anyway"},
    {"-tb --threads-batch", Takes::kValue, Verdict::kIgnored, "prompt and generation use the threads of -t"},
    {"--mmap --no-mmap --mlock", Takes::kNothing, Verdict::kIgnored, "weights are always mapped"},
    {"--no-warmup --warmup --no-perf --perf --simple-io --jinja --no-jinja", Takes::kNothing, Verdict::kIgnored,
     "it changes nothing here"},
    {"-no-cnv --no-conversation", Takes::kNothing, Verdict::kIgnored, "'npumoe run' never converses"},
    {"-cnv --conversation -i --interactive --interactive-first", Takes::kNothing, Verdict::kRefused,
     "use 'npumoe chat'"},
    {"-hf --hf-repo -hff --hf-file -mu --model-url", Takes::kValue, Verdict::kRefused,
     "models are not fetched; download the file and give its path"},
    {"--grammar --grammar-file -j --json-schema", Takes::kValue, Verdict::kRefused,
     "constrained generation is not in this version"},
    {"--chat-template-file --chat-template-kwargs", Takes::kValue, Verdict::kRefused,
     "chat formats are built in; choose one with --chat-template NAME"},
    {"--lora --lora-scaled --control-vector -md --model-draft --mmproj", Takes::kValue, Verdict::kRefused,
     "only one model file is used"},
    {"--prompt-cache --log-file --rope-scaling --rope-freq-base --rope-freq-scale --keep --mirostat --typical "
     "--presence-penalty --frequency-penalty --samplers --logit-bias -r --reverse-prompt",
     Takes::kValue, Verdict::kRefused, "not in this version"},
    {"--ignore-eos --context-shift -v --verbose", Takes::kNothing, Verdict::kRefused, "not in this version"},
};

bool HasName(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t space = names.find(' ');
    if (names.substr(0, space) == name) return true;
    if (space == std::string_view::npos) break;
    names.remove_prefix(space + 1);
  }
  return false;
}

const ForeignFlag* FindForeign(const CLI::App& app, std::string_view name) {
  // A subcommand that has the flag itself (bench: -r) comes first.
  if (name.size() < 2 || name[0] != '-' || app.get_option_no_throw(std::string(name)) != nullptr) return nullptr;
  for (const ForeignFlag& flag : kForeignFlags) {
    if (HasName(flag.names, name)) return &flag;
  }
  return nullptr;
}

bool IsOnOff(std::string_view text) {
  constexpr std::string_view kWords[] = {"on", "off", "auto", "0", "1", "true", "false"};
  return std::ranges::find(kWords, text) != std::end(kWords);
}

// Replaces aliases, drops ignored flags with their values, and stops at a refused one.
Result<Args> Normalize(const CLI::App& app, const Args& args) {
  Args out;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const std::string name = arg.substr(0, arg.starts_with("--") ? arg.find('=') : std::string::npos);
    if (arg == "--") {
      out.insert(out.end(), args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
      break;
    }
    if (const ForeignFlag* foreign = FindForeign(app, name)) {
      const bool has_value = name.size() < arg.size();
      if (foreign->verdict == Verdict::kRefused) {
        return Error{Code::kInvalidArgument, fmt::format("{}: {}", name, foreign->why)};
      }
      Note(fmt::format("note: {} is ignored: {}", name, foreign->why));
      const bool next_is_value = foreign->takes == Takes::kValue ||
                                 (foreign->takes == Takes::kMaybeOnOff && i + 1 < args.size() && IsOnOff(args[i + 1]));
      if (!has_value && next_is_value) ++i;
      continue;
    }
    const auto* alias = std::ranges::find(kAliases, std::string_view(arg), &Alias::spelled);
    const bool is_alias = alias != std::end(kAliases);
    if (arg.size() == name.size() + 1 && arg.back() == '=') {  // CLI11 would take the next argument as the value
      out.insert(out.end(), {name, ""});
      continue;
    }
    out.push_back(is_alias ? std::string(alias->meant) : arg);
    if (std::ranges::find(kTextFlags, std::string_view(arg)) != std::end(kTextFlags) && i + 1 < args.size()) {
      out.push_back(args[++i]);
    }
  }
  return out;
}

// What CLI11 found wrong, in our form: lower case, no full stop.
std::string Describe(const CLI::Error& error) {
  std::string text = error.what();
  if (const size_t end = text.find("\nRun with"); end != std::string::npos) text.resize(end);
  const std::string_view expected = " expected: ";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && text.find(expected) != std::string::npos) {
    return "unknown or surplus argument '" + text.substr(text.find(expected) + expected.size()) + "'";
  }
  if (!text.empty() && text[0] >= 'A' && text[0] <= 'Z' && (text.size() < 2 || text[1] >= 'a')) {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  while (!text.empty() && (text.back() == '.' || text.back() == '\n')) text.pop_back();
  return text;
}

// Flags whose value may be empty: a text of no length is one.
constexpr std::string_view kMaybeEmpty[] = {"--prompt", "--system-prompt"};

// The first option that was given an empty value where that names nothing, with those of subcommands; or null.
const CLI::Option* FindEmpty(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const bool may_be = std::ranges::find(kMaybeEmpty, std::string_view(option->get_name())) != std::end(kMaybeEmpty);
    // A flag without a value has results too: "true".
    if (!may_be && std::ranges::find(option->results(), std::string()) != option->results().end()) return option;
  }
  for (const CLI::App* command : app.get_subcommands()) {
    if (const CLI::Option* empty = FindEmpty(*command); empty != nullptr) return empty;
  }
  return nullptr;
}

// An option that an environment variable gives a value.
struct Bound {
  CLI::Option* option;
  std::string variable;
};

// Takes the variables from CLI11, which does not say whose value it used. An option that has one need not be typed.
std::vector<Bound> TakeBound(CLI::App& app) {
  std::vector<Bound> bound;
  for (CLI::Option* option : app.get_options()) {
    if (option->get_envname().empty()) continue;
    bound.push_back({option, option->get_envname()});
    option->envname("")->required(false);
  }
  return bound;
}

// Short names for values in the help: CLI11 would print every range.
void ShortenValueNames(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (option->get_items_expected_max() == 0 || type.find('{') != std::string::npos) continue;
    option->option_text(type.starts_with("INT") || type.starts_with("UINT") ? "N"
                        : type.starts_with("FLOAT")                         ? "X"
                                                                            : "TEXT");
  }
}

}  // namespace

bool IsTyped(const CLI::Option& option) { return option.count() > 0 && option.get_envname().empty(); }

std::string NameOf(const CLI::Option& option) {
  const std::string& variable = option.get_envname();
  return variable.empty() ? option.get_name() : fmt::format("{} (for {})", variable, option.get_name());
}

Status NamingVariables(const Status& status, const std::vector<const CLI::Option*>& options) {
  if (status) return status;
  std::string variables;
  for (const CLI::Option* option : options) {
    if (option->count() == 0 || IsTyped(*option)) continue;
    variables += fmt::format("{}{}", variables.empty() ? "from the environment: " : ", ", option->get_envname());
  }
  if (variables.empty()) return status;
  return Error{status.error().code, fmt::format("{} ({})", status.error().message, variables)};
}

Status Refuse(std::initializer_list<const CLI::Option*> options, std::string_view why) {
  for (const CLI::Option* option : options) {
    if (IsTyped(*option)) return Error{Code::kInvalidArgument, fmt::format("{}: {}", option->get_name(), why)};
  }
  return Ok{};
}

std::string WithoutSim(const std::string& npu) { return npu.starts_with("sim:") ? npu.substr(4) : npu; }

std::optional<int> ParseFlags(CLI::App& app, Args args) {
  const std::string command = app.get_name();
  app.name("npumoe " + command);
  ShortenValueNames(app);
  auto normal = Normalize(app, args);
  if (!normal) return UsageError(fmt::format("{}: {}", command, normal.error().message));
  const std::vector<Bound> bound = TakeBound(app);
  std::string subject;  // the variable whose value is looked at
  try {
    std::ranges::reverse(*normal);  // CLI11 takes them from the back
    app.parse(std::move(*normal));
    for (const auto& [option, variable] : bound) {
      if (option->count() > 0) continue;
      option->envname(variable);
      const char* const value = std::getenv(variable.c_str());
      if (option->get_type_name().starts_with("TEXT")) NameVariable(variable, value);
      subject = variable + ", for ";
      option->add_result(value)->run_callback();
    }
  } catch (const CLI::CallForHelp&) {
    const Status written = WriteOut(app.help());
    return written.ok() ? kExitDone : FailWith(written.error());
  } catch (const CLI::Error& error) {
    return UsageError(
        fmt::format("{}: {}{} ('npumoe {} --help' shows the flags)", command, subject, Describe(error), command));
  }
  if (const CLI::Option* empty = FindEmpty(app); empty != nullptr) {
    return UsageError(fmt::format("{}: {}: the value is empty", command, empty->get_name()));
  }
  return std::nullopt;
}

void BindEnvironment(CLI::Option* option, const std::string& name) {
  for (const char* prefix : {"NPUMOE_", "LLAMA_ARG_"}) {
    const std::string variable = prefix + name;
    const char* value = std::getenv(variable.c_str());
    if (value != nullptr && *value != '\0') {
      option->envname(variable);
      ShortenInNotes(value);
      return;
    }
  }
}

Result<Engine> OpenEngine(const std::string& path, const EngineOptions& options) {
  Progress progress("planning");
  return Engine::Open(path, options, ShowingTime(progress));
}

Result<KvType> ParseKvType(const std::string& type_k, const std::string& type_v) {
  if (type_k != type_v) {
    return Error{Code::kInvalidArgument,
                 fmt::format("-ctk {} and -ctv {}: keys and values must have one type", type_k, type_v)};
  }
  return type_k == "f32" ? KvType::kF32 : type_k == "q8_0" ? KvType::kQ8_0 : KvType::kF16;
}

void EngineFlags::AddTo(CLI::App& app) {
  const std::string group = "Model";
  auto* model =
      app.add_option("-m,--model,model", model_, "GGUF file (any part of a split one) or Hugging Face folder");
  model->take_last()->required()->group(group);
  BindEnvironment(model, "MODEL");
  auto* context =
      app.add_option("-c,--ctx-size", context_tokens_, "context in tokens; 0 = what the model was trained with");
  context->take_last()->check(WholeIn(0, kMaxContextTokens))->group(group);
  BindEnvironment(context, "CTX_SIZE");
  auto* batch = app.add_option("-b,--batch-size", batch_, "see -ub: the chunk is the smaller of the two");
  batch->take_last()->check(WholeIn(1, kMaxChunkTokens))->group(group);
  BindEnvironment(batch, "BATCH");
  auto* ubatch = app.add_option("--ubatch-size", ubatch_,
                                "-ub: chunk length, prompt tokens computed together; changes speed, not results");
  batch_option_ = batch, ubatch_option_ = ubatch;
  ubatch->take_last()->check(WholeIn(1, kMaxChunkTokens))->group(group);
  BindEnvironment(ubatch, "UBATCH");
  auto* threads = app.add_option("-t,--threads", n_threads_, "threads; -1 = all cores");
  threads->take_last()->check(WholeIn(-1, kMaxThreads))->group(group);
  BindEnvironment(threads, "THREADS");
  auto* type_k = app.add_option("--cache-type-k", type_k_, kCacheTypeText);
  type_k->take_last()->check(SilentMemberOf(kCacheTypes))->group(group);
  BindEnvironment(type_k, "CACHE_TYPE_K");
  type_k_option_ = type_k;
  auto* type_v = app.add_option("--cache-type-v", type_v_, "-ctv: see -ctk");
  type_v->take_last()->check(SilentMemberOf(kCacheTypes))->group(group);
  BindEnvironment(type_v, "CACHE_TYPE_V");
  type_v_option_ = type_v;
  auto* bits = app.add_option("--activation-bits", activation_bits_, kActivationBitsText);
  bits->take_last()->check(MemberOf({"8", "16"}))->group(group);
  BindEnvironment(bits, "ACTIVATION_BITS");
  bits_option_ = bits;
  app.add_option("--tokenizer-pre", tokenizer_pre_,
                 "split rules of the tokenizer where the file's name for them is unknown")
      ->take_last()
      ->check(KnownPreTokenizer())
      ->group(group);
  app.add_flag("--phimoe-llama-cpp", phimoe_llama_cpp_,
               "PhiMoE as llama.cpp computes it, not as published: softmax over the two winners, RMS norm")
      ->group(group);
}

Result<EngineOptions> EngineFlags::Options() const {
  EngineOptions options;
  const auto kv_type = ParseKvType(type_k_, type_v_);
  if (!kv_type) return NamingVariables(kv_type.error(), {type_k_option_, type_v_option_}).error();
  options.n_threads = ThreadCount(n_threads_);
  options.context_tokens = context_tokens_;
  options.chunk_tokens = std::min(batch_, ubatch_);
  if (batch_ < ubatch_ && ubatch_option_->count() > 0) {
    const auto name = [](const CLI::Option& option, std::string_view letters) {
      return IsTyped(option) || option.count() == 0 ? std::string(letters) : NameOf(option);
    };
    Note(fmt::format("note: {} {}: chunks have {} tokens, as {} says", name(*ubatch_option_, "-ub"), ubatch_, batch_,
                     name(*batch_option_, "-b")));
  }
  options.kv_type = *kv_type;
  options.activation_bits = activation_bits_;
  options.phimoe_llama_cpp = phimoe_llama_cpp_;
  options.tokenizer_pre = tokenizer_pre_;
  return options;
}

Status EngineFlags::CheckNoPrompt() const {
  return Refuse({batch_option_, ubatch_option_, type_k_option_, type_v_option_, bits_option_},
                "of runs: this command reads no prompt");
}

void SamplerFlags::AddTo(CLI::App& app) {
  const std::string group = "Sampling";
  const auto set = [&](const char* names, auto& value, const char* text, const char* variable) {
    auto* option = app.add_option(names, value, text);
    option->take_last()->group(group);
    BindEnvironment(option, variable);
    return option;
  };
  constexpr double kLargest = 1e6;  // Sampler::Make's
  set("--temp,--temperature", params_.temperature, "temperature; 0 = always the likeliest token", "TEMP")
      ->check(NumberIn(0, kLargest));
  set("--top-k", top_k_, "keep the K likeliest tokens; 0 = all", "TOP_K")->check(WholeIn(0, 1u << 30));
  set("--top-p", params_.top_p, "keep the likeliest tokens that make up this probability; 1 = all", "TOP_P")
      ->check(NumberIn(0, 1));
  set("--min-p", params_.min_p, "drop tokens below this part of the likeliest one's probability; 0 = none", "MIN_P")
      ->check(NumberIn(0, 1));
  set("--repeat-penalty", params_.repeat_penalty, "divide the odds of recent tokens; 1 = off", "REPEAT_PENALTY")
      ->check(NumberAbove(0, kLargest));
  set("--repeat-last-n", repeat_last_n_, "how many tokens count as recent; 0 = off, -1 = all", "REPEAT_LAST_N")
      ->check(WholeIn(-1, 1u << 30));
  set("-s,--seed", seed_, "seed of the sampler; -1 = a new one each time (--stats and --json show it)", "SEED")
      ->check(WholeIn(-1, (uint64_t{1} << 53) - 1));
}

SamplerParams SamplerFlags::Params() const {
  SamplerParams params = params_;
  params.top_k = static_cast<uint32_t>(top_k_);
  params.repeat_last_n = repeat_last_n_ < 0 ? UINT32_MAX : static_cast<uint32_t>(repeat_last_n_);
  // 32 bits, so that the seed can be typed in again and survives JSON.
  params.seed = seed_ < 0 ? std::random_device{}() : static_cast<uint64_t>(seed_);
  return params;
}

}  // namespace npumoe
