// SPDX-License-Identifier: Apache-2.0
// Sums of products, in ascending order of the inner index: in f32 under fp16 semantics, as the hardware does, and in
// double otherwise.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "graph/geometry.h"
#include "graph/op_run.h"

namespace npumoe {
namespace {

// Sum of n products at the given steps.
template <typename Acc>
Acc Dot(const float* x, size_t step_x, const float* y, size_t step_y, size_t n) {
  Acc sum = 0;
  for (size_t k = 0; k < n; ++k) sum += static_cast<Acc>(x[k * step_x]) * static_cast<Acc>(y[k * step_y]);
  return sum;
}

double DotFor(bool half, const float* x, size_t step_x, const float* y, size_t step_y, size_t n) {
  return half ? static_cast<double>(Dot<float>(x, step_x, y, step_y, n)) : Dot<double>(x, step_x, y, step_y, n);
}

float AddBias(bool half, double sum, const Array* bias, size_t channel) {
  if (bias == nullptr) return static_cast<float>(sum);
  const float b = bias->floats[channel];
  return half ? static_cast<float>(sum) + b : static_cast<float>(sum + static_cast<double>(b));
}

// A convolution of up to three axes as one of exactly three, the leading ones of length 1.
struct Window {
  std::array<ConvAxis, 3> axes;
  size_t in_elems = 1, out_elems = 1, kernel_elems = 1;  // of one channel

  explicit Window(const ConvShape& shape) {
    std::copy(shape.axes.rbegin(), shape.axes.rend(), axes.rbegin());
    for (const ConvAxis& axis : axes) {
      in_elems *= axis.in;
      out_elems *= axis.out;
      kernel_elems *= axis.kernel;
    }
  }
};

// Offsets of the input and the kernel element of every tap of one output position that falls inside the input.
struct Tap {
  size_t input, kernel;
};
void CollectTaps(const Window& window, const std::array<size_t, 3>& at, std::vector<Tap>& taps) {
  taps.clear();
  const auto& [a, b, c] = window.axes;
  const auto place = [](const ConvAxis& axis, size_t out, size_t k, size_t& in) {
    in = out * axis.stride + k * axis.dilation;
    if (in < axis.pad_begin || in - axis.pad_begin >= axis.in) return false;
    in -= axis.pad_begin;
    return true;
  };
  size_t i = 0, j = 0, l = 0;
  for (size_t ka = 0; ka < a.kernel; ++ka) {
    if (!place(a, at[0], ka, i)) continue;
    for (size_t kb = 0; kb < b.kernel; ++kb) {
      if (!place(b, at[1], kb, j)) continue;
      for (size_t kc = 0; kc < c.kernel; ++kc) {
        if (!place(c, at[2], kc, l)) continue;
        taps.push_back({(i * b.in + j) * c.in + l, (ka * b.kernel + kb) * c.kernel + kc});
      }
    }
  }
}

template <typename Acc>
double ConvSum(const Window& window, const std::vector<Tap>& taps, const float* x, const float* weight,
               size_t channels) {
  Acc sum = 0;
  for (size_t channel = 0; channel < channels; ++channel) {
    const float* xc = x + channel * window.in_elems;
    const float* wc = weight + channel * window.kernel_elems;
    for (const Tap& tap : taps) sum += static_cast<Acc>(xc[tap.input]) * static_cast<Acc>(wc[tap.kernel]);
  }
  return static_cast<double>(sum);
}

// Matrices [rows, cols] of a matmul operand after its transposition; a vector is a row on the left, a column on the
// right.
struct MatrixView {
  Dims lead;
  size_t rows = 1, cols = 1, row_step = 0, col_step = 0;

  MatrixView(const Dims& dims, bool transpose, bool right) {
    if (dims.size() == 1) {
      (right ? rows : cols) = dims[0];
      (right ? row_step : col_step) = 1;
      return;
    }
    lead.assign(dims.begin(), dims.end() - 2);
    rows = dims[dims.size() - 2];
    cols = row_step = dims.back();
    col_step = 1;
    if (transpose) {
      std::swap(rows, cols);
      std::swap(row_step, col_step);
    }
  }
  size_t elems() const { return rows * cols; }
};

int64_t DotInts(const int64_t* x, size_t step_x, const int64_t* y, size_t step_y, size_t n) {
  uint64_t sum = 0;  // wraps; only its low 32 bits are kept
  for (size_t k = 0; k < n; ++k) sum += static_cast<uint64_t>(x[k * step_x] * y[k * step_y]);
  return static_cast<int64_t>(sum);
}

// One query row against all keys: softmax(q . k / sqrt(E) + mask) . values.
struct AttentionRow {
  const float *query, *keys, *values;
  size_t n_keys, width, value_width;

  void Run(const Array* mask, std::span<const size_t> mask_at, std::vector<double>& weights, float* out) const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(width));
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t s = 0; s < n_keys; ++s) {
      weights[s] = Dot<double>(query, 1, keys + s * width, 1, width) * scale;
      if (mask != nullptr && mask->type.elem == ElemType::kBool) {
        if (mask->ints[mask_at[s]] == 0) weights[s] = -std::numeric_limits<double>::infinity();
      } else if (mask != nullptr) {
        weights[s] += static_cast<double>(mask->floats[mask_at[s]]);
      }
      top = std::max(top, weights[s]);
    }
    for (double& w : weights) sum += w = std::exp(w - top);
    for (size_t e = 0; e < value_width; ++e) {
      double mixed = 0;
      for (size_t s = 0; s < n_keys; ++s) mixed += weights[s] * static_cast<double>(values[s * value_width + e]);
      out[e] = static_cast<float>(mixed / sum);
    }
  }
};

}  // namespace

Status RunConv(OpRun& run) {
  const Array &x = run.Get("x"), &weight = run.Get("weight");
  const Array* bias = run.Find("bias");
  Array& out = run.out();
  const ConvShape shape = ReadConv(run.in).value();
  const Window window(shape);
  const size_t group_in = shape.in_channels / shape.groups, group_out = shape.out_channels / shape.groups;
  const auto& axes = window.axes;
  std::vector<Tap> taps;
  ForEachIndex(std::array{axes[0].out, axes[1].out, axes[2].out}, [&](size_t place, std::span<const size_t> at) {
    CollectTaps(window, {at[0], at[1], at[2]}, taps);
    for (size_t n = 0; n < shape.batch; ++n) {
      for (size_t o = 0; o < shape.out_channels; ++o) {
        const float* from = x.floats.data() + (n * shape.in_channels + o / group_out * group_in) * window.in_elems;
        const float* row = weight.floats.data() + o * group_in * window.kernel_elems;
        const double sum = run.half ? ConvSum<float>(window, taps, from, row, group_in)
                                    : ConvSum<double>(window, taps, from, row, group_in);
        out.floats[(n * shape.out_channels + o) * window.out_elems + place] = AddBias(run.half, sum, bias, o);
      }
    }
  });
  return Ok{};
}

Status RunLinear(OpRun& run) {
  const Array &x = run.Get("x"), &weight = run.Get("weight");
  const Array* bias = run.Find("bias");
  Array& out = run.out();
  const size_t n_out = weight.type.dims[0], n_in = weight.type.dims[1];
  for (size_t row = 0; row < x.floats.size() / n_in; ++row) {
    for (size_t o = 0; o < n_out; ++o) {
      const double sum = DotFor(run.half, &x.floats[row * n_in], 1, &weight.floats[o * n_in], 1, n_in);
      out.floats[row * n_out + o] = AddBias(run.half, sum, bias, o);
    }
  }
  return Ok{};
}

Status RunMatMul(OpRun& run) {
  const Array &x = run.Get("x"), &y = run.Get("y");
  Array& out = run.out();
  const MatrixView a(x.type.dims, run.in.Bool("transpose_x").value(), false);
  const MatrixView b(y.type.dims, run.in.Bool("transpose_y").value(), true);
  Dims lead;
  NM_CHECK(BroadcastDims(a.lead, b.lead, lead));
  const Dims sa = BroadcastStrides(a.lead, lead), sb = BroadcastStrides(b.lead, lead);
  ForEachIndex(lead, [&](size_t batch, std::span<const size_t> at) {
    const size_t first_a = OffsetOf(at, sa) * a.elems(), first_b = OffsetOf(at, sb) * b.elems();
    for (size_t row = 0; row < a.rows; ++row) {
      for (size_t col = 0; col < b.cols; ++col) {
        const size_t to = (batch * a.rows + row) * b.cols + col;
        const size_t from_a = first_a + row * a.row_step, from_b = first_b + col * b.col_step;
        if (IsFloat(out.type.elem)) {
          out.floats[to] = static_cast<float>(
              DotFor(run.half, &x.floats[from_a], a.col_step, &y.floats[from_b], b.row_step, a.cols));
        } else {
          out.ints[to] = DotInts(&x.ints[from_a], a.col_step, &y.ints[from_b], b.row_step, a.cols);
        }
      }
    }
  });
  return Ok{};
}

Status RunEinsum(OpRun& run) {
  const auto values = run.List("values");
  const Array &x = *values[0], &y = *values[1];
  Array& out = run.out();
  const EinsumLabels labels = ReadEinsum(run.in).value();
  // The one label of x that the result lacks is summed over.
  size_t summed = 0;
  while (labels.out.find(labels.x[summed]) != std::string::npos) ++summed;
  const Dims own_x = StridesOf(x.type.dims), own_y = StridesOf(y.type.dims);
  const auto step = [](const std::string& names, const Dims& own, char label) {
    const size_t at = names.find(label);
    return at == std::string::npos ? 0 : own[at];
  };
  Dims sx, sy;
  for (const char label : labels.out) {
    sx.push_back(step(labels.x, own_x, label));
    sy.push_back(step(labels.y, own_y, label));
  }
  const size_t step_x = own_x[summed], step_y = step(labels.y, own_y, labels.x[summed]);
  ForEachIndex(out.type.dims, [&](size_t flat, std::span<const size_t> at) {
    out.floats[flat] = static_cast<float>(DotFor(run.half, &x.floats[OffsetOf(at, sx)], step_x,
                                                 &y.floats[OffsetOf(at, sy)], step_y, x.type.dims[summed]));
  });
  return Ok{};
}

Status RunAttention(OpRun& run) {
  const Array &query = run.Get("query"), &key = run.Get("key"), &value = run.Get("value");
  const Array* mask = run.Find("attn_mask");
  Array& out = run.out();
  const size_t rank = query.type.dims.size(), n_keys = key.type.dims[rank - 2];
  const size_t width = query.type.dims.back(), value_width = value.type.dims.back();
  const size_t n_rows = query.type.dims[rank - 2];
  Dims scores = query.type.dims;
  scores.back() = n_keys;
  const Dims mask_strides = mask == nullptr ? Dims(rank, 0) : BroadcastStrides(mask->type.dims, scores);
  const Dims rows(scores.begin(), scores.end() - 1);
  std::vector<double> weights(n_keys);
  std::vector<size_t> mask_at(n_keys);
  ForEachIndex(rows, [&](size_t row, std::span<const size_t> at) {
    const size_t head = row / n_rows;
    for (size_t s = 0; s < n_keys; ++s) {
      mask_at[s] = OffsetOf(at, std::span(mask_strides).first(rank - 1)) + s * mask_strides.back();
    }
    const AttentionRow attention{&query.floats[row * width],
                                 &key.floats[head * n_keys * width],
                                 &value.floats[head * n_keys * value_width],
                                 n_keys,
                                 width,
                                 value_width};
    attention.Run(mask, mask_at, weights, &out.floats[row * value_width]);
  });
  return Ok{};
}

}  // namespace npumoe
