// SPDX-License-Identifier: Apache-2.0
// The subcommands of npumoe. Each takes the arguments after its name and returns the exit code.
#pragma once

#include <string>
#include <vector>

namespace npumoe {

int RunInfo(const std::vector<std::string>& args);
int RunExec(const std::vector<std::string>& args);
int RunRun(const std::vector<std::string>& args);
int RunChat(const std::vector<std::string>& args);
int RunEval(const std::vector<std::string>& args);
int RunCalibrate(const std::vector<std::string>& args);
int RunPlot(const std::vector<std::string>& args);
int RunBench(const std::vector<std::string>& args);
int RunPlan(const std::vector<std::string>& args);
int RunSimulate(const std::vector<std::string>& args);
int RunSimulationReport(const std::vector<std::string>& args);
int RunCompile(const std::vector<std::string>& args);
// For NpuOptions::compiler: a package in a process of its own. Not shown in the usage.
int RunCompilePackage(const std::vector<std::string>& args);
inline constexpr char kCompilePackage[] = "compile-package";  // its name
int RunEstimate(const std::vector<std::string>& args);
int RunCache(const std::vector<std::string>& args);
int RunDoctor(const std::vector<std::string>& args);
int RunMakeModel(const std::vector<std::string>& args);

}  // namespace npumoe
