// SPDX-License-Identifier: Apache-2.0
// Rows of f32 to fp16 columns and back: graphs want channels first, everything else keeps a token's values together.
// One thread each; different calls may run side by side when they write different memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace npumoe {

// out[channel, i] = fp16(rows[i][channel]), zero for i in [rows.size(), width). Rounds to nearest even as F32ToF16
// does, bit for bit. Rows need not be neighbours; rows.size() <= width. Fastest where `out` starts at a cache line and
// width is a multiple of 32.
void PackColumns(std::span<const float* const> rows,  // [n] of [channels]
                 size_t channels, size_t width,
                 uint16_t* out);  // [channels, width]

// rows[i][channel] = scale * columns[channel, i] for i < rows.size() <= width; later columns are not looked at.
// False if one of the values is infinite or not a number; all are written all the same.
[[nodiscard]] bool UnpackColumns(const uint16_t* columns,  // [channels, width] fp16
                                 size_t channels, size_t width, float scale,
                                 std::span<float* const> rows);  // [n] of [channels]

// The same, added to what the rows hold: rows[i][channel] += scale * columns[channel, i].
[[nodiscard]] bool AddColumns(const uint16_t* columns,  // [channels, width] fp16
                              size_t channels, size_t width, float scale,
                              std::span<float* const> rows);  // [n] of [channels], accumulated into

// The same as fp16, to be summed by Scatter: rows[i][channel] = columns[channel, i].
[[nodiscard]] bool UnpackHalves(const uint16_t* columns,  // [channels, width] fp16
                                size_t channels, size_t width,
                                std::span<uint16_t* const> rows);  // [n] of [channels] fp16

// True if no value is infinite or not a number.
bool AllFinite(std::span<const uint16_t> halves);

}  // namespace npumoe
