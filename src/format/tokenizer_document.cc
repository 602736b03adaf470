// SPDX-License-Identifier: Apache-2.0
#include "format/tokenizer_document.h"

#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "format/printable.h"

namespace npumoe {
namespace {

constexpr size_t kMaxDepth = 32;  // tokenizer.json nests about eight deep

// Receives the parser's events. Method names are the library's. False stops the parser; error() then says why.
class DocumentHandler {
 public:
  DocumentHandler(std::string_view subject, TokenizerDocument* document) : subject_(subject), document_(document) {}

  bool null() { return Value(nullptr, "null"); }
  bool boolean(bool value) { return Value(value, "a bool"); }
  bool number_integer(int64_t value) { return Value(value, "a negative number"); }
  bool number_float(double value, const std::string&) { return Value(value, "a fraction"); }
  bool number_unsigned(uint64_t value) {
    if (place_ != Place::kVocab) return Value(value, "a number");
    document_->vocab_ids.push_back(value);
    return true;
  }
  bool string(std::string& value) {
    if (place_ == Place::kMerges) return JoinedMerge(value);
    if (place_ == Place::kPair) {
      ++n_in_pair_;
      document_->merge_texts.Add(value);
      return true;
    }
    return Value(std::move(value), "a string");
  }
  bool binary(Json::binary_t&) { return Fail("unexpected binary value"); }

  bool start_object(size_t) {
    if (InModel("vocab")) {
      if (std::exchange(document_->has_vocab, true)) return Fail("model.vocab: occurs twice");
      place_ = Place::kVocab;
      return true;
    }
    return Open(Json::object(), "an object");
  }
  bool key(std::string& name) {
    if (place_ == Place::kVocab) {
      document_->vocab_texts.Add(name);
    } else {
      key_ = std::move(name);
    }
    return true;
  }
  bool end_object() {
    if (place_ == Place::kVocab) {
      place_ = Place::kRest;
      return true;
    }
    open_.pop_back();
    return true;
  }
  bool start_array(size_t) {
    if (InModel("merges")) {
      if (std::exchange(document_->has_merges, true)) return Fail("model.merges: occurs twice");
      place_ = Place::kMerges;
      return true;
    }
    if (place_ == Place::kMerges) {
      n_in_pair_ = 0;
      place_ = Place::kPair;
      return true;
    }
    return Open(Json::array(), "a list");
  }
  bool end_array() {
    if (place_ == Place::kPair) {
      if (n_in_pair_ != 2) {
        return Fail("model.merges[{}]: a list of {} texts, wanted 2", (document_->merge_texts.size() - n_in_pair_) / 2,
                    n_in_pair_);
      }
      place_ = Place::kMerges;
    } else if (place_ == Place::kMerges) {
      place_ = Place::kRest;
    } else {
      open_.pop_back();
    }
    return true;
  }
  bool parse_error(size_t position, const std::string&, const Json::exception&) {
    return Fail("JSON is broken at byte {}", position);
  }

  Error error() const { return error_.value_or(Error{Code::kCorruptFile, std::string(subject_) + ": JSON is broken"}); }

 private:
  enum class Place { kRest, kVocab, kMerges, kPair };

  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!error_) {
      error_ = MakeError(Code::kCorruptFile, "{}: {}", subject_, fmt::format(format, std::forward<Args>(args)...));
    }
    return false;
  }

  // Something that the large parts do not hold.
  bool Misplaced(std::string_view what) {
    if (place_ == Place::kVocab) {
      const TextTable& texts = document_->vocab_texts;
      return Fail("model.vocab: the id of '{}' is {}, wanted a non-negative integer",
                  Printable(texts[texts.size() - 1]), what);
    }
    return Fail("model.merges[{}]: {}, wanted a string or a pair of strings", document_->merge_texts.size() / 2, what);
  }

  // The value that starts now belongs to `name` of the top object's member "model".
  bool InModel(std::string_view name) const {
    return place_ == Place::kRest && open_.size() == 2 && model_ != nullptr && open_[1] == model_ && key_ == name;
  }

  // Puts a value of the rest where it belongs.
  Json* Put(Json value) {
    if (open_.empty()) {
      document_->rest = std::move(value);
      return &document_->rest;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    Json* const member = &(*open_.back())[key_];
    *member = std::move(value);
    return member;
  }

  bool Value(Json value, std::string_view what) {
    if (place_ != Place::kRest) return Misplaced(what);
    Put(std::move(value));
    return true;
  }

  bool Open(Json value, std::string_view what) {
    if (place_ != Place::kRest) return Misplaced(what);
    if (open_.size() >= kMaxDepth) return Fail("nested more than {} deep", kMaxDepth);
    const bool is_model = open_.size() == 1 && open_[0]->is_object() && key_ == "model" && value.is_object();
    open_.push_back(Put(std::move(value)));
    if (is_model) model_ = open_.back();
    return true;
  }

  bool JoinedMerge(std::string_view text) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return Fail("model.merges[{}]: '{}' is not two texts with one space between", document_->n_merges(),
                  Printable(text));
    }
    document_->merge_texts.Add(text.substr(0, space));
    document_->merge_texts.Add(text.substr(space + 1));
    return true;
  }

  std::string_view subject_;
  TokenizerDocument* document_;
  Place place_ = Place::kRest;
  std::vector<Json*> open_;  // containers of the rest that are not closed yet, outermost first
  const Json* model_ = nullptr;
  std::string key_;  // of the member that comes next
  size_t n_in_pair_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<TokenizerDocument> ParseTokenizerDocument(std::string_view text, std::string_view subject) {
  TokenizerDocument document;
  DocumentHandler handler(subject, &document);
  try {
    if (!Json::sax_parse(text.begin(), text.end(), &handler)) return handler.error();
  } catch (const Json::exception&) {
    return handler.error();
  }
  return document;
}

}  // namespace npumoe
