// SPDX-License-Identifier: Apache-2.0
// Per-target helpers: rows in memory to vectors whose lanes are rows, and back, four columns at a time.

#if defined(NM_TRANSPOSE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NM_TRANSPOSE_INL_H
#undef NM_TRANSPOSE_INL_H
#else
#define NM_TRANSPOSE_INL_H
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace npumoe {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // one lane: nothing to transpose

template <class D, typename From>
HWY_INLINE void LoadColumns(D d, const From* const* rows, size_t column, hn::Vec<D> (&v)[4]) {
  const auto* const first = reinterpret_cast<const hn::TFromD<D>*>(rows[0] + column);
  for (size_t i = 0; i < 4; ++i) v[i] = hn::LoadU(d, first + i);
}

template <class D>
HWY_INLINE void StoreColumns(D d, hn::Vec<D> (&v)[4], float* const* rows, size_t column) {
  for (size_t i = 0; i < 4; ++i) hn::StoreU(v[i], d, rows[0] + column + i);
}

#else

// Quarter b of the vector comes from rows[4 b]: assembled by loads of 16 bytes, which need no shuffle.
template <class D, typename From>
HWY_INLINE hn::Vec<D> LoadQuarters(D d, const From* const* rows, size_t column) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(rows[0] + column));
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadQuarters(half, rows + hn::MaxLanes(half), column), LoadQuarters(half, rows, column));
  }
}

template <class D>
HWY_INLINE void StoreQuarters(hn::Vec<D> v, D d, float* const* rows, size_t column) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    hn::StoreU(v, d, rows[0] + column);
  } else {
    const hn::Half<D> half;
    StoreQuarters(hn::LowerHalf(half, v), half, rows, column);
    StoreQuarters(hn::UpperHalf(half, v), half, rows + hn::MaxLanes(half), column);
  }
}

// In every quarter, v[i] lane j becomes v[j] lane i. Its own inverse.
template <class D>
HWY_INLINE void TransposeQuarters(D d, hn::Vec<D> (&v)[4]) {
  const auto even_low = hn::InterleaveLower(d, v[0], v[2]), even_high = hn::InterleaveUpper(d, v[0], v[2]);
  const auto odd_low = hn::InterleaveLower(d, v[1], v[3]), odd_high = hn::InterleaveUpper(d, v[1], v[3]);
  v[0] = hn::InterleaveLower(d, even_low, odd_low);
  v[1] = hn::InterleaveUpper(d, even_low, odd_low);
  v[2] = hn::InterleaveLower(d, even_high, odd_high);
  v[3] = hn::InterleaveUpper(d, even_high, odd_high);
}

// v[i] = the 4 bytes i of the 16 that start at element `column` of a row, lane = row: column `column` + i where rows
// are floats. One pointer per lane, at any address.
template <class D, typename From>
HWY_INLINE void LoadColumns(D d, const From* const* rows, size_t column, hn::Vec<D> (&v)[4]) {
  for (size_t i = 0; i < 4; ++i) v[i] = LoadQuarters(d, rows + i, column);
  TransposeQuarters(d, v);
}

// The inverse of LoadColumns; `v` is used up.
template <class D>
HWY_INLINE void StoreColumns(D d, hn::Vec<D> (&v)[4], float* const* rows, size_t column) {
  TransposeQuarters(d, v);
  for (size_t i = 0; i < 4; ++i) StoreQuarters(v[i], d, rows + i, column);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace npumoe
HWY_AFTER_NAMESPACE();

#endif  // NM_TRANSPOSE_INL_H
