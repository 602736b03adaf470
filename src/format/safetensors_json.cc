// SPDX-License-Identifier: Apache-2.0
#include "format/safetensors_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/check.h"
#include "format/printable.h"

namespace npumoe {
namespace {

// Base of the two event handlers: keeps the first error.
class Handler {
 public:
  explicit Handler(std::string_view name) : name_(Printable(name, 1000)) {}

  bool binary(nlohmann::json::binary_t&) { return Fail("unexpected binary value"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    return Fail("JSON is broken at byte {}", position);
  }

  Error error() const { return error_.value_or(Error{Code::kCorruptFile, name_ + ": JSON is broken"}); }

 protected:
  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) {
      error_ = MakeError(Code::kCorruptFile, "{}: {}", name_, fmt::format(format, std::forward<Args>(args)...));
    }
    return false;
  }

 private:
  std::string name_;
  std::optional<Error> error_;
};

// A bracket out of place is an error, so that a deeply nested text is refused at its third bracket at the latest.
// {"__metadata__": {"k": "v"}, "tensor": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}
class HeaderHandler : public Handler {
 public:
  using Handler::Handler;

  bool null() { return Unexpected("null"); }
  bool boolean(bool) { return Unexpected("bool"); }
  bool number_float(double, const std::string&) { return Unexpected("number: no 64-bit integer"); }
  bool number_integer(int64_t value) { return Fail("{}: {} is negative", Where(), value); }
  bool number_unsigned(uint64_t value) {
    if (place_ != Place::kNumbers) return Unexpected("number");
    Numbers()->push_back(value);
    return true;
  }
  bool string(std::string& text) {
    if (place_ == Place::kMetadata) {
      header_.metadata.emplace(field_, std::move(text));
      return true;
    }
    if (place_ != Place::kTensor || field_ != "dtype") return Unexpected("string");
    header_.entries.back().dtype = std::move(text);
    return true;
  }

  bool start_object(size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
      return true;
    }
    if (place_ != Place::kRoot) return Unexpected("object");
    place_ = key_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
    if (place_ == Place::kTensor) header_.entries.push_back({key_, {}, {}, {}});
    return true;
  }
  bool end_object() {
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }
  bool start_array(size_t) {
    if (place_ != Place::kTensor || (field_ != "shape" && field_ != "data_offsets")) return Unexpected("array");
    place_ = Place::kNumbers;
    Numbers().emplace();
    return true;
  }
  bool end_array() {
    place_ = Place::kTensor;
    return true;
  }

  bool key(std::string& text) {
    if (place_ == Place::kRoot) {
      if (!keys_.insert(text).second) return Fail("key '{}' occurs twice", Printable(text));
      key_ = std::move(text);
      field_.clear();
      return true;
    }
    field_ = std::move(text);
    if (place_ == Place::kMetadata) {
      if (header_.metadata.contains(field_)) return Fail("__metadata__ key '{}' occurs twice", Printable(field_));
      return true;
    }
    const SafetensorsEntry& entry = header_.entries.back();
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") {
      return Fail("{}: unknown field, wanted dtype, shape or data_offsets", Where());
    }
    if ((field_ == "dtype" && entry.dtype) || (field_ == "shape" && entry.shape) ||
        (field_ == "data_offsets" && entry.data_offsets)) {
      return Fail("{}: occurs twice", Where());
    }
    return true;
  }

  SafetensorsHeader TakeHeader() { return std::move(header_); }

 private:
  enum class Place { kStart, kRoot, kTensor, kMetadata, kNumbers, kEnd };

  std::optional<std::vector<uint64_t>>& Numbers() {
    SafetensorsEntry& entry = header_.entries.back();
    return field_ == "shape" ? entry.shape : entry.data_offsets;
  }
  std::string Where() const {
    if (place_ == Place::kStart) return "header";
    if (place_ == Place::kMetadata) return fmt::format("__metadata__: '{}'", Printable(field_));
    return fmt::format("tensor '{}'{}{}", Printable(key_), field_.empty() ? "" : ": ", Printable(field_));
  }
  bool Unexpected(std::string_view what) { return Fail("{}: unexpected {}", Where(), what); }

  Place place_ = Place::kStart;
  std::string key_, field_;
  std::set<std::string, std::less<>> keys_;
  SafetensorsHeader header_;
};

// {"metadata": anything, "weight_map": {"tensor": "file"}}
class IndexHandler : public Handler {
 public:
  using Handler::Handler;

  bool null() { return Value("null"); }
  bool boolean(bool) { return Value("a bool"); }
  bool number_integer(int64_t) { return Value("a number"); }
  bool number_unsigned(uint64_t) { return Value("a number"); }
  bool number_float(double, const std::string&) { return Value("a number"); }
  bool string(std::string& text) {
    if (in_map_ && depth_ == 2) {
      weight_map_.emplace(tensor_, std::move(text));
      return true;
    }
    return Value("a string");
  }
  bool start_object(size_t) {
    if (in_map_ && depth_ >= 2) return Value("an object");
    return ++depth_ > 0;
  }
  bool end_object() { return Close(); }
  bool start_array(size_t) {
    if (depth_ == 0 || in_map_) return Value("an array");
    return ++depth_ > 0;
  }
  bool end_array() { return Close(); }
  bool key(std::string& text) {
    if (depth_ == 1) {
      in_map_ = text == "weight_map";
      if (in_map_ && std::exchange(has_map_, true)) return Fail("key 'weight_map' occurs twice");
    } else if (in_map_) {
      if (weight_map_.contains(text)) return Fail("weight_map: tensor '{}' occurs twice", Printable(text));
      tensor_ = std::move(text);
    }
    return true;
  }

  bool has_map() const { return has_map_; }
  std::map<std::string, std::string, std::less<>> TakeMap() { return std::move(weight_map_); }

 private:
  // A value that is not the name of a shard: fine elsewhere in the file, wrong as or in the weight map.
  bool Value(std::string_view what) {
    if (depth_ == 0) return Fail("is {}, wanted an object", what);
    if (!in_map_) return true;
    if (depth_ == 1) return Fail("weight_map is {}, wanted an object", what);
    return Fail("weight_map: tensor '{}': {}, wanted a file name", Printable(tensor_), what);
  }
  bool Close() {
    if (--depth_ == 1) in_map_ = false;
    return true;
  }

  size_t depth_ = 0;  // brackets open; the parser keeps one bit for each, so depth needs no limit
  bool in_map_ = false, has_map_ = false;
  std::string tensor_;
  std::map<std::string, std::string, std::less<>> weight_map_;
};

template <typename H>
bool Run(std::string_view json, H& handler) {
  try {
    return nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
  } catch (const std::exception&) {
    return false;  // the handler's error() says that the JSON is broken
  }
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, std::string_view name) {
  HeaderHandler handler(name);
  if (!Run(json, handler)) return handler.error();
  return handler.TakeHeader();
}

Result<std::map<std::string, std::string, std::less<>>> ParseSafetensorsIndex(std::string_view json,
                                                                              std::string_view name) {
  IndexHandler handler(name);
  if (!Run(json, handler)) return handler.error();
  if (!handler.has_map()) {
    return MakeError(Code::kCorruptFile, "{}: key 'weight_map' is missing", Printable(name, 1000));
  }
  return handler.TakeMap();
}

}  // namespace npumoe
