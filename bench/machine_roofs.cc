// SPDX-License-Identifier: Apache-2.0
// What the machine can do at most, as one line of JSON: machine_roofs [threads [file]]. For bench/compare_llama.py.
// Reading is of the file's mapped pages if one is given: how fast memory is read depends on where it lies.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "report.h"
#include "roof.h"

namespace npumoe {
namespace {

constexpr size_t kBytes = size_t{1} << 30;  // beyond any cache
constexpr size_t kReads = 5;

// Bytes per second, parts of kBytes from all of `data`.
double MedianRead(ThreadPool& threads, std::span<const std::byte> data) {
  const size_t part = std::min(kBytes, data.size());
  std::vector<double> reads;
  for (size_t i = 0; i < kReads; ++i) {
    const std::byte* from = data.data() + (data.size() - part) / (kReads - 1) * i;
    MeasureReadRoof(threads, from, part);  // into the page cache and mapped
    reads.push_back(MeasureReadRoof(threads, from, part));
  }
  return SpreadOf(reads).median;
}

}  // namespace
}  // namespace npumoe

int main(int argc, char** argv) {
  using namespace npumoe;
  RequireRelease();
  const size_t n_threads = argc > 1 ? std::max<size_t>(1, std::strtoul(argv[1], nullptr, 10)) : 2;
  ThreadPool threads(n_threads);
  double read = 0;
  if (argc > 2) {
    const Result<MappedFile> file = MappedFile::Open(argv[2]);
    if (!file.ok() || file->bytes().empty()) {
      fmt::print(stderr, "machine_roofs: {}\n", file.ok() ? std::string(argv[2]) + ": empty" : file.error().message);
      return 1;
    }
    read = MedianRead(threads, file->bytes());
  } else {
    const std::vector<std::byte> data(kBytes, std::byte{1});
    read = MedianRead(threads, data);
  }
  const double f32 = MeasureFmaRoof(threads, 0.2);
  const double bf16 = MeasureBf16Roof(threads, 0.2);
  const double int8 = MeasureInt8Roof(threads, 0.2);
  fmt::print(
      "{{\"machine\": \"{}\", \"threads\": {}, \"f32\": {:.4g}, \"bf16\": {:.4g}, \"int8\": {:.4g}, \"read\": "
      "{:.4g}}}\n",
      MachineLine(n_threads), n_threads, f32, bf16, int8, read);
  return 0;
}
