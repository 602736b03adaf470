# SPDX-License-Identifier: Apache-2.0
# Precompiled headers of others: half of what a small file takes to compile. A set for each
# group of options, since GCC wants the same ones where they are made and where they are used.
set(npumoe_headers <algorithm> <cmath> <filesystem> <fstream> <functional> <map> <memory> <optional> <span> <sstream> <string>
                   <thread> <vector> <fmt/format.h> <nlohmann/json.hpp>)
if(NPUMOE_PRECOMPILE_HEADERS)
  file(WRITE ${CMAKE_BINARY_DIR}/headers.cc "// What headers are compiled for.\n")
  function(npumoe_header_set name)
    cmake_parse_arguments(ARG "" "" "HEADERS;PRIVATE" ${ARGN})
    add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/headers.cc)
    target_link_libraries(${name} PRIVATE npumoe_flags nlohmann_json::nlohmann_json ${ARG_PRIVATE})
    target_precompile_headers(${name} PRIVATE ${npumoe_headers} ${ARG_HEADERS})
    target_compile_options(${name} PRIVATE -Wno-unknown-pragmas)  # CMake's own, for Clang
  endfunction()
  npumoe_header_set(npumoe_headers)
  npumoe_header_set(npumoe_cold_headers HEADERS <CLI/CLI.hpp> PRIVATE npumoe_cold_flags CLI11::CLI11)
  if(NPUMOE_BUILD_TESTS)
    npumoe_header_set(npumoe_test_headers HEADERS <gtest/gtest.h> PRIVATE npumoe_cold_flags GTest::gtest_main)
  endif()
endif()

# npumoe_precompiled(target set): lets the target use one of the sets above, if there are any.
function(npumoe_precompiled target set)
  if(NPUMOE_PRECOMPILE_HEADERS)
    target_precompile_headers(${target} REUSE_FROM ${set})
  endif()
endfunction()
