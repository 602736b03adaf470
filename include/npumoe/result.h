// SPDX-License-Identifier: Apache-2.0
// Result<T>: the one error mechanism of NPUMoE. Nothing in the library throws.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace npumoe {

enum class Code {
  kInvalidArgument,  // a flag, parameter or request is wrong
  kNotFound,         // a file, tensor, key or name does not exist
  kCorruptFile,      // bytes break the rules of their format
  kUnsupported,      // valid, but not something this build or device can do
  kIo,               // the operating system failed a read or write
  kOutOfMemory,      // a stated memory limit would be exceeded
  kDevice,           // an NPU device failed
  kCancelled,        // the caller asked to stop
};

std::string_view ToString(Code code);

// `message` reads "subject: problem, wanted, got" in one line: lower case, no full stop.
struct Error {
  Code code = Code::kInvalidArgument;
  std::string message;
};

struct Ok {};

// Holds a value or an Error. `value()` on an error ends the process: check `ok()` first.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return ok() ? *std::get_if<0>(&state_) : Fail(); }
  const T& value() const& { return ok() ? *std::get_if<0>(&state_) : const_cast<Result*>(this)->Fail(); }
  T&& value() && { return std::move(ok() ? *std::get_if<0>(&state_) : Fail()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const { return ok() ? (std::abort(), *std::get_if<1>(&state_)) : *std::get_if<1>(&state_); }

 private:
  [[noreturn]] T& Fail() { std::abort(); }
  std::variant<T, Error> state_;
};

using Status = Result<Ok>;

}  // namespace npumoe
