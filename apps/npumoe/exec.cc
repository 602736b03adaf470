// SPDX-License-Identifier: Apache-2.0
// `npumoe exec`: runs a function of a Core ML package on .npy files.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"
#include "apps/npumoe/npu_flags.h"
#include "apps/npumoe/text.h"
#include "npumoe/mlpackage.h"

namespace npumoe {

int RunExec(const std::vector<std::string>& args) {
  CLI::App app("Runs a function of a Core ML package and writes its outputs.", "exec");
  std::string path;
  std::vector<std::string> inputs;
  RunPackageOptions options;
  app.add_option("package", path, "an .mlpackage folder")->required();
  app.add_option("-f,--function", options.function, "function to run; without it the package's default");
  app.add_option("-i,--in", inputs, "NAME=FILE.npy for an input of the function")->allow_extra_args(false);
  app.add_option("-o,--out", options.out_dir, "folder for the outputs, NAME.npy each")
      ->required()
      ->check(NotStdout("a folder"));
  app.add_option("--npu", options.device, "coreml, coreml:gpu or coreml:cpu; without it the reference executor runs it")
      ->check(SilentMemberOf(CoreMlDevices()));
  app.add_flag("--f32", options.f32, "no rounding to fp16 between ops; outputs are float32");
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;

  if (options.f32 && !options.device.empty())
    return UsageError("exec: --f32: of the reference executor, not with --npu");
  for (const std::string& input : inputs) {
    const size_t equals = input.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == input.size()) {
      return UsageError(fmt::format("exec: --in: wants NAME=FILE.npy, got '{}'", input));
    }
    options.inputs.emplace_back(input.substr(0, equals), input.substr(equals + 1));
  }
  const auto outputs = RunPackage(path, options);
  if (!outputs) return FailWith(outputs.error());
  std::string text;
  for (const PackageOutput& output : *outputs) {
    text += fmt::format("{} {} {}\n", output.name, output.type, OneLine(output.path));
  }
  const Status written = WriteOut(text);
  return written ? kExitDone : FailWith(written.error());
}

}  // namespace npumoe
