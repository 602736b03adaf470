// SPDX-License-Identifier: Apache-2.0
#include "moe/weight_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/half.h"
#include "kernels/strip.h"
#include "tensor/float16.h"
#include "tensor/palette_fit.h"

namespace npumoe {
namespace {

constexpr size_t kNoRow = SIZE_MAX;
constexpr size_t kRowsPerTask = 64;    // of formats whose rows are independent
constexpr float kF16Infinite = 65520;  // the least magnitude that rounds to infinity

// Rows of the stacked weight in the order of its outputs, heads reordered.
class StackedRows {
 public:
  StackedRows(std::span<const TensorView> parts, const WeightOptions& options)
      : parts_(parts), divisor_(options.divisor), part_rows_(parts[0].shape[0]), in_(parts[0].shape[1]) {
    const size_t head = std::max<size_t>(1, options.head_order.size());
    from_.assign(head, 0);
    for (size_t i = 0; i < options.head_order.size(); ++i) from_[options.head_order[i]] = i;
    NM_CHECK(part_rows_ % head == 0);
    for (const TensorView& part : parts) {
      NM_CHECK(part.shape.rank == 2 && part.shape[0] == part_rows_ && part.shape[1] == in_);
    }
  }

  size_t out() const { return parts_.size() * part_rows_; }
  size_t in() const { return in_; }
  size_t part_rows() const { return part_rows_; }

  // False when a value is not a number or leaves fp16. values [in].
  bool Read(size_t row, std::span<float> values) const {
    const TensorView& part = parts_[row / part_rows_];
    const size_t at = row % part_rows_, head = from_.size();
    DecodeRow(part.dtype, part.Slice(at - at % head + from_[at % head]).data, values.size(), values.data());
    bool good = true;
    for (float& v : values) {
      if (divisor_ != 1.0f) v /= divisor_;
      good &= std::fabs(v) < kF16Infinite;
    }
    return good;
  }

  Error Bad(size_t row) const {
    std::vector<float> values(in_);
    Read(row, values);
    const float v = *std::find_if(values.begin(), values.end(), [](float x) { return !(std::fabs(x) < kF16Infinite); });
    return MakeError(Code::kUnsupported, "weights: row {} of part {} holds {}, wanted numbers that fp16 holds (65504)",
                     row % part_rows_, row / part_rows_, v);
  }

 private:
  std::span<const TensorView> parts_;
  float divisor_;
  size_t part_rows_, in_;
  std::vector<size_t> from_;  // row of a head by its place in the order
};

// Calls body(first, end, thread) for blocks of `block` rows, by all threads of the pool. The body returns the first row
// that it could not use, or kNoRow; so does this.
template <typename Body>
size_t ForBlocks(ThreadPool* pool, size_t rows, size_t block, const Body& body) {
  const size_t n = (rows + block - 1) / block;
  std::vector<size_t> bad(n, kNoRow);
  const auto task = [&](size_t i, size_t thread) { bad[i] = body(i * block, std::min(rows, (i + 1) * block), thread); };
  if (pool != nullptr) {
    pool->ParallelFor(n, task);
  } else {
    for (size_t i = 0; i < n; ++i) task(i, 0);
  }
  return n == 0 ? kNoRow : *std::min_element(bad.begin(), bad.end());
}

size_t ThreadsOf(ThreadPool* pool) { return pool == nullptr ? 1 : pool->n_threads(); }

template <typename T>
T* As(std::vector<std::byte>& bytes) {
  return reinterpret_cast<T*>(bytes.data());
}

Status AddFp16(GraphBuilder& builder, const StackedRows& rows, const WeightOptions& options, WeightConstant& weight) {
  const size_t in = rows.in();
  std::vector<std::byte> data(rows.out() * in * sizeof(uint16_t));
  std::vector<std::vector<float>> scratch(ThreadsOf(options.pool), std::vector<float>(in));
  const size_t bad =
      ForBlocks(options.pool, rows.out(), kRowsPerTask, [&](size_t row, size_t end, size_t thread) -> size_t {
        for (std::vector<float>& values = scratch[thread]; row < end; ++row) {
          if (!rows.Read(row, values)) return row;
          FloatsToHalves(values, As<uint16_t>(data) + row * in);
        }
        return kNoRow;
      });
  if (bad != kNoRow) return rows.Bad(bad);
  weight.data = builder.AddConstant({ElemType::kF16, {rows.out(), in, 1, 1}}, std::move(data));
  return Ok{};
}

// Symmetric, one scale per output channel: q = round(w / scale), scale = max|w| / 127.
Status AddInt8(GraphBuilder& builder, const StackedRows& rows, const WeightOptions& options, WeightConstant& weight) {
  const size_t in = rows.in();
  std::vector<std::byte> data(rows.out() * in), scales(rows.out() * sizeof(uint16_t));
  std::vector<std::vector<float>> scratch(ThreadsOf(options.pool), std::vector<float>(in));
  const size_t bad =
      ForBlocks(options.pool, rows.out(), kRowsPerTask, [&](size_t row, size_t end, size_t thread) -> size_t {
        for (std::vector<float>& values = scratch[thread]; row < end; ++row) {
          if (!rows.Read(row, values)) return row;
          // The stored scale is what the graph multiplies by, so the division uses it too.
          const uint16_t half = F32ToF16(MaxMagnitude(values) / 127.0f);
          As<uint16_t>(scales)[row] = half;
          if (half > 0) FloatsToBytes(values, F16ToF32(half), As<int8_t>(data) + row * in);  // else all zero already
        }
        return kNoRow;
      });
  if (bad != kNoRow) return rows.Bad(bad);
  weight.data = builder.AddConstant({ElemType::kI8, {rows.out(), in, 1, 1}}, std::move(data));
  weight.scale = builder.AddConstant({ElemType::kF16, {rows.out()}}, std::move(scales));
  return Ok{};
}

// Writes fields of `bits` bits, least significant first, into zeroed bytes from bit `at` on.
void PackFields(std::span<const uint8_t> fields, size_t bits, size_t at, std::byte* bytes) {
  for (const uint8_t field : fields) {
    const uint32_t shifted = static_cast<uint32_t>(field) << (at % 8);
    bytes[at / 8] |= static_cast<std::byte>(shifted & 0xffu);
    if (at % 8 + bits > 8) bytes[at / 8 + 1] |= static_cast<std::byte>(shifted >> 8);
    at += bits;
  }
}

ElemType IndexType(size_t bits) { return bits == 8 ? ElemType::kU8 : bits == 6 ? ElemType::kU6 : ElemType::kU4; }

struct PaletteScratch {
  PaletteScratch(size_t bits, size_t in, size_t rows) : fit(bits), values(in), halves(rows * in), indices(rows * in) {}
  PaletteFit fit;
  std::vector<float> values;     // [in]
  std::vector<uint16_t> halves;  // [rows, in]
  std::vector<uint8_t> indices;  // [rows, in]
};

Status AddPalette(GraphBuilder& builder, const StackedRows& rows, const WeightOptions& options,
                  WeightConstant& weight) {
  const size_t bits = PaletteBits(options.format), entries = size_t{1} << bits, in = rows.in();
  const size_t group = PaletteRows(rows.part_rows(), options.palette_rows), n_groups = rows.out() / group;
  std::vector<std::byte> data((rows.out() * in * bits + 7) / 8), tables(n_groups * entries * sizeof(uint16_t));
  // Groups that end within a byte would write to the same one.
  ThreadPool* const pool = group * in * bits % 8 == 0 ? options.pool : nullptr;
  std::vector<PaletteScratch> scratch;
  for (size_t i = 0; i < ThreadsOf(pool); ++i) scratch.emplace_back(bits, in, group);
  const size_t bad = ForBlocks(pool, rows.out(), group, [&](size_t first, size_t end, size_t thread) -> size_t {
    PaletteScratch& mine = scratch[thread];
    for (size_t row = first; row < end; ++row) {
      if (!rows.Read(row, mine.values)) return row;
      FloatsToHalves(mine.values, mine.halves.data() + (row - first) * in);
    }
    mine.fit.Clear();
    mine.fit.Add(mine.halves);
    mine.fit.Fit({As<uint16_t>(tables) + first / group * entries, entries});
    mine.fit.Indices(mine.halves, mine.indices.data());
    PackFields(mine.indices, bits, first * in * bits, data.data());
    return kNoRow;
  });
  if (bad != kNoRow) return rows.Bad(bad);
  weight.data = builder.AddConstant({IndexType(bits), {rows.out(), in, 1, 1}}, std::move(data));
  weight.scale = builder.AddConstant({ElemType::kF16, {n_groups, 1, 1, 1, entries, 1}}, std::move(tables));
  return Ok{};
}

}  // namespace

size_t PaletteRows(size_t out, size_t wanted) {
  NM_CHECK(out > 0 && wanted > 0);
  size_t below = std::min(out, wanted);
  while (out % below != 0) --below;
  // Another divisor is nearer while above / wanted < wanted / below.
  for (size_t above = wanted + 1; above <= out && above * below < wanted * wanted; ++above) {
    if (out % above == 0) return above;
  }
  return below;
}

size_t PaletteBits(WeightFormat format) {
  switch (format) {
    case WeightFormat::kLut8:
      return 8;
    case WeightFormat::kLut6:
      return 6;
    case WeightFormat::kLut4:
      return 4;
    case WeightFormat::kFp16:
    case WeightFormat::kInt8:
      break;
  }
  return 0;
}

Result<WeightConstant> AddWeight(GraphBuilder& builder, std::span<const TensorView> parts,
                                 const WeightOptions& options) {
  NM_CHECK(!parts.empty());
  const StackedRows rows(parts, options);
  WeightConstant weight;
  weight.format = options.format;
  if (PaletteBits(options.format) > 0) {
    NM_TRY(AddPalette(builder, rows, options, weight));
  } else if (options.format == WeightFormat::kInt8) {
    NM_TRY(AddInt8(builder, rows, options, weight));
  } else {
    NM_TRY(AddFp16(builder, rows, options, weight));
  }
  return weight;
}

ValueId UseWeight(GraphBuilder& builder, const WeightConstant& weight) {
  const ValueId data = builder.UseConstant(weight.data, "weight");
  if (weight.format == WeightFormat::kFp16) return data;
  const ValueId scale = builder.UseConstant(weight.scale, PaletteBits(weight.format) > 0 ? "lut" : "scale");
  if (PaletteBits(weight.format) > 0) {
    return builder.Add(OpKind::kConstexprLutToDense, {{"indices", {data}}, {"lut", {scale}}})[0];
  }
  return builder.Add(
      OpKind::kConstexprAffineDequantize,
      {{"quantized_data", {data}},
       {"zero_point", {builder.UseConstant(builder.AddConstant({ElemType::kI8, {}}, {std::byte{0}}), "zero_point")}},
       {"scale", {scale}},
       {"axis", {builder.Int(0)}}})[0];
}

size_t WeightBytes(WeightFormat format, size_t out, size_t in) {
  if (const size_t bits = PaletteBits(format); bits > 0) {
    return (out * in * bits + 7) / 8 + out / PaletteRows(out) * (size_t{1} << bits) * sizeof(uint16_t);
  }
  return format == WeightFormat::kInt8 ? out * in + out * sizeof(uint16_t) : out * in * sizeof(uint16_t);
}

}  // namespace npumoe
