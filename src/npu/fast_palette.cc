// SPDX-License-Identifier: Apache-2.0
#include "npu/fast_palette.h"

#include <algorithm>
#include <cstring>

#include "graph/palette.h"

namespace npumoe {
namespace {

constexpr size_t kTaskIndices = size_t{1} << 15;  // whole bytes whatever the bits of one

// out[i] = table[field first + i] of a stream of `bits`-wide fields, least significant bit first.
void Look(const std::byte* stream, size_t stream_bytes, size_t bits, size_t first, const uint16_t* table, size_t n,
          uint16_t* out) {
  const uint32_t mask = (1u << bits) - 1;
  for (size_t i = 0; i < n; ++i) {
    const size_t at = (first + i) * bits, byte = at / 8;
    uint32_t word = static_cast<uint32_t>(stream[byte]);
    if (byte + 1 < stream_bytes) word |= static_cast<uint32_t>(stream[byte + 1]) << 8;
    out[i] = table[word >> (at % 8) & mask];
  }
}

}  // namespace

std::optional<std::vector<uint16_t>> DecodePalette(const FastOp& op, ThreadPool& pool) {
  if (op.op.kind != OpKind::kConstexprLutToDense) return std::nullopt;
  const Value &indices = op.ValueOf("indices"), &lut = op.ValueOf("lut");
  if (!indices.is_constant() || !lut.is_constant() || lut.type.elem != ElemType::kF16) return std::nullopt;
  OpReader reader(op.graph, op.function, op.op);
  const Palette palette = ReadPalette(reader).value();
  const auto one = [](size_t n) { return n == 1; };
  if (palette.width != 1 || palette.groups.empty()) return std::nullopt;
  if (!std::all_of(palette.groups.begin() + 1, palette.groups.end(), one)) return std::nullopt;
  const std::vector<std::byte>& stream = op.graph.constants[indices.constant].data;
  std::vector<uint16_t> tables(lut.type.elems());
  std::memcpy(tables.data(), op.graph.constants[lut.constant].data.data(), tables.size() * sizeof(uint16_t));
  const size_t n = ProductOf(palette.indices), group = n / palette.groups[0], entries = size_t{1} << palette.bits;
  std::vector<uint16_t> out(n);
  pool.ParallelFor((n + kTaskIndices - 1) / kTaskIndices, [&](size_t task, size_t) {
    for (size_t i = task * kTaskIndices, end = std::min(n, i + kTaskIndices); i < end;) {
      const size_t table = i / group, count = std::min(end, (table + 1) * group) - i;
      Look(stream.data(), stream.size(), palette.bits, i, tables.data() + table * entries, count, out.data() + i);
      i += count;
    }
  });
  return out;
}

}  // namespace npumoe
