// SPDX-License-Identifier: Apache-2.0
// The table of fp16 values that stands best for many: k-means in one dimension, for weights stored as indices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace npumoe {

// One thread at a time. About 700 KB of scratch whatever is added; the result depends only on how often each value was
// added, not on the order.
class PaletteFit {
 public:
  explicit PaletteFit(size_t bits);  // 1 to 8

  // Forgets what was added.
  void Clear();
  void Add(std::span<const uint16_t> halves);  // fp16, finite

  // The table of the values added so far (at least one): ascending, the last entry repeated where fewer are needed. No
  // more distinct values than entries: they are the table. Otherwise sums of squared distances are within 5 % of the
  // least possible ones, and equal to them when there are at most PieceCount() distinct values.
  void Fit(std::span<uint16_t> table);  // [2^bits]

  // After Fit: the nearest entry of each value, which must have been among those added.
  void Indices(std::span<const uint16_t> halves, uint8_t* out) const;  // [halves.size()]

  // Where clusters may be cut, while they are searched for by dynamic programming: 32 places an entry. Measured on
  // 131,072 Gaussian, heavy-tailed and block-quantized weights against the best cuts: 0.01 % more squared error with 16
  // entries, 0.05 % with 64, 0.3 to 0.8 % with 256. Lloyd's iterations alone, from a good start, are 0.1 to 14 % worse.
  static constexpr size_t kMostPieces = 1024;
  size_t PieceCount() const { return std::min(kMostPieces, size_t{32} << bits_); }

 private:
  void CollectAtoms();
  std::vector<uint32_t> Pieces() const;
  std::vector<uint32_t> Search(std::span<const uint32_t> pieces);
  void Refine(std::vector<uint32_t>& cuts) const;
  double Cost(uint32_t begin, uint32_t end) const;
  double Mean(uint32_t begin, uint32_t end) const;

  size_t bits_;
  std::vector<uint32_t> counts_;  // [65536] by bit pattern
  std::vector<uint8_t> index_;    // [65536] by bit pattern
  // Distinct values, ascending, and sums over those before each.
  std::vector<double> values_, n_, sum_, squares_;  // [atoms], the others [atoms + 1]
  std::vector<double> before_, now_;                // [pieces + 1] least costs
  std::vector<uint16_t> from_;                      // [entries + 1, pieces + 1]
};

}  // namespace npumoe
