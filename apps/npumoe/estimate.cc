// SPDX-License-Identifier: Apache-2.0
// `npumoe estimate`: what the cost model says of one op.
#include "npumoe/estimate.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/npumoe/commands.h"
#include "apps/npumoe/console.h"
#include "apps/npumoe/flags.h"

namespace npumoe {
namespace {

std::string EstimateText(const OpQuestion& q, const OpEstimate& e) {
  return fmt::format(
      "{} {}, {} weights, path {}: {:.4g} ms, {:.4g} mJ, bound by {} ({:.3g} TFLOP/s, {:.3g} GB/s of weights); "
      "simulated on {}\n",
      q.op, q.shape, q.weights, q.path, e.seconds * 1e3, e.joules * 1e3, e.bound, e.flops / e.seconds * 1e-12,
      e.weight_bytes / e.seconds * 1e-9, e.npu);
}

std::string EstimateJson(const OpQuestion& q, const OpEstimate& e) {
  const nlohmann::ordered_json json = {
      {"ms", e.seconds * 1e3},
      {"mj", e.joules * 1e3},
      {"bound", e.bound},
      {"npu", e.npu},
      {"op", q.op},
      {"shape", q.shape},
      {"weights", q.weights},
      {"path", q.path},
      {"simulated", true},
      {"tflops", e.flops / e.seconds * 1e-12},
      {"gbps", e.weight_bytes / e.seconds * 1e-9},
      {"parts_ms",
       {{"dispatch", e.floor_seconds * 1e3},
        {"io", e.io_seconds * 1e3},
        {"compute", e.compute_seconds * 1e3},
        {"weights", e.weight_seconds * 1e3}}},
  };
  return json.dump() + "\n";
}

}  // namespace

int RunEstimate(const std::vector<std::string>& args) {
  CLI::App app("Time and energy of one op on a simulated NPU, by the cost model that plans are made with.", "estimate");
  OpQuestion question;
  bool as_json = false;
  app.add_option("--npu", question.npu, "NPU ('npumoe doctor' lists them)")->required();
  app.add_option("--op", question.op, fmt::format("{}", fmt::join(EstimateOps(), ", ")))->required();
  app.add_option("--shape", question.shape,
                 "ROWSxINxOUT; gemv also INxOUT; swiglu ROWSxDIMxEXPERTDIM; attention "
                 "TOKENSxCONTEXTxHEADSxKVHEADSxHEADDIM; several ops in one program: SHAPE*TIMES,SHAPE,...")
      ->required();
  app.add_option("--weights", question.weights,
                 fmt::format("{} (int8 activations too: w8a8) [fp16]", fmt::join(EstimateWeights(), ", ")));
  app.add_option(
      "--path", question.path,
      "coreml: surface-backed fp16 arrays; direct: the private interface, arrays converted by the host; cpu: on "
      "the CPU beside it [coreml]");
  app.add_flag("--runtime-weights", question.runtime_weights, "matmul: the second operand is an input, not a constant");
  app.add_flag("--json", as_json, "as JSON");
  if (const auto exit_code = ParseFlags(app, args)) return *exit_code;
  const auto estimate = EstimateOp(question);
  if (!estimate) return UsageError("estimate: " + estimate.error().message);
  const Status written = WriteOut(as_json ? EstimateJson(question, *estimate) : EstimateText(question, *estimate));
  return written ? kExitDone : FailWith(written.error());
}

}  // namespace npumoe
