# SPDX-License-Identifier: Apache-2.0
# Helpers for our own targets: one static library per folder of src/, tests beside the code they test.

# What users of the libraries get: the public headers and the language they are written in.
add_library(npumoe_public INTERFACE)
target_compile_features(npumoe_public INTERFACE cxx_std_20)
target_include_directories(npumoe_public INTERFACE ${PROJECT_SOURCE_DIR}/include)

# What our own targets are compiled with, and nobody else.
add_library(npumoe_flags INTERFACE)
target_include_directories(npumoe_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_options(npumoe_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wvla
                                              -ffp-contract=off)
if(CMAKE_BUILD_TYPE STREQUAL "Debug" OR NPUMOE_SANITIZE)
  target_compile_definitions(npumoe_flags INTERFACE NM_DEBUG_CHECKS)
endif()
if(NPUMOE_SANITIZE)
  # Left out: checks that the address sanitizer's trap on the bad address makes anyway, and that cost a third of the build.
  target_compile_options(npumoe_flags INTERFACE -fsanitize=${NPUMOE_SANITIZE} -fno-sanitize-recover=all
                                                -fno-sanitize=null,vptr,object-size -fno-omit-frame-pointer)
  target_link_options(npumoe_public INTERFACE -fsanitize=${NPUMOE_SANITIZE})
endif()
find_package(Threads REQUIRED)
target_link_libraries(npumoe_flags INTERFACE npumoe_public Threads::Threads)

# For what needs no speed, the tests among it: compiles in half the time.
add_library(npumoe_cold_flags INTERFACE)
if(NPUMOE_SANITIZE AND NOT NPUMOE_BUILD_FUZZ)  # a fuzzer runs little else
  target_compile_options(npumoe_cold_flags INTERFACE -O0)
else()
  target_compile_options(npumoe_cold_flags INTERFACE $<$<CONFIG:Release>:-O1>)
endif()

# npumoe_library(name SOURCES a.cc ... DEPENDS other_library ... [PRIVATE third_party ...] [COLD | KERNELS])
# COLD: nothing in it takes time, so it is compiled quickly rather than well. KERNELS: vectors and little else.
function(npumoe_library name)
  cmake_parse_arguments(ARG "COLD;KERNELS" "" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  add_library(npumoe_${name} STATIC ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPENDS PREPEND npumoe_)
  target_link_libraries(npumoe_${name} PUBLIC npumoe_public ${ARG_DEPENDS} PRIVATE npumoe_flags ${ARG_PRIVATE})
  if(ARG_COLD)
    target_link_libraries(npumoe_${name} PRIVATE npumoe_cold_flags)
  elseif(ARG_KERNELS AND NPUMOE_SANITIZE MATCHES address)
    # Hundreds of small functions become one, and each one's vectors a scope of their own: half of the time went there.
    target_compile_options(npumoe_${name} PRIVATE -fno-sanitize-address-use-after-scope)
  endif()
endfunction()

# npumoe_test(name SOURCES x_test.cc ... DEPENDS library ... [PRIVATE third_party ...] [LABELS one] [OPTIMISED]
#             [ONE_PROCESS] [COST n]):
# one test program. Every TEST in it is a ctest test of its own, so that ctest counts and names them (program.Suite.Test) and
# shows GTEST_SKIP as skipped; under the sanitizers the program is one test. LABELS slow or oracle: not run under the sanitizers
# and not by `scripts/test --fast`. OPTIMISED: looks at what the optimiser makes of the code, or at more cases than under the
# sanitizers, and so belongs into a build with NPUMOE_OPTIMISED_TESTS_ONLY. ONE_PROCESS keeps the program whole, for suites whose
# costly fixture is shared by many TESTs. COST: seconds, roughly, of what takes long: the longest begin first, so that no core waits
# at the end.
include(GoogleTest)
function(npumoe_test name)
  cmake_parse_arguments(ARG "ONE_PROCESS;OPTIMISED" "LABELS;COST" "SOURCES;DEPENDS;PRIVATE" ${ARGN})
  foreach(source ${ARG_SOURCES})
    set_property(GLOBAL APPEND PROPERTY NPUMOE_TEST_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/${source})
  endforeach()
  if(NOT NPUMOE_BUILD_TESTS OR (NPUMOE_SANITIZE AND ARG_LABELS MATCHES "slow|oracle") OR
     (NPUMOE_OPTIMISED_TESTS_ONLY AND NOT ARG_OPTIMISED AND NOT ARG_LABELS MATCHES "slow|oracle"))
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_DEPENDS PREPEND npumoe_)
  target_link_libraries(${name} PRIVATE npumoe_flags npumoe_cold_flags ${ARG_DEPENDS} ${ARG_PRIVATE} GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE NM_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_property(GLOBAL APPEND PROPERTY NPUMOE_TEST_TARGETS ${name})
  # Under the sanitizers a program is one test: starting it takes longer than most TESTs, and so does making fixtures.
  set(one_process ${ARG_ONE_PROCESS})
  set(properties TIMEOUT 600)
  if(NPUMOE_SANITIZE)
    set(one_process ON)
    set(properties TIMEOUT 1800)
  endif()
  if(ARG_COST)
    list(APPEND properties COST ${ARG_COST})
  endif()
  if(ARG_LABELS)  # an empty one would be lost on the way, and its name take the next word
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  if(one_process)
    add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name} PROPERTIES ${properties})
  else()
    # Names are read when ctest runs, not while building: a broken program then fails as a test, not as a build.
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 NO_PRETTY_VALUES TEST_PREFIX ${name}.
                         PROPERTIES ${properties})
  endif()
endfunction()

# Stops configuring when a *_test.cc on disk is in no test program: a forgotten test must not look like a passing one.
function(npumoe_check_tests_listed)
  if(NOT NPUMOE_BUILD_TESTS)
    return()
  endif()
  file(GLOB_RECURSE on_disk CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*_test.cc ${PROJECT_SOURCE_DIR}/apps/*_test.cc
       ${PROJECT_SOURCE_DIR}/tests/*_test.cc ${PROJECT_SOURCE_DIR}/fuzz/*_test.cc ${PROJECT_SOURCE_DIR}/bench/*_test.cc)
  get_property(listed GLOBAL PROPERTY NPUMOE_TEST_SOURCES)
  foreach(path ${on_disk})
    if(NOT path IN_LIST listed)
      file(RELATIVE_PATH shown ${PROJECT_SOURCE_DIR} ${path})
      message(FATAL_ERROR "${shown} is in no npumoe_test(): list it in the CMakeLists.txt beside it")
    endif()
  endforeach()
endfunction()
