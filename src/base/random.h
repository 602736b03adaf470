// SPDX-License-Identifier: Apache-2.0
// Seeded random numbers that are the same on every machine and standard library.
#pragma once

#include <cmath>
#include <cstdint>

namespace npumoe {

// SplitMix64 (Steele, Lea, Flood 2014): 64 bits of state, passes BigCrush. One thread at a time.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, 1) with 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

  // Uniform in [0, n); n must not be 0. The bias of the modulo is below n / 2^64.
  uint64_t Below(uint64_t n) { return Next() % n; }

  // Standard normal by Box-Muller; the second value is dropped to keep the state one word.
  double Gaussian() {
    const double u = 1.0 - Uniform();  // (0, 1]: the logarithm stays finite
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * Uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace npumoe
