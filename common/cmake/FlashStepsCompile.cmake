# Flags for every target. -march and sanitizers are global on purpose: Eigen's allocator depends on
# them, and a program linked from both kinds dies in free().
if(FLASH_STEPS_NATIVE)
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag(-march=native FLASH_STEPS_HAS_MARCH_NATIVE)
  if(FLASH_STEPS_HAS_MARCH_NATIVE)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  endif()
endif()
if(FLASH_STEPS_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${FLASH_STEPS_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  if(FLASH_STEPS_SANITIZE_SKIP)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=${FLASH_STEPS_SANITIZE_SKIP}>)
  endif()
  add_link_options(-fsanitize=${FLASH_STEPS_SANITIZE})
endif()

# C++20 by flag: CMAKE_CXX_STANDARD would ask for CUDA20, too, which CMake 3.25 does not know. Constexpr functions of the standard library (std::min) may be
# called in kernels.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-std=c++20>
                    $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>
                    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)

# A starter of the homework (common/course): todo() is known in every file.
set(is_starter OFF)
if(EXISTS ${PROJECT_SOURCE_DIR}/.course/solutions.json)
  set(is_starter ON)
endif()
option(FLASH_STEPS_STARTER "todo() may stand in the place of lines; warnings are no errors" ${is_starter})
if(FLASH_STEPS_STARTER)
  set(todo ${PROJECT_SOURCE_DIR}/common/course/todo.hpp)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-include ${todo}>"
                      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-include ${todo}>")
endif()

# Warnings are errors in our own code, but not while lines are missing.
function(flash_steps_warnings target)
  # g++ 12 is wrong about AVX-512's undefined-value intrinsics, and about "literal" + std::string
  set(gcc_only -Wno-maybe-uninitialized -Wno-restrict)
  if(FLASH_STEPS_SANITIZE)
    list(APPEND gcc_only -Wno-uninitialized)  # AVX-512 again; without sanitizers it is right
  endif()
  set(gcc_only $<$<CXX_COMPILER_ID:GNU>:${gcc_only}>)
  set(clang_only $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-sign-conversion>)
  if(FLASH_STEPS_STARTER)
    set(clang_only $<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-invalid-constexpr>)
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wno-unused;-Wno-unknown-pragmas;${gcc_only};${clang_only}>
      $<$<COMPILE_LANGUAGE:CUDA>:--diag-suppress=177,550>)
    return()
  endif()
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Werror;-Wno-unknown-pragmas;${gcc_only};${clang_only}>
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xcompiler=-Wall,-Wextra,-Wno-restrict>)
endfunction()
