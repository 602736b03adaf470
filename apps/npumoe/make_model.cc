// SPDX-License-Identifier: Apache-2.0
// `npumoe make-model`: a checkpoint with seeded random weights.
#include "npumoe/make_model.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/text.h"

namespace npumoe {

int RunMakeModel(const std::vector<std::string>& args) {
  CLI::App app("Writes a model with random weights: true shapes, any block type, skewed experts.", "make-model");
  MakeModelOptions options;
  std::string out, shapes;
  bool per_expert = false;
  for (const std::string_view shape : MakeModelShapes())
    shapes += fmt::format("{}{}", shapes.empty() ? "" : ", ", shape);
  app.add_option("--shape", options.shape, "one of: " + shapes)->required();
  app.add_option("-o,--output", out, "file to write, or folder with --hf")
      ->required()
      ->check(NotStdout("a file or a folder"));
  app.add_option("--type", options.type, "block type of the matrices: f32, f16, bf16, q8_0, q4_0, q4_k, ...");
  const auto count = WholeIn(1, 1u << 30);
  app.add_option("--layers", options.n_layers, "layers, instead of the shape's")->check(count);
  app.add_option("--vocab", options.vocab_size, "tokens in the vocabulary")->check(count);
  app.add_option("--experts", options.n_experts, "experts per layer")->check(count);
  app.add_option("--top-k", options.top_k, "experts per token")->check(count);
  app.add_option("--dim", options.dim, "model width")->check(count);
  app.add_option("--expert-dim", options.expert_dim, "expert width")->check(count);
  app.add_option("-s,--seed", options.seed, "same seed, same bytes")->check(WholeIn(0, UINT64_MAX));
  app.add_option("--zipf", options.zipf, "how unequally experts are used; 0 = evenly")->check(NumberIn(-100, 100));
  app.add_flag("--hf", options.hugging_face, "write a Hugging Face folder with safetensors instead of GGUF");
  const auto* per_expert_option =
      app.add_flag("--per-expert", per_expert, "GGUF: one tensor per expert instead of one for all");
  app.add_option("--splits", options.n_splits, "number of files")->check(WholeIn(1, 99999));
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  if (options.hugging_face) {
    const Status good = Refuse({per_expert_option}, "not with --hf, which has a tensor per expert anyway");
    if (!good) return UsageError("make-model: " + good.error().message);
  }
  options.merged_experts = !per_expert;

  CatchInterrupts(Keeps::kWork);  // a half-written file is removed, not left behind
  options.keep_going = [] { return !Interrupted(); };
  const auto bytes = MakeModel(options, out);
  if (!bytes && bytes.error().code == Code::kCancelled) return ExitInterrupted("nothing is written");
  if (!bytes) {
    // Impossible shapes are refused by the checks that files go through; here the flags are what is wrong.
    const Code code = bytes.error().code;
    const bool outside = code == Code::kIo || code == Code::kNotFound || code == Code::kOutOfMemory;
    return outside ? FailWith(bytes.error()) : UsageError("make-model: " + bytes.error().message);
  }
  const Status written = WriteOut(fmt::format("{}: {}\n", OneLine(out), FormatBytes(*bytes)));
  return written.ok() ? kExitDone : FailWith(written.error());
}

}  // namespace npumoe
