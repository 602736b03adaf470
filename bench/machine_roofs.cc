// SPDX-License-Identifier: Apache-2.0
// What the machine can do at most, as one line of JSON: machine_roofs [threads]. For bench/compare_llama.py.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "report.h"
#include "roof.h"

int main(int argc, char** argv) {
  using namespace npumoe;
  RequireRelease();
  const size_t n_threads = argc > 1 ? std::max<size_t>(1, std::strtoul(argv[1], nullptr, 10)) : 2;
  constexpr size_t kBytes = size_t{1} << 30;  // beyond any cache
  constexpr size_t kReads = 5;
  ThreadPool threads(n_threads);
  std::vector<std::byte> data(kBytes);
  std::memset(data.data(), 1, kBytes);
  std::vector<double> reads;
  for (size_t i = 0; i < kReads; ++i) reads.push_back(MeasureReadRoof(threads, data.data(), kBytes));
  const double f32 = MeasureFmaRoof(threads, 0.2);
  const double bf16 = MeasureBf16Roof(threads, 0.2);
  const double int8 = MeasureInt8Roof(threads, 0.2);
  fmt::print(
      "{{\"machine\": \"{}\", \"threads\": {}, \"f32\": {:.4g}, \"bf16\": {:.4g}, \"int8\": {:.4g}, \"read\": "
      "{:.4g}}}\n",
      MachineLine(n_threads), n_threads, f32, bf16, int8, SpreadOf(reads).median);
  return 0;
}
