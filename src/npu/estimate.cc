// SPDX-License-Identifier: Apache-2.0
#include "npumoe/estimate.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "npu/cost.h"
#include "npu/spec.h"

namespace npumoe {
namespace {

constexpr double kHalf = 2;  // bytes of fp16
constexpr uint64_t kMaxAxis = uint64_t{1} << 24, kMaxTimes = 1'000'000;
constexpr size_t kMaxShapes = 64, kMaxAxes = 5;

enum class Form { kProduct, kSwiglu, kAttention };
struct OpName {
  std::string_view name;
  Form form;
  std::string_view shape;  // what its shape means
  size_t n_axes;
};
constexpr OpName kOps[] = {
    {"conv1x1", Form::kProduct, "ROWSxINxOUT", 3},
    {"matmul", Form::kProduct, "MxKxN", 3},
    {"gemv", Form::kProduct, "INxOUT or ROWSxINxOUT", 3},
    {"swiglu", Form::kSwiglu, "ROWSxDIMxEXPERTDIM", 3},
    {"attention", Form::kAttention, "TOKENSxCONTEXTxHEADSxKVHEADSxHEADDIM", 5},
};

struct Format {
  std::string_view name;
  double bits;
  bool is_palette, is_int8_arithmetic;
};
constexpr Format kFormats[] = {{"fp16", 16, false, false}, {"int8", 8, false, false}, {"w8a8", 8, false, true},
                               {"lut8", 8, true, false},   {"lut6", 6, true, false},  {"lut4", 4, true, false}};

template <typename Names>
std::string List(const Names& names) {
  std::string text;
  for (const auto& entry : names) text += fmt::format("{}{}", text.empty() ? "" : ", ", entry.name);
  return text;
}

template <typename Names>
auto FindName(const Names& names, std::string_view wanted, std::string_view what)
    -> Result<const std::remove_reference_t<decltype(names[0])>*> {
  for (const auto& entry : names) {
    if (entry.name == wanted) return &entry;
  }
  return MakeError(Code::kInvalidArgument, "{}: unknown '{}', wanted one of: {}", what, wanted.substr(0, 40),
                   List(names));
}

struct Shape {
  std::array<double, kMaxAxes> axes{};
  double times = 1;
};

bool ParseNumber(std::string_view text, uint64_t limit, double& value) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  value = static_cast<double>(number);
  return error == std::errc() && end == text.data() + text.size() && number >= 1 && number <= limit;
}

// The part before `separator`, which is taken off `text` too.
std::string_view NextPart(std::string_view& text, char separator) {
  const size_t at = text.find(separator);
  const std::string_view part = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + 1);
  return part;
}

bool ParseShape(std::string_view text, const OpName& op, Shape& shape) {
  std::string_view times = text;
  text = NextPart(times, '*');
  if (!times.empty() && !ParseNumber(times, kMaxTimes, shape.times)) return false;
  std::vector<double> axes;
  if (std::count(text.begin(), text.end(), 'x') >= static_cast<std::ptrdiff_t>(kMaxAxes)) return false;
  const size_t n_axes = static_cast<size_t>(std::count(text.begin(), text.end(), 'x')) + 1;
  for (size_t i = 0; i < n_axes; ++i) {
    double axis = 0;
    if (!ParseNumber(NextPart(text, 'x'), kMaxAxis, axis)) return false;
    axes.push_back(axis);
  }
  if (op.name == "gemv" && axes.size() == 2) axes.insert(axes.begin(), 1);
  if (axes.size() != op.n_axes) return false;
  std::copy(axes.begin(), axes.end(), shape.axes.begin());
  // Query heads come in groups that share a key head.
  return op.form != Form::kAttention ||
         (axes[2] >= axes[3] && static_cast<uint64_t>(axes[2]) % static_cast<uint64_t>(axes[3]) == 0);
}

Result<std::vector<Shape>> ParseShapes(std::string_view text, const OpName& op) {
  std::vector<Shape> shapes;
  const auto wrong = [&](std::string_view part) {
    return MakeError(Code::kInvalidArgument, "--shape: {} wants {} of 1 to {}, *N behind it for N times{}, got '{}'",
                     op.name, op.shape, kMaxAxis, op.form == Form::kAttention ? ", HEADS a multiple of KVHEADS" : "",
                     part.substr(0, 60));
  };
  if (text.empty() || text.back() == ',' || text.back() == '*') return wrong(text);
  while (!text.empty()) {
    const std::string_view part = NextPart(text, ',');
    Shape shape;
    if (shapes.size() == kMaxShapes || !ParseShape(part, op, shape)) return wrong(part);
    shapes.push_back(shape);
  }
  return shapes;
}

// The products of a program, and what else it does.
struct Program {
  std::vector<Product> products;
  double scores = 0, elementwise = 0;  // values
  double io_values = 0, weight_values = 0;
};

void Add(Program& program, const Product& product, bool is_weight) {
  program.products.push_back(product);
  if (is_weight) program.weight_values += product.in * product.out * product.count;
}

// Weight bytes of the products are fp16's; the caller knows the format.
Program MakeProgram(const std::vector<Shape>& shapes, const OpName& op, bool runtime_weights) {
  Program program;
  for (const Shape& shape : shapes) {
    const auto& [a, b, c, d, e] = shape.axes;
    const double n = shape.times;
    if (op.form == Form::kAttention) {  // tokens, context, heads, kv heads, head dim
      const double rows = a * c / d;
      Add(program, {rows, e, b, n * d, kHalf * e * b}, false);
      Add(program, {rows, b, e, n * d, kHalf * e * b}, false);
      program.scores += n * a * b * c;
      program.io_values += n * 2 * e * (a * c + b * d);
    } else if (op.form == Form::kSwiglu) {  // rows, dim, expert_dim
      Add(program, {a, b, c, 2 * n, kHalf * b * c}, true);
      Add(program, {a, c, b, n, kHalf * b * c}, true);
      program.elementwise += n * 2 * a * c;
    } else {
      Add(program, {a, b, c, n, kHalf * b * c}, !runtime_weights);
      if (runtime_weights) program.io_values += n * b * c;
    }
  }
  if (op.form != Form::kAttention) {  // the first op's input and the last one's output
    const Shape &first = shapes.front(), &last = shapes.back();
    program.io_values += first.axes[0] * (first.axes[1] + (op.form == Form::kSwiglu ? last.axes[1] : last.axes[2]));
  }
  return program;
}

Work WorkOf(const Program& program, const Format& format, const NpuSpec& spec) {
  const bool unfolds = format.name == "int8" && !spec.streams_int8;
  const double bytes = unfolds ? kHalf : format.bits / 8;
  Work work;
  work.flops = work.paced_flops = program.elementwise;
  for (Product product : program.products) {
    if (program.weight_values > 0) product.weight_bytes *= bytes / kHalf;
    product.is_int8 = format.is_int8_arithmetic;
    AddProduct(product, spec, work);
  }
  AddScores(program.scores, spec, work);
  work.weight_bytes = program.weight_values * bytes;
  if (format.is_palette) work.unpacked_bytes = program.weight_values * kHalf;
  work.io_bytes = program.io_values * (format.is_int8_arithmetic ? 1 : kHalf);
  return work;
}

void OnCpu(const Program& program, const Format& format, const NpuSpec& spec, OpEstimate& estimate) {
  for (const Product& product : program.products) {
    // q8_0 keeps a scale of fp16 for every 32 weights.
    const double bits = format.bits == 8 ? 8.5 : format.bits;
    const double bytes = product.weight_bytes * (program.weight_values > 0 ? bits / 16 : 1);
    const double flops = 2 * product.in * product.out;
    const Cost cost = CpuExpertCost(product.rows, flops, bytes, spec),
               reading = CpuExpertCost(product.rows, 0, bytes, spec);
    estimate.flops += product.count * product.rows * flops;
    estimate.weight_bytes += product.count * bytes;
    estimate.seconds += product.count * cost.seconds;
    estimate.joules += product.count * cost.joules;
    estimate.weight_seconds += product.count * reading.seconds;
  }
  estimate.compute_seconds = estimate.seconds - estimate.weight_seconds;
}

std::string_view Bound(const OpEstimate& e) {
  const std::pair<double, std::string_view> parts[] = {{e.compute_seconds, "compute"},
                                                       {e.weight_seconds, "weights"},
                                                       {e.io_seconds, "io"},
                                                       {e.floor_seconds, "dispatch"}};
  return std::max_element(std::begin(parts), std::end(parts),
                          [](const auto& x, const auto& y) { return x.first < y.first; })
      ->second;
}

template <typename Names>
std::vector<std::string_view> NamesOf(const Names& names) {
  std::vector<std::string_view> all;
  for (const auto& entry : names) all.push_back(entry.name);
  return all;
}

}  // namespace

Result<OpEstimate> EstimateOp(const OpQuestion& question) {
  std::string_view name = question.npu;
  if (name.starts_with("sim:")) name.remove_prefix(4);
  NM_TRY_VAR(const NpuSpec* const spec, FindSpec(name.substr(0, 40)));
  NM_TRY_VAR(const OpName* const op, FindName(kOps, question.op, "--op"));
  NM_TRY_VAR(const Format* const format, FindName(kFormats, question.weights, "--weights"));
  NM_TRY_VAR(const std::vector<Shape> shapes, ParseShapes(question.shape, *op));
  const bool has_weights = op->form != Form::kAttention && !question.runtime_weights;
  if (question.runtime_weights && op->name != "matmul") {
    return MakeError(Code::kInvalidArgument, "--runtime-weights: for matmul, got {}", op->name);
  }
  if (!has_weights && format->name != "fp16") {
    return MakeError(Code::kInvalidArgument, "--weights: {} has none that could be {}", op->name, format->name);
  }
  if (question.path != "coreml" && question.path != "direct" && question.path != "cpu") {
    return MakeError(Code::kInvalidArgument, "--path: unknown '{}', wanted one of: coreml, direct, cpu",
                     question.path.substr(0, 40));
  }
  OpEstimate estimate;
  estimate.npu = spec->name;
  estimate.title = spec->title;
  const Program program = MakeProgram(shapes, *op, question.runtime_weights);
  if (question.path == "cpu") {
    OnCpu(program, *format, *spec, estimate);
  } else {
    const NpuPath path = question.path == "direct" ? NpuPath::kDirect : NpuPath::kCoreMl;
    const Work work = WorkOf(program, *format, *spec);
    const CostParts parts = PartsOf(work, *spec, path);
    const Cost cost = DispatchCost(work, *spec, path);
    estimate.seconds = cost.seconds;
    estimate.joules = cost.joules;
    estimate.flops = work.flops;
    estimate.weight_bytes = work.weight_bytes;
    estimate.floor_seconds = parts.floor;
    estimate.io_seconds = parts.io;
    estimate.compute_seconds = parts.compute + parts.moves;
    estimate.weight_seconds = parts.weights;
  }
  estimate.bound = Bound(estimate);
  return estimate;
}

std::vector<std::string_view> EstimateOps() { return NamesOf(kOps); }
std::vector<std::string_view> EstimateWeights() { return NamesOf(kFormats); }

}  // namespace npumoe
