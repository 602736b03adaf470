// SPDX-License-Identifier: Apache-2.0
// Zones of a run on the tracks of its devices, for people to look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "npu/device.h"

namespace npumoe {

enum class Track : uint8_t { kCpu, kPacker, kNpu, kLoader };

// All events of one trace are on one clock. One thread at a time.
class Trace {
 public:
  struct Argument {
    std::string_view name;  // a literal
    uint64_t value = 0;
  };

  // Later events are counted only, so that a long session cannot fill the memory.
  static constexpr size_t kMaxEvents = 1u << 20;

  void Add(Track track, std::string name, Nanos begin, Nanos end, std::vector<Argument> arguments = {});

  // Chrome's trace event format. `process` names the clock: "simulated m2-max", "real time".
  std::string ToJson(std::string_view process) const;

 private:
  struct Event {
    Track track;
    std::string name;
    Nanos begin, end;
    std::vector<Argument> arguments;
  };

  std::vector<Event> events_;
  uint64_t dropped_ = 0;
};

// Adds a zone in real time from its construction to its end; does nothing without a trace.
class RealZone {
 public:
  // `name` is a literal, so that runs without a trace allocate nothing.
  RealZone(Trace* trace, const char* name, uint64_t layer)
      : trace_(trace), name_(name), layer_(layer), begin_(trace != nullptr ? Now() : 0) {}
  ~RealZone() {
    if (trace_ != nullptr) trace_->Add(Track::kCpu, name_, begin_, Now(), {{"layer", layer_}});
  }
  RealZone(const RealZone&) = delete;
  RealZone& operator=(const RealZone&) = delete;

 private:
  static Nanos Now();

  Trace* trace_;
  const char* name_;
  uint64_t layer_;
  Nanos begin_;
};

}  // namespace npumoe
