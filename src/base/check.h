// SPDX-License-Identifier: Apache-2.0
// Checks for our own bugs (NM_CHECK) and propagation of errors from outside (NM_TRY, NM_TRY_VAR).
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "npumoe/result.h"

namespace npumoe {

// Prints "file:line: check failed: text" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* text);

// Makes an Error with a formatted message: MakeError(Code::kCorruptFile, "gguf: version {}, wanted 2 or 3", v).
template <typename... Args>
Error MakeError(Code code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace npumoe

// A failed NM_CHECK is a bug of ours, never the fault of a file, flag or device.
#define NM_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::npumoe::CheckFailed(__FILE__, __LINE__, #condition))

// For hot loops: on in debug and sanitizer builds only.
#if defined(NM_DEBUG_CHECKS)
#define NM_DCHECK(condition) NM_CHECK(condition)
#else
#define NM_DCHECK(condition) static_cast<void>(0)
#endif

#define NM_CONCAT_INNER(a, b) a##b
#define NM_CONCAT(a, b) NM_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Status or Result), if it has one.
#define NM_TRY(expression)                                  \
  do {                                                      \
    auto nm_try_status = (expression);                      \
    if (!nm_try_status.ok()) return nm_try_status.error();  \
  } while (false)

// NM_TRY_VAR(auto file, Open(path)); declares or assigns the value, or returns the error.
// Several statements: use it inside braces only.
#define NM_TRY_VAR(target, expression)                                       \
  auto NM_CONCAT(nm_result_, __LINE__) = (expression);                       \
  if (!NM_CONCAT(nm_result_, __LINE__).ok()) return NM_CONCAT(nm_result_, __LINE__).error(); \
  target = std::move(NM_CONCAT(nm_result_, __LINE__)).value()
