// SPDX-License-Identifier: Apache-2.0
// Cells of layers and experts in few colours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace npumoe {

// Draws [layers][n_experts] shares of a layer's tokens, coloured by how far they are from an even spread. Layers
// without experts are left out of the drawing.
std::string DrawPopularity(const std::vector<std::vector<double>>& shares, std::string_view title);

// Draws [layers][n_experts] largest capacities in rows, 0 = on the CPU.
std::string DrawTiers(const std::vector<std::vector<uint32_t>>& capacities, std::string_view title);

}  // namespace npumoe
