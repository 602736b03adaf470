// SPDX-License-Identifier: Apache-2.0
#include "npu/fast_plan.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace npumoe {
namespace {

constexpr size_t kForever = std::numeric_limits<size_t>::max();

bool Decodes(const Op& op) { return MilName(op.kind).starts_with("constexpr_"); }

// Places blocks so that those alive together do not overlap: each in the first gap that holds it.
class Memory {
 public:
  // Lives from now up to and with step `last`. Returns the halves before it.
  size_t Take(size_t halves, size_t last) {
    halves = (halves + kLineHalves - 1) / kLineHalves * kLineHalves;
    size_t at = 0;
    auto next = blocks_.begin();
    for (; next != blocks_.end() && next->first < at + halves; ++next) at = next->first + next->halves;
    blocks_.insert(next, {at, halves, last});
    most_ = std::max(most_, at + halves);
    return at;
  }
  // Forgets what died before `step`.
  void Advance(size_t step) {
    std::erase_if(blocks_, [&](const Block& block) { return block.last < step; });
  }
  size_t most() const { return most_; }

 private:
  static constexpr size_t kLineHalves = kCacheLineBytes / sizeof(uint16_t);
  struct Block {
    size_t first, halves, last;
  };
  std::vector<Block> blocks_;  // ascending
  size_t most_ = 0;
};

class Planner {
 public:
  Planner(const Graph& graph, const Function& function, FastShared& shared)
      : graph_(graph),
        function_(function),
        shared_(shared),
        roots_(function.values.size()),
        last_use_(function.values.size(), 0),
        decoded_by_(function.values.size(), nullptr) {
    plan_.places.resize(function.values.size());
  }

  FastPlan Run() && {
    PlaceGiven();
    MakeSteps();
    FindLives();
    PlaceOutputs();
    PlaceResults();
    for (ValueId id = 0; id < roots_.size(); ++id) {
      if (roots_[id].source == id) continue;
      plan_.places[id] = plan_.places[roots_[id].source];
      plan_.places[id].first += roots_[id].first;
    }
    for (size_t i = 0; i < function_.outputs.size(); ++i) {
      const FastPlace& place = plan_.places[function_.outputs[i]];
      if (place.kind != Kind::kOutput || place.index != i) plan_.copied_outputs.push_back(i);
    }
    plan_.memory_halves = memory_.most();
    return std::move(plan_);
  }

 private:
  using Kind = FastPlace::Kind;

  bool IsHalf(ValueId id) const { return function_.values[id].type.elem == ElemType::kF16; }

  // Inputs and constants.
  void PlaceGiven() {
    for (size_t i = 0; i < function_.inputs.size(); ++i) plan_.places[function_.inputs[i]] = {Kind::kInput, i, 0};
    for (ValueId id = 0; id < roots_.size(); ++id) {
      roots_[id] = {id, 0};
      if (function_.values[id].is_constant() && IsHalf(id)) {
        plan_.places[id] = {Kind::kConstant, function_.values[id].constant, 0};
      }
    }
  }

  void MakeSteps() {
    for (const Op& op : function_.ops) {
      if (Decodes(op)) {
        decoded_by_[op.outputs[0]] = &op;
        continue;
      }
      bool all_alias = true;
      for (size_t i = 0; i < op.outputs.size(); ++i) {
        const auto alias = IsHalf(op.outputs[i]) ? FindAlias(graph_, function_, op, i) : std::nullopt;
        all_alias = all_alias && alias;
        if (alias) {
          const AliasOf& root = roots_[alias->source];
          roots_[op.outputs[i]] = {root.source, root.first + alias->first};
        }
      }
      for (const Operand& operand : op.operands) {
        for (const ValueId id : operand.values) ReadDecoded(id, all_alias ? nullptr : &op, operand.param);
      }
      if (!all_alias) plan_.steps.push_back({&op, MakeFastStep({graph_, function_, op}, shared_), 0});
    }
    for (const ValueId id : function_.outputs) ReadDecoded(id, nullptr, "");
  }

  // Notes a compressed weight that is read as fp16. `op` reads it; nothing: it is passed on.
  void ReadDecoded(ValueId id, const Op* op, std::string_view param) {
    if (decoded_by_[id] == nullptr || plan_.places[id].kind == Kind::kDecoded) return;
    const bool as_it_is = op != nullptr && op->kind == OpKind::kConv && param == "weight" &&
                          FindScaledBytes(graph_, function_, id) &&
                          MakeFastStep({graph_, function_, *op}, shared_).has_value();
    if (as_it_is) return;
    plan_.places[id] = {Kind::kDecoded, id, 0};
    plan_.decoded_weights.push_back(decoded_by_[id]);
  }

  void FindLives() {
    for (size_t step = 0; step < plan_.steps.size(); ++step) {
      for (const Operand& operand : plan_.steps[step].op->operands) {
        for (const ValueId id : operand.values) last_use_[roots_[id].source] = step;
      }
    }
    for (const ValueId id : function_.outputs) last_use_[roots_[id].source] = kForever;
  }

  // Results that are a whole output are written where the caller wants them.
  void PlaceOutputs() {
    std::vector<bool> made(roots_.size(), false);
    for (const FastPlannedStep& step : plan_.steps) {
      for (const ValueId id : step.op->outputs) made[id] = true;
    }
    for (size_t i = 0; i < function_.outputs.size(); ++i) {
      const ValueId id = function_.outputs[i], root = roots_[id].source;
      const bool whole = function_.values[root].type.elems() == function_.values[id].type.elems();
      FastPlace& place = plan_.places[root];
      if (made[root] && whole && place.kind == Kind::kNowhere) place = {Kind::kOutput, i, 0};
    }
  }

  void PlaceResults() {
    for (size_t i = 0; i < plan_.steps.size(); ++i) {
      FastPlannedStep& step = plan_.steps[i];
      memory_.Advance(i);
      if (step.fast && step.fast->scratch_halves > 0) step.scratch = memory_.Take(step.fast->scratch_halves, i);
      for (const ValueId id : step.op->outputs) {
        FastPlace& place = plan_.places[id];
        // Some outputs of an op may be parts of other values while the rest are not; an unused one still is written.
        if (!IsHalf(id) || roots_[id].source != id || place.kind != Kind::kNowhere) continue;
        place = {Kind::kMemory, 0, memory_.Take(function_.values[id].type.elems(), std::max(last_use_[id], i))};
      }
    }
  }

  const Graph& graph_;
  const Function& function_;
  FastShared& shared_;
  std::vector<AliasOf> roots_;    // [values]: the value itself, or what it is a part of
  std::vector<size_t> last_use_;  // [values], of roots: the last step that reads it
  std::vector<const Op*> decoded_by_;
  Memory memory_;
  FastPlan plan_;
};

}  // namespace

FastPlan PlanFunction(const Graph& graph, const Function& function, FastShared& shared) {
  return Planner(graph, function, shared).Run();
}

}  // namespace npumoe
