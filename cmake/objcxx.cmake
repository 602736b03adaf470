# SPDX-License-Identifier: Apache-2.0
# Objective-C++ for the Core ML backend: Apple's compiler on macOS; clang with GNUstep's Foundation elsewhere, for tests
# only. Sets NPUMOE_OBJCXX when there is one, and then the target npumoe_objcxx_flags.
set(NPUMOE_OBJCXX OFF)
set(CMAKE_OBJCXX_STANDARD 20)
set(CMAKE_OBJCXX_STANDARD_REQUIRED ON)
set(CMAKE_OBJCXX_EXTENSIONS OFF)

if(APPLE)
  enable_language(OBJCXX)
  set(NPUMOE_OBJCXX ON)
elseif(NPUMOE_BUILD_TESTS)
  find_program(NPUMOE_CLANG clang++)
  find_path(NPUMOE_GNUSTEP Foundation/Foundation.h PATHS /usr/include/GNUstep)
  find_library(NPUMOE_GNUSTEP_BASE gnustep-base)
  # The runtime comes with the compiler that clang takes its C++ library from: the newest one.
  file(GLOB headers /usr/lib/gcc/*/*/include/objc/objc.h)
  list(SORT headers COMPARE NATURAL ORDER DESCENDING)
  if(headers)
    list(GET headers 0 header)
    cmake_path(GET header PARENT_PATH folder)
    cmake_path(GET folder PARENT_PATH NPUMOE_OBJC_HEADERS)
    find_library(NPUMOE_OBJC objc PATHS ${NPUMOE_OBJC_HEADERS}/.. NO_DEFAULT_PATH)
  endif()
  if(NPUMOE_CLANG AND NPUMOE_GNUSTEP AND NPUMOE_GNUSTEP_BASE AND NPUMOE_OBJC)
    set(NPUMOE_OBJCXX ON)
    set(CMAKE_OBJCXX_COMPILER ${NPUMOE_CLANG})
    if(CMAKE_CXX_COMPILER_LAUNCHER)
      set(CMAKE_OBJCXX_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
    endif()
    enable_language(OBJCXX)
    set(NPUMOE_OBJCXX_OPTIONS
        -fobjc-runtime=gcc -fno-objc-arc -fblocks -fexceptions -fobjc-exceptions -D_NATIVE_OBJC_EXCEPTIONS -DGNUSTEP
        -DGNUSTEP_BASE_LIBRARY=1 -DGNU_RUNTIME=1 -fconstant-string-class=NSConstantString -isystem ${NPUMOE_GNUSTEP}
        -idirafter ${NPUMOE_OBJC_HEADERS} -Werror=objc-method-access)
    add_library(npumoe_objcxx_flags INTERFACE)
    target_compile_options(npumoe_objcxx_flags INTERFACE "$<$<COMPILE_LANGUAGE:OBJCXX>:SHELL:$<JOIN:${NPUMOE_OBJCXX_OPTIONS}, >>")
    if(NPUMOE_SANITIZE MATCHES undefined)
      # Clang's own check, which the other compiler's sanitizer library does not have.
      target_compile_options(npumoe_objcxx_flags INTERFACE $<$<COMPILE_LANGUAGE:OBJCXX>:-fno-sanitize=function>)
    endif()
    target_link_libraries(npumoe_objcxx_flags INTERFACE ${NPUMOE_GNUSTEP_BASE} ${NPUMOE_OBJC})
  else()
    message(STATUS "No clang with GNUstep's Foundation: the tests of the Core ML backend are left out")
  endif()
endif()
