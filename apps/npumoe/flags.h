// SPDX-License-Identifier: Apache-2.0
// Flags shared by the subcommands, spelled as people know them from llama.cpp.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/npumoe/values.h"
#include "npumoe/engine.h"

namespace npumoe {

using Args = std::vector<std::string>;

// Runs `app` over `args`. Returns an exit code when the command must end here: 0 after --help, 2 after saying in one
// line what is wrong. Flags of llama.cpp that this build need not obey (-ngl, -fa, ...) are dropped with a note; ones
// it cannot obey (--grammar, ...) are errors that say so.
std::optional<int> ParseFlags(CLI::App& app, Args args);

// `status`; an error says which variables gave `options` their values, so that nobody looks for them on the command
// line.
Status NamingVariables(const Status& status, const std::vector<const CLI::Option*>& options);

// kInvalidArgument for the first of `options` that was given on the command line, with `why` it cannot be obeyed. What
// an environment variable says stands for all commands, and for those that have no use for it is nothing.
Status Refuse(std::initializer_list<const CLI::Option*> options, std::string_view why);
// Whether the command line has it, and not only an environment variable. After ParseFlags.
bool IsTyped(const CLI::Option& option);
// The flag, or the variable that its value came from: "--npu", "NPUMOE_NPU (for --npu)". After ParseFlags.
std::string NameOf(const CLI::Option& option);

// "m2-max" of "sim:m2-max", for commands that know no other NPUs than simulated ones.
std::string WithoutSim(const std::string& npu);

// -m/-c/-b/-ub/-t/-ctk/-ctv and what belongs to them. `Options` after parsing only; it
// says so when -ub is not obeyed, as in llama.cpp, because -b is smaller.
class EngineFlags {
 public:
  void AddTo(CLI::App& app);
  Result<EngineOptions> Options() const;
  const std::string& model() const { return model_; }
  // Of a command that reads no prompt: refuses what is of prompts only.
  Status CheckNoPrompt() const;

 private:
  std::string model_, type_k_ = "f16", type_v_ = "f16", tokenizer_pre_;
  int32_t n_threads_ = -1;
  uint32_t activation_bits_ = 0, context_tokens_ = 0, batch_ = 2048, ubatch_ = 512;
  bool phimoe_llama_cpp_ = false;
  const CLI::Option *batch_option_ = nullptr, *ubatch_option_ = nullptr, *type_k_option_ = nullptr,
                    *type_v_option_ = nullptr, *bits_option_ = nullptr;
};

// --temp, --top-k, ..., -s. A seed of -1 becomes a random one in Params().
class SamplerFlags {
 public:
  void AddTo(CLI::App& app);
  SamplerParams Params() const;

 private:
  SamplerParams params_;
  int32_t top_k_ = 40, repeat_last_n_ = 64;
  int64_t seed_ = -1;
};

// Engine::Open with progress while a plan is made.
Result<Engine> OpenEngine(const std::string& path, const EngineOptions& options);
// What --activation-bits says in the help.
inline constexpr const char kActivationBitsText[] =
    "8: fast, as exact as llama.cpp; 16: close to f32; of activations that meet quantized weights [8, beside an NPU "
    "16]";
// A chat format that is built in.
inline CLI::Validator KnownChatFormat() {
  const auto formats = Engine::ChatFormats();
  return SilentMemberOf({formats.begin(), formats.end()});
}
// Split rules that are built in.
inline CLI::Validator KnownPreTokenizer() {
  const auto names = Engine::PreTokenizers();
  return SilentMemberOf({names.begin(), names.end()});
}
// What -ctk says in the help.
inline constexpr const char kCacheTypeText[] = "-ctk: type of the KV cache, f16, f32 or q8_0; give -ctv the same";
// Of -ctk and -ctv.
inline const std::vector<std::string> kCacheTypes = {"f16", "f32", "q8_0"};
// Two of them, which must be the same.
Result<KvType> ParseKvType(const std::string& type_k, const std::string& type_v);
// 0 for "all cores" spelled -1 or 0.
inline uint32_t ThreadCount(int32_t n_threads) { return n_threads < 0 ? 0 : static_cast<uint32_t>(n_threads); }
inline constexpr uint32_t kMaxChunkTokens = 1u << 16;    // the engine's limits, told as usage errors here
inline constexpr uint32_t kMaxContextTokens = 1u << 24;  // likewise
inline constexpr uint32_t kMaxThreads = 1024;            // likewise

// Binds `option` to NPUMOE_<name>, or to llama.cpp's LLAMA_ARG_<name> where only that is set. Empty means unset.
void BindEnvironment(CLI::Option* option, const std::string& name);

}  // namespace npumoe
