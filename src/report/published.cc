// SPDX-License-Identifier: Apache-2.0
// The only place with figures of the paper: "Efficient Mixture-of-Experts LLM Inference with Apple Silicon NPUs",
// Benazir and Lin, arXiv 2604.18788v1.
#include <array>

#include "npumoe/report.h"

namespace npumoe {
namespace {

constexpr std::string_view kAbstract = "abstract of arXiv 2604.18788v1";
constexpr std::string_view kSummaries = "summaries of arXiv 2604.18788v1";
constexpr std::string_view kOneSummary = "one summary of arXiv 2604.18788v1";
constexpr std::string_view kHigh = "high", kMedium = "medium", kLow = "low";
constexpr std::string_view kEverywhere = "range over 3 models, 4 workloads and the baselines, Apple M-series";
constexpr std::string_view kPeak = "Phi MoE on M2 Ultra, prompt 1024, chunk 256, against naive";
constexpr std::string_view kUnclear =
    "prompt 1024; against cpu at chunk 256 or against naive at chunk 512: sources differ";
constexpr std::string_view kAblation = "against base (one graph an expert); model and prompt not known";

constexpr std::array kFigures{
    PublishedFigure{"latency_gain", "latency lower by", 1.32, 5.55, "x", kEverywhere, kAbstract, kHigh},
    PublishedFigure{"energy_gain", "energy lower by", 1.81, 7.37, "x", kEverywhere, kAbstract, kHigh},
    PublishedFigure{"cpu_gain", "CPU cycles fewer by", 1.78, 5.54, "x", kEverywhere, kAbstract, kHigh},
    PublishedFigure{"latency_peak", "latency lower by, best case", 5.55, 5.55, "x", kPeak, kSummaries, kMedium},
    PublishedFigure{"energy_peak", "energy lower by, best case", 7.37, 7.37, "x", kUnclear, kSummaries, kLow},
    PublishedFigure{"end_to_end_gain", "end to end (about 8 decoded tokens) faster by, best case", 3.86, 3.86, "x",
                    "against naive", kOneSummary, kMedium},
    PublishedFigure{"expert_gain", "expert FFNs of a MoE block faster by", 6.35, 6.35, "x",
                    "3369.86 ms to 530.91 ms against naive; model not known", kSummaries, kMedium},
    PublishedFigure{"grouping_cut", "MoE block's time less by grouping alone", 54, 54, "%", "model not known",
                    kSummaries, kMedium},
    PublishedFigure{"ablation_tiers_latency", "+ tiers: latency lower by", 1.48, 1.48, "x", kAblation, kSummaries,
                    kMedium},
    PublishedFigure{"ablation_groups_latency", "+ groups: latency lower by", 2.11, 2.11, "x", kAblation, kSummaries,
                    kMedium},
    PublishedFigure{"ablation_groups_energy", "+ groups: energy lower by", 3.74, 3.74, "x", kAblation, kSummaries,
                    kMedium},
    PublishedFigure{"ablation_all_latency", "+ residency: latency lower by", 2.89, 2.89, "x", kAblation, kSummaries,
                    kMedium},
    PublishedFigure{"padding", "padding", 31.7, 37.5, "%", "mean 35.35 %", kSummaries, kMedium},
    PublishedFigure{"padding_mean", "padding, mean", 35.35, 35.35, "%", "", kSummaries, kMedium},
    PublishedFigure{"dropped", "dropped assignments", 10, 22, "%",
                    "HellaSwag 10.63 %, BoolQ 14.66 %, RULER multi-key 21.00 %", kSummaries, kMedium},
};

}  // namespace

std::span<const PublishedFigure> PublishedFigures() { return kFigures; }

}  // namespace npumoe
