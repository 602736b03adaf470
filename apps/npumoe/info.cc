// SPDX-License-Identifier: Apache-2.0
// `npumoe info`: what is in model files, for people or as JSON. A bad file does not hide the good ones.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/package_info.h"
#include "apps/npumoe/text.h"
#include "npumoe/engine.h"
#include "npumoe/mlpackage.h"

namespace npumoe {
namespace {

using Json = nlohmann::ordered_json;

std::string CountLine(std::string_view name, uint64_t count) {
  return NamedLine(18, name, count < 1000 ? fmt::format("{}", count) : fmt::format("{} ({})", count, FormatCount(count)));
}

std::string BytesLine(std::string_view name, uint64_t bytes) {
  return NamedLine(18, name, bytes < 1024 ? fmt::format("{} B", bytes) : fmt::format("{} ({} B)", FormatBytes(bytes), bytes));
}

// How many tensors each type has and how much they weigh, heaviest first.
std::string TypeTable(const std::vector<TensorInfo>& tensors) {
  struct Sum {
    std::string type;
    uint64_t n_tensors = 0, size_bytes = 0;
  };
  std::vector<Sum> sums;
  for (const TensorInfo& tensor : tensors) {
    auto sum = std::ranges::find(sums, tensor.type, &Sum::type);
    if (sum == sums.end()) sum = sums.insert(sums.end(), Sum{tensor.type});
    ++sum->n_tensors;
    sum->size_bytes += tensor.size_bytes;
  }
  std::ranges::stable_sort(sums, std::ranges::greater{}, &Sum::size_bytes);
  std::string text;
  for (const Sum& sum : sums) {
    text += NamedLine(18, text.empty() ? "tensors" : "",
                 fmt::format("{:>6} {:<8} {:>12}", sum.n_tensors, sum.type, FormatBytes(sum.size_bytes)));
  }
  return text;
}

std::string TensorTable(const std::vector<TensorInfo>& tensors) {
  size_t width = 4;
  for (const TensorInfo& tensor : tensors) width = std::max(width, OneLine(tensor.name).size());
  std::string text;
  for (const TensorInfo& tensor : tensors) {
    text += fmt::format("  {:<{}}  {:<8} {:>12}  {}\n", OneLine(tensor.name), width, tensor.type,
                        FormatBytes(tensor.size_bytes), OneLine(tensor.shape));
  }
  return text;
}

std::string Describe(const ModelInfo& info, bool with_tensors) {
  std::string text = NamedLine(18, "file", info.path) + NamedLine(18, "format", info.format);
  if (!info.name.empty()) text += NamedLine(18, "name", info.name);
  text +=
      NamedLine(18, "family", info.family) + NamedLine(18, "type", info.type) + NamedLine(18, "tokenizer", info.tokenizer) +
      CountLine("parameters", info.n_params) + CountLine("active per token", info.n_active_params) +
      BytesLine("size", info.size_bytes) + CountLine("vocabulary", info.vocab_size) +
      CountLine("context", info.context_length) + BytesLine(fmt::format("KV per token, {}", KvTypeName(info.kv_type)), info.kv_bytes_per_token) +
      CountLine("width", info.dim) +
      NamedLine(18, "layers", info.n_moe_layers == 0 || info.n_moe_layers == info.n_layers
                         ? fmt::format("{}", info.n_layers)
                         : fmt::format("{}, {} of them MoE", info.n_layers, info.n_moe_layers)) +
      NamedLine(18, "heads", fmt::format("{} of {} dims, {} for keys and values", info.n_heads, info.head_dim, info.n_kv_heads));
  // A MoE model has a dense width only where some layers are dense.
  if (info.ffn_dim > 0 && info.n_moe_layers < info.n_layers) text += CountLine("dense FFN width", info.ffn_dim);
  if (info.n_experts > 0) {
    text += NamedLine(18, "experts", fmt::format("{} per layer, {} per token", info.n_experts, info.top_k)) +
            CountLine("expert width", info.expert_dim) + BytesLine("bytes per expert", info.expert_bytes);
    if (info.shared_expert_dim > 0) text += CountLine("shared expert", info.shared_expert_dim);
    text += NamedLine(18, "router", info.router);
  }
  text += NamedLine(18, "rope", info.rope) + NamedLine(18, "norm", info.norm) + TypeTable(info.tensors);
  return with_tensors ? text + TensorTable(info.tensors) : text;
}

Json ToJson(const ModelInfo& info, bool with_tensors) {
  const auto text = [](const std::string& value) { return ReplaceInvalidUtf8(value); };
  Json json = {{"path", text(info.path)},
               {"format", text(info.format)},
               {"name", text(info.name)},
               {"family", text(info.family)},
               {"type", text(info.type)},
               {"tokenizer", text(info.tokenizer)},
               {"n_params", info.n_params},
               {"n_active_params", info.n_active_params},
               {"size_bytes", info.size_bytes},
               {"expert_bytes", info.expert_bytes},
               {"kv_type", KvTypeName(info.kv_type)},
               {"kv_bytes_per_token", info.kv_bytes_per_token},
               {"vocab_size", info.vocab_size},
               {"context_length", info.context_length},
               {"dim", info.dim},
               {"n_layers", info.n_layers},
               {"n_moe_layers", info.n_moe_layers},
               {"n_heads", info.n_heads},
               {"n_kv_heads", info.n_kv_heads},
               {"head_dim", info.head_dim},
               {"ffn_dim", info.ffn_dim},
               {"n_experts", info.n_experts},
               {"top_k", info.top_k},
               {"expert_dim", info.expert_dim},
               {"shared_expert_dim", info.shared_expert_dim},
               {"router", text(info.router)},
               {"rope", text(info.rope)},
               {"norm", text(info.norm)},
               {"n_tensors", info.tensors.size()}};
  json["warnings"] = Json::array();
  for (const std::string& warning : info.warnings) json["warnings"].push_back(text(warning));
  if (with_tensors) {
    json["tensors"] = Json::array();
    for (const TensorInfo& tensor : info.tensors) {
      json["tensors"].push_back({{"name", text(tensor.name)},
                                 {"type", text(tensor.type)},
                                 {"shape", text(tensor.shape)},
                                 {"size_bytes", tensor.size_bytes}});
    }
  }
  return json;
}

// One description, whatever kind of file it is of.
struct Description {
  std::string text;
  Json json;
  std::vector<std::string> warnings;
};

Result<Description> DescribeAny(const std::string& path, const EngineOptions& options, bool with_tensors) {
  if (LooksLikePackage(path)) {
    const auto package = DescribePackage(path);
    if (!package) return package.error();
    return Description{DescribeForPeople(*package), DescribeAsJson(*package), package->warnings};
  }
  const auto info = DescribeModel(path, options);
  if (!info) return info.error();
  return Description{Describe(*info, with_tensors), ToJson(*info, with_tensors), info->warnings};
}

}  // namespace

int RunInfo(const std::vector<std::string>& args) {
  CLI::App app("Shows what is in model files and Core ML packages.", "info");
  std::vector<std::string> paths;
  EngineOptions options;
  std::string type_k = "f16", type_v = "f16";
  bool with_tensors = false, as_json = false;
  app.add_option("-m,--model,model", paths, "GGUF files, Hugging Face folders, .mlpackage folders")->required();
  app.add_flag("--tensors", with_tensors, "list every tensor");
  app.add_flag("--json", as_json, "JSON: an object, or an array when several models are named");
  app.add_option("--cache-type-k", type_k, kCacheTypeText)->check(SilentMemberOf(kCacheTypes))->take_last();
  app.add_option("--cache-type-v", type_v, "-ctv: see -ctk")->check(SilentMemberOf(kCacheTypes))->take_last();
  app.add_option("--tokenizer-pre", options.tokenizer_pre, "split rules where the file's name for them is unknown")
      ->check(KnownPreTokenizer());
  app.add_flag("--phimoe-llama-cpp", options.phimoe_llama_cpp, "PhiMoE as llama.cpp computes it");
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  const auto kv_type = ParseKvType(type_k, type_v);
  if (!kv_type) return UsageError("info: " + kv_type.error().message);
  options.kv_type = *kv_type;

  bool failed = false;
  Json list = Json::array();
  std::string separator;
  for (const std::string& path : paths) {
    const auto info = DescribeAny(path, options, with_tensors);
    if (!info) {
      failed = true;
      Note(info.error().message);
      list.push_back({{"path", ReplaceInvalidUtf8(path)}, {"error", ReplaceInvalidUtf8(info.error().message)}});
      continue;
    }
    if (as_json) {
      list.push_back(info->json);
      continue;
    }
    const Status written = WriteOut(separator + info->text);
    if (!written) return FailWith(written.error());
    separator = "\n";
    for (const std::string& warning : info->warnings) Note(fmt::format("warning: {}: {}", path, warning));
  }
  if (as_json) {
    const Status written = WriteOut((paths.size() == 1 ? list[0] : list).dump(2) + "\n");
    if (!written) return FailWith(written.error());
  }
  return failed ? kExitFailed : kExitDone;
}

}  // namespace npumoe
