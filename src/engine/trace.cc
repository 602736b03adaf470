// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace npumoe {
namespace {

constexpr double kNanosPerMicro = 1e3;  // the format counts microseconds

std::string_view NameOf(Track track) {
  switch (track) {
    case Track::kCpu:
      return "CPU";
    case Track::kPacker:
      return "CPU, pack and unpack";
    case Track::kNpu:
      return "NPU";
    case Track::kLoader:
      return "program loads";
  }
  return "";
}

nlohmann::ordered_json Metadata(std::string_view kind, int track, std::string_view name) {
  return {{"ph", "M"}, {"pid", 1}, {"tid", track}, {"name", kind}, {"args", {{"name", name}}}};
}

}  // namespace

void Trace::Add(Track track, std::string name, Nanos begin, Nanos end, std::vector<Argument> arguments) {
  if (events_.size() >= kMaxEvents) {
    ++dropped_;
    return;
  }
  events_.push_back({track, std::move(name), begin, end, std::move(arguments)});
}

Nanos RealZone::Now() {
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

std::string Trace::ToJson(std::string_view process) const {
  // Written event by event: a document tree of a million events would take a gigabyte.
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  text += Metadata("process_name", 0, process).dump();
  for (const Track track : {Track::kCpu, Track::kPacker, Track::kNpu, Track::kLoader}) {
    text += ",\n" + Metadata("thread_name", static_cast<int>(track), NameOf(track)).dump();
  }
  for (const Event& event : events_) {
    nlohmann::ordered_json json{{"ph", "X"},
                                {"pid", 1},
                                {"tid", static_cast<int>(event.track)},
                                {"name", event.name},
                                {"ts", static_cast<double>(event.begin) / kNanosPerMicro},
                                {"dur", static_cast<double>(event.end - event.begin) / kNanosPerMicro}};
    for (const Argument& argument : event.arguments) json["args"][std::string(argument.name)] = argument.value;
    text += ",\n" + json.dump();
  }
  text +=
      "\n],\"otherData\":" + nlohmann::ordered_json{{"clock", process}, {"dropped_events", dropped_}}.dump() + "}\n";
  return text;
}

}  // namespace npumoe
