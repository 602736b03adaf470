// SPDX-License-Identifier: Apache-2.0
#include "roof.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/simd_targets.h"
#include "report.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "roof.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 12 chains cover 4 cycles of latency on two units with some to spare. They start from different values, or the
// compiler would keep only one of them. Returns a sum, so that nothing is removed.
float FmaLoop(size_t rounds, size_t* n_flops) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999f);
  const auto y = hn::Set(d, 0.001f);
  auto a0 = hn::Set(d, 0.0f), a1 = hn::Set(d, 0.1f), a2 = hn::Set(d, 0.2f), a3 = hn::Set(d, 0.3f);
  auto a4 = hn::Set(d, 0.4f), a5 = hn::Set(d, 0.5f), b0 = hn::Set(d, 0.6f), b1 = hn::Set(d, 0.7f);
  auto b2 = hn::Set(d, 0.8f), b3 = hn::Set(d, 0.9f), b4 = hn::Set(d, 1.0f), b5 = hn::Set(d, 1.1f);
  for (size_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, x, y);
    a1 = hn::MulAdd(a1, x, y);
    a2 = hn::MulAdd(a2, x, y);
    a3 = hn::MulAdd(a3, x, y);
    a4 = hn::MulAdd(a4, x, y);
    a5 = hn::MulAdd(a5, x, y);
    b0 = hn::MulAdd(b0, x, y);
    b1 = hn::MulAdd(b1, x, y);
    b2 = hn::MulAdd(b2, x, y);
    b3 = hn::MulAdd(b3, x, y);
    b4 = hn::MulAdd(b4, x, y);
    b5 = hn::MulAdd(b5, x, y);
  }
  *n_flops = rounds * 12 * 2 * hn::Lanes(d);
  const auto sum = a0 + a1 + a2 + a3 + a4 + a5 + b0 + b1 + b2 + b3 + b4 + b5;
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

uint32_t ReadLoop(const std::byte* data, size_t n_bytes) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto* words = reinterpret_cast<const uint32_t*>(data);
  const size_t n = n_bytes / sizeof(uint32_t);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Xor(a, hn::LoadU(d, words + i));
    b = hn::Xor(b, hn::LoadU(d, words + i + lanes));
    c = hn::Xor(c, hn::LoadU(d, words + i + 2 * lanes));
    e = hn::Xor(e, hn::LoadU(d, words + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(a, b), hn::Xor(c, e))));
}

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace npumoe {
HWY_EXPORT(FmaLoop);
HWY_EXPORT(ReadLoop);

double MeasureFmaRoof(ThreadPool& pool, double seconds) {
  constexpr size_t kRounds = 2000;  // a few microseconds
  std::atomic<size_t> flops{0};
  std::atomic<float> keep{0.0f};
  const Clock clock = ClockFor(pool.n_threads());
  const double start = Now(clock);
  pool.ParallelFor(pool.n_threads(), [&](size_t, size_t) {
    while (Now(clock) - start < seconds) {
      size_t n = 0;
      keep.store(HWY_DYNAMIC_DISPATCH(FmaLoop)(kRounds, &n));
      flops.fetch_add(n);
    }
  });
  return static_cast<double>(flops.load()) / (Now(clock) - start);
}

double MeasureReadRoof(ThreadPool& pool, const std::byte* data, size_t n_bytes) {
  constexpr size_t kPiece = size_t{1} << 18;
  std::atomic<uint32_t> keep{0};
  const Clock clock = ClockFor(pool.n_threads());
  const double start = Now(clock);
  pool.ParallelFor((n_bytes + kPiece - 1) / kPiece, [&](size_t task, size_t) {
    const size_t first = task * kPiece;
    keep.fetch_xor(HWY_DYNAMIC_DISPATCH(ReadLoop)(data + first, std::min(kPiece, n_bytes - first)));
  });
  return static_cast<double>(n_bytes) / (Now(clock) - start);
}

double MeasureCopyRoof(ThreadPool& pool, std::span<const std::byte> from, std::span<std::byte> to) {
  const size_t n_parts = pool.n_threads();
  const Clock clock = ClockFor(n_parts);
  const double start = Now(clock);
  pool.ParallelFor(n_parts, [&](size_t part, size_t) {
    const size_t first = from.size() / n_parts * part,
                 last = part + 1 < n_parts ? first + from.size() / n_parts : from.size();
    std::memcpy(to.data() + first, from.data() + first, last - first);
  });
  return 2.0 * static_cast<double>(from.size()) / (Now(clock) - start);
}

}  // namespace npumoe
#endif  // HWY_ONCE
