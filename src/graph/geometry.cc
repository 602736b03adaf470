// SPDX-License-Identifier: Apache-2.0
#include "graph/geometry.h"

#include <algorithm>
#include <array>
#include <limits>

namespace npumoe {
namespace {

constexpr int64_t kMaxStep = std::numeric_limits<int32_t>::max();

// Positive int32 vector: strides, dilations.
Result<std::vector<int64_t>> Positive(OpReader& in, std::string_view param, size_t n) {
  NM_TRY_VAR(auto values, in.Ints(param, n));
  for (const int64_t v : values) {
    if (v < 1 || v > kMaxStep) return in.Fail(param, fmt::format("value {}, wanted 1 or more", v));
  }
  return values;
}

// Elements around `axis` and its output length by pad_type.
Status PadConvAxis(OpReader& in, std::string_view pad_type, int64_t before, int64_t after, ConvAxis& axis) {
  const size_t span = axis.dilation * (axis.kernel - 1) + 1;
  size_t total = 0;
  if (pad_type == "same" || pad_type == "same_lower") {
    axis.out = (axis.in + axis.stride - 1) / axis.stride;
    const size_t reach = (axis.out - 1) * axis.stride + span;
    total = reach > axis.in ? reach - axis.in : 0;
    // The odd element goes to the end, under same_lower to the beginning.
    axis.pad_begin = pad_type == "same" ? total / 2 : total - total / 2;
    return Ok{};
  }
  if (pad_type == "custom") {
    if (before < 0 || after < 0 || before > kMaxStep || after > kMaxStep) {
      return in.Fail("pad", fmt::format("values {} and {}, wanted 0 or more", before, after));
    }
    axis.pad_begin = static_cast<size_t>(before);
    total = static_cast<size_t>(before + after);
  } else if (pad_type != "valid") {
    return in.Fail("pad_type", fmt::format("'{}', wanted valid, custom, same or same_lower", pad_type));
  }
  if (axis.in + total < span) {
    return in.Fail("weight", fmt::format("kernel spans {} elements, padded input has {}", span, axis.in + total));
  }
  axis.out = (axis.in + total - span) / axis.stride + 1;
  return Ok{};
}

}  // namespace

Result<ConvShape> ReadConv(OpReader& in) {
  NM_TRY_VAR(const ValueType* x, in.Float("x"));
  NM_TRY_VAR(const ValueType* weight, in.Float("weight"));
  if (x->dims.size() < 3 || x->dims.size() > 5) {
    return in.Fail("x", fmt::format("rank {}, wanted 3 to 5", x->dims.size()));
  }
  const size_t n_axes = x->dims.size() - 2;
  if (weight->dims.size() != x->dims.size()) {
    return in.Fail("weight", fmt::format("rank {}, wanted {} as x has", weight->dims.size(), x->dims.size()));
  }
  NM_TRY_VAR(const int32_t groups, in.Int("groups"));
  ConvShape shape{x->dims[0], x->dims[1], weight->dims[0], 1, {}};
  if (groups < 1 || shape.in_channels % static_cast<size_t>(groups) != 0 ||
      shape.out_channels % static_cast<size_t>(groups) != 0) {
    return in.Fail("groups", fmt::format("{}, wanted a divisor of {} input and {} output channels", groups,
                                         shape.in_channels, shape.out_channels));
  }
  shape.groups = static_cast<size_t>(groups);
  if (weight->dims[1] * shape.groups != shape.in_channels) {
    return in.Fail("weight",
                   fmt::format("{} input channels in {} groups, x has {}", weight->dims[1], groups, shape.in_channels));
  }
  NM_TRY_VAR(const auto strides, Positive(in, "strides", n_axes));
  NM_TRY_VAR(const auto dilations, Positive(in, "dilations", n_axes));
  NM_TRY_VAR(const auto pad_type, in.String("pad_type"));
  NM_TRY_VAR(const auto pad, in.Ints("pad", 2 * n_axes));
  for (size_t i = 0; i < n_axes; ++i) {
    ConvAxis axis{x->dims[i + 2], weight->dims[i + 2], static_cast<size_t>(strides[i]),
                  static_cast<size_t>(dilations[i])};
    NM_TRY(PadConvAxis(in, pad_type, pad[2 * i], pad[2 * i + 1], axis));
    shape.axes.push_back(axis);
  }
  return shape;
}

Result<SliceMasks> ReadSliceMasks(OpReader& in, size_t rank) {
  SliceMasks masks;
  masks.stride.assign(rank, 1);
  if (in.Has("stride")) {
    NM_TRY_VAR(masks.stride, in.Ints("stride", rank));
  }
  for (const int64_t step : masks.stride) {
    if (step == 0) return in.Fail("stride", "is 0, wanted anything else");
  }
  NM_TRY_VAR(masks.begin, in.Flags("begin_mask", rank));
  NM_TRY_VAR(masks.end, in.Flags("end_mask", rank));
  NM_TRY_VAR(masks.squeeze, in.Flags("squeeze_mask", rank));
  return masks;
}

Result<std::vector<SliceAxis>> ResolveSlice(OpReader& in, std::span<const size_t> dims, std::span<const int64_t> begin,
                                            std::span<const int64_t> end, const SliceMasks& masks) {
  std::vector<SliceAxis> axes(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto n = static_cast<int64_t>(dims[i]);
    const int64_t step = masks.stride[i];
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    const auto clamp = [&](int64_t at) { return std::clamp(at < 0 ? at + n : at, low, high); };
    int64_t start = masks.begin[i] ? (step > 0 ? 0 : n - 1) : begin[i];
    if (masks.squeeze[i]) {
      // A squeezed axis is an index: its end counts for nothing.
      if (start < 0) start += n;
      if (start < 0 || start >= n) return in.Fail("begin", fmt::format("axis {}: element {} of {}", i, begin[i], n));
      axes[i] = {start, 1, 1, true};
      continue;
    }
    start = clamp(start);
    const int64_t stop = masks.end[i] ? (step > 0 ? n : -1) : clamp(end[i]);
    const int64_t count = step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
    if (count < 1) {
      return in.Fail("end",
                     fmt::format("axis {}: range {} to {} by {} of {} elements is empty", i, start, stop, step, n));
    }
    axes[i] = {start, step, static_cast<size_t>(count), false};
  }
  return axes;
}

Dims SliceDims(std::span<const SliceAxis> axes) {
  Dims dims;
  for (const SliceAxis& axis : axes) {
    if (!axis.squeeze) dims.push_back(axis.count);
  }
  return dims;
}

Result<std::vector<PadAxis>> ReadPad(OpReader& in, std::span<const size_t> dims) {
  NM_TRY_VAR(const auto pad, in.Ints("pad"));
  NM_TRY_VAR(const auto mode, in.String("mode"));
  if (mode != "constant" && mode != "reflect" && mode != "replicate") {
    return in.Fail("mode", fmt::format("'{}', wanted constant, reflect or replicate", mode));
  }
  if (pad.size() % 2 != 0 || pad.size() / 2 > dims.size()) {
    return in.Fail("pad",
                   fmt::format("has {} values, wanted a pair per padded axis of rank {}", pad.size(), dims.size()));
  }
  std::vector<PadAxis> axes(dims.size());
  const size_t first = dims.size() - pad.size() / 2;
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t n = dims[first + i];
    for (const int64_t p : {pad[2 * i], pad[2 * i + 1]}) {
      if (p < 0 || p > kMaxStep) return in.Fail("pad", fmt::format("value {}, wanted 0 or more", p));
      if (mode == "reflect" && p >= static_cast<int64_t>(n)) {
        return in.Fail("pad", fmt::format("reflects {} elements of an axis of {}, at most {}", p, n, n - 1));
      }
      // Core ML reflects and replicates along the last two axes only.
      if (mode != "constant" && p > 0 && first + i + 2 < dims.size()) {
        return in.Fail("pad",
                       fmt::format("mode {} on axis {} of rank {}, wanted the last two", mode, first + i, dims.size()));
      }
    }
    axes[first + i] = {static_cast<size_t>(pad[2 * i]), static_cast<size_t>(pad[2 * i + 1])};
  }
  return axes;
}

Result<EinsumLabels> ReadEinsum(OpReader& in) {
  NM_TRY_VAR(const auto equation, in.String("equation"));
  std::string canonical;
  std::string seen;
  for (const char c : equation) {
    if (c == ' ') continue;
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (letter && seen.find(c) == std::string::npos) seen += c;
    canonical += letter ? static_cast<char>('a' + seen.find(c)) : c;
  }
  // Core ML knows these two, whatever the letters: nchw,nwhu->nchu and chw,whr->chr.
  if (canonical == "abcd,adce->abce") return EinsumLabels{"abcd", "adce", "abce"};
  if (canonical == "abc,cbd->abd") return EinsumLabels{"abc", "cbd", "abd"};
  return in.Fail("equation", fmt::format("'{}', wanted the form nchw,nwhu->nchu or chw,whr->chr", equation));
}

Result<std::vector<size_t>> ReadSplit(OpReader& in, size_t axis_length) {
  std::vector<size_t> sizes;
  if (in.Has("split_sizes")) {
    NM_TRY_VAR(const auto values, in.Ints("split_sizes"));
    size_t total = 0;
    for (const int64_t v : values) {
      if (v < 1 || static_cast<size_t>(v) > axis_length) {
        return in.Fail("split_sizes", fmt::format("value {}, wanted 1 to {}", v, axis_length));
      }
      sizes.push_back(static_cast<size_t>(v));
      total += sizes.back();
    }
    if (total != axis_length) {
      return in.Fail("split_sizes", fmt::format("add up to {}, the axis has {}", total, axis_length));
    }
    if (!in.Has("num_splits")) return sizes;
  }
  NM_TRY_VAR(const int32_t n, in.Int("num_splits"));
  if (!sizes.empty()) {
    if (static_cast<size_t>(std::max(n, 0)) != sizes.size()) {
      return in.Fail("num_splits", fmt::format("{}, split_sizes has {}", n, sizes.size()));
    }
    return sizes;
  }
  if (n < 1 || axis_length % static_cast<size_t>(n) != 0) {
    return in.Fail("num_splits", fmt::format("{}, wanted a divisor of {}", n, axis_length));
  }
  return std::vector<size_t>(static_cast<size_t>(n), axis_length / static_cast<size_t>(n));
}

}  // namespace npumoe
